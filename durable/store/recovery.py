"""Children of a run as the verbs see them, and the recovery of a run after those that made it fail.

Shared by the verbs of operators, and by a pass, which recovers the children of a map. Each passes in the function that
changes a run's row and writes the audit log: for its own actor, or for the actor who recovered the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from durable.core.children.entries import unread_children
from durable.core.records import EntryRecord, Request, RunChange, RunRecord, RunState
from durable.core.rewind.recovery import failed_children, failed_groups, stopped_groups
from durable.core.rewind.recovery import recover as recovery_of
from durable.store.base import Store

Decide = Callable[[RunRecord, Callable[[], list[EntryRecord]]], RunChange]
#: Changes a run; the flag is True if it is recovered because of its parent.
Change = Callable[[str, Decide, bool], None]

_CANCELLING: Final = (Request.CANCEL, Request.CANCEL_ROLLBACK)
_BATCH: Final = 500  # children of a group that one query reads
_AT_ONCE: Final = 100  # children of maps to recover in the transaction of their parent


def cancelled_children(store: Store, entries: Iterable[EntryRecord]) -> set[str]:
    """Return the children that are or will be cancelled, and whose ends these entries have not recorded.

    The end of their parent has cancelled them; a parent that continues has to start new ones.
    """
    unread = unread_children(entries)
    rows = store.get_many(unread) if unread else {}
    gone = {run.id for run in rows.values() if run.state == RunState.CANCELLED or run.pending_request in _CANCELLING}
    return gone | (set(unread) - rows.keys())


def members(store: Store, groups: Iterable[str], state: RunState | None = None, most: int | None = None) -> list[str]:
    """Return the children of these groups, with `state` only those in that state; at most `most`, None for all."""
    found: list[str] = []
    for group in groups:
        after = -1
        while batch := store.members(group, after, _BATCH):
            found += [each.run_id for each in batch if state is None or each.state == state]
            after = batch[-1].position
            if most is not None and len(found) >= most:
                return found[:most]
    return found


def _stopped_members(store: Store, groups: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the children whose own compensation has stopped: of these groups, and among the `others`."""
    rows = store.get_many([*members(store, groups, RunState.FAILED), *others])
    return sorted(each.id for each in rows.values() if each.state == RunState.FAILED and each.state_after_rollback)


# -- recovery


class _ChildrenFirst(Exception):
    """Raised, with nothing changed, if children have to be recovered before their parent.

    A child's row is locked before its parent's.
    """

    def __init__(self, children: Sequence[str], groups: Sequence[str]) -> None:
        self.children = children
        self.groups = groups
        super().__init__()


def recover_with_children(store: Store, run_id: str, now: datetime, by: Mapping[str, Any], change: Change) -> None:
    """Recover a failed run, and before it the children that made it fail, in the same transaction.

    Recovers only the first hundred children of maps; the next pass of the run recovers the others in batches, and notes
    `by` as the actor. Raises the errors of `change`.
    """
    recovery = _Recovery(store, now, by, change)
    try:
        recovery.recover(run_id, is_consequence=False)
    except _ChildrenFirst as first:
        with store.transaction():
            recovery.recover_after(run_id, first, is_consequence=False)


class _Recovery:
    def __init__(self, store: Store, now: datetime, by: Mapping[str, Any], change: Change) -> None:
        self._store = store
        self._now = now
        self._by = by
        self._change = change

    def recover(
        self, run_id: str, known: Collection[str] = (), anew: Collection[str] = (), *, is_consequence: bool
    ) -> None:
        """Recover the run. Raises _ChildrenFirst if other children than the known ones made it fail."""

        def decide(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
            history = entries()
            children = [
                *failed_children(run, history),
                *_stopped_members(self._store, *stopped_groups(run, history)),
            ]
            groups = [] if known else failed_groups(run, history)
            children += members(self._store, groups, RunState.FAILED, _AT_ONCE)
            if not set(children) <= set(known):
                raise _ChildrenFirst(children, groups)
            lost = {*anew, *cancelled_children(self._store, history)}
            return recovery_of(run, history, lambda: self._store.messages(run.id), self._now, lost, self._by)

        self._change(run_id, decide, is_consequence)

    def recover_after(self, run_id: str, first: _ChildrenFirst, *, is_consequence: bool) -> None:
        """Recover those of these children that have failed, and then the run, which replaces cancelled and deleted
        ones.

        A replay has its original's children in its history. Their ends do not wake it, so it starts its own.
        """
        anew = []
        children = first.children
        for group in first.groups:
            self._store.reopen_group(group, run_id)  # so that its children have their turns
        rows = self._store.get_many(children)
        for child in sorted(rows, key=lambda each: rows[each].created_at, reverse=True):  # as rows are locked
            found = rows[child]
            if found.parent_id != run_id or found.state == RunState.CANCELLED:
                anew.append(child)
            elif found.state == RunState.FAILED:
                try:
                    self.recover(child, is_consequence=True)
                except _ChildrenFirst as theirs:
                    self.recover_after(child, theirs, is_consequence=True)
        self.recover(run_id, children, [*anew, *set(children).difference(rows)], is_consequence=is_consequence)
