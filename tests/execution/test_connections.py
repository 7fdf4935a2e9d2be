"""What a worker's threads do with their connections."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.db import connections, transaction

from durable.execution.connections import abandon_transactions

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_connection_left_in_a_transaction_is_given_up_and_the_next_one_is_clean() -> None:
    transaction.atomic().__enter__()
    left = connections["default"]
    assert left.in_atomic_block
    abandon_transactions()
    assert left.closed_in_transaction
    assert connections["default"] is not left
    with transaction.atomic():
        assert not connections["default"].savepoint_ids
    connections["default"].close()


def test_a_connection_in_order_stays_open() -> None:
    connection = connections["default"]
    connection.ensure_connection()
    before = connection.connection
    abandon_transactions()
    assert connections["default"] is connection
    assert connection.connection is before


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestFork:
    """As a web server forks that has loaded, and used, the application before."""

    @pytest.fixture(autouse=True)
    def _only_with_sessions(self) -> None:
        if connections["default"].vendor != "postgresql":
            pytest.skip("SQLite has no sessions")

    def test_a_child_has_a_session_of_its_own(self) -> None:
        parents = session()
        with transaction.atomic():
            transaction.on_commit(lambda: os.write(writer, b"the parent's business "))
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                try:
                    with transaction.atomic():
                        os.write(writer, str(session()).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            found = int(os.read(reader, 100))
        assert found != parents
        assert session() == parents
        for each in (reader, writer):
            os.close(each)

    def test_a_child_does_not_draw_from_the_parents_pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pools: dict[str, Any] = {"default": object(), "another": object()}
        monkeypatch.setattr(type(connections["default"]), "_connection_pools", pools)
        session()
        child = os.fork()
        if not child:
            os._exit(list(pools) != ["another"])
        assert os.waitpid(child, 0)[1] == 0
        assert list(pools) == ["default", "another"]


def session() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        found: int = cursor.fetchone()[0]
        return found
