"""The Django app: finds the workflows and registers the checks; uses neither the database nor Redis."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_save
from django.utils.module_loading import autodiscover_modules

# Code that only some processes need is imported by these functions, which are receivers or are called by one.


def _prepare_schedule(sender: type, **kwargs: Any) -> None:
    from durable.operations.schedules.rows import prepare

    prepare(sender, **kwargs)


def _follow_migrate(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Restore the database's functions; write the schedules, limits and ends that code declares."""
    from durable.operations import ends, limits
    from durable.operations.schedules import sync
    from durable.store.routines import restore

    for receiver in (
        restore,
        sync.synchronise_after_migrate,
        limits.synchronise_after_migrate,
        ends.synchronise_after_migrate,
    ):
        receiver(sender=sender, using=using, **kwargs)


def _look_for_moves() -> None:
    from durable.renames.classes_looking import look_for_moves

    look_for_moves()


class DurableConfig(AppConfig):
    """Durable workflows."""

    name = "durable"
    verbose_name = "Durable"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import every app's `workflows` module and the checks; set up metrics, tracing and alerts as configured."""
        from durable import guard, logs, metrics
        from durable.conf import conf
        from durable.instrumentation import tracing
        from durable.notifier import wakeups

        logs.guard()
        guard.install()
        wakeups.note_settings()
        self.autodiscover()
        # `checks` registers the checks; `connections` records the id of this process before a worker forks.
        from durable.alerts import delivery  # noqa: F401  # the workflow whose runs send alerts
        from durable.checks import code, configuration, database  # noqa: F401
        from durable.core.names import recorded_names
        from durable.execution import connections  # noqa: F401
        from durable.models import Schedule
        from durable.store import sessions
        from durable.tasks import backend  # noqa: F401  # the workflow whose runs are tasks

        pre_save.connect(_prepare_schedule, sender=Schedule, dispatch_uid="durable.schedules")
        post_migrate.connect(_follow_migrate, sender=self)
        recorded_names.look_with(_look_for_moves)
        sessions.look_at_new_sessions()
        database.look_at_first_request()
        metrics.set_up()
        tracing.set_up()
        if conf.EMBEDDED:
            from durable.worker import embedded

            embedded.begin()

    def autodiscover(self) -> None:
        """Import the module `workflows` of every installed app that has one."""
        autodiscover_modules("workflows")
