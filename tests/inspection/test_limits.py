"""What the surfaces read of slots and rates: bounded, along indexes, however long lines are and however many keys."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, get_run, runtime, workflow
from durable import Limit as WorkflowLimit
from durable.core.limits.rates import counted, nanoseconds
from durable.inspection.explanation import explain
from durable.inspection.limits import (
    count_rates,
    line_of,
    list_limits,
    list_rates,
    own_closing_of,
    rate_wait_of,
    refusal_of,
    reservations_of,
    slots_of,
    unused_rates,
)
from durable.metrics.rows import RowsCollector
from durable.models import Limit, RateKey, RateLimit, Reservation, Run, Slot
from durable.operations.audit import Actor, acting_as
from durable.operations.limits import set_limit
from durable.operations.rates import close_limit
from durable.testing import Harness
from tests.support.plans import read, scans, sorts
from tests.support.stores import passed

pytestmark = pytest.mark.django_db
MANY = 10_000


@workflow(name="inspection_limits.plain")
def plain(ctx: Context) -> int:
    return 1


@workflow(name="inspection_limits.closable", limit=WorkflowLimit("inspection-closable", rate="1/min"))
def closable(ctx: Context) -> None:
    pass


@workflow(name="inspection_limits.holder", limit=WorkflowLimit("inspection-both", at_once=1, hold="open"))
def holder(ctx: Context) -> None:
    ctx.sleep("nap", "1 day")


@workflow(name="inspection_limits.both")
def both(ctx: Context) -> None:
    call: Any = lambda c: c.step("call", int, limit="inspection-both")  # noqa: E731
    ctx.join("both", {"call": call, "answer": lambda c: c.queue.next("answer")})


def sleep(count: int) -> None:
    """Make so many sleeping runs."""
    now = timezone.now()
    Run.objects.bulk_create(
        Run(id=f"r-{number}", workflow=plain.name, state="sleeping", created_at=now, input="[]")
        for number in range(count)
    )


def fill(count: int, keys: int) -> None:
    """Runs that wait for slots of the limit, one after the other: of `keys` keys, then all of the key "one"."""
    now = timezone.now()
    Limit.objects.create(name="gpu", at_once=1)
    sleep(count)
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
def test_any_number_of_keys_of_slots_is_one_look_in_one_statement(keys: int) -> None:
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


# -- rates


@workflow(name="inspection_rates.held")
def held(ctx: Context) -> int:
    return ctx.step("call", lambda: 1, rate="hole")


def limit(name: str) -> None:
    RateLimit.objects.create(name=name, rate="1/s", spacing=1_000_000_000)


def awaited(name: str, key: str, *seconds: float) -> None:
    now = timezone.now()
    for number, each in enumerate(seconds):
        run = plain.using(id=f"{name}-{key}-{number}").start()
        Reservation.objects.create(
            run_id=run.id, location="a", limit=name, key=key, units=1, at=now + timedelta(seconds=each)
        )


def test_keys_that_are_awaited_come_first_then_others() -> None:
    limit("api")
    RateKey.objects.bulk_create(RateKey(limit="api", key=f"k{number:03}") for number in range(150))
    RateKey.objects.filter(key="k149").update(closed_until=timezone.now() + timedelta(hours=1))
    awaited("api", "k140", 1_000)
    awaited("api", "k130", 1_000, 2_000)
    [found] = list_rates(timezone.now())
    keys = [each.key for each in found.keys]
    assert keys[:2] == ["k130", "k140"]
    assert {"k149", "k000"} < set(keys)
    assert len(keys) == 100
    assert [each.waiting for each in found.keys[:3]] == [2, 1, 0]


@pytest.mark.parametrize("keys", [1, 3, 100])
def test_any_number_of_keys_of_a_rate_is_one_look_in_one_statement(keys: int) -> None:
    limit("api")
    RateKey.objects.bulk_create(RateKey(limit="api", key=f"k{number:03}") for number in range(keys))
    awaited("api", "k000", 1_000, 2_000)
    now = timezone.now()
    with CaptureQueriesContext(connection) as queries:
        [found] = list_rates(now)
    assert [(each.key, each.waiting) for each in found.keys][:2] == [("k000", 2), ("k001", 0)][:keys]
    assert found.keys[0].next_at == Reservation.objects.earliest("at").at
    assert len(found.keys) == keys
    # the limits, keys that are awaited, closed and others, all keys with their lines, and the closing of all
    assert len(queries) <= 6
    assert sum(each["sql"].count("SELECT") for each in queries) <= 14


def test_a_rate_is_told_without_its_keys() -> None:
    limit("api")
    until = timezone.now() + timedelta(hours=1)
    RateKey.objects.create(limit="api", key="a", closed_until=until)
    with CaptureQueriesContext(connection) as queries:
        [found] = list_rates(timezone.now(), "api", with_keys=False)
    assert (found.closing, found.keys) == (None, [])
    assert len(queries) == 2
    closing = own_closing_of("api", "a", timezone.now())
    assert closing is not None
    assert closing.until == until
    assert own_closing_of("api", "b", timezone.now()) is None


@pytest.mark.parametrize(("by", "told"), [("", "in 5 m: too many"), ("ada", "in 5 m by ada: too many")])
def test_a_run_does_not_begin_before_its_limit_is_open_again(by: str, told: str) -> None:
    with Harness(store="database") as h:
        for number in range(8):
            closable.using(id=f"closed-{number}").start()
        h.settle()
        first, *_, last = Run.objects.filter(state="sleeping").order_by("wake_at")
        with acting_as(Actor("cli", label=by), reason="too many") if by else nullcontext():
            close_limit("inspection-closable", h.now + timedelta(minutes=5))
        if not by:
            RateKey.objects.update(closed_why="too many")
        assert "in 5 m, 0 before it" in explain(first, h.now).headline
        assert explain(first, h.now).detail.endswith(told)
        assert "in 7 m, 6 before it" in explain(last, h.now).headline


def test_a_line_that_is_not_all_that_a_run_waits_for_has_no_numbers() -> None:
    """They were those of the moment at which the run began to wait."""
    with Harness(store="database") as h:
        holder.using(id="holder").start()
        h.settle()
        for number in (1, 2):
            both.using(id=f"both-{number}").start()
        h.settle()
        set_limit("inspection-both", 2)
        last = Run.objects.get(pk="both-2")
        assert "number 2 in line for inspection-both (1 of 1 held)" in str(last.summary)
        assert explain(last, h.now).headline == (
            "In line for inspection-both; waiting for a message in answer, without a deadline"
        )


def test_the_last_minute_is_that_of_all_keys_together() -> None:
    limit("api")
    now = timezone.now()
    for key in ("a", "b"):
        RateKey.objects.create(limit="api", key=key, recent=counted("", nanoseconds(now), 3))
    [found] = list_rates(now)
    assert found.last_minute == [0] * 11 + [6]


def test_rates_that_nothing_names_and_nobody_awaits(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"named": {"rate": "1/s"}}}
    for name in ("named", "left behind", "awaited"):
        limit(name)
    awaited("awaited", "", 1_000)
    assert unused_rates() == ["left behind"]


def test_metrics_count_what_waits_and_what_is_closed() -> None:
    limit("api")
    limit("idle")
    awaited("api", "a", 1_000, 2_000)
    RateKey.objects.create(limit="api", key="a", closed_until=timezone.now() + timedelta(hours=1))
    RateKey.objects.create(limit="api", key="b", closed_until=timezone.now() - timedelta(hours=1))
    samples = {
        (sample.name, sample.labels.get("limit")): sample.value
        for metric in RowsCollector().collect()
        for sample in metric.samples
    }
    assert (samples["durable_rate_waiting", "api"], samples["durable_rate_keys_closed", "api"]) == (2, 1)
    assert (samples["durable_rate_waiting", "idle"], samples["durable_rate_keys_closed", "idle"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.postgres
def test_ten_thousand_keys_and_attempts_are_read_along_indexes() -> None:
    limit("api")
    now = timezone.now()
    RateKey.objects.bulk_create(RateKey(limit="api", key=f"k{number}") for number in range(MANY))
    sleep(2 * MANY)
    Reservation.objects.bulk_create(
        Reservation(
            run_id=f"r-{number}",
            location="a",
            limit="api",
            key=f"k{number}" if number < MANY else "one",
            units=1,
            at=now + timedelta(days=1, seconds=number),
        )
        for number in range(2 * MANY)
    )
    RateKey.objects.create(limit="api", key="one")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    tables = {"durable_reservation", "durable_ratekey", "durable_run"}
    with CaptureQueriesContext(connection) as queries:
        [found] = list_rates(now)
        counts = count_rates(now, 1_000)
        line = reservations_of("api", "one", now)
        wait = rate_wait_of(f"r-{2 * MANY - 1}", now)
        unused_rates()
        refusal_of("r-1")
    assert scans(queries, tables) == []
    assert sorts(queries, tables) == []
    assert read(queries, "durable_reservation") < 5_000
    assert read(queries, "durable_ratekey") < 1_000
    assert len(queries) < 25
    assert len(found.keys) == 100
    assert (counts[0].waiting.number, counts[0].waiting.is_capped) == (1_000, True)
    assert [each.run_id for each in line] == [f"r-{number}" for number in range(MANY, MANY + 20)]
    assert wait is not None
    assert wait.before == 1_000


@pytest.mark.django_db(transaction=True)
def test_a_moment_behind_cancelled_attempts_is_told_and_freed_by_setting_the_rate(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"hole": {"rate": "1/h"}}}
    at = runtime.current()
    for name in "abcd":
        held.using(id=name).start()
        passed(at, name)
    now = timezone.now()
    wait = rate_wait_of("c", now)
    assert wait is not None
    assert (wait.before, wait.sooner) == (1, None)
    first = rate_wait_of("b", now)
    assert first is not None
    assert (first.before, first.sooner) == (0, None)  # its moment is the right one
    for name in "bc":
        get_run(name).cancel()
    wait = rate_wait_of("d", now)
    assert wait is not None
    assert wait.before == 0
    assert wait.sooner is not None
    assert wait.at - wait.sooner == timedelta(hours=2)
    said = explain(Run.objects.get(id="d"), now)
    assert said.headline.endswith("0 before it")
    assert "cancelled before it stay reserved" in said.detail
    command = "python manage.py durable set-rate hole 1/h"
    assert said.detail.endswith(command)
    call_command("durable", *command.split()[3:])
    freed = rate_wait_of("d", now)
    assert freed is not None
    assert (freed.at, freed.sooner) == (wait.sooner, None)
    assert "stay reserved" not in explain(Run.objects.get(id="d"), now).detail
