"""The function that RQ calls. A job carries a queue's name and nothing else."""

from __future__ import annotations

__all__ = ["set_up_django", "work"]


def work(queue: str) -> None:
    """Execute the due runs of `queue`; see `durable.worker`. Raises ImproperlyConfigured as `set_up_django` does."""
    set_up_django()

    from durable.worker import rq_jobs

    rq_jobs.work(queue)


def set_up_django() -> None:
    """Set Django up if no command has done so: in `rq worker`, and in the work horses of RQ's SpawnWorker.

    Raises ImproperlyConfigured if the environment then lacks DJANGO_SETTINGS_MODULE.
    """
    import django
    from django.apps import apps

    if not apps.ready:
        django.setup()
