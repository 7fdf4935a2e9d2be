"""Waits that can never end: a run that would wait for a slot of a limit which it keeps itself, or which runs keep that
wait for it.

Owns who counts as such a run. A run with `hold="open"` keeps its slot until its own end, so nothing that it waits for
can have the slot before. What a run holds only while a worker executes it is free as soon as the run parks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable.core.errors import DeadlockError
from durable.core.slot_records import SlotKind, SlotRow, SlotWant


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run and whether it waits for the end of the one below it in its family."""

    run_id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Deadlock:
    """A limit all of whose slots are kept by runs of `chain`, from the topmost of them to the run that would wait.

    `is_certain`: each run of the chain waits for the next one; otherwise one may end without the next.
    """

    limit: str
    holders: tuple[str, ...]
    chain: tuple[str, ...]
    is_certain: bool = True

    def error(self, waiter: str) -> DeadlockError:
        """Return the error that the workflow sees. `waiter` is what would wait: "child "a"", "step "b""."""
        held = " and ".join(f'"{each}"' for each in self.holders)
        waits = ", ".join(
            f'"{above}" waits for "{below}"' for above, below in zip(self.chain, self.chain[1:], strict=False)
        )
        return DeadlockError(
            f"{waiter} would wait for the limit {self.limit} for ever: run {held} {'keeps' if len(self.holders) == 1 else 'keep'} "
            f"all of it until {'its end' if len(self.holders) == 1 else 'their ends'}"
            f'{f", and {waits}" if waits else ""}; write hold="running", or use another limit or key'
        )


def find(
    family: Sequence[Ancestor], slots: Sequence[SlotRow], want: SlotWant, at_once: int, own: frozenset[SlotKind]
) -> Deadlock | None:
    """Return the deadlock of a run that wants a slot of a limit with so many, None if there is none.

    `family` are the run and its ancestors, from the run upwards, `slots` those that they hold. `own` are the kinds of
    the run's own slots that it keeps while it waits for this one.
    """
    holders: list[str] = []
    is_certain = True
    for place, member in enumerate(family):
        if place:
            is_certain = is_certain and member.waits
        kinds = own if not place else frozenset({SlotKind.OPEN})
        held = [
            each
            for each in slots
            if each.run_id == member.run_id
            and each.is_held
            and (each.limit, each.key) == (want.limit, want.key)
            and each.kind in kinds
        ]
        holders += [member.run_id] * bool(held)
        if at_once and len(holders) >= at_once:
            chain = tuple(each.run_id for each in family[place::-1])
            return Deadlock(want.label, tuple(reversed(holders)), chain, is_certain)
    return None
