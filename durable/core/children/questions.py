"""The questions that a run asks the store about its children, and the changes to children that it requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durable.core.effects import Ask
from durable.core.records import ChildRecord


@dataclass(frozen=True, slots=True)
class PeekChild(Ask):
    """Query a child. Answer: its run or None, and with `with_origin` its `ChildRecord` or None."""

    run_id: str
    with_origin: bool = False


@dataclass(frozen=True, slots=True)
class PeekKey(Ask):
    """Query who has a key of a workflow. Answer: a `KeyOwner`, None for a key that is free."""

    workflow: str
    key: str


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The open run that has a key. `child` is its record as a child, None for other runs.

    `chain` leads from it to the run of the pass, each the parent of the next, if it is that run or one of its
    ancestors.
    """

    run_id: str
    child: ChildRecord | None
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Supersede(Ask):
    """Cancel the open run `run_id` if it still has this key of the workflow, and free the key for a child of this run.

    Answer: True; False if that run is being compensated, and nothing was changed.
    """

    workflow: str
    key: str
    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class UndoChild(Ask):
    """Begin the compensation of a child (`durable.core.children.rollback.change_of`).

    Answer: its run then, None if it is gone.

    `only_open`: leave a child that has ended, and cancel one that has not, with its rollback. `is_replaced`: the run
    starts another child in its place.
    """

    run_id: str
    only_open: bool = False
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class RecoverChild(Ask):
    """Recover a failed child of a map, with the children that made it fail.

    One that cannot be recovered stays as it is.

    `by` is the actor of the parent's recovery, for the audit log.
    """

    run_id: str
    by: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PeekGroup(Ask):
    """Query a group of children. Answer: its `GroupRecord`, or None if there is none."""

    group_id: str


@dataclass(frozen=True, slots=True)
class PeekMembers(Ask):
    """Query the children of a group after a position, in order. Answer: at most `count` of `Member`.

    With `is_lost`, only those that were cancelled or have been asked to end.
    """

    group_id: str
    after: int
    count: int
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class PeekTaken(Ask):
    """Query which of these ids are taken by runs. Answer: a set of them."""

    run_ids: Sequence[str]
