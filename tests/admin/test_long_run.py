"""One run with 100,000 entries: what each of its pages, and each of its addresses over REST, reads of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from durable.inspection import history_counts
from durable.inspection.history_counts import REST, count_long_histories
from durable.models import Cause, HistoryCount, OperatorAction, SavedView
from durable.worker.executor import note
from tests.admin.bigdata import LONG, filled
from tests.support.plans import most_read
from tests.tools.scale import DEEP
from tests.tools.scale.requests import Asked, every_request

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db]

RUNS: Final = 5_000
ENTRIES: Final = 100_000
MOST_STATEMENTS: Final = 40
#: The rows that one node of a plan reads which reads the table once.
WHOLE: Final = ENTRIES + RUNS
_ANSWERS: Final = {200, 403, 404, 409, 422}  # an input of a run that goes on is not edited, and the like
#: The same of a page that reads what it shows.
MOST_ROWS: Final = 3_000


@pytest.fixture(scope="module")
def long_run(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    if connection.vendor != "postgresql":
        pytest.skip("the rows are made by PostgreSQL")
    with django_db_blocker.unblock(), filled(runs=RUNS, entries=ENTRIES):
        note(LONG)
        while HistoryCount.objects.filter(noted_at__isnull=False).exists():  # a turn takes two seconds at most
            count_long_histories(timezone.now() + REST)
        yield


#: Parts of addresses that look for a place in the history each time, because no index has its order.
SEARCHING: Final = ("/replay/", "/replay-plan", "/send/", "/step/")


def test_each_address_of_a_long_run_costs_a_bounded_number_of_statements_and_rows(
    long_run: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look may search the history once. A second one reads what it shows, but for `SEARCHING`."""
    monkeypatch.setattr(history_counts, "_KEPT", 3600.0)  # a busy machine takes longer than a minute for all of them
    too_much, asked = [], list(_of_the_long_run())
    for most in (WHOLE, MOST_ROWS):
        for each in asked:
            with CaptureQueriesContext(connection) as queries:
                response = _send(operator, each)
            assert response.status_code in _ANSWERS, f"{response.status_code} for {each.title}"
            rows, heaviest = most_read(queries)
            is_searching = any(part in each.address for part in SEARCHING)
            if len(queries) > MOST_STATEMENTS or rows > (WHOLE if is_searching else most):
                too_much.append(f"{each.title}: {len(queries)} statements, {rows} rows by {heaviest[:300]}")
    assert len(asked) > 60
    assert not too_much, "\n".join(too_much)


def _of_the_long_run() -> Iterator[Asked]:
    now = timezone.now()  # of what `every_request` names there has to be one
    Cause.objects.get_or_create(fingerprint="cause-0", defaults={"first_seen_at": now})
    OperatorAction.objects.create(source="admin", action="cancel", outcome="done", created_at=now)
    SavedView.objects.create(name="mine", owner_key="1", created_at=now)
    return (each for each in every_request() if LONG in each.title and DEEP not in each.title and not each.is_whole)


def _send(client: Client, asked: Asked) -> Any:
    if not asked.data:
        return client.get(asked.address)
    how: dict[str, Any] = {"content_type": "application/json"} if asked.is_json else {}
    return client.post(asked.address, asked.data, **how)
