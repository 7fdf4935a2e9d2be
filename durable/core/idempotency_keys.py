"""Idempotency keys: one for each external effect of a run, the same for all attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from durable.core.records import RunRecord
from durable.core.renames import canonical, names_of


def idempotency_key(run: RunRecord, location: str, purpose: str = "step") -> str:
    """Return 32 hexadecimal digits: the same for all attempts, and another for each run, location and purpose.

    A step that is executed again after a compensation or a replay gets a new key: the external system must not answer
    with the earlier result.
    """
    oldest = canonical(run.workflow, location)  # a rename must not make another effect of it
    text = f"{run.id}\0{oldest}\0{generation(run, location)}\0{purpose}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def generation(run: RunRecord, location: str) -> int:
    """Return how often `location` of the run was begun again, by itself or with something around it.

    Locations around it count too, because a loop's pruned iterations have left no entries that could be counted.
    """
    generations: Mapping[str, int] = run.generations
    if not generations:  # the usual case
        return 0
    if (names := names_of(run.workflow)) is not None:
        location = names.canonical(location)
        found: dict[str, int] = {}
        for each, number in generations.items():
            oldest = names.canonical(each)
            found[oldest] = found.get(oldest, 0) + number
        generations = found
    count = generations.get(location, 0) + generations.get("", 0)
    end = location.rfind("/")
    while end > 0:
        count += generations.get(location[:end], 0)
        end = location.rfind("/", 0, end)
    return count
