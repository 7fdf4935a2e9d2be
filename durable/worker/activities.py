"""The activities of this process: its running steps, as operators see them, and what operators ask of them.

Owns what is noted in the database about running steps, once a second and only about steps that have run for a second.
A step pays for it with an entry in a dictionary of the process (`durable.core.current.timed_step`). Obeys what is
asked: answers with a stack, interrupts an attempt that is abandoned, and gives the run up if that does not help.

The stack of a running step: where its function is at this moment, as text, from the user's code on.

Read from another thread while the step runs, so the frames may have moved on by the time they are formatted. Must not
touch the frames' variables: a stack names files, lines and functions only.

The change that gives a run up whose step cannot be interrupted: other workers may claim it, this one writes no more.

Owns what is written then. The attempt is recorded as begun, with a mark, so that the next pass settles it as failed by
the step's own policy, like an attempt whose worker died. What the pass has recorded before it and not committed yet (a
checkpoint, a loop that has begun, an ephemeral step) is written too: without it the code would not fit the history.

The steps that other branches run at that moment are recorded as begun as well: they go on in their threads, and nothing
that they return is recorded any more. So these attempts count, and a step without retries is not called again beside
itself.
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
from durable.core.steps import ABANDONED, ATOMIC, GIVEN_UP
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
#: What is between a driver and the function that the user has written: of a task, durable calls it in a step of its
#: own.
_ENGINE: Final = tuple(f"{_DURABLE / each}{os.sep}" for each in ("core", "drivers", "execution", "tasks"))


def stack_of(step: timed_step) -> str:
    """Return the stack of the step, the outermost frame of user code first; "" if the step has ended."""
    frames = _frames(step)
    if not is_running(step):  # the frames may be those of what the thread does next
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
    """Return the frames of the step's function and of what it calls, durable's own functions too."""
    files = [frame.f_code.co_filename for frame, _ in frames]
    called = max((place for place, file in enumerate(files) if file == host.__file__), default=-1) + 1
    return list(dropwhile(lambda each: each[0].f_code.co_filename.startswith(_ENGINE), frames[called:]))


def _name_of(function: Any) -> str:
    """Return the name of a step's function, or of its type, without running code of the user's."""
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
        if type(awaited).__name__ == "coroutine_wrapper":  # it does not tell what it wraps
            awaited = next(iter(gc.get_referents(awaited)), None)
        if getattr(awaited, "cr_running", False):
            return [], True
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames, False


def _shortened(text: str) -> str:
    """Return the end of the text, where it waits, if it is too long."""
    return text if len(text) <= MAX_STACK else f"...\n{text[-MAX_STACK:]}"


logger = logging.getLogger("durable.worker")

#: Seconds that an abandoned attempt has to end, with two interruptions, before its run is given up.
GIVE_UP: Final = 2 * AGAIN
FORGET: Final = 60.0  # seconds between two deletions of what other workers have left

#: A running step and the fence of its run's lease.
Held = tuple[timed_step, int]


class Activities:
    """Notes the running steps of a LeaseManager's runs in `store`.

    `give_up` is called with a step that an operator has abandoned and that cannot be interrupted. It returns False if
    it has to be tried again.
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
        """True if nothing is noted in the database."""
        return not self._noted and not self._left

    def report(self, running: Sequence[Held]) -> Mapping[str, str]:
        """Note what has begun and ended, and obey what operators ask. Return the pending requests of these runs.

        One statement on PostgreSQL. If another transaction has locked what it writes, it asks without writing.
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
        """Note what asynchronous steps have left on their event loops; no statement if it is the same as before."""
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
        """Write what the steps have saved since the last time; a statement only if one of them has saved something."""
        found: list[tuple[StepProgress, SavedDetails]] = []
        for step, fence in running:
            progress = step.info.begun_progress
            if progress is not None and (saved := progress.take_unwritten(fence)) is not None:
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
        """Delete what is noted. What the database does not take is left over."""
        with suppress(Error):
            self.note_left(frozenset())
            if self._noted:
                self.report([])

    def _activity(self, step: timed_step, fence: int) -> Activity:
        """Return what is noted of the step; when it began is computed once, whatever the clock does later."""
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
        """Interrupt the step; give its run up if it goes on nevertheless."""
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
    """Return the change of a locked run. `beside` are the steps that its other branches run now.

    It changes nothing, the fence neither, if the attempt has ended, the lease is lost, or a commit is under way.
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
    """Return True if the attempt, at least its end, is not in the history."""
    recorded = history.get(step.info.location)
    return recorded is None or recorded.attempts < step.info.attempt or recorded.status == EntryStatus.RUNNING


def _has_ended(pending: EntryRecord | None) -> bool:
    return pending is not None and pending.status != EntryStatus.RUNNING


def _saved(steps: Sequence[timed_step]) -> list[SavedDetails]:
    """Return the newest saves of the attempts, for the next ones."""
    progress = [each.info.begun_progress for each in steps]
    return [saved for each in progress if each is not None and (saved := each.newest()) is not None]


def _begun(step: timed_step, mark: str) -> EntryRecord:
    """Return the entry of the attempt as begun, with a mark that says what became of it."""
    entry = step.call.entry
    assert entry is not None
    return replace(
        entry,
        status=EntryStatus.RUNNING,
        attempts=step.info.attempt,
        data={**entry.data, mark: True, **({ATOMIC: True} if step.call.record is not None else {})},
        output=None,  # the function may have returned in this moment
        completed_at=None,
        finished_ordinal=None,
    )
