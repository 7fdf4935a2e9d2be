"""What RQ calls. A job carries a queue's name and nothing else."""

from __future__ import annotations

__all__ = ["work"]


def work(queue: str) -> None:
    """Pass the due runs of `queue`; see `durable.worker`."""
    from durable import worker

    worker.work(queue)
