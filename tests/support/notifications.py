"""Notifications: the RQ jobs in a queue."""

from __future__ import annotations

from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from durable.notifier import redis_clients


def jobs(queue: str = "default") -> list[Job]:
    return Queue(queue, connection=redis_clients.client(queue), serializer=JSONSerializer).jobs


def take_job(queue: str = "default") -> Job:
    """Take the oldest job out of the queue, as a worker does."""
    rq_queue = redis_clients.rq_queue(queue)
    found = Queue.dequeue_any([rq_queue], timeout=None, connection=rq_queue.connection, serializer=JSONSerializer)
    assert found is not None
    return found[0]
