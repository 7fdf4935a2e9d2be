"""The Django app: finds the workflows and registers the checks; uses neither the database nor Redis."""

from __future__ import annotations

from datetime import datetime

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_save
from django.utils.module_loading import autodiscover_modules


def count_long_histories(now: datetime) -> None:
    """Count the histories that are noted as long; only the process of the sweep needs what this imports."""
    from durable.inspection import long_histories

    long_histories.count_long_histories(now)


class DurableConfig(AppConfig):
    """Durable workflows."""

    name = "durable"
    verbose_name = "Durable"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import every app's `workflows` module and the checks; set up metrics, tracing and alerts as configured."""
        from durable import guard, logs, metrics
        from durable.instrumentation import tracing
        from durable.notifier import silence

        logs.guard()
        guard.install()
        silence.note_settings()
        self.autodiscover()
        # `checks` registers the checks; `connections` notes the id of this process before a worker forks.
        from durable import (  # noqa: F401
            checks,
            database_checks,
            limit_checks,
            lint_checks,
            rename_checks,
            schedule_checks,
            tag_checks,
        )
        from durable.alerts.watch import look
        from durable.core import recorded_names
        from durable.execution import connections  # noqa: F401
        from durable.models import Schedule
        from durable.operations import limits
        from durable.operations.schedules.rows import prepare
        from durable.operations.schedules.sync import synchronise_after_migrate
        from durable.renames.classes_looking import look_for_moves
        from durable.store.routines import restore
        from durable.tasks import workflow  # noqa: F401  # the workflow whose runs are tasks
        from durable.worker.chores import CHORES

        pre_save.connect(prepare, sender=Schedule, dispatch_uid="durable.schedules")
        post_migrate.connect(restore, sender=self)
        post_migrate.connect(synchronise_after_migrate, sender=self)
        post_migrate.connect(limits.synchronise_after_migrate, sender=self)
        for chore in (look, count_long_histories):
            if chore not in CHORES:
                CHORES.append(chore)
        recorded_names.look_with(look_for_moves)
        metrics.set_up()
        tracing.set_up()

    def autodiscover(self) -> None:
        """Import the module `workflows` of every installed app that has one."""
        autodiscover_modules("workflows")
