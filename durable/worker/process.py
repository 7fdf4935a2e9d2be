"""One worker process of `manage.py durable_worker`: serve queues until a stop is requested or the parent is gone.

Owns what the process does besides executing runs: its signals, the pipe from its parent (`durable.worker.supervisor`),
and how it learns of due runs: through RQ's loop or, without Redis, through the parent's pipe
(`durable.worker.polling`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

from redis.exceptions import RedisError
from rq.exceptions import StopRequested

from durable.conf import conf
from durable.worker import polling
from durable.worker.concurrent import ConcurrentWorker, CrewWorker
from durable.worker.rq import SimpleWorker
from durable.worker.shutdown import stop
from durable.worker.supervisor import READY_FD, Echo

__all__ = ["run_worker"]

GRACE = 10.0  # seconds an orphaned worker has to hand over
REDIS_RETRY = 1.0  # seconds until a worker that could not reach Redis tries again
WORKER_TTL = 60  # seconds after which RQ forgets an idle worker that sends no heartbeat


def run_worker(
    queues: Sequence[str],
    *,
    say: Echo,
    concurrency: int = 1,
    logging_level: str = "WARNING",
    serves_all: bool = False,
) -> None:
    """Serve the queues with up to `concurrency` runs at once, until a stop is requested or the parent is gone.

    Redis may be unreachable at any time. Where durable uses no Redis, the parent reports due runs. With `serves_all`,
    the worker then serves runs of any other queue after those of `queues`.
    """
    from durable.store import store_for

    due = polling.DueQueues(queues, serves_all=serves_all)
    _watch_parent(say, due.report)
    signal.signal(signal.SIGTERM, _stop_before_work)
    signal.signal(signal.SIGINT, _stop_before_work)
    say(f"worker ready, pid {os.getpid()}")
    _tell_that_it_is_ready()
    with ExitStack() as stack:
        crew = (
            stack.enter_context(ConcurrentWorker(concurrency, store=store_for(conf.DATABASE)))
            if concurrency > 1
            else None
        )
        if not conf.REDIS:
            polling.serve(due, crew=crew)
        elif crew is None:
            _serve(queues, say, SimpleWorker, logging_level)
        else:
            with contextlib.suppress(StopRequested):
                _serve(queues, say, CrewWorker, logging_level)


def _serve(queues: Sequence[str], say: Echo, worker_class: type[SimpleWorker], logging_level: str) -> None:
    is_told = False
    while not stop.requested:
        try:
            _rq_worker(queues, worker_class).work(logging_level=logging_level)
        except (RedisError, OSError) as error:
            is_told = is_told or _tell(say, error)
        else:
            is_told = False
        if not stop.requested:
            time.sleep(REDIS_RETRY)  # RQ's loop ends by itself only when Redis is in trouble


def _tell(say: Echo, error: Exception) -> bool:
    say(f"Redis is away, trying again: {type(error).__name__}: {error}")
    return True


# django_rq's annotation is too narrow for this
def _rq_worker(queues: Sequence[str], worker_class: Any) -> SimpleWorker:
    from django_rq import get_worker

    worker: Any = get_worker(*queues, worker_class=worker_class, worker_ttl=WORKER_TTL)
    assert isinstance(worker, SimpleWorker)
    return worker


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
