"""The activities of this process: its running steps, as operators see them, and requests of operators about them.

Owns the rows about running steps in the database, written once a second and only for steps that have run for a second.
A step costs an entry in a dictionary of the process (`durable.core.current.timed_step`). Carries out requests: answers
with a stack, interrupts an abandoned attempt, and gives the run up if that does not help.

A stack says where a step's function is at this moment, as text, from the user's code on. It is read from another
thread, so the frames may have moved on by the time they are formatted. It must not touch the frames' variables: a stack
names only files, lines and functions.

A run whose step cannot be interrupted is given up: other workers may claim it, and this one writes no more. The attempt
is recorded as begun, with a reason, so that the next pass settles it as failed by the step's own policy, like one whose
worker died. Earlier uncommitted records of the pass (a checkpoint, a begun loop, an ephemeral step) are written
too: otherwise the code would not fit the history. Steps running in other branches are recorded as begun as well. They
continue in their threads, but their results are not recorded any more. So these attempts count, and a step without
retries is not called a second time while the first call runs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import dropwhile
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, Final

from django.db import Error

from durable.conf import conf
from durable.core import clock, transitions
from durable.core.current import is_running, timed_step
from durable.core.records import (
    Activity,
    ActivityKind,
    AskedOfActivity,
    EntryRecord,
    EntryStatus,
    RunChange,
    RunRecord,
    SavedDetails,
)
from durable.core.saves import StepProgress
from durable.core.steps import ABANDONED, ATOMIC, GIVEN_UP, SUMMARY
from durable.drivers import host
from durable.drivers.loop_threads import LeftBehind
from durable.drivers.timeouts import AGAIN
from durable.execution.connections import worker_name
from durable.models import Activity as ActivityRow
from durable.models.workers import LEFT
from durable.store.base import Store
from durable.store.transactions import RowsLocked, impatient

MAX_STACK: Final = 20_000  # characters
_MAX_FRAMES: Final = 100  # the innermost ones

_DURABLE: Final = Path(__file__).parents[1]
#: Frames between a driver and the user's function: those of a task, which durable calls in a step of its own.
_ENGINE: Final = tuple(f"{_DURABLE / each}{os.sep}" for each in ("core", "drivers", "execution", "tasks"))


def stack_of(step: timed_step) -> str:
    """Return the stack of the step, the outermost frame of user code first; "" if the step has ended."""
    frames = _frames(step)
    if not is_running(step):  # the frames may already belong to the thread's next work
        return ""
    if not frames:
        return f"The step awaits an object of type {type(step.awaitable).__name__}, which has no frames."
    shown = _of_user(frames)[-_MAX_FRAMES:]
    if not shown:
        return f"The step calls {_name_of(step.call.function)}, which has no Python frames at this moment."
    lines = traceback.StackSummary.extract(iter(shown), lookup_lines=True).format()
    if not is_running(step):
        return ""
    return _shortened("".join(lines))


def _of_user(frames: Sequence[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return the frames of the step's function and of everything that it calls, durable's own functions included."""
    files = [frame.f_code.co_filename for frame, _ in frames]
    called = max((place for place, file in enumerate(files) if file == host.__file__), default=-1) + 1
    return list(dropwhile(lambda each: each[0].f_code.co_filename.startswith(_ENGINE), frames[called:]))


def _name_of(function: Any) -> str:
    """Return the name of a step's function, or of its type, without running user code."""
    while type(function) is partial:
        function = function.func
    named = (FunctionType, BuiltinFunctionType, MethodType, type)
    own = function if type(function) in named else type(function)
    return ".".join(filter(None, [own.__module__, own.__qualname__]))  # a method of a built-in type has no module


def _frames(step: timed_step) -> list[tuple[FrameType, int]]:
    """Return the frames and their lines, the outermost first."""
    if step.awaitable is not None:
        frames, is_executing = _frames_of(step.awaitable)
        if not is_executing:
            return frames
    frame = sys._current_frames().get(step.thread)
    return [] if frame is None else list(traceback.walk_stack(frame))[::-1]


def _frames_of(awaitable: Any) -> tuple[list[tuple[FrameType, int]], bool]:
    """Return the frames of a coroutine and of what it awaits, and whether it executes at this moment."""
    frames: list[tuple[FrameType, int]] = []
    awaited = awaitable.get_coro() if isinstance(awaitable, asyncio.Task) else awaitable
    while awaited is not None:
        if type(awaited).__name__ == "coroutine_wrapper":  # it does not show what it wraps
            awaited = next(iter(gc.get_referents(awaited)), None)
        if getattr(awaited, "cr_running", False):
            return [], True
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames, False


def _shortened(text: str) -> str:
    """Return the end of the text, where the code waits, if the text is too long."""
    return text if len(text) <= MAX_STACK else f"...\n{text[-MAX_STACK:]}"


logger = logging.getLogger("durable.worker")

#: Seconds that an abandoned attempt has to end, with two interruptions, before its run is given up.
GIVE_UP: Final = 2 * AGAIN
FORGET: Final = 60.0  # seconds between two deletions of rows that other workers have left

#: A running step and the fence of its run's lease.
Held = tuple[timed_step, int]


class Activities:
    """Writes rows about the running steps of a LeaseManager's runs in `store`.

    `give_up` is called with a step that an operator has abandoned and that cannot be interrupted. It returns False if
    it has to be called again.
    """

    def __init__(self, store: Store, give_up: Callable[[timed_step, int], bool]) -> None:
        self._store = store
        self._give_up = give_up
        self._noted: dict[timed_step, Activity] = {}
        self._interrupted: dict[timed_step, float] = {}
        self._locked: set[timed_step] = set()
        self._left: frozenset[LeftBehind] = frozenset()
        self._forgot_at = time.monotonic()

    @property
    def is_empty(self) -> bool:
        """True if the database has no rows of this process."""
        return not self._noted and not self._left

    def report(self, running: Sequence[Held]) -> Mapping[str, str]:
        """Write which steps have begun and ended, and carry out operators' requests. Return the pending requests of
        these runs.

        One statement on PostgreSQL. If another transaction has locked the rows, it only reads the requests.
        """
        now = {step: self._activity(step, fence) for step, fence in running}
        begun = {(each.run_id, each.location): each for step, each in now.items() if self._noted.get(step) != each}
        over = [each for step, each in self._noted.items() if step not in now]
        ended = [each for each in over if (each.run_id, each.location) not in begun]
        watched = sorted({each.run_id for each in now.values()})
        try:
            requests, asked = self._store.report(list(begun.values()), ended, watched)
            self._noted = now
        except RowsLocked:
            requests, asked = self._store.report([], [], watched)
        self._save(running)
        self._interrupted = {step: at for step, at in self._interrupted.items() if step in now}
        self._locked &= now.keys()
        for each in asked:
            self._obey(each, now)
        if begun and time.monotonic() >= self._forgot_at + FORGET:
            self._forgot_at = time.monotonic()
            self._store.forget_activities()
        return requests

    def note_left(self, left: frozenset[LeftBehind]) -> None:
        """Report what asynchronous steps have left on their event loops; no statement if that has not changed."""
        begun, ended = left - self._left, self._left - left
        if not begun and not ended:
            return
        now, rows = time.monotonic(), ActivityRow.objects.using(conf.DATABASE)
        noted = [
            ActivityRow(
                run_id=each.run_id,
                location=each.location,
                attempt=LEFT,
                kind=ActivityKind.STEP.value,
                fence=0,
                worker=worker_name(),
                began_at=clock.now() - timedelta(seconds=now - each.since),
                timeout=0.0,
                stack=each.what,
            )
            for each in begun
        ]
        with suppress(RowsLocked), impatient(conf.DATABASE):  # it is tried again
            for each in ended:
                place = {"run_id": each.run_id, "location": each.location}
                rows.filter(**place, attempt=LEFT, worker=worker_name()).delete()
            rows.bulk_create(noted, ignore_conflicts=True)  # one of several attempts is shown
            self._left = left

    def _save(self, running: Sequence[Held]) -> None:
        """Write the details that steps have saved since the last call; a statement only if there are any."""
        found: list[tuple[StepProgress, SavedDetails]] = []
        for step, fence in running:
            progress = step.info.begun_progress
            if progress is not None and (saved := progress.take(fence)) is not None:
                found.append((progress, saved))
        if not found:
            return
        try:
            self._store.save_details([saved for _, saved in found])
        except RowsLocked:
            _put_back(found)
        except BaseException:
            _put_back(found)
            raise

    def clear(self) -> None:
        """Delete the rows of this process. Rows that the database does not delete are left over."""
        with suppress(Error):
            self.note_left(frozenset())
            if self._noted:
                self.report([])

    def _activity(self, step: timed_step, fence: int) -> Activity:
        """Return the row of the step. Its begin is computed only once, whatever the clock does later."""
        noted = self._noted.get(step)
        if noted is not None:
            return noted if noted.fence == fence else replace(noted, fence=fence)
        info = step.info
        return Activity(
            run_id=info.run_id,
            location=info.location,
            attempt=info.attempt,
            kind=(ActivityKind.ROLLBACK if step.call.is_rollback else ActivityKind.STEP).value,
            fence=fence,
            worker=worker_name(),
            began_at=clock.now() - timedelta(seconds=time.monotonic() - step.since),
            timeout=info.timeout,
            summary="" if step.call.entry is None else str(step.call.entry.data.get(SUMMARY, "")),
        )

    def _obey(self, asked: AskedOfActivity, running: Mapping[timed_step, Activity]) -> None:
        wanted = (asked.run_id, asked.location, asked.attempt, asked.fence)
        for step, each in running.items():
            if (each.run_id, each.location, each.attempt, each.fence) != wanted:
                continue
            if asked.stack and (stack := stack_of(step)):
                self._store.answer_stack(asked, stack, clock.now())
            if asked.abandon:
                self._abandon(step, asked.fence)
            return

    def _abandon(self, step: timed_step, fence: int) -> None:
        """Interrupt the step; give its run up if the step continues nevertheless."""
        now, info = time.monotonic(), step.info
        about = {"run_id": info.run_id, "location": info.location}
        if step.abandoned_at is not None and now - step.abandoned_at >= GIVE_UP:
            if not self._give_up(step, fence):
                if step not in self._locked:
                    text = (
                        'step "%s" of run %s, attempt %d, was abandoned and cannot be interrupted. The run cannot be given '
                        "up either while a transaction, perhaps the step's own, locks its row: trying again"
                    )
                    logger.error(text, info.location, info.run_id, info.attempt, extra=about)
                self._locked.add(step)
                return
            text = (
                'step "%s" of run %s, attempt %d, was abandoned and cannot be interrupted: the run is given up, and the '
                "function goes on until it returns"
            )
            logger.error(text, info.location, info.run_id, info.attempt, extra=about)
        elif now - self._interrupted.get(step, -AGAIN) >= AGAIN:
            if step.abandoned_at is None:
                text = 'step "%s" of run %s, attempt %d, is interrupted: an operator has abandoned it'
                logger.warning(text, info.location, info.run_id, info.attempt, extra=about)
            self._interrupted[step] = now
            step.abandon()


def _put_back(found: Sequence[tuple[StepProgress, SavedDetails]]) -> None:
    for progress, saved in found:
        progress.put_back(saved)


def given_up(
    run: RunRecord,
    entries: Callable[[], Sequence[EntryRecord]],
    step: timed_step,
    beside: Sequence[timed_step],
    fence: int,
    now: datetime,
) -> RunChange:
    """Return the change that gives up a locked run. `beside` are the steps now running in its other branches.

    It changes nothing, not even the fence, if the attempt has ended, the lease is lost, or a commit is under way.
    """
    nothing = RunChange(run={"change_seq": run.change_seq})
    if run.fence != fence or run.lease_expires_at is None:
        return nothing
    released = transitions.given_up(run, now=now)
    begun = step.call.entry
    if begun is None:  # a rollback handler is called again, and its attempt is not counted
        return RunChange(run=released)
    history = {each.location: each for each in entries()}
    if not _is_unrecorded(step, history):
        return nothing
    assert step.call.uncommitted is not None
    earlier = step.call.uncommitted(begun, history)
    if earlier is None:
        return nothing
    written = {each.location: each for each in earlier.entries}
    written[begun.location] = _begun(step, ABANDONED)
    for other in beside:
        entry = other.call.entry
        if entry is None or not _is_unrecorded(other, history) or _has_ended(written.get(entry.location)):
            continue
        if entry.status != EntryStatus.RUNNING or other.call.uncommitted is None:
            return nothing  # its commit is under way
        if other.call.uncommitted(entry, {*history, *written}) is None:
            return nothing
        written[entry.location] = _begun(other, GIVEN_UP)
    saved = _saved([each for each in (step, *beside) if each.info.location in written])
    return RunChange(
        run=released, entries=list(written.values()), deleted=earlier.deleted, saved=saved, tags=earlier.tags
    )


def _is_unrecorded(step: timed_step, history: Mapping[str, EntryRecord]) -> bool:
    """Return True if the attempt, or at least its end, is not in the history."""
    recorded = history.get(step.info.location)
    return recorded is None or recorded.attempts < step.info.attempt or recorded.status == EntryStatus.RUNNING


def _has_ended(pending: EntryRecord | None) -> bool:
    return pending is not None and pending.status != EntryStatus.RUNNING


def _saved(steps: Sequence[timed_step]) -> list[SavedDetails]:
    """Return the newest saves of the attempts, for the next ones."""
    progress = [each.info.begun_progress for each in steps]
    return [saved for each in progress if each is not None and (saved := each.newest()) is not None]


def _begun(step: timed_step, reason: str) -> EntryRecord:
    """Return the attempt's entry as begun, with the key that says what happened to the attempt."""
    entry = step.call.entry
    assert entry is not None
    return replace(
        entry,
        status=EntryStatus.RUNNING,
        attempts=step.info.attempt,
        data={**entry.data, reason: True, **({ATOMIC: True} if step.call.record is not None else {})},
        output=None,  # the function may just have returned
        completed_at=None,
        finished_ordinal=None,
    )
