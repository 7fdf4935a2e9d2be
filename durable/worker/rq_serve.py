"""Serve RQ queues with a WorkerLoop, for `manage.py durable_worker`.

Owns RQ's worker in such a process. When Redis is away, the worker leaves RQ's loop, and serves the queues that the
parent reports, as without Redis (`durable.worker.polling`). Once Redis is back, it has a new RQ worker. Must not
execute runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq.exceptions import StopRequested

from durable.notifier import outages, redis_clients
from durable.worker import polling
from durable.worker.loop import WorkerLoop
from durable.worker.retry import RETRY
from durable.worker.rq import SimpleWorker

# Seconds after which RQ forgets an idle worker that sends no heartbeat. RQ waits for jobs a little shorter than that.
WORKER_TTL: Final = 60
# Seconds in which a connection must be made: otherwise a host that has vanished holds the worker for minutes.
CONNECT_TIMEOUT: Final = 2.0


def serve(loop: WorkerLoop, queues: Sequence[str], due: polling.DueQueues, *, logging_level: str) -> None:
    """Serve the queues until a stop is requested. Redis may be unreachable at any time."""
    with contextlib.suppress(StopRequested):
        while not loop.stop.requested:
            _serve_with_redis(loop, queues, due, logging_level)
            _poll_until_back(loop, queues, due)


def _serve_with_redis(loop: WorkerLoop, queues: Sequence[str], due: polling.DueQueues, logging_level: str) -> None:
    """Have an RQ worker serve the queues. Its loop ends by itself only when Redis is in trouble."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker = _rq_worker(loop, queues)  # which sends its name to Redis
        due.on_report = worker.leave
        worker.work(logging_level=logging_level)
        lost = worker.lost
    except (RedisError, OSError) as error:
        lost = error
    finally:
        due.on_report = None
        for number, handler in handlers.items():  # RQ's own raise StopRequested in whatever runs
            signal.signal(number, handler)
    if lost is not None and outages.is_away(lost):
        outages.began(queues[0], lost)


def _poll_until_back(loop: WorkerLoop, queues: Sequence[str], due: polling.DueQueues) -> None:
    """Serve what is due without Redis until each Redis of the queues answers, but for a moment at least."""
    is_back, has_ended = threading.Event(), threading.Event()

    def look() -> None:
        while not has_ended.wait(RETRY):
            if _answers(queues):
                is_back.set()
                due.look()
                return

    looking = threading.Thread(target=look, name="durable-redis-watch", daemon=True)
    looking.start()
    for queue in queues:  # what the process was to be notified of meanwhile
        due.run_is_due(queue)
    try:
        polling.serve(loop, due, is_back.is_set)
    finally:
        has_ended.set()
        looking.join()


def _answers(queues: Sequence[str]) -> bool:
    """Return True if each Redis of the queues answers."""
    for queue in redis_clients.one_queue_per_redis(queues):
        try:
            redis_clients.client(queue).ping()
        except (RedisError, OSError) as error:
            if outages.is_away(error):
                outages.began(queue, error)
                return False
        outages.ended(queue)
    return True


def _rq_worker(loop: WorkerLoop, queues: Sequence[str]) -> SimpleWorker:
    from django_rq import get_worker

    kind: Any = SimpleWorker  # django_rq's annotation is too narrow
    worker: Any = get_worker(*queues, worker_class=kind, worker_ttl=WORKER_TTL)
    assert isinstance(worker, SimpleWorker)
    pool = worker.connection.connection_pool
    pool.connection_kwargs.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
    pool.set_retry(Retry(NoBackoff(), 1))  # to poll the database is better than to try again for long
    worker.loop = loop
    worker.leaves = True
    return worker
