"""At most one writer, no wake-up lost, states only as allowed: a machine of random moves, on each store."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.emptying import empty
from tests.store.leases import LeaseMachine


class InMemory(LeaseMachine):
    def make_store(self) -> Store:
        return MemoryStore()


@pytest.mark.slow
def test_leases_in_memory() -> None:
    run_state_machine_as_test(InMemory, settings=settings(max_examples=250, stateful_step_count=40))


@pytest.mark.slow
def test_leases_in_a_database(database_store: SQLiteStore | PostgresStore) -> None:
    class InDatabase(LeaseMachine):
        def make_store(self) -> Store:
            empty(database_store.alias)
            return database_store

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    small = settings(max_examples=20, stateful_step_count=25, suppress_health_check=checks)
    run_state_machine_as_test(InDatabase, settings=small)
