"""The Scheduler: decide how many runs to claim, which of them begins next, and which ones have waited too long.

Owns these decisions and nothing else: no thread, no database. Safe to use from several threads. Its clock is injected.
A *suspect* is a run that may have killed its worker (its `crashes` is not 0, and no attempt of its pass has ended
well). A suspect is executed alone: if it kills this worker too, no run beside it is counted as having crashed. Waiting
runs would be counted as well, so a suspect comes last of those that wait, and further suspects are sent away.

A suspect waits, and so do the runs due after it, but not forever:

1. It waits for `MAX_WAIT`. Then it is left to other workers for `DEFERRAL`, again and again, while others begin here.
2. After `MAX_DEFERRAL` no other worker seems to be there for it. It keeps its place at the head, and nothing else
begins, so that the short passes come to their end.
3. What has lasted for `DRAIN` by then is long, for minutes or hours, and the suspect begins beside it. So other runs
wait at most `DRAIN` before a suspect and `QUARANTINE` after it. After such a pass, the next suspect waits as long as
that one kept others from beginning, so that these have at least half of the time.

No suspect begins beside another one, however long that takes: it is left to others until the pass of the other one
ends, and new runs begin meanwhile. This bounds what a killer does to a run beside it. The first time costs that run no
attempt. From then on it is a suspect itself, and no suspect is begun beside it before it has made progress. A second
time would cost it an attempt, because the attempts of suspects are recorded before they run. Two ways were rejected. To
wait for long passes too would stop a whole installation with one worker. To leave a suspect to others until it can be
alone would never end where long passes overlap.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from durable.core.records import RunRecord

# Seconds that a claimed run waits behind passes before other workers get it. A message may be a second late; a shorter
# time would release runs merely because a busy machine slows passes down.
MAX_WAIT: Final = 1.0
# Seconds for which nothing begins beside a suspect. A run that visibly kills its process does so early.
QUARANTINE: Final = 30.0
# Seconds for which a suspect that could not begin alone is left to other workers: time for several polls and jobs.
DEFERRAL: Final = 5.0
# Seconds after which such a suspect keeps its place here: after several deferrals no other worker is there for it.
MAX_DEFERRAL: Final = 6 * DEFERRAL
# Seconds after which a pass is long: such a suspect no longer waits for it.
DRAIN: Final = 10.0
# Seconds within which a run must be expected to begin, to be claimed ahead. Five claims' worth of time at most: a claim
# and its round trip take about 10 ms on a busy database.
CLAIM_AHEAD_WINDOW: Final = 0.05
# The same for the last run of a batch: other workers may be idle meanwhile. Longer, because one claim serves the batch.
BATCH_WINDOW: Final = 0.25
EWMA_WEIGHT: Final = 0.2  # weight of the newest pass in the moving average of durations: about the last five passes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningPass:
    """A pass under way. `began_at` is a time of the Scheduler's clock."""

    record: RunRecord
    began_at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiting:
    record: RunRecord
    since: float


class Scheduler:
    """Schedules passes of up to `size` runs at once.

    With `in_batches`, the caller executes all runs of a claim before it claims again, and nothing is claimed meanwhile.
    """

    def __init__(self, size: int, *, in_batches: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self._in_batches = in_batches
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._passing: set[RunningPass] = set()
        self._suspect: RunningPass | None = None
        self._put_off: dict[str, float] = {}
        self._busy_until = -math.inf
        self._respite_until = -math.inf
        self._mean = math.inf
        self._ended = 0

    @property
    def ended(self) -> int:
        """Return how many passes have ended."""
        return self._ended

    @property
    def is_empty(self) -> bool:
        """Return True if no run waits and no pass is under way."""
        with self._lock:
            return not self._waiting and not self._passing

    def free_slots(self) -> int:
        """Return how many more runs could begin at once; 0 while others wait."""
        with self._lock:
            return 0 if self._waiting or self._is_closed() else self.size - len(self._passing)

    def claim_limit(self, most: int) -> int:
        """Return how many runs to claim now.

        These are the runs that could begin at once, up to `most` of them, and those that begin soon after them at the
        recent rate of passes. In batches, that is `most` in all until a pass has ended, and never less than 2: a claim
        that finds a single run must not be full, because a full one has another worker notified. Otherwise up to `most`
        are claimed ahead, and the next of them only when half of the previous ones have begun.
        """
        with self._lock:
            if self._is_closed() or any(each.record.crashes for each in self._waiting):
                return 0
            if self._in_batches:
                return most if self._mean == math.inf else min(most, max(2, self._expected_within(BATCH_WINDOW, most)))
            ahead = self._expected_within(CLAIM_AHEAD_WINDOW, most)
            free = self.size - len(self._passing) - len(self._waiting)
            wanted = min(free, most) + ahead
            return wanted if free > 0 or (wanted > 0 and 2 * wanted >= ahead) else 0

    def add(self, records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
        """Add claimed runs to the waiting ones, and one suspect after them.

        Return the runs that may not wait here: those to release and those to defer.
        """
        now = self._clock()
        suspects = [each for each in records if each.crashes]
        with self._lock:
            is_busy = bool(self._passing) and (now < self._busy_until or self._is_beside_suspect())
            eligible = [each for each in suspects if not is_busy or self._keeps_place(each, now)]
            joining = [each for each in records if not each.crashes] + eligible[:1]
            self._waiting += [_Waiting(record=each, since=now) for each in joining]
            sent_away = [each for each in suspects if each not in eligible[:1]]
            if not is_busy:
                return sent_away, []
            self._remember(sent_away, now)
            return [], sent_away

    def startable(self) -> int:
        """Return how many of the waiting runs could begin now."""
        with self._lock:
            if not self._waiting or self._is_closed():
                return 0
            if self._waiting[0].record.crashes:
                return int(self._may_begin(self._waiting[0].record))
            return min(self.size - len(self._passing), len(self._waiting))

    def next(self) -> RunningPass | None:
        """Remove the first waiting run and mark it as running. Return None if no run may start now."""
        with self._lock:
            if not self._waiting or self._is_closed():
                return None
            record, now = self._waiting[0].record, self._clock()
            if record.crashes:
                if not self._may_begin(record):
                    return None
                if self._passing:
                    self._respite_until = now + 2 * QUARANTINE
            self._waiting.popleft()
            self._put_off.pop(record.id, None)
            turn = RunningPass(record=record, began_at=now)
            self._passing.add(turn)
            if record.crashes:
                self._suspect = turn
            return turn

    def end(self, turn: RunningPass) -> None:
        """Note that a pass is over. A second call for the same pass does nothing."""
        with self._lock:
            if turn not in self._passing:
                return
            self._passing.discard(turn)
            self._ended += 1
            now = self._clock()
            took = now - turn.began_at
            if self._suspect is turn:
                self._suspect = None
                self._respite_until = min(self._respite_until, now + took)
            self._mean = took if self._mean == math.inf else self._mean + EWMA_WEIGHT * (took - self._mean)

    def pop_expired(self) -> tuple[list[RunRecord], list[RunRecord]]:
        """Remove the runs that have waited longer than `MAX_WAIT`. Return those to release and those to defer.

        A suspect is deferred so that this worker does not claim it again at once. In batches it is released: this
        worker claims nothing meanwhile. A suspect that was deferred repeatedly stays after `MAX_DEFERRAL`, unless it
        could not begin soon: another suspect is under way, or no slot is free.
        """
        now = self._clock()
        with self._lock:
            if not self._passing:
                return [], []
            left = [each for each in self._waiting if now - each.since >= MAX_WAIT]
            left = [each for each in left if not self._keeps_place(each.record, now)]
            for each in left:
                self._waiting.remove(each)
            records = [each.record for each in left]
            if self._in_batches:
                return records, []
            suspects = [each for each in records if each.crashes]
            if suspects:
                self._busy_until = now + DEFERRAL
                self._remember(suspects, now)
            return [each for each in records if not each.crashes], suspects

    def clear(self) -> list[RunRecord]:
        """Remove and return all waiting runs."""
        with self._lock:
            records = [each.record for each in self._waiting]
            self._waiting.clear()
            return records

    def _expected_within(self, seconds: float, most: int) -> int:
        """Return how many passes are expected to begin within `seconds`, at most `most`."""
        return min(most, int(self.size * seconds / self._mean)) if self._mean else most

    def _is_closed(self) -> bool:
        """Return True if nothing may begin because a suspect is to run alone."""
        turn = self._suspect
        return turn is not None and bool(turn.record.crashes) and self._clock() - turn.began_at < QUARANTINE

    def _may_begin(self, suspect: RunRecord) -> bool:
        """Return True if the suspect may begin now: alone or, if it has waited long enough, beside long passes."""
        now = self._clock()
        is_drained = all(now - each.began_at >= DRAIN for each in self._passing)
        return not self._passing or (is_drained and self._keeps_place(suspect, now))

    def _keeps_place(self, record: RunRecord, now: float) -> bool:
        """Return True if the run is a suspect that was deferred for long enough and can begin soon."""
        is_overdue = bool(record.crashes) and now - self._put_off.get(record.id, math.inf) >= MAX_DEFERRAL
        has_room = len(self._passing) < self.size and not self._is_beside_suspect()
        return is_overdue and has_room and now >= self._respite_until

    def _is_beside_suspect(self) -> bool:
        return any(each.record.crashes for each in self._passing)

    def _remember(self, suspects: Sequence[RunRecord], now: float) -> None:
        # Other workers may have executed a run meanwhile: a deferral of long ago is forgotten.
        self._put_off = {run_id: at for run_id, at in self._put_off.items() if now - at < 10 * MAX_DEFERRAL}
        for each in suspects:
            self._put_off.setdefault(each.id, now)
