"""One queryset for many keys has the rows of one queryset for each, and is compiled once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Q, QuerySet
from django.db.models.sql.compiler import SQLCompiler
from django.utils.timezone import now

from durable.inspection import causes
from durable.inspection.causes import list_causes
from durable.inspection.counting import Key, OfEach, count_capped, sample_rows, tally
from durable.inspection.runs import RunCriteria, count_runs, list_runs
from durable.models import Cause, Failure, Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def keys() -> list[int]:
    """Causes with one failed run, with two, with none, and with three, all at one place."""
    made = []
    for number, runs in enumerate((1, 2, 0, 3)):
        cause = Cause.objects.create(fingerprint=f"c{number}", place="charge", error_type="E", first_seen_at=now())
        made.append(cause.pk)
        for each in range(runs):
            at = now() - timedelta(minutes=10 * number + each)
            run = Run.objects.create(
                id=f"run-{number}-{each}",
                workflow=f"w{each % 2}",
                queue="q",
                input="[]",
                state="failed",
                created_at=at,
                finished_at=at,
            )
            Failure.objects.create(
                run=run, cause=cause, workflow=run.workflow, queue="q", failed_at=at, run_created_at=at
            )
    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are compiled."""
    found: list[str] = []
    as_sql = SQLCompiler.as_sql

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        sql, given = as_sql(self, *arguments, **options)
        found.append(sql)
        return sql, given

    monkeypatch.setattr(SQLCompiler, "as_sql", noted)
    return found


def failures(of: Any) -> QuerySet[Failure]:
    return Failure.objects.filter(cause=of).order_by("-failed_at", "-run")


def test_the_rows_are_those_of_a_queryset_for_each(keys: list[int], compiled: list[str]) -> None:
    one_by_one = [failures(each) for each in keys]
    together = [OfEach(failures(Key()), keys)]
    counts = count_capped(one_by_one, 2)
    del compiled[:]
    assert count_capped(together, 2) == counts
    assert len(compiled) == 1
    assert [str(each) for each in counts] == ["1", "2", "0", "2+"]
    assert tally(together, "workflow", 2) == tally(one_by_one, "workflow", 2)
    assert sample_rows(together, ["run_id", "failed_at"], 2) == sample_rows(one_by_one, ["run_id", "failed_at"], 2)


def test_they_stand_among_others(keys: list[int]) -> None:
    nothing = Failure.objects.filter(Q(pk__in=[]))
    everything = Failure.objects.order_by("-failed_at")
    sources: list[Any] = [
        everything,
        OfEach(failures(Key()), keys),
        nothing,
        OfEach(nothing.filter(cause=Key()), keys),
        everything,
    ]
    counts = [each.number for each in count_capped(sources, 10)]
    assert counts == [6, 1, 2, 0, 3, 0, 0, 0, 0, 0, 6]
    assert [sum(each.values()) for each in tally(sources, "workflow", 10)] == counts
    assert [len(each) for each in sample_rows(sources, ["run_id"], 10)] == counts
    assert count_capped([OfEach(failures(Key()), [])], 10) == []


def test_many_causes_are_compiled_as_one_is(keys: list[int], compiled: list[str]) -> None:
    def number(most: int) -> int:
        del compiled[:]
        assert len(list_causes(now(), most=most)) == most
        assert len(causes.causes_and_lines(now(), most=0, lines=most)[1]) == most
        return len(compiled)

    assert number(3) == number(1)


def test_a_list_of_many_causes_of_a_place_is_compiled_once(keys: list[int], compiled: list[str]) -> None:
    wanted = RunCriteria(place="charge")
    page = list_runs(wanted, limit=4)
    assert len(compiled) == 3  # the causes, the keys and the runs
    del compiled[:]
    assert str(count_runs(wanted)) == "6"
    assert len(compiled) == 2
    rest = list_runs(wanted, limit=4, cursor=page.next_cursor)
    seen = [run.id for run in (*page.runs, *rest.runs)]
    assert seen == [run.id for run in Run.objects.order_by("-created_at", "-id")]
    assert [run.id for run in list_runs(RunCriteria(place="charge", workflow="w1")).runs] == ["run-1-1", "run-3-1"]
