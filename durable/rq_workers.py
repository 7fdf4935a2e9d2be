"""The worker classes that settings and `rq worker` name by this path. They live in `durable.worker.rq`."""

from durable.worker.rq import SimpleWorker, Worker

__all__ = ["SimpleWorker", "Worker"]
