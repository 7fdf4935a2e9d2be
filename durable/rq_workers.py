"""The worker classes under the path that settings and `rq worker` use. `durable.worker.rq` defines them."""

from durable.worker.rq import SimpleWorker, Worker

__all__ = ["SimpleWorker", "Worker"]
