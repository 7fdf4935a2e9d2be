"""What is said of a run that waits while others come first, and that it costs no more among many runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable.core.limits.ranks import Ranking
from durable.core.new_runs import NewRun
from durable.inspection.run_facts import rank_note, rank_words, share_words
from durable.models import Run
from durable.operations import holds
from durable.store import store_for
from tests.support.plans import most_read, scans, sorts

pytestmark = pytest.mark.django_db

NOW = timezone.now().replace(microsecond=0)
HIGH = Ranking(priority="high", head_start=600)
A, B = Ranking(share="a"), Ranking(share="b")
TABLES = {"durable_run", "durable_runrank", "durable_lane"}


def start(prefix: str, count: int, ranking: Ranking | None = None, **values: Any) -> None:
    of_all: dict[str, Any] = {"workflow": "w", "queue": "q", "input": "[]", "created_at": NOW, "wake_at": NOW, **values}
    runs = [NewRun(id=f"{prefix}-{number:05}", ranking=ranking, **of_all) for number in range(count)]
    for first in range(0, count, 5_000):
        store_for("default").create(runs[first : first + 5_000])


def note(run_id: str) -> str:
    return rank_note(Run.objects.get(pk=run_id), NOW)


def test_it_says_how_many_of_its_own_share_and_of_others_come_first() -> None:
    start("a", 4, A)
    start("b", 2, B)
    start("high", 1, HIGH)
    start("asleep", 3, HIGH, wake_at=NOW + timedelta(hours=1))
    start("elsewhere", 1, queue="other")
    assert note("a-00000") == "It waits for its turn in share a: before it come 1, of its own share 0"
    assert note("a-00003") == "It waits for its turn in share a: before it come 6, of its own share 3"
    start("plain", 1)
    assert "before it come" not in note("plain-00000")
    assert note("plain-00000").endswith(": 1")
    assert note("high-00000") == note("asleep-00000") == note("elsewhere-00000") == ""


def test_the_next_of_its_share_says_so_and_a_run_that_a_worker_has_nothing() -> None:
    start("a", 1, A)
    assert note("a-00000") == "Its turn in share a is the next"
    Run.objects.update(lease_expires_at=NOW + timedelta(minutes=1))
    assert note("a-00000") == ""


def test_a_run_of_a_paused_queue_has_no_turn() -> None:
    start("a", 2, A, queue="default")
    holds.pause_queue("default")
    assert note("a-00001") == ""


@pytest.mark.parametrize(
    ("ranking", "words"),
    [
        (HIGH, "high, a head start of 10 m"),
        (Ranking(priority="1 s", head_start=1), "1 s, a head start of 1 s"),
        (Ranking(priority="low", head_start=-3600), "low, put back by 1 h"),
        (Ranking(priority="0 s"), "0 s, no head start"),
        (A, ""),
    ],
)
def test_a_priority_in_words(ranking: Ranking, words: str) -> None:
    assert rank_words(ranking) == words


def test_a_share_in_words() -> None:
    assert [share_words(each) for each in (A, Ranking(share="a", weight=0.5), HIGH)] == ["a", "a, weight 0.5", ""]


@pytest.mark.slow
@pytest.mark.postgres
def test_among_many_runs_it_counts_a_thousand_by_the_index() -> None:
    start("a", 6_000, A)
    start("high", 3_000, HIGH)
    start("asleep", 3_000, B, wake_at=NOW + timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run, durable_runrank, durable_lane")
    run = Run.objects.get(pk="a-05999")
    with CaptureQueriesContext(connection) as queries:
        said = rank_note(run, NOW)
    assert said == "It waits for its turn in share a: before it come 1,000+"
    assert len(queries) <= 5
    assert scans(queries, TABLES - {"durable_lane"}) + sorts(queries, TABLES) == []
    assert most_read(queries)[0] <= 2_500
