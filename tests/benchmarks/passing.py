"""Passes in this process: what the engine costs without RQ and without other processes."""

from __future__ import annotations

from datetime import timedelta

from django.apps import apps
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from durable import Handle
from durable.conf import conf
from durable.core.records import RunRecord
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.models import Run
from durable.store import store_for
from tests.support import worker


def empty_tables() -> None:
    """Forget every run, and what the side tables have of it: no constraint of the database empties them too."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(sorted(_tables()))} CASCADE")


def _tables() -> set[str]:
    """Return the table of runs, and those that refer to it, some of them by another one."""
    found: set[type[Model]] = {Run}
    models = list(apps.get_app_config("durable").get_models())
    while more := {each for each in models if _targets(each) & found} - found:
        found |= more
    return {each._meta.db_table for each in found}


def _targets(model: type[Model]) -> set[type[Model]]:
    return {field.related_model for field in model._meta.fields if isinstance(field.related_model, type)}


def claimed(handle: Handle) -> RunRecord:
    """The run, taken."""
    now = timezone.now()
    lease_until = now + timedelta(seconds=conf.LEASE * 100)
    record = store_for("default").claim_run(handle.id, now=now, lease_until=lease_until, worker="benchmark")
    assert record is not None, f"{handle} cannot be claimed"
    return record


def one_pass(record: RunRecord) -> PassOutcome:
    """Pass a run that is taken."""
    return execute_pass(record, store=store_for("default"), eviction=Eviction())


def work_off() -> None:
    """The worker's loop until nothing is due."""
    worker.work_off(conf.QUEUE, store=store_for("default"), seconds=3600)


def count_rows(table: str, run: str) -> int:
    """The rows of a run in a table."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table} WHERE run_id = %s", [run])
        [(count,)] = cursor.fetchall()
    return int(count)
