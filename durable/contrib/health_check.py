"""Checks for django-health-check (`durable-django[health-check]`): may this project execute its runs?

    HealthCheckView.as_view(checks=["durable.contrib.health_check.DurableWorkers", ...])

Owns only the verdicts: what is looked at is what the admin and `durable doctor` look at (`durable.inspection`). A check
reads a few rows along indexes. What it says has no payloads and no addresses of servers.

These are checks of the project as a whole. The probes of one worker process are `durable_worker --health-port`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta

from django.db import Error, connections
from django.utils import timezone
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from durable import marks
from durable.conf import conf
from durable.inspection.database import how_to_migrate, missing_migrations, wrong_routines
from durable.inspection.humanize import span
from durable.inspection.queues import list_queues
from durable.inspection.wording import worker_command
from durable.inspection.workers import worker_overview

__all__ = ["DurableDueRuns", "DurableMark", "DurableRedis", "DurableTables", "DurableWorkers"]


class _Check(HealthCheck):  # type: ignore[misc]  # it has no types
    """A check that reads durable's database, in a thread of its own: leaves no connection open there."""

    def run(self) -> None:
        """Raise an exception of `health_check.exceptions` that says what is wrong."""
        try:
            with connections[conf.DATABASE].temporary_connection():
                self.look()
        except Error as error:
            raise ServiceUnavailable(f"durable's database does not answer: {type(error).__name__}") from error

    def look(self) -> None:
        """Look, as `run`. Database errors propagate."""
        raise NotImplementedError


@dataclasses.dataclass
class DurableTables(_Check):
    """The tables and functions of durable's database are those of the installed release."""

    def look(self) -> None:
        """Raise ServiceUnavailable if a migration is missing, or a function differs."""
        if missing := missing_migrations():
            raise ServiceUnavailable(f"{len(missing)} migrations are missing: run {how_to_migrate()}")
        if wrong := wrong_routines():
            raise ServiceUnavailable(f"{wrong[0]}: run {how_to_migrate()}")


@dataclasses.dataclass
class DurableMark(_Check):
    """The database did not go back in time, or it was decided about that.

    Until then workers claim nothing. Starts and messages are kept, and wait.
    """

    def look(self) -> None:
        """Raise ServiceUnavailable if the database is behind its mark, ServiceWarning while a decision is under way."""
        position = marks.look()
        if not position.may_claim:
            kind = ServiceUnavailable if position.is_behind else ServiceWarning
            raise kind(f"durable's database: {position.in_short()}")


@dataclasses.dataclass
class DurableRedis(_Check):
    """Redis answers, or the project uses none: then workers listen to the database, or poll it.

    Without an answer work is late and not lost, because workers poll: a warning.
    """

    def look(self) -> None:
        """Raise ServiceWarning if a Redis does not answer."""
        if problem := worker_overview().problem:
            raise ServiceWarning(problem)


@dataclasses.dataclass
class DurableWorkers(_Check):
    """Each queue that needs one has a live worker.

    These are `queues` or, without it, the queues of the project's workflows and those with runs that will wake.
    """

    queues: Sequence[str] | None = None

    def look(self) -> None:
        """Raise ServiceUnavailable if a queue has no worker."""
        found = {each.name: each for each in worker_overview().queues}
        needed = [each.name for each in found.values() if each.has_runs or each.has_workflows]
        idle = [each for each in self.queues or needed if each not in found or not found[each].workers]
        if idle:
            names = ", ".join(f'"{each}"' for each in idle)
            raise ServiceUnavailable(f"no worker serves {names}: start {worker_command(*idle)}")


@dataclasses.dataclass
class DurableDueRuns(_Check):
    """No run has been due for longer than `longest`. Runs of paused queues do not count."""

    longest: timedelta = timedelta(minutes=5)

    def look(self) -> None:
        """Raise ServiceUnavailable if a run has been due for too long."""
        now = timezone.now()
        due = [(each.oldest_due_at, each) for each in list_queues(now) if each.oldest_due_at and not each.is_paused]
        since, queue = min(due, key=lambda each: each[0], default=(now, None))
        if queue is not None and now - since > self.longest:
            age = span((now - since).total_seconds())
            raise ServiceUnavailable(f'a run of the queue "{queue.name}" has been due for {age}: it needs more workers')
