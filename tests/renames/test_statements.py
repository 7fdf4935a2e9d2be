"""The plans of the statements of renames: none reads a table of runs or records from one end to the other."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.migrations.operations.base import Operation
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable.core.errors import ErrorInfo
from durable.migrations import RenameQueue, RenameStep, RenameWorkflow
from durable.models import (
    Attempt,
    Cause,
    Child,
    Entry,
    EntryMetadata,
    Failure,
    HeldStart,
    LogLine,
    QueueMessage,
    Run,
    StepSave,
)
from tests.renames.conftest import apply
from tests.support.plans import scans, sorts

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db]

#: What grows with the runs. The others have a row for a name, a schedule or a minute.
GROWING = {
    "durable_attempt",
    "durable_child",
    "durable_entry",
    "durable_failure",
    "durable_heldstart",
    "durable_logline",
    "durable_queuemessage",
    "durable_run",
    "durable_stepsave",
}
OTHERS, OWN = 3_000, 15  # so few that no plan is near another one, whatever earlier tests left of the tables


@pytest.fixture
def runs() -> None:
    """Few runs of the workflow, and of the queue, among many."""
    now = timezone.now()
    made = Run.objects.bulk_create(
        Run(
            id=f"run-{number:05}",
            workflow="shop.fulfil" if number < OWN else f"shop.other{number % 7}",
            queue="few" if number < OWN else "default",
            input="{}",
            state="paused",
            created_at=now,
            generations={"charge": 1} if number % 3 else {},
        )
        for number in range(OTHERS)
    )
    entries = Entry.objects.bulk_create(
        Entry(run=each, location=location, kind="step", ordinal=number)
        for each in made
        for number, location in enumerate(["charge", "ship/label"])
    )
    EntryMetadata.objects.bulk_create(EntryMetadata(entry=each, status="completed", created_at=now) for each in entries)
    LogLine.objects.bulk_create(LogLine(run=each, at=now, level=20, location="charge", text="paid") for each in made)
    error = ErrorInfo.of(ConnectionError("no answer"))
    Attempt.objects.bulk_create(
        Attempt(run=each, location="charge", number=1, started_at=now, finished_at=now, error=error) for each in made
    )
    save: dict[str, Any] = {"fence": 1, "attempt": 1, "number": 1, "details": "1"}
    StepSave.objects.bulk_create(StepSave(run=each, location="charge", **save) for each in made)
    QueueMessage.objects.bulk_create(
        QueueMessage(
            id=f"m-{each.id}",
            run=each,
            queue="q",
            body="1",
            sent_at=now,
            order=1,
            state="received",
            received_by="charge",
        )
        for each in made
    )
    Child.objects.bulk_create(
        Child(run=each, parent_id=each.id, location="charge", position=1, when_parent_ends="cancel") for each in made
    )
    HeldStart.objects.bulk_create(HeldStart(run=each, workflow=each.workflow, due_at=now) for each in made)
    cause = Cause.objects.create(fingerprint="f", place="charge", error_type="E", pattern="p", first_seen_at=now)
    Failure.objects.bulk_create(
        Failure(run=each, cause=cause, workflow=each.workflow, queue="q", failed_at=now, run_created_at=now)
        for each in made
    )
    with connection.cursor() as cursor:
        for table in sorted(GROWING):
            cursor.execute(f"ANALYZE {table}")


@pytest.mark.usefixtures("runs")
def test_only_what_is_rewritten_is_read() -> None:
    for operation in (
        RenameStep("shop.fulfil", "charge", "charge card", wait=0),
        RenameStep("shop.fulfil", "ship", "send", wait=0),
        RenameWorkflow("shop.fulfil", "shop.fulfil_order", wait=0),
    ):
        with transaction.atomic():
            reads_what_it_rewrites(operation)
            transaction.set_rollback(True)  # for the next one the rows are as they were


def reads_what_it_rewrites(operation: Operation) -> None:
    with CaptureQueriesContext(connection) as queries:
        apply(operation)
    assert scans(queries, GROWING) + sorts(queries, GROWING) == []
    written = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    assert written
    with CaptureQueriesContext(connection) as again:
        apply(operation)
    assert scans(again, GROWING) + sorts(again, GROWING) == []
    assert not [query["sql"] for query in again if 'UPDATE "durable_run"' in query["sql"]]


@pytest.mark.usefixtures("runs")
def test_a_renamed_queue_reads_no_ended_runs() -> None:
    Run.objects.filter(queue="default").update(state="completed", finished_at=timezone.now())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run")
    operation = RenameQueue("few", "fewer", wait=0)
    with CaptureQueriesContext(connection) as queries:
        apply(operation)
    assert scans(queries, GROWING) + sorts(queries, GROWING) == []
    assert Run.objects.filter(queue="fewer").count() == OWN
    with CaptureQueriesContext(connection) as again:
        apply(operation)
    assert scans(again, GROWING) + sorts(again, GROWING) == []
    assert not [query["sql"] for query in again if 'UPDATE "durable_run"' in query["sql"]]
