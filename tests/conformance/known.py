"""Scenarios whose trace is wrong, because the reference engine has a fault there that this one repairs.

Each has its reason, and the beginnings of all differences that the repair makes: whatever else differs is a failure,
and so is a difference that is not there any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`reason` says what is wrong in the trace, `differences` where it shows."""

    reason: str
    differences: tuple[str, ...]

    def unexplained(self, found: Sequence[str]) -> list[str]:
        """The differences that this fault does not explain, and what it explains that is not found."""
        absent = [f"no longer: {each}" for each in self.differences if not any(text.startswith(each) for text in found)]
        return [text for text in found if not text.startswith(self.differences)] + absent


_INSIDE_IS_UNVISITED = (
    "get_version gives 1 after a completed join or race: the reference takes the entries inside it for entries that the "
    "code has not visited, and so for a history of older code. What lies inside it counts as visited."
)
_COMPENSATED_STEPS_STAND = (
    "After a rollback the reference recovers with the compensated steps still done: it ships without charging, and "
    "does not compensate again. Here they run again."
)
_BRANCH_STAYS_FAILED = (
    "The reference does not get a run going again that failed in a race: the branch stays failed, and the trace ends. "
    "Here recovery resets the branch too."
)
_WINNER_IS_LOST = (
    "The race is won, its value is in the output, but its entry has no winner: the reference takes for written what "
    "changed while it wrote."
)
_MESSAGE_IS_RECEIVED_TWICE = (
    "Two branches of a join wait for the same queue and both receive the one message that came: the reference reads the "
    "inbox and takes from it in two moves. Here it is received once, and the other branch waits on."
)

KNOWN: Mapping[str, Fault] = {
    "1-124": Fault(_INSIDE_IS_UNVISITED, ("pass 5: output", "entry gate-14: resolved: expected 1, got 3")),
    "1-280": Fault(_INSIDE_IS_UNVISITED, ("pass 5: output", "entry gate-14: resolved: expected 1, got 3")),
    "1-100": Fault(
        _COMPENSATED_STEPS_STAND,
        ("pass 8", "pass 9", "pass 10", "pass 11", "entry step-2", "entry step-3", "entry step-5"),
    ),
    "1-130": Fault(_COMPENSATED_STEPS_STAND, ("pass 10", "pass 11", "entry step-3", "entry step-11")),
    "1-354": Fault(_COMPENSATED_STEPS_STAND, ("pass 4: call", "pass 4: rollbacks")),
    "1-364": Fault(
        _COMPENSATED_STEPS_STAND,
        ("pass 9", "pass 10", "pass 11", "entry step-2", "entry loop-4/~0/step-5", "entry loop-4/~1/step-5"),
    ),
    "1-371": Fault(_COMPENSATED_STEPS_STAND, ("pass 7", "pass 8", "entry step-15")),
    "1-508": Fault(_COMPENSATED_STEPS_STAND, ("pass 4: call", "pass 4: rollbacks")),
    "1-321": Fault(
        _BRANCH_STAYS_FAILED,
        (
            "pass 10: expected none",
            "entry race-15: branch b0",
            "entry race-15/b0/join-1: branches",
            "entry race-15/b0/join-1/b0/step-3",
        ),
    ),
    "1-261": Fault(_WINNER_IS_LOST, ("entry race-4: winner: expected None, got 'b0'", "entry race-4: branch b0")),
    "1-628": Fault(
        _MESSAGE_IS_RECEIVED_TWICE,
        (
            "pass 5",
            "pass 6",
            "pass 7",
            "pass 8",
            "pass 9",
            "pass 10",
            "entry try-2/join-3/b1/race-7/b0/wait-5: received",
            "entry try-2/join-8/b0/wait-9: received",
            "entry try-2/join-8/b1/join-10/b0/step-11: attempts",
        ),
    ),
}
