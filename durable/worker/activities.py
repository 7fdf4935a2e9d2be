"""The activities of this process: its running steps, as operators see them, and what operators ask of them.

Owns what is noted in the database about running steps, once a second and only about steps that have run for a second.
A step pays for it with an entry in a dictionary of the process (`durable.core.current.timed_step`). Obeys what is
asked: answers with a stack, interrupts an attempt that is abandoned, and gives the run up if that does not help.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from django.db import Error

from durable.core import clock
from durable.core.current import timed_step
from durable.core.records import Activity, ActivityKind, AskedOfActivity, SavedDetails
from durable.core.saves import StepProgress
from durable.drivers.timeouts import AGAIN
from durable.execution.connections import worker_name
from durable.store.base import Store
from durable.store.transactions import RowsLocked
from durable.worker.stacks import stack_of

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
        self._forgot_at = time.monotonic()

    @property
    def is_empty(self) -> bool:
        """True if nothing is noted in the database."""
        return not self._noted

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
        if self._noted:
            with suppress(Error):
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
