"""Renames of recorded operations, applied as a migration applies them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable import runtime
from durable.core.renames import put_in_force
from tests.replay_check.conftest import deploys

__all__ = ["apply", "deploys", "unapply"]


@pytest.fixture(autouse=True)
def no_names_left() -> Iterator[None]:
    """What a test puts in force is not in force in the next."""
    yield
    put_in_force(())


def apply(operation: Operation, *, is_known: bool = True) -> None:
    """Apply the operation. With `is_known`, this process knows of it: as a worker that has started since."""
    operation.database_forwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())
    if is_known:
        runtime.current().store.learn_names()


def unapply(operation: Operation) -> None:
    """Reverse the operation."""
    operation.database_backwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())
    runtime.current().store.learn_names()
