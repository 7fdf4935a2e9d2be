"""The engine's own records of an operation, beside the workflow's values: what REST and the export have as `data`.

Must not hold a value of the workflow, or a tag's value or an error's text that was not redacted.
"""

from __future__ import annotations

from typing import Any, Final

from durable.core.entry_shapes import readable
from durable.core.messages import MISFIT, NOT_ACCEPTED, REFUSED
from durable.core.records import EntryKind
from durable.core.tag_entries import PRUNED
from durable.inspection.payloads import redacted
from durable.inspection.tags import shown_tags
from durable.models import Entry, Run

#: The members of an entry's data that hold values of the workflow.
_VALUES: Final = {
    EntryKind.LOOP: ("state", "open", PRUNED),
    EntryKind.MESSAGE: ("received",),
    EntryKind.SEND: (NOT_ACCEPTED,),
    EntryKind.JOIN: ("branches",),
    EntryKind.RACE: ("branches", PRUNED),
}


def entry_facts(run: Run, entry: Entry) -> dict[str, Any]:
    """Return what is recorded of the operation by name: a child's id, a map's counts, a sleep's deadline."""
    data = whole_data(entry)
    facts = _without(data, *_VALUES.get(EntryKind(entry.kind), ()))
    if entry.kind == EntryKind.MESSAGE:
        facts["received"] = [_received(each) for each in data.get("received", ())]
    if entry.kind in (EntryKind.JOIN, EntryKind.RACE):
        branches = data.get("branches", {})
        facts["branches"] = {name: _without(branch, "output", "error") for name, branch in branches.items()}
    if entry.kind == EntryKind.TAG:
        facts |= {part: shown_tags(run.workflow, data.get(part, {})) for part in ("tags", "before")}
    if entry.kind == EntryKind.MAP and "first" in facts.get("failure", ()):
        facts["failure"] = {**facts["failure"], "first": [_failed(run, each) for each in facts["failure"]["first"]]}
    return facts


def whole_data(entry: Entry) -> dict[str, Any]:
    """Return the data of an entry that was read with all of it, and keep the entry's own to the shape that it has."""
    entry.data = readable(entry.kind, entry.data)
    return dict(entry.data)


def _received(record: dict[str, Any]) -> dict[str, Any]:
    shown = _without(record, "body", "completed", REFUSED, MISFIT)
    return {**shown, **{name: True for name in (REFUSED, MISFIT) if name in record}}


def _failed(run: Run, child: list[Any]) -> list[Any]:
    """Return one of the first failed children of a map: its number, its id, and the type and the text of its error."""
    number, child_id, kind, message = child[:4]
    return [number, child_id, kind, str(redacted(run.workflow, "error", message))]


def _without(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}
