"""The app as Django sees it: finds the workflows and registers the checks; touches neither database nor Redis."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

__all__ = ["DurableConfig"]


class DurableConfig(AppConfig):
    """Durable workflows."""

    name = "durable"
    verbose_name = "Durable"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import every app's `workflows` module, then the checks; count and trace where that is asked for."""
        from durable import logs, metrics
        from durable.instrumentation import tracing
        from durable.notifier import silence

        logs.guard()
        silence.note_settings()
        self.autodiscover()
        # checks registers them; connections notes which process this is, before a worker forks.
        from durable import checks  # noqa: F401
        from durable.execution import connections  # noqa: F401
        from durable.inspection import database_checks  # noqa: F401
        from durable.store.routines import restore
        from durable.tasks import workflow  # noqa: F401  # the workflow that tasks are runs of

        post_migrate.connect(restore, sender=self)
        metrics.set_up()
        tracing.set_up()

    def autodiscover(self) -> None:
        """Import the module `workflows` of every installed app that has one."""
        autodiscover_modules("workflows")
