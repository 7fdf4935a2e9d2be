"""RQ alone: empty jobs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.peers.children import figures

QUEUE = "benchmarks-rq"
JOB = "tests.benchmarks.peers.rq.nothing"


def nothing() -> None:
    """The job."""


@measure("rq", is_peer=True)
def rq(bench: Bench) -> Iterator[Figure]:
    """Empty jobs by a worker of RQ's in burst mode, SimpleWorker and the forking Worker: jobs per second.

    The jobs were enqueued before, so what a job costs its producer is not in it.
    """
    sizes = bench.size(1000, 150), bench.size(300, 40)
    yield from figures(__name__, *sizes, environment={"DJANGO_SETTINGS_MODULE": ""})


def main(simple: int, forking: int) -> None:
    """Work off so many jobs by each kind of worker."""
    from redis import Redis
    from rq import Queue, SimpleWorker, Worker
    from rq.serializers import JSONSerializer

    queue = Queue(QUEUE, connection=Redis.from_url(os.environ["REDIS_URL"]), serializer=JSONSerializer)
    answer = {}
    for name, worker_class, count in (
        ("rq jobs, SimpleWorker", SimpleWorker, simple),
        ("rq jobs, Worker", Worker, forking),
    ):
        queue.enqueue_many([Queue.prepare_data(JOB, result_ttl=0) for _ in range(count)])
        worker = worker_class([queue], connection=queue.connection, serializer=JSONSerializer)
        answer[name] = count / seconds(lambda worker=worker: worker.work(burst=True, logging_level="ERROR"))  # type: ignore[misc]
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
