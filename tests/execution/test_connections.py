"""What a worker's threads do with their connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.db.utils import ConnectionHandler

from durable.execution.connections import abandon_transactions, reconnect

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


def leave_nested() -> None:
    transaction.atomic().__enter__()
    transaction.atomic().__enter__()
    transaction.atomic(savepoint=False).__enter__()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def leave_closed() -> None:
    transaction.atomic().__enter__()
    connections["default"].close()


@pytest.mark.parametrize("leave", [leave_nested, leave_autocommit_off, leave_closed])
def test_a_connection_that_is_connected_again_is_in_no_transaction(leave: Callable[[], None]) -> None:
    hooks: list[str] = []
    connection = connections["default"]
    Group.objects.create(name="kept")
    leave()
    if leave is not leave_closed:
        Group.objects.create(name="lost")
        if connection.in_atomic_block:
            transaction.on_commit(lambda: hooks.append("called"))
    reconnect(connection)
    assert connections["default"] is connection
    assert (connection.in_atomic_block, connection.get_autocommit()) == (False, True)
    with transaction.atomic():
        Group.objects.create(name="next")
    assert sorted(Group.objects.values_list("name", flat=True)) == ["kept", "next"]
    assert hooks == []


@pytest.mark.postgres
def test_a_server_that_is_away_leaves_the_connection_to_its_next_use(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connections["default"]
    transaction.atomic().__enter__()
    Group.objects.create(name="lost")
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        reconnect(connection)
    assert not connection.in_atomic_block
    assert Group.objects.count() == 0


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


def test_a_transaction_on_sqlite_in_memory_ends_and_the_database_stays() -> None:
    """Tests of Django projects on SQLite have such a database. Django does not close the connection."""
    name = "file:left_open?mode=memory&cache=shared"
    connection = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}})["default"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (number integer)")
    connection.set_autocommit(False)
    _kept = connection.connection.execute("INSERT INTO kept VALUES (1) RETURNING number")  # so is the old connection
    reconnect(connection)
    assert connection.get_autocommit()
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT * FROM kept").fetchall() == []
    connection.connection.close()
