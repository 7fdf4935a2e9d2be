"""Renames of recorded operations, applied as a migration applies them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.utils import timezone

from durable import runtime
from durable.core.names import recorded_names
from durable.core.names.renames import put_in_force
from durable.models import Entry, EntryMetadata, Run
from tests.replay_check.conftest import Deploys, deploys
from tests.support.processes import Program

__all__ = ["apply", "commanded", "deploys", "go_on", "locations", "unapply"]


@pytest.fixture(autouse=True)
def no_names_left() -> Iterator[None]:
    """What a test puts in force is not in force in the next."""
    yield
    put_in_force(())
    recorded_names.put_in_force(())


def apply(operation: Operation, *, is_known: bool = True) -> None:
    """Apply the operation. With `is_known`, this process knows of it: as a worker that has started since."""
    operation.database_forwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())
    if is_known:
        runtime.current().store.learn_names()


def unapply(operation: Operation) -> None:
    """Reverse the operation."""
    operation.database_backwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())
    runtime.current().store.learn_names()


def commanded(*arguments: str, environment: dict[str, str], code: int = 0) -> list[str]:
    program = Program(*arguments, environment=environment)
    try:
        assert program.wait() == code, program.lines
    finally:
        program.close()
    return program.lines


def locations(run_id: str = "order-1") -> list[str]:
    return list(Entry.objects.filter(run=run_id).order_by("ordinal").values_list("location", flat=True))


def due(run_id: str = "order-1") -> None:
    """Have the time come for which the run waits."""
    past = timezone.now() - timedelta(days=2)
    Run.objects.filter(pk=run_id).update(wake_at=past)
    for each in Entry.objects.filter(run=run_id, kind="sleep"):
        for name, value in each.data.items():
            if isinstance(value, str) and value.startswith("20"):
                each.data[name] = past.isoformat()
        each.save()
    EntryMetadata.objects.filter(entry__run=run_id, next_attempt_at__isnull=False).update(next_attempt_at=past)


def go_on(deploys: Deploys, run_id: str = "order-1") -> str:
    due(run_id)
    deploys.settle(run_id)
    return str(Run.objects.get(pk=run_id).state)
