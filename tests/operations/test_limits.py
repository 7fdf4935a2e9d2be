"""Deadlines beside other options, the numbers that code and settings say, and the verbs on rates, from Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from durable import Context, get_run, workflow
from durable.core.limits.rates import Rate
from durable.errors import StaleLimitError
from durable.models import Limit, RunLimit
from durable.operations import limits
from durable.operations.audit import Actor, acting_as
from durable.operations.rates import close_limit, open_limit, rate_revision_of, set_rate, take_back_rate
from durable.testing import Harness

HOUR = 3600.0


@workflow(name="tests.limits.waiting")
def waiting(ctx: Context) -> None:
    ctx.queue.next("never")


@pytest.mark.django_db(transaction=True)
def test_however_it_is_started_its_limits_are_stored() -> None:
    plain = waiting.using(deadline="1 hour").start()
    keyed = waiting.using(key="a", deadline="1 hour").start()
    sent = waiting.using(key="b", deadline="1 hour").start_or_send("x", 1)
    many = waiting.using(deadline="1 hour").start_many([()] * 2)
    lengths = dict(RunLimit.objects.values_list("run_id", "length"))
    assert lengths == {each.id: HOUR for each in (plain, keyed, sent, *many)}
    waiting.using(key="c").start()
    assert RunLimit.objects.count() == 5


# -- the numbers of limits that code and settings say are written after `migrate`


@pytest.mark.django_db(transaction=True)
def test_a_deploy_that_migrates_writes_the_numbers_of_its_code(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"numbers-a": {"at_once": 4}, "numbers-b": {"at_once": 1}}}
    call_command("migrate", verbosity=0)
    found = Limit.objects.filter(name__startswith="numbers-").order_by("name")
    assert list(found.values_list("name", "at_once", "override")) == [("numbers-a", 4, None), ("numbers-b", 1, None)]
    limits.set_limit("numbers-b", 9)
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"numbers-a": {"at_once": 5}, "numbers-b": {"at_once": 2}}}
    assert limits.synchronise() == ["numbers-a", "numbers-b"]
    assert limits.synchronise() == []
    assert list(found.values_list("at_once", "override")) == [(5, None), (2, 9)]


# -- the verbs on rates: who may, what is logged, what changes for the attempts that wait; from Python


NOW = datetime(2026, 3, 4, 14, 0, tzinfo=UTC)


@workflow(name="rate_verbs.call")
def call(ctx: Context, name: str) -> str:
    return ctx.step("call", lambda: name, rate="rate-verbs")


@pytest.fixture
def h(settings: Any) -> Any:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"rate-verbs": {"rate": "1/min"}}}
    with Harness(NOW) as harness:
        for name in ("a", "b", "c"):
            harness.start(call, name, id=name)
        harness.settle()
        yield harness


def wakes(h: Harness, *ids: str) -> list[float]:
    moments = [h.peek(get_run(each)).wake_at for each in ids]
    return [(each - NOW).total_seconds() for each in moments if each is not None]


def logged(h: Harness) -> list[tuple[str, str, str, str]]:
    return [(each.action, each.outcome, each.after, each.detail) for each in h._store._actions]


def test_a_rate_is_set_and_taken_back(h: Harness) -> None:
    assert wakes(h, "b", "c") == [60, 120]
    set_rate("rate-verbs", "2/min")
    assert wakes(h, "b", "c") == [30, 60]
    take_back_rate("rate-verbs")
    assert h._store._rates.rate("rate-verbs") == Rate.of("1/min")
    h.finish("b")
    h.finish("c")
    assert logged(h) == [
        ("set_rate", "done", "2/min", 'limit "rate-verbs": 1/min before'),
        ("take_back_rate", "done", "", 'limit "rate-verbs": 2/min before'),
    ]


def test_a_limit_is_closed_and_opened(h: Harness) -> None:
    with acting_as(Actor("code", label="ada"), reason="they are down"):
        close_limit("rate-verbs", NOW + timedelta(hours=1))
    h.advance(60)
    h.settle()
    assert wakes(h, "b") == [3600]
    open_limit("rate-verbs")
    h.settle()
    assert h.peek(get_run("b")).state == "completed"
    assert wakes(h, "c") == [120]
    open_limit("rate-verbs")
    assert [each[0] for each in logged(h)] == ["close_limit", "open_limit", "open_limit"]


def test_what_is_refused(h: Harness) -> None:
    with pytest.raises(ValueError, match="in the future"):
        close_limit("rate-verbs", NOW)
    with pytest.raises(ValueError, match="printable characters"):
        close_limit("rate-verbs", NOW + timedelta(hours=1), key="a\n")
    with pytest.raises(ValueError, match="a rate is a number"):
        set_rate("rate-verbs", "often")
    with (
        acting_as(Actor("code"), expected=rate_revision_of(Rate.of("5/min"))),
        pytest.raises(StaleLimitError),
    ):
        set_rate("rate-verbs", "2/min")
    with acting_as(Actor("code"), expected="open"):
        close_limit("rate-verbs", NOW + timedelta(hours=1))
    with acting_as(Actor("code"), expected="open"), pytest.raises(StaleLimitError):
        open_limit("rate-verbs")
    assert wakes(h, "b", "c") == [60, 120]
