"""Recovery: which entries are deleted or reset so that a failed run can continue.

Pure functions from a run and its entries to a `RunChange`. Only the failures that made the run fail are reset; a
failure that the workflow handled stays in the history. After a compensation the run goes back to the earliest
compensated step, since everything that followed was built on what is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from durable.core import transitions
from durable.core.children.entries import begun_again, group_of, taken_back, taken_out, waiting_again
from durable.core.location import escape
from durable.core.once import asked_anew, undoing_anew
from durable.core.outcomes import FAILURE, HELD, ONCE, held_anew, is_unsettled, without
from durable.core.records import EntryKind, EntryRecord, EntryStatus, Message, RunChange, RunRecord
from durable.core.rewind.rewinding import FORKS, UNFINISHED, Rewind, first_try
from durable.core.steps import UNCOUNTED
from durable.core.summary import Summary, SummaryKind

#: The kinds of a child's failure that a recovery of the child removes, unlike the timeout of a wait.
_OF_THE_CHILD = ("failed", "cancelled", "gone")


def recover(
    run: RunRecord,
    entries: Iterable[EntryRecord],
    messages: Callable[[], Sequence[Message]],
    now: datetime,
    anew: Collection[str] = (),
    by: Mapping[str, Any] | None = None,
) -> RunChange:
    """Return the change that lets the failed `run` continue at `now`.

    Children in `anew` are started again as new runs; for the others the run waits again. The next pass recovers the
    children of maps, as the actor `by`. Messages whose receipt is deleted return to the inbox; messages that the run
    will send to itself again are deleted.
    """
    history = _Recovery(entries, by or {})
    stuck = [entry for entry in history if entry.is_compensable]
    for entry in history:
        if entry.status == EntryStatus.HELD:  # the run has ended in spite of it: by its deadline, or in its rollback
            history.put(tried_once_more(entry) if may_be_tried(entry) else held_anew(entry))
    if run.state_after_rollback and stuck:
        for entry in stuck:
            history.put(entry, data={**entry.data, "rollback": first_try(entry.data["rollback"])}, rollback_error=None)
        continued = transitions.rollback_recovered(run, now=now, summary=Summary(SummaryKind.RECOVERED_COMPENSATING))
        return history.change(run, continued, messages)
    for entry in stuck:
        if entry.rollback_error is not None:  # belongs to a compensation that the code called and that continues
            history.put(entry, data={**entry.data, "rollback": first_try(entry.data["rollback"])}, rollback_error=None)
    again = rewind_compensated(history)
    for location in run.origins:
        history.reset(location)
    again += rewind_compensated(history)  # the code has compensated behind such a failure: that is deleted now
    generations = dict(run.generations)
    for location in {*again, *taken_back(history.deleted.values())}:
        generations[location] = generations.get(location, 0) + 1
    history.start_anew(anew)
    history.start_lost_anew()
    patch = transitions.recovered(run, now=now, generations=generations, summary=Summary(SummaryKind.RECOVERED))
    return history.change(run, patch, messages)


def asked_again(entry: EntryRecord) -> EntryRecord:
    """Return a step of which nobody knows whether it was done, to be asked about again. If not, it has all attempts."""
    again = replace(entry, **asked_anew(entry))
    return replace(again, data={**again.data, UNCOUNTED: entry.attempts})


def may_be_tried(entry: EntryRecord) -> bool:
    """Return True if a held step can be tried again, or asked about; False if only a person can know of it."""
    return not is_unsettled(entry) or "verify" in entry.data[ONCE]


def tried_once_more(entry: EntryRecord) -> EntryRecord:
    """Return a held step that is tried again with all its attempts, or about which `verify` is asked again."""
    if is_unsettled(entry):
        return replace(entry, **undoing_anew(entry)) if FAILURE in entry.data else asked_again(entry)
    return replace(
        entry,
        status=EntryStatus.PENDING,
        attempts=0,
        error=None,
        data=without(entry, HELD, UNCOUNTED),
        next_attempt_at=None,
        last_attempt_at=None,
    )


def failed_children(run: RunRecord, entries: Iterable[EntryRecord]) -> list[str]:
    """Return the children whose failure, cancellation or deletion made the run fail, in the order of their ids.

    If the recovery continues a compensation: the children whose own compensation stopped it.
    """
    known = list(entries)
    if _goes_on_compensating(run, known):
        stuck = (each for each in known if each.is_compensable and each.rollback_error is not None)
        return sorted(each.data["child"] for each in stuck if each.kind == EntryKind.CHILD)
    failed = _failed(run, known, EntryKind.CHILD)
    return sorted({each.data["child"] for each in failed if each.data.get("failure", {}).get("kind") in _OF_THE_CHILD})


def failed_groups(run: RunRecord, entries: Iterable[EntryRecord]) -> list[str]:
    """Return the groups whose children made the run fail, by the rule of `failed_children`."""
    known = list(entries)
    if _goes_on_compensating(run, known):
        return []
    failed = (each for each in _failed(run, known, EntryKind.MAP) if each.rollback_completed_at is None)
    return sorted(filter(None, map(group_of, failed)))


def stopped_groups(run: RunRecord, entries: Iterable[EntryRecord]) -> tuple[list[str], list[str]]:
    """Return the groups whose children's compensation may have stopped the run's, if the recovery continues that.

    Also return the children that were taken out of these groups.
    """
    known = list(entries)
    if not _goes_on_compensating(run, known):
        return [], []
    stuck = [each for each in known if each.is_compensable and each.rollback_error is not None]
    groups = sorted(group for each in stuck if (group := group_of(each)) is not None)
    return groups, sorted(child for each in stuck for child, _ in taken_out(each).values())


def _goes_on_compensating(run: RunRecord, entries: Iterable[EntryRecord]) -> bool:
    return bool(run.state_after_rollback) and any(entry.is_compensable for entry in entries)


def _failed(run: RunRecord, entries: Iterable[EntryRecord], kind: EntryKind) -> list[EntryRecord]:
    """Return the entries of this kind whose failures made the run fail."""
    known = {entry.location: entry for entry in entries}
    found: list[EntryRecord] = []
    left = list(run.origins)
    while left:
        entry = known.get(left.pop())
        if entry is None:
            continue
        if entry.kind in FORKS:
            left += [each for branch in entry.data["branches"].values() for each in branch.get("origins", ())]
        elif entry.kind == kind:
            found.append(entry)
    return found


def rewind_compensated(history: Rewind) -> list[str]:
    """Go back to the earliest compensated step; return the locations of all compensated steps that are deleted.

    Steps that the code itself has compensated stay so, unless that compensation is deleted too.
    """
    found: list[str] = []
    while compensated := [entry.location for entry in history if _is_to_be_done_again(history, entry)]:
        _rewind_to_each(history, compensated)
        found += compensated
    return found


def _is_to_be_done_again(history: Rewind, entry: EntryRecord) -> bool:
    if entry.rollback_completed_at is None:
        return False
    by = entry.data["rollback"].get("by")
    return by is None or history.is_gone(by)


def _rewind_to_each(history: Rewind, compensated: Sequence[str]) -> None:
    for location in compensated:
        entry = history.get(location)
        if entry is None:  # was deleted with an earlier one
            continue
        around = history.around(location)
        if around is not None and _lost(location, around):  # lost a race that stays decided
            history.delete(location)
            continue
        begin = around or entry
        history.rewind_to(begin.location, begin.ordinal)


def _lost(location: str, around: EntryRecord) -> bool:
    """Return True if `location` is in a branch that lost the race `around`."""
    winner = around.data.get("winner")
    if around.kind != EntryKind.RACE or winner is None:
        return False
    branch = location[len(around.location) + 1 :].partition("/")[0]
    return bool(escape(winner) != branch)


class _Recovery(Rewind):
    """The changes that a recovery makes to a history."""

    def __init__(self, entries: Iterable[EntryRecord], by: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._by = by

    def reset(self, location: str) -> None:
        """Reset the failure of this entry, and delete what its scopes did after it."""
        entry = self.get(location)
        if entry is None:
            return
        self.drop_later(location, entry.ordinal)
        if entry.kind in FORKS:
            self._reset_fork(entry)
        elif entry.kind == EntryKind.CHILD:
            self.put(begun_again(entry))
        elif entry.kind == EntryKind.MAP:
            self.put(waiting_again(entry, self._by))
        elif entry.kind in (EntryKind.MESSAGE, EntryKind.SEND):
            self.delete(location)  # the code receives the message again, or sends it again
        elif is_unsettled(entry):
            self.put(asked_again(entry))
        elif entry.status in (EntryStatus.EXHAUSTED, EntryStatus.FAILED):
            data = {key: value for key, value in entry.data.items() if key not in (FAILURE, UNCOUNTED)}
            self.put(
                entry,
                status=EntryStatus.PENDING,
                attempts=0,
                error=None,
                data=data,
                next_attempt_at=None,
                last_attempt_at=None,
            )
        self.reopen_around(location)

    def _reset_fork(self, entry: EntryRecord) -> None:
        branches = dict(entry.data["branches"])
        for name, status in branches.items():
            if status["status"] == "failed":
                branches[name] = {"status": "pending"}
                for origin in status.get("origins", ()):
                    self.reset(origin)
        # resetting an origin inside may have changed the entry
        entry = self.kept[entry.location]
        self.put(entry, data={**entry.data, "branches": branches}, **UNFINISHED)
