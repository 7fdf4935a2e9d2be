"""Ended runs are counted once each, however late they become visible, in steps of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from durable import rollups
from durable.models import Rollup, RollupProgress, Run
from durable.rollups import AT_ONCE, HALF_HOUR, KEPT_HALF_HOURS, MARGIN, MINUTE, class_of, percentile, roll_up
from durable.store import store_for
from durable.worker.timer import Sweep
from tests.support.locks import other_session
from tests.support.rollups import settle
from tests.support.waiting import eventually

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)


def begin_at(moment: datetime) -> None:
    RollupProgress.objects.update_or_create(pk=1, defaults={"until": moment, "asked_at": None, "asked_xid": 0})


def ended(run_id: str, at: datetime, state: str = "completed", took: float = 1.0, workflow: str = "w") -> None:
    begin = at - timedelta(seconds=took)
    Run.objects.create(
        id=run_id, workflow=workflow, queue="q", input="[]", state=state, created_at=begin, finished_at=at
    )


def counted(width: timedelta = MINUTE, workflow: str = "") -> dict[str, tuple[int, int, int]]:
    """The numbers of completed, failed and cancelled runs, by the time of day."""
    rows = Rollup.objects.filter(width=int(width.total_seconds()), workflow=workflow).order_by("begins")
    return {f"{each.begins:%H:%M}": (each.completed, each.failed, each.cancelled) for each in rows}


class TestCounting:
    pytestmark = pytest.mark.django_db

    def test_each_end_is_in_its_minute_and_half_hour_by_workflow(self) -> None:
        begin_at(NOON)
        ended("1", NOON)
        ended("2", NOON + timedelta(seconds=59.9), "failed", workflow="other")
        ended("3", NOON + timedelta(minutes=1), "cancelled")
        ended("4", NOON - timedelta(seconds=1))  # counted before
        assert settle(LATER) == LATER - MINUTE
        assert counted() == {"12:00": (1, 1, 0), "12:01": (0, 0, 1)}
        assert counted(workflow="w") == {"12:00": (1, 0, 0), "12:01": (0, 0, 1)}
        assert counted(HALF_HOUR) == {"12:00": (1, 1, 1)}
        assert counted(HALF_HOUR, "other") == {"12:00": (0, 1, 0)}

    def test_it_is_counted_once(self) -> None:
        begin_at(NOON)
        ended("1", NOON)
        settle(LATER)
        settle(LATER)
        ended("2", LATER)
        settle(LATER + timedelta(minutes=5))
        assert counted() == {"12:00": (1, 0, 0), "12:10": (1, 0, 0)}
        assert counted(HALF_HOUR) == {"12:00": (2, 0, 0)}

    def test_the_last_moments_are_not_counted_yet(self) -> None:
        begin_at(NOON)
        ended("1", NOON)
        assert settle(NOON + MINUTE + MARGIN - timedelta(seconds=1)) == NOON
        assert counted() == {}
        assert settle(NOON + MINUTE + MARGIN) == NOON + MINUTE
        assert counted() == {"12:00": (1, 0, 0)}

    def test_a_look_counts_so_many_minutes(self) -> None:
        begin_at(NOON)
        ended("1", NOON)
        moved = list[bool]()

        def has_moved() -> bool:
            moved.append(roll_up(NOON + timedelta(hours=1)))
            return RollupProgress.objects.get().until > NOON

        eventually(has_moved)
        assert RollupProgress.objects.get().until == NOON + AT_ONCE * MINUTE
        assert moved[-1] is True  # more could be counted at once
        assert settle(NOON + timedelta(hours=1)) == NOON + timedelta(minutes=59)

    def test_the_first_look_begins_a_day_ago(self) -> None:
        ended("old", LATER - timedelta(hours=26))
        ended("day", LATER - timedelta(hours=24))
        ended("now", NOON)
        settle(LATER)
        rows = Rollup.objects.filter(width=1_800, workflow="").order_by("begins").values_list("begins", "completed")
        assert list(rows) == [(NOON - timedelta(days=1), 1), (NOON, 1)]

    def test_time_without_ends_is_passed_over_at_once(self) -> None:
        ended("1", LATER - timedelta(minutes=2))
        seen = set[datetime]()

        def is_counted() -> bool:
            roll_up(LATER)
            seen.add(RollupProgress.objects.get().until)
            return LATER - MINUTE in seen

        eventually(is_counted)
        assert seen <= {LATER - timedelta(hours=25), LATER - MINUTE}
        assert counted() == {"12:08": (1, 0, 0)}

    def test_an_installation_without_runs_is_counted_at_once(self) -> None:
        seen = set[datetime]()

        def is_counted() -> bool:
            roll_up(LATER)
            seen.add(RollupProgress.objects.get().until)
            return LATER - MINUTE in seen

        eventually(is_counted)
        assert seen <= {LATER - timedelta(hours=25), LATER - MINUTE}

    def test_old_rows_go(self) -> None:
        begin_at(NOON)
        ended("1", NOON)
        settle(LATER)
        begin_at(NOON + KEPT_HALF_HOURS)
        settle(LATER + KEPT_HALF_HOURS + HALF_HOUR)
        assert Rollup.objects.count() == 0

    def test_the_sweep_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rollups, "EVERY", 0.0)
        begin_at(NOON)
        ended("1", NOON)
        sweeping = Sweep(store_for("default"))

        def has_counted() -> bool:
            sweeping.tick(LATER)
            return bool(counted())

        eventually(has_counted)
        assert counted() == {"12:00": (1, 0, 0)}


DURATIONS = [0.0, 0.0005, 0.001, 0.0015, 0.03, 0.5, 1.0, 1.19, 2.0, 59.0, 3_600.0, 86_400.0, 40_000_000.0]


@pytest.mark.django_db
def test_the_database_classes_durations_as_python_does() -> None:
    for number, took in enumerate(DURATIONS):
        ended(str(number), NOON, took=took)
    rows = sorted(rollups._ended(NOON, LATER), key=lambda row: row[3])
    found = [duration for *_, duration, number in rows for _ in range(number)]
    assert found == sorted(map(class_of, DURATIONS))


def test_percentiles_are_within_a_tenth() -> None:
    took = [number / 7 for number in range(1, 10_000)]
    counts: dict[int, int] = {}
    for each in took:
        counts[class_of(each)] = counts.get(class_of(each), 0) + 1
    for share in (0.01, 0.5, 0.95, 1.0):
        found = percentile(counts, share)
        assert found == pytest.approx(took[int(share * len(took)) - 1], rel=0.1)
    assert percentile({}, 0.5) is None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestOtherTransactions:
    @pytest.fixture
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        if connection.vendor != "postgresql":
            pytest.skip("the database has no snapshots")
        connection.ensure_connection()
        with psycopg.connect(**other_session()) as found:
            yield found
            found.rollback()

    def test_a_run_that_becomes_visible_late_is_counted_and_once(self, session: psycopg.Connection[Any]) -> None:
        begin_at(NOON)
        Run.objects.create(id="late", workflow="w", queue="q", input="[]", state="running", created_at=NOON)
        ended("early", NOON)
        session.execute(
            "UPDATE durable_run SET state = 'cancelled', finished_at = %s WHERE id = 'late'", [NOON + MINUTE]
        )
        for _ in range(3):
            roll_up(LATER)
        assert RollupProgress.objects.get().until == NOON  # the figures say that they end there
        assert counted() == {}
        session.commit()
        settle(LATER)
        settle(LATER)
        assert counted() == {"12:00": (1, 0, 0), "12:01": (0, 0, 1)}

    @pytest.mark.parametrize("is_prepared", [False, True])
    @pytest.mark.parametrize("is_elsewhere", [False, True])
    def test_a_transaction_that_writes_holds_back_its_own_database_alone(
        self, session: psycopg.Connection[Any], is_prepared: bool, is_elsewhere: bool
    ) -> None:
        begin_at(NOON)
        ended("1", NOON)
        where = other_session() | ({"dbname": "postgres"} if is_elsewhere else {})
        with psycopg.connect(**where) as writer:
            writer.execute("SELECT pg_current_xact_id()")
            if is_prepared:
                writer.execute("PREPARE TRANSACTION 'writes for long'")
            if is_elsewhere:
                settle(LATER)
            else:
                for _ in range(3):
                    roll_up(LATER)
            found = counted()
            if is_prepared:
                writer.rollback()
                writer.autocommit = True
                writer.execute("ROLLBACK PREPARED 'writes for long'")
            else:
                writer.rollback()
        assert found == ({"12:00": (1, 0, 0)} if is_elsewhere else {})

    def test_a_transaction_that_only_reads_holds_nothing_back(self, session: psycopg.Connection[Any]) -> None:
        begin_at(NOON)
        ended("1", NOON)
        session.execute("SELECT count(*) FROM durable_run")
        settle(LATER)
        assert counted() == {"12:00": (1, 0, 0)}

    def test_one_process_counts_at_a_time(self, session: psycopg.Connection[Any]) -> None:
        begin_at(NOON)
        ended("1", NOON)
        roll_up(LATER)
        session.execute("SELECT * FROM durable_rollupprogress FOR UPDATE")
        assert roll_up(LATER) is False
        assert counted() == {}
        session.rollback()
        settle(LATER)
        assert counted() == {"12:00": (1, 0, 0)}
