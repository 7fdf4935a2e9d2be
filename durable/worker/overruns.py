"""Steps that go on after their timeout, because they swallow the interruption or keep it from coming.

Owns the last resort: so long after the timeout the worker process hands over what else it holds, and ends, as if the step
had killed it. The attempt counts as a crash; whoever has started the process starts another one.
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
from durable.drivers import watchdog

__all__ = ["Overruns", "Steps"]

logger = logging.getLogger("durable.worker")

STATUS: Final = 70  # the exit status of a process that a step has cost
HAND_OVER: Final = 10.0  # seconds that other passes of the process have to come to their next operation
AT_LAST: Final = 5.0  # seconds within which the process ends, whatever the database does

Steps = Sequence[tuple[StepInfo, float]]


class Overruns:
    """What a supervisor does about such steps. `stop` has the process take no more work, and evicts its passes."""

    def __init__(self, stop: Callable[[], object], end: Callable[[int], object] = os._exit) -> None:
        self._stop = stop
        self._end = end
        self._since: float | None = None

    def look(self, steps: Steps, held: Callable[[], set[str]], expire: Callable[[set[str]], object]) -> None:
        """End the process, or prepare for it, if one of the `steps` that run has overrun its timeout by too much.

        `held` are the ids of the runs whose passes have begun; `expire` has leases run out at once.
        """
        now = time.monotonic()
        over = [(step, now - since) for step, since in steps if _is_over(step, now - since)]
        runs = {step.run_id for step, _ in over} & (begun := held())
        if not runs:
            return
        if self._since is None:
            self._since = now
            for step, seconds in over:
                self._tell(step, seconds)
            self._stop()
            return  # the supervisor hands back what has not begun, and evicts what has
        if begun - runs and now - self._since < HAND_OVER:
            return
        watchdog.watch(AT_LAST, partial(self._end, STATUS))
        try:
            expire(runs)
        except Exception:  # then they run out by themselves
            logger.exception("the leases of the runs whose steps go on cannot be ended")
        self._end(STATUS)

    def _tell(self, step: StepInfo, seconds: float) -> None:
        text = (
            'step "%s" of run %s, attempt %d, still runs %.0f s after it began, and has not let itself be interrupted at its '
            "timeout of %g s: this worker process (pid %d) hands over its other runs and ends. Let what is raised in the step "
            "out: catch Exception, not BaseException"
        )
        about = {"run_id": step.run_id, "location": step.location}
        logger.critical(text, step.location, step.run_id, step.attempt, seconds, step.timeout, os.getpid(), extra=about)


def _is_over(step: StepInfo, seconds: float) -> bool:
    return conf.HARD_TIMEOUT > 0 and step.timeout > 0 and seconds >= step.timeout + conf.HARD_TIMEOUT
