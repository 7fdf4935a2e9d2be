"""What the surfaces read of slots: bounded, along indexes, however long a line is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, workflow
from durable.inspection.limits import line_of, list_limits, slots_of
from durable.models import Limit, Run, Slot
from tests.support.plans import read, scans, sorts

pytestmark = pytest.mark.django_db
MANY = 10_000


@workflow(name="inspection_slots.plain")
def plain(ctx: Context) -> int:
    return 1


def fill(count: int, keys: int) -> None:
    """Runs that wait for slots of the limit, one after the other: of `keys` keys, then all of the key "one"."""
    now = timezone.now()
    Limit.objects.create(name="gpu", at_once=1)
    Run.objects.bulk_create(
        Run(id=f"r-{number}", workflow=plain.name, state="sleeping", created_at=now, input="[]")
        for number in range(count)
    )
    Slot.objects.bulk_create(
        Slot(
            run_id=f"r-{number}",
            location="a",
            limit="gpu",
            key=f"k{number:05}" if number < keys else "one",
            kind="step",
            is_held=False,
            place=number + 1,
            since=now + timedelta(seconds=number),
        )
        for number in range(count)
    )


def test_the_keys_that_wait_longest_are_told_and_the_longest_line_comes_first() -> None:
    fill(130, 120)
    run = plain.using(id="holder").start()
    since = timezone.now() - timedelta(hours=1)
    Slot.objects.create(run_id=run.id, location="a", limit="gpu", key="one", kind="step", is_held=True, since=since)
    Slot.objects.filter(run_id="r-129").update(since=since)
    [found] = list_limits()
    assert len(found.keys) == 100
    first, *others = found.keys
    assert (first.key, first.held, first.waiting) == ("one", 1, 10)
    assert first.oldest_at == Slot.objects.get(run_id="r-120").since
    assert [each.key for each in others] == [f"k{number:05}" for number in range(99)]


def test_of_some_runs_only_their_keys_are_told() -> None:
    fill(30, 20)
    [found] = list_limits("gpu", Run.objects.filter(id__in=["r-3", "r-25", "r-26"]))
    assert [(each.key, each.waiting) for each in found.keys] == [("one", 10), ("k00003", 1)]


def test_keys_of_which_slots_are_held_are_told_too() -> None:
    fill(2, 2)
    Slot.objects.filter(run_id="r-0").update(is_held=True, place=0)
    [found] = list_limits("gpu")
    assert [(each.key, each.held, each.waiting) for each in found.keys] == [("k00001", 0, 1), ("k00000", 1, 0)]
    assert found.keys[1].oldest_at is None


@pytest.mark.parametrize("keys", [1, 3, 99])
def test_any_number_of_keys_is_one_look_in_one_statement(keys: int) -> None:
    fill(2 * keys, keys)
    Slot.objects.filter(key="k00000").update(is_held=True, place=0)
    with CaptureQueriesContext(connection) as queries:
        [found] = list_limits()
    assert {each.key: each.waiting for each in found.keys}["k00000"] == 0
    assert len(found.keys) == keys + 1
    # the limits, the keys that wait for longest, others, and the lines of all
    assert len(queries) <= 4
    assert sum(each["sql"].count("SELECT") for each in queries) <= 14


def test_a_limit_is_told_without_its_keys() -> None:
    fill(3, 2)
    with CaptureQueriesContext(connection) as queries:
        [found] = list_limits("gpu", with_keys=False)
    assert (found.at_once, found.keys) == (1, [])
    assert len(queries) == 1


@pytest.mark.slow
@pytest.mark.postgres
def test_a_line_of_twenty_thousand_is_read_along_indexes() -> None:
    fill(2 * MANY, MANY)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    tables = {"durable_slot", "durable_run"}
    with CaptureQueriesContext(connection) as queries:
        [found] = list_limits()
        _, line = slots_of("gpu", "one")
        mine = line_of(f"r-{2 * MANY - 1}")
    assert scans(queries, tables) == []
    assert sorts(queries, tables) == []
    assert read(queries, "durable_slot") < 5_000
    assert len(queries) < 15
    assert len(found.keys) == 100
    assert [each.run_id for each in line] == [f"r-{number}" for number in range(MANY, MANY + 20)]
    assert mine is not None
    assert mine.place == 1_001


@pytest.mark.slow
@pytest.mark.postgres
def test_a_key_for_which_ten_thousand_wait_is_counted_up_to_a_thousand() -> None:
    fill(2 * MANY, 0)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with CaptureQueriesContext(connection) as queries:
        [found] = list_limits("gpu")
    assert [(each.key, each.waiting) for each in found.keys] == [("one", 1_000)]
    assert read(queries, "durable_slot") < 5_000
    assert sorts(queries, {"durable_slot"}) == []
