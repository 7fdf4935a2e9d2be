"""A switchover: sessions lead to a server that has become a standby, and refuses each write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
from django.db import InternalError, OperationalError, ProgrammingError, connections, transaction
from django.test.utils import CaptureQueriesContext

from durable.core.records import RunChange
from durable.store.postgres import PostgresStore
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_message, a_run, an_entry, commit, started, the

CALLS: Final[dict[str, Callable[[PostgresStore], Any]]] = {
    "a start": lambda store: store.create([a_run("new")]),
    "starts": lambda store: store.create([a_run("new"), a_run("other")]),
    "a start with a key": lambda store: store.start_keyed(a_run("new"), "key"),
    "a message": lambda store: store.send([a_message()]),
    "messages": lambda store: store.send([a_message(), a_message()]),
    "a verb": lambda store: store.change("run", lambda _run, _entries: RunChange(run={"summary": "changed"})),
    "a claim": lambda store: store.claim(queues=["q"], now=NOW, lease_until=NOW + LEASE, worker="w", limit=1),
    "a commit": lambda store: commit(store, the(store), entries=[an_entry()]),
}


@pytest.fixture
def demoted(postgres_store: PostgresStore) -> PostgresStore:
    """The store, whose session is read only, as on a server that has become a standby without cutting it."""
    connections[POSTGRES].close()
    started(postgres_store)
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only TO on")
    return postgres_store


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_the_session_is_closed_and_the_error_is_one_that_is_tried_again(
    demoted: PostgresStore, call: str, is_observed: bool
) -> None:
    observed = CaptureQueriesContext(connections[POSTGRES]) if is_observed else nullcontext()
    with observed, pytest.raises(OperationalError, match="Try again in a few seconds") as refused:
        CALLS[call](demoted)
    assert getattr(refused.value.__cause__, "sqlstate", None) == "25006"
    assert connections[POSTGRES].connection is None
    CALLS[call](demoted)


@pytest.mark.parametrize("call", CALLS)
def test_in_a_transaction_the_session_is_closed_with_it(demoted: PostgresStore, call: str) -> None:
    with pytest.raises(OperationalError, match="read only"), transaction.atomic(using=POSTGRES):
        CALLS[call](demoted)
    assert connections[POSTGRES].connection is None
    CALLS[call](demoted)


def test_a_transaction_that_is_read_only_on_purpose_keeps_its_session(postgres_store: PostgresStore) -> None:
    with transaction.atomic(using=POSTGRES):
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(OperationalError, match="read only"), transaction.atomic(using=POSTGRES):
            postgres_store.create([a_run("new")])
        assert postgres_store.get("new") is None
    connections[POSTGRES].close_if_unusable_or_obsolete()  # as Django does between two requests
    assert connections[POSTGRES].connection is None


def test_another_internal_error_stays_what_it_is(postgres_store: PostgresStore) -> None:
    def after_an_error() -> None:
        with transaction.atomic(using=POSTGRES):
            with pytest.raises(ProgrammingError, match="syntax"), connections[POSTGRES].cursor() as cursor:
                cursor.execute("nonsense")
            connections[POSTGRES].needs_rollback = False
            postgres_store.create([a_run("new")])

    with pytest.raises(InternalError, match="current transaction is aborted"):
        after_an_error()
    postgres_store.create([a_run("new")])
