"""Serve RQ queues with a WorkerLoop, for `manage.py durable_worker`.

Owns RQ's worker in such a process: it is made anew when Redis was unreachable. Must not execute runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisError
from rq.exceptions import StopRequested

from durable.worker.loop import WorkerLoop
from durable.worker.retry import RETRY
from durable.worker.rq import SimpleWorker
from durable.worker.supervisor import Echo

__all__ = ["serve"]

# Seconds after which RQ forgets an idle worker that sends no heartbeat. RQ waits for jobs a little shorter than that.
WORKER_TTL: Final = 60


def serve(loop: WorkerLoop, queues: Sequence[str], *, say: Echo, logging_level: str) -> None:
    """Serve the queues until a stop is requested. Redis may be unreachable at any time."""
    is_logged = False
    with contextlib.suppress(StopRequested):
        while not loop.stop.requested:
            try:
                _rq_worker(loop, queues).work(logging_level=logging_level)
            except (RedisError, OSError) as error:
                if not is_logged:
                    say(f"Redis is away, trying again: {type(error).__name__}: {error}")
                is_logged = True
            else:
                is_logged = False
            loop.stop.wait(RETRY)  # RQ's loop ends by itself only when Redis is in trouble


def _rq_worker(loop: WorkerLoop, queues: Sequence[str]) -> SimpleWorker:
    from django_rq import get_worker

    kind: Any = SimpleWorker  # django_rq's annotation is too narrow
    worker: Any = get_worker(*queues, worker_class=kind, worker_ttl=WORKER_TTL)
    assert isinstance(worker, SimpleWorker)
    worker.loop = loop
    return worker
