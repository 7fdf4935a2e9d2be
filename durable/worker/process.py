"""One worker process of `manage.py durable_worker`: serve queues until a stop is requested or the parent is gone.

Owns what the process does besides executing runs: its signals, the pipe from its parent (`durable.worker.supervisor`),
and what notifies its WorkerLoop of queues with due runs: RQ (`durable.worker.rq`) or, without Redis, the parent
(`durable.worker.loop`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from durable.conf import conf
from durable.drivers.loop_threads import left_behind
from durable.worker import rq
from durable.worker.loop import DueQueues, InlinePool, ThreadPool, WorkerLoop, serve_polling
from durable.worker.presence import stop
from durable.worker.supervisor import READY_FD, Echo

# Seconds in which the passes of a worker whose parent is gone may reach their next operation. Shorter than the default
# LEASE: nothing restarts this process, and other workers have to get its runs.
GRACE: Final = 10.0


def run_worker(
    queues: Sequence[str], *, say: Echo, concurrency: int = 1, logging_level: str = "WARNING", serves_all: bool = False
) -> None:
    """Serve the queues with up to `concurrency` runs at once, until a stop is requested or the parent is gone.

    Redis may be unreachable at any time. Where durable uses no Redis, the parent reports due runs. With `serves_all`,
    the worker then serves runs of any other queue after those of `queues`.
    """
    from durable.store import store_for

    due = DueQueues(queues, serves_all=serves_all)
    _watch_parent(say, due.report)
    signal.signal(signal.SIGTERM, _stop_before_work)
    signal.signal(signal.SIGINT, _stop_before_work)
    say(f"worker ready, pid {os.getpid()}")
    _tell_that_it_is_ready()
    pool = ThreadPool(concurrency) if concurrency > 1 else InlinePool()
    is_open = serves_all and not conf.REDIS
    with WorkerLoop(pool, store=store_for(conf.DATABASE), queues=queues, serves_all=is_open, learns_names=True) as loop:
        if conf.REDIS:
            rq.serve(loop, queues, due, logging_level=logging_level)
        else:
            serve_polling(loop, due)
    _leave_what_goes_on(say)


def _leave_what_goes_on(say: Echo) -> None:
    """End the process if code that steps have left behind still runs: Python would wait for its threads."""
    until = time.monotonic() + GRACE
    while left := left_behind():
        if time.monotonic() >= until:
            for each in left:
                say(f"{each.what}, which run {each.run_id} has left, still goes on; ending without it")
            sys.stdout.flush()
            os._exit(0)
        time.sleep(0.1)


def _tell_that_it_is_ready() -> None:
    number = os.environ.pop(READY_FD, "")  # removed, so that processes started by a step do not inherit it
    if number:
        with contextlib.suppress(OSError):
            os.write(int(number), b"r")
            os.close(int(number))


def _stop_before_work(_signal: int, _frame: FrameType | None) -> None:
    """Request a stop. Installed until RQ's worker installs handlers of its own, and again after it removed them."""
    stop.request()


def _watch_parent(say: Echo, report: Callable[[bytes], None]) -> None:
    """Stop when the parent is gone.

    The parent's end of this process's standard input is closed then. `report` gets the bytes that the parent sends.
    """

    def watch() -> None:
        while sent := os.read(0, 4096):
            try:
                report(sent)
            except Exception as error:  # noqa: BLE001 - this thread has to notice that the parent is gone
                say(f"what the parent sent is ignored: {type(error).__name__}: {error}")
        if not stop.requested:  # otherwise the parent has requested the stop before
            with contextlib.suppress(OSError):  # the reader of our output may be gone with the parent
                say(f"the parent is gone, handing over, pid {os.getpid()}")
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="durable-parent-watch", daemon=True).start()
