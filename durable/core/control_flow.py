"""The control flow that ends a pass or a branch without ending the run.

It derives from `BaseException`, so that an `except Exception` in a workflow cannot swallow a sleep or an eviction. None
of it is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from durable.core.location import LINK_QUEUES


class ControlFlow(BaseException):
    """The base class of the control flow that ends a pass or a branch without ending the run."""


class Park(ControlFlow):
    """Nothing more can be done now: wait for `deadline`, for a message, or for either.

    `names` is None (no message wanted), empty (a message of any queue) or the queues' names; with "" among them, any
    queue and those of these links. `doing` describes the wait
    for the run's summary (`durable.core.summary.Doing`). `children` and `groups` are the ids of children and groups of
    children whose ends the run waits for. `slots` are the locations of operations that wait for a slot of a limit.
    """

    def __init__(
        self,
        deadline: datetime | None,
        names: frozenset[str] | None = None,
        doing: Sequence[Mapping[str, Any]] = (),
        children: frozenset[str] = frozenset(),
        slots: frozenset[str] = frozenset(),
        groups: frozenset[str] = frozenset(),
    ) -> None:
        self.deadline = deadline
        self.names = names
        self.doing = doing
        self.children = children
        self.slots = slots
        self.groups = groups
        super().__init__()

    def merged(self, other: Park) -> Park:
        """Combine the waits of two branches: the earlier deadline, and the messages and children of both."""
        deadlines = [each for each in (self.deadline, other.deadline) if each is not None]
        names = _merged_names(self.names, other.names)
        doing = [*self.doing, *other.doing]
        children, slots, groups = self.children | other.children, self.slots | other.slots, self.groups | other.groups
        return Park(min(deadlines, default=None), names, doing, children, slots, groups)


def _merged_names(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    if one and other and "" not in one | other:
        return one | other
    # any queue, and beside it those of links, which are none of "any"
    links = frozenset(each for each in one | other if each.startswith(LINK_QUEUES))
    return links | {""} if links else frozenset()


class Evicted(ControlFlow):
    """The pass has to end: the worker stops, or an operator asked for a pause or a cancel (`request`)."""

    def __init__(self, request: str = "") -> None:
        self.request = request
        super().__init__(request)


class BranchCancelled(ControlFlow):
    """This branch lost its race."""


class NotRestored(ControlFlow):
    """What travels with the run could not be put in force for a call: `error` says so, a mistake of the code."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


class StartRefused(ControlFlow):
    """A child that is to take the place of a lost one cannot be started. The run fails by `error`, undoing nothing."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


class LeaseLost(ControlFlow):
    """The run has a newer fence: another worker has claimed it. Nothing was written."""


class CommitsLost(LeaseLost):
    """The database has lost earlier commits of this pass (`durable.core.witnesses`). Nothing was written.

    As after a lost lease, the pass writes nothing more. The run is still this worker's, which releases it.
    """


class EndUnknown(ControlFlow):
    """The workflow calls a function in the commit of an end, and this process does not know the workflow.

    Nothing was written: another process has to end the run.
    """


class PassAborted(ControlFlow):
    """The store could not say whether a commit happened; the next pass reads the truth."""
