"""Notifications: the RQ jobs in a queue, and what Redis still has to answer."""

from __future__ import annotations

from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from durable.notifier import redis_clients
from durable.notifier.enqueue import PipelinedSender


def wait_for_answers(sender: PipelinedSender) -> None:
    """Read what Redis still owes: what it is asked on another connection meanwhile could come before what was sent."""
    free = [sender._free.pop() for _ in range(len(sender._free))]
    for connection, is_owed in free:
        try:
            if is_owed:
                connection.read_response()
        except RedisError:  # as the next command would notice
            sender._close(connection)
        else:
            sender._free.append((connection, False))


def jobs(queue: str = "default") -> list[Job]:
    return Queue(queue, connection=redis_clients.client(queue), serializer=JSONSerializer).jobs


def take_job(queue: str = "default") -> Job:
    """Take the oldest job out of the queue, as a worker does."""
    rq_queue = redis_clients.rq_queue(queue)
    found = Queue.dequeue_any([rq_queue], timeout=None, connection=rq_queue.connection, serializer=JSONSerializer)
    assert found is not None
    return found[0]
