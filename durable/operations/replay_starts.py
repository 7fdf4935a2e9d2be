"""The children that a replay starts again: where, of which workflow, and how many.

Read from the entries that go. Those of a loop's older iterations are pruned: there the store counts the children.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from durable.core.child_entries import divided, started_number
from durable.core.location import is_within, listed
from durable.core.replay import Replay
from durable.core.words import Sentence, gettext_noop
from durable.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsAgain:
    """Children that are started again: `number` of them, as new runs of `workflow`, with new idempotency keys.

    `location` is the operation that has started them, or a loop around it whose older iterations are pruned: of such a
    loop all children are counted that were ever started in it.
    """

    location: str
    workflow: str
    number: int


def starts_again(store: Store, replay: Replay) -> list[StartsAgain]:
    """Return what is started again, in the order of the operations. One statement for each pruned loop, else none."""
    ordinals = {each.location: each.ordinal for each in replay.history.deleted.values()}
    pruned = [each.removesuffix("/") for each in divided(replay.history.dropped_children())[1]]
    loops = [each for each in pruned if not any(each != other and is_within(each, other) for other in pruned)]
    counts = {loop: store.count_children_below(replay.run.id, f"{loop}/") for loop in loops}
    loops = [loop for loop in loops if counts[loop]]
    found: Counter[tuple[str, str]] = Counter()
    for each in replay.history.deleted.values():
        if number := started_number(each):
            around = next((loop for loop in loops if is_within(each.location, loop)), each.location)
            found[around, each.data["workflow"]] += number
    for loop in loops:
        for workflow, number in counts[loop].items():
            found[loop, workflow] = max(found[loop, workflow], number)
    in_order = sorted(found.items(), key=lambda item: (ordinals[item[0][0]], item[0]))
    return [
        StartsAgain(location=location, workflow=workflow, number=number) for (location, workflow), number in in_order
    ]


def starts_note(numbers: Mapping[str, int]) -> str:
    """Return how many children are started again, given their numbers by workflow, the largest first; "" for none."""
    total = sum(numbers.values())
    if not total:
        return ""
    text = (
        gettext_noop(
            "{number} child of {workflows} is started again, as a new run with new idempotency keys: what the one before did "
            "stays, and is done again"
        )
        if total == 1
        else gettext_noop(
            "{number} children of {workflows} are started again, as new runs with new idempotency keys: what those before did "
            "stays, and is done again"
        )
    )
    return Sentence(text, number=total, workflows=listed(numbers))
