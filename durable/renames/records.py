"""The records of a run under another location: what of an entry, of a run's row and of a summary names a location."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from durable.core.places import Place, of_arguments, of_branch
from durable.core.records import EntryKind
from durable.core.summary import Summary, SummaryKind
from durable.models import Entry
from durable.models.rows import dump_summary
from durable.renames.places import Renaming

#: Codec text of the first place, as text of the second.
Copied: TypeAlias = Callable[[str, Place, Place], str]


def renamed_data(data: dict[str, Any], renaming: Renaming) -> dict[str, Any]:
    """Return the engine's data of an entry with its locations under the new name."""
    changed = dict(data)
    if "branches" in data:
        changed["branches"] = {
            name: {**each, "origins": [renaming.of(origin) for origin in each["origins"]]}
            if each.get("origins")
            else each
            for name, each in data["branches"].items()
        }
    if "received" in data:
        changed["received"] = [
            {**each, "completed_in": renaming.of(each["completed_in"])} if each.get("completed_in") else each
            for each in data["received"]
        ]
    return changed


def rebind(entry: Entry, location: str, copied: Copied) -> None:
    """Make the codec text of an entry belong to the new location. Raises PayloadError."""
    run_id, old = entry.run_id, entry.location
    if entry.output is not None:
        entry.output = copied(entry.output, Place(run_id, "output", old), Place(run_id, "output", location))
    if entry.arguments is not None and entry.kind != EntryKind.SEND:
        before = of_arguments(run_id, entry)
        entry.arguments = copied(entry.arguments, before, before._replace(where=location))
    data: dict[str, Any] = dict(entry.data)
    if entry.kind == EntryKind.LOOP and data.get("state") is not None:
        data["state"] = copied(data["state"], Place(run_id, "state", old), Place(run_id, "state", location))
    if "branches" in data:
        data["branches"] = {
            name: {
                **each,
                "output": copied(each["output"], of_branch(run_id, old, name), of_branch(run_id, location, name)),
            }
            if each.get("output") is not None
            else each
            for name, each in data["branches"].items()
        }
    entry.data = data


def renamed_generations(generations: dict[str, int], renaming: Renaming) -> dict[str, int]:
    """Return how often each location was begun again, under the new name."""
    found: dict[str, int] = {}
    for location, number in generations.items():
        new = renaming.of(location)
        found[new] = found.get(new, 0) + number
    return found


def renamed_summary(summary: str, renaming: Renaming) -> str:
    """Return a summary with the locations in its data under the new name."""
    stored = dump_summary(summary)
    found = Summary.load(stored)
    if found.kind is SummaryKind.TEXT:
        return summary
    facts = json.loads(json.dumps(dict(found.facts)))
    for each in (facts, *(facts.get("doing") or ())):
        if isinstance(each.get("location"), str):
            each["location"] = renaming.shown(each["location"])
    return Summary(found.kind, **facts) if facts != dict(found.facts) else summary
