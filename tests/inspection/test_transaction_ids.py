"""Transaction ids that autovacuum does not freeze in time are reported, with what to do."""

from __future__ import annotations

import pytest
from django.db import connection

from durable.inspection import database
from durable.inspection.database import LAST_ID, transaction_ids
from durable.inspection.findings import Finding
from durable.metrics.rows import RowsCollector
from tests.inspection.conftest import findings

pytestmark = pytest.mark.django_db


def finding() -> Finding | None:
    return next(iter(findings("transaction_ids")), None)


def gauges() -> list[float]:
    families = {family.name: family for family in RowsCollector().collect()}
    return [sample.value for sample in families["durable_transaction_id_age"].samples]


@pytest.mark.postgres
class TestPostgreSQL:
    def test_the_age_is_that_of_the_oldest_database_of_the_server(self) -> None:
        ids = transaction_ids("default")
        assert ids is not None
        with connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database WHERE age(datfrozenxid) >= %s", [ids.age])
            assert (ids.database,) in cursor.fetchall()
        assert ids.freezes_at == 200_000_000  # the server's default
        assert 0 < ids.age <= gauges()[0] < ids.age + 1_000_000

    def test_ids_that_are_frozen_in_time_are_no_finding(self) -> None:
        assert finding() is None

    @pytest.mark.parametrize("is_urgent", [False, True])
    def test_old_ones_are_one_and_urgent_when_half_are_used_up(
        self, monkeypatch: pytest.MonkeyPatch, is_urgent: bool
    ) -> None:
        monkeypatch.setattr(database, "_WHILE_FREEZING", 0.0)
        if is_urgent:
            monkeypatch.setattr(database, "LAST_ID", 1)
        found = finding()
        assert found is not None
        assert found.is_urgent == is_urgent
        assert "autovacuum freezes them at 200,000,000" in found.title
        assert f"at {LAST_ID:,} the server refuses to write" in found.title
        assert "VACUUM (FREEZE)" in found.advice

    def test_the_statement_of_the_advice_can_be_executed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "_WHILE_FREEZING", 0.0)
        found = finding()
        assert found is not None
        with connection.cursor() as cursor:
            cursor.execute(found.advice[found.advice.index("SELECT") :])
            assert "durable_run" in {table for table, _ in cursor.fetchall()}


def test_another_database_has_none() -> None:
    if connection.vendor == "postgresql":
        pytest.skip("it has them")
    assert (transaction_ids("default"), finding(), gauges()) == (None, None, [])
