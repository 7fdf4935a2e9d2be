"""Detect steps that continue after their timeout or heartbeat because they swallow the interruption or prevent it.

Owns the last resort. `HARD_TIMEOUT` seconds after the step's timeout or missed heartbeat, the worker process releases
its other runs and exits, as if the step had killed it. The attempt counts as a crash. The parent process or service
manager starts the worker process again.

The worker knows which run made it exit. So no crash is counted for the others, even if their steps do not end in time:
their leases are released at the very end of the process. Their attempts are repeated, as after any end of a process.

Tasks and threads that an async step has left on its event loop end the process too, `HARD_TIMEOUT` seconds after they
were cancelled. Their run has continued without them (`durable.drivers.loop_threads`), and is not a suspect.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from durable.conf import conf
from durable.core.effects import StepInfo
from durable.drivers import timeouts
from durable.drivers.loop_threads import LeftBehind, left_behind

logger = logging.getLogger("durable.worker")

STATUS: Final = 70  # the exit status of a process that ended because of such a step
# Seconds that other passes of the process have to reach their next operation, as after a stop (GRACE of a worker).
HAND_OVER: Final = 10.0
# Seconds within which the process exits after that, even if the database does not answer: one statement's time.
AT_LAST: Final = 5.0

Steps = Sequence[tuple[StepInfo, float]]  # with their start times (monotonic)


class Overruns:
    """Detects overrunning steps for a LeaseManager.

    `stop` makes the process claim no more runs and evicts its passes.
    """

    def __init__(self, stop: Callable[[], object], end: Callable[[int], object] = os._exit) -> None:
        self._stop = stop
        self._end = end
        self._since: float | None = None

    def look(
        self,
        steps: Steps,
        held: Callable[[], set[str]],
        release: Callable[[set[str]], object],
        expire: Callable[[set[str]], object],
    ) -> None:
        """End the process, or prepare its end, if a running step has overrun its timeout or heartbeat by too much.

        `steps` are the running ones. `held` returns the ids of the runs whose passes have begun. `release` makes runs
        due for other workers, `expire` lets leases expire at once.
        """
        now = time.monotonic()
        over = [(step, now - since) for step, since in steps if _is_over(step, since, now)]
        left = [each for each in left_behind() if 0 < conf.HARD_TIMEOUT <= now - each.since]
        runs = {step.run_id for step, _ in over} & (begun := held())
        if not runs and not left:
            return
        if self._since is None:
            self._since = now
            for step, seconds in over:
                self._tell(step, seconds)
            for each in left:
                self._tell_of(each, now - each.since)
            self._stop()
            return  # the LeaseManager releases the runs that have not begun, and evicts the others
        if begun - runs and now - self._since < HAND_OVER:
            return
        timeouts.watch(AT_LAST, partial(self._end, STATUS))
        try:
            release(begun - runs)
            expire(runs)
        except Exception:  # then the leases expire by themselves
            logger.exception("the leases of the runs whose steps go on cannot be ended")
        self._end(STATUS)

    def finish(self) -> None:
        """End the process if that was prepared and it has handed over all its runs."""
        if self._since is not None:
            self._end(STATUS)

    def _tell(self, step: StepInfo, seconds: float) -> None:
        is_past_timeout = 0 < step.timeout <= seconds
        limit, length = ("timeout", step.timeout) if is_past_timeout else ("heartbeat", step.heartbeat)
        text = (
            'step "%s" of run %s, attempt %d, still runs %.0f s after it began, and has not let itself be interrupted at its '
            "%s of %g s: this worker process (pid %d) hands over its other runs and ends. Let what is raised in the step "
            "out: catch Exception, not BaseException"
        )
        about = {"run_id": step.run_id, "location": step.location}
        logger.critical(
            text, step.location, step.run_id, step.attempt, seconds, limit, length, os.getpid(), extra=about
        )

    def _tell_of(self, left: LeftBehind, seconds: float) -> None:
        text = (
            "%s, which run %s has left, still goes on %.0f s after it was cancelled: this worker process (pid %d) hands "
            "over its other runs and ends. Let asyncio.CancelledError out, and give threads a timeout of their own"
        )
        about = {"run_id": left.run_id, "location": left.location}
        logger.critical(text, left.what, left.run_id, seconds, os.getpid(), extra=about)


def _is_over(step: StepInfo, since: float, now: float) -> bool:
    """Return True if the step has continued for too long after its timeout, or after its last heartbeat."""
    if conf.HARD_TIMEOUT <= 0:
        return False
    if step.timeout > 0 and now - since >= step.timeout + conf.HARD_TIMEOUT:
        return True
    progress = step.begun_progress
    signed_at = progress.signed_at if progress is not None else None
    return step.heartbeat > 0 and now - max(since, signed_at or since) >= step.heartbeat + conf.HARD_TIMEOUT
