"""The worker classes under the path that settings and `rq worker` use. `durable.worker.rq` defines them."""

from durable.jobs import set_up_django

set_up_django()  # `rq worker` imports this before anything else has set Django up

from durable.worker.rq import SimpleWorker, Worker  # noqa: E402

__all__ = ["SimpleWorker", "Worker"]
