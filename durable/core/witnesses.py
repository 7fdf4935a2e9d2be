"""What proves who may write a run: its fence, and the witnesses by which a commit detects lost commits.

Each claim raises the fence by a step that is drawn at random. A step of 1 would not do: a database can lose a claim,
because a standby that lags is promoted or a backup is restored. The next claim would then give out the same number
again, and two passes would hold it. With a random step, the number that was lost does not come again, and whatever
compares fences compares a token of one claim. The same goes for a pass that raises its own fence. A verb that takes a
run away from its worker gives the number to nobody, and raises it by 1.

A new run has the fence 0, or 1 if its first pass has something to load. The first claim of a run with fence 0 gives a
number from `FIRST` to below twice that. Every later one is higher, so a fence also tells whether the run may have a
history. A fence stays below 2**53, so that JSON has it exactly, for more than five million claims of a run.

A database can lose commits that it has answered: a standby that lags is promoted while a pass is under way, or a backup
is restored. The pass goes on from what it remembers. Unless its next commit notices, the run completes with a hole in
its history, and the rows of an atomic step are gone.

What is lost is always the newest: a commit is there only if all that were made before it are. So each commit looks for
one thing that the pass's commit before it has left, its witness, in the statement that locks the run's row and compares
the fence. Nothing is written if the witness is not there. Then the pass ends, the run is due at once, and the next pass
loads the history as it is and does what is missing again.

- A commit that has made an entry leaves that entry: its location and its ordinal, which no other entry of the run has.
  This is nearly every commit, and costs one look at an index: 4 % of the server's CPU time for a step (8 µs on a busy
  machine, as the best of 50 alternating rounds with and without), and 2 % of Python's. No log is written for it.
- A commit that has given its output to an entry that this pass has committed without one, as that of a step with
  `once=True`, leaves that entry with an output. It is found by the same look.
- A commit that has only changed other entries which were there leaves one of them as it has written it; a step that it
  has held, which a person may settle at any time, only as being there.
- A commit that has only changed the run's state, as the beginning of a compensation does, leaves that state.
- A commit that leaves nothing keeps the witness of the one before, unless it deletes it. Such a commit ends the pass,
  or is about messages and slots beside records.
- Atomic steps of branches commit beside each other, in an order that only the database knows. Each leaves a witness,
  and the next commit looks for all of them.
- The first commit of a pass looks for the newest entry that was loaded. The fence proves the rest: a claim is newer
  than all that was recorded before it.

What else may change or delete such an entry behind a pass, a migration for example, costs no more than a pass that
begins again. Tried and dropped: a count of commits in the run's row (a new version of the row for each commit), the
timeline of PostgreSQL's log (not every service shows it, and a restored dump keeps it), and the row's `xmin` (which
other databases lack, and which each commit would have to return).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from durable.core.records import Batch, EntryRecord, EntryStatus, Witness

#: The lowest fence that a claim gives, and the range of the random steps.
FIRST: Final = 2**29


def draw() -> int:
    """Return the random part of a step. Processes that were forked from one another draw different ones."""
    return secrets.randbelow(FIRST)


def raised(fence: int, drawn: int | None = None) -> int:
    """Return a higher fence, by a random step. `durable.store.postgres.sql.RAISED` is the same in SQL."""
    return fence + (2 * FIRST if fence else FIRST) + (draw() if drawn is None else drawn)


def is_of_first_claim(fence: int) -> bool:
    """Return True if this fence comes from the run's first claim, and there was nothing to load."""
    return FIRST <= fence < 2 * FIRST


#: The audit log's action of a worker that has detected lost commits of a run.
LOST_COMMITS: Final = "lost_commits"

#: The columns that distinguish versions of an entry: each change of an entry changes one of them.
_VERSION: Final = (
    "data",
    "status",
    "attempts",
    "error",
    "last_attempt_at",
    "next_attempt_at",
    "completed_at",
    "finished_ordinal",
    "rollback_completed_at",
    "rollback_error",
)


def columns_of(witness: Witness) -> Mapping[str, Any]:
    """Return the columns and values that the entry of a witness must have."""
    if witness.version is None:
        return {"ordinal": witness.ordinal}
    return {"ordinal": witness.ordinal, **{name: getattr(witness.version, name) for name in _VERSION}}


def as_written(batch: Batch) -> tuple[Witness, ...]:
    """Return the witnesses as the batch itself writes their entries."""
    return tuple(Witness(each.location, each.ordinal, each) for each in batch.entries)


class Witnesses:
    """The witnesses that the next commit of a pass checks. Not thread-safe: the journal has a lock."""

    __slots__ = ("_new", "_open", "current")

    def __init__(self, newest: EntryRecord | None) -> None:
        self.current: tuple[Witness, ...] = () if newest is None else (Witness(newest.location, newest.ordinal),)
        self._new: set[str] = set()  # locations of entries that are not committed yet
        self._open: set[str] = set()  # locations of entries that this pass has committed, and without an output

    def note_new(self, location: str) -> None:
        """Note that an entry at this location is not in the database."""
        self._new.add(location)

    def forget_new(self, location: str) -> None:
        """Note that no entry is to be written at this location."""
        self._new.discard(location)

    def note_committed(self, batch: Batch) -> None:
        """Note that a batch is committed: it found its witnesses and left a new one."""
        left = self._left_by(batch)
        if left is None:
            if batch.deleted:
                self.current = tuple(each for each in self.current if each.location not in batch.deleted)
            return
        found = batch.witnesses
        if self.current is found:  # no other commit was under way
            self.current = (left,)
            return
        touched = {*batch.deleted, *(each.location for each in batch.entries)}
        kept = (each for each in self.current if each not in found and each.location not in touched)
        self.current = (*kept, left)

    def _left_by(self, batch: Batch) -> Witness | None:
        new = changed = closed = None
        for entry in batch.entries:
            if entry.location in self._new:
                self._new.remove(entry.location)
                new = entry
                if entry.output is None:
                    self._open.add(entry.location)
            else:
                changed = entry
                if entry.output is not None and entry.location in self._open:
                    self._open.remove(entry.location)
                    closed = entry
        self._open.difference_update(batch.deleted)
        if new is not None:
            return Witness(new.location, new.ordinal)
        if closed is not None:
            return Witness(closed.location, closed.ordinal, has_output=True)
        if changed is not None:  # a person may settle a held step meanwhile
            return Witness(changed.location, changed.ordinal, None if changed.status == EntryStatus.HELD else changed)
        state = None if batch.run is None else batch.run.get("state")
        return None if state is None else Witness(state=state)
