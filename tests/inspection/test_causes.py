"""Failed runs by cause: lists, counts and bulk verbs, on exactly the runs of a cause."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, CriticalError, Handle, operations, workflow
from durable.inspection import causes
from durable.inspection.causes import BARS, HIDDEN_PATTERN, WIDTH, find_cause, list_causes
from durable.inspection.runs import RunCriteria, list_runs, parse_search
from durable.inspection.selection import Filtered
from durable.models import Cause, Failure, Run
from durable.operations import bulk
from durable.operations.eligibility import Narrowed, place_of
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

#: What the step of this name raises.
errors: dict[str, Exception] = {}


class CardDeclined(CriticalError):
    """What the bank answers."""


class CarrierAway(CriticalError):
    """What the carrier does not answer."""


def act(name: str) -> None:
    if name in errors:
        raise errors[name]


@workflow(name="tests.causes.order")
def order(ctx: Context, number: int) -> None:
    ctx.step("charge", act, "charge")
    ctx.step("label", act, "label")


@workflow(name="tests.causes.refund")
def refund(ctx: Context) -> None:
    ctx.step("charge", act, "charge")


@pytest.fixture(autouse=True)
def _errors() -> Iterator[None]:
    errors.clear()
    yield
    errors.clear()


def declined(run_id: str, number: int = 1) -> Handle[Any]:
    """An order whose card is declined."""
    errors.update(charge=CardDeclined(f"card of order {number} declined"))
    return _failed(order.using(id=run_id).start(number))


def unlabelled(run_id: str) -> Handle[Any]:
    """An order of the same workflow that the carrier does not take."""
    errors.update(label=CarrierAway("no answer"))
    return _failed(order.using(id=run_id).start(1))


def _failed(run: Handle[Any]) -> Handle[Any]:
    pass_once(run)
    errors.clear()
    assert run.state == "failed"
    return run


def cause_of(run_id: str) -> str:
    return Failure.objects.select_related("cause").get(run_id=run_id).cause.fingerprint


def found(**wanted: Any) -> list[str]:
    return [run.id for run in list_runs(RunCriteria(**wanted)).runs]


def now() -> datetime:
    return timezone.now()


def test_causes_are_listed_with_the_newest_failure_first() -> None:
    declined("a", 1)
    declined("b", 22)
    unlabelled("c")
    first, second = list_causes(now())
    assert (first.place, first.error_type, first.pattern) == ("label", "CarrierAway", "no answer")
    assert (second.place, second.error_type, second.pattern) == ("charge", "CardDeclined", "card of order # declined")
    assert [str(each.count) for each in (first, second)] == ["1", "2"]
    assert [each.newest_run for each in (first, second)] == ["c", "b"]
    assert second.workflows == ["tests.causes.order"]
    assert second.since is not None
    assert second.last_at is not None
    assert second.first_seen_at <= second.since < second.last_at
    assert (len(second.bars), sum(second.bars), second.bars[-1]) == (BARS, 2, 2)
    assert second.is_new
    declined("d")
    assert [each.error_type for each in list_causes(now())] == ["CardDeclined", "CarrierAway"]


def test_one_cause_may_concern_several_workflows() -> None:
    declined("a")
    errors.update(charge=CardDeclined("card of order 5 declined"))
    _failed(refund.using(id="b").start())
    [cause] = list_causes(now())
    assert set(cause.workflows) == {"tests.causes.order", "tests.causes.refund"}


def test_a_cause_without_failed_runs_is_not_listed_and_can_be_found() -> None:
    fingerprint = cause_of(declined("a").id)
    operations.recover("a")
    assert list_causes(now()) == []
    cause = find_cause(fingerprint, now())
    assert cause is not None
    assert (cause.count.number, cause.since, cause.last_at, sum(cause.bars)) == (0, None, None, 1)
    assert find_cause("0" * 16, now()) is None


def test_muted_causes_are_listed_apart() -> None:
    declined("a")
    unlabelled("b")
    Cause.objects.filter(error_type="CardDeclined").update(muted_at=now())
    assert [each.error_type for each in list_causes(now(), muted=False)] == ["CarrierAway"]
    assert [each.error_type for each in list_causes(now(), muted=True)] == ["CardDeclined"]
    assert len(list_causes(now())) == 2


def test_only_the_runs_within_are_counted() -> None:
    declined("a")
    declined("b")
    unlabelled("c")
    [cause] = list_causes(now(), within=Run.objects.filter(id="b"))
    assert (str(cause.count), cause.newest_run, cause.bars[-1]) == ("1", "b", 1)


def hide_all(_workflow: str, field: str, value: Any) -> Any:
    return "hidden" if field == "error" else value


@override_settings(DURABLE={"REDACT": "tests.inspection.test_causes.hide_all"})
def test_a_pattern_is_redacted() -> None:
    fingerprint = cause_of(declined("a").id)
    assert [each.pattern for each in list_causes(now())] == ["hidden"]
    operations.recover("a")
    cause = find_cause(fingerprint, now())
    assert cause is not None
    assert cause.pattern == HIDDEN_PATTERN


def test_the_statements_do_not_grow_with_the_causes() -> None:
    declined("a")
    with CaptureQueriesContext(connection) as one:
        list_causes(now())
    for number in range(5):
        errors.update(charge=CardDeclined("x" * (number + 1)))
        _failed(order.start(number))
    with CaptureQueriesContext(connection) as more:
        assert len(list_causes(now())) == 6
    assert len(more) == len(one) <= 4


def test_what_a_selection_can_do_is_known_without_a_statement() -> None:
    selection = Filtered(RunCriteria(cause="gone"))
    with CaptureQueriesContext(connection) as looking:
        assert isinstance(selection, Narrowed)
    assert len(looking) == 0
    with CaptureQueriesContext(connection) as reading:
        assert place_of(selection) == ""
    assert len(reading) == 1


def test_a_list_is_of_the_failed_runs_of_a_cause() -> None:
    for run_id in ("a", "b"):
        declined(run_id)
    unlabelled("c")
    cause = cause_of("a")
    assert found(cause=cause) == ["b", "a"]
    assert found(place="label") == ["c"]
    assert found(place="label", cause=cause) == []
    assert found(cause=cause, states=frozenset({"failed"}), workflow="tests.causes.order") == ["b", "a"]
    assert found(cause=cause, workflow="tests.causes.refund") == []
    assert found(cause=cause, states=frozenset({"completed"})) == []
    assert found(cause=cause, id_prefix="a") == ["a"]
    assert found(cause="no such cause") == found(place="no such place") == []
    operations.recover("b")
    assert found(cause=cause) == ["a"]


def test_a_place_may_be_given_with_its_numbers() -> None:
    declined("a")
    Cause.objects.update(place="charge #")
    assert found(place="charge #") == found(place="charge 17") == ["a"]
    assert found(place="charge") == []


def test_a_list_of_a_cause_is_paged_by_key() -> None:
    errors.update(charge=CardDeclined("no"))
    for number in range(7):
        pass_once(order.using(id=f"run-{number}").start(number))
    Run.objects.update(created_at=now())
    Failure.objects.update(run_created_at=Run.objects.values_list("created_at", flat=True)[0])
    wanted, cursor, seen = RunCriteria(cause=cause_of("run-0")), None, list[str]()
    while True:
        page = list_runs(wanted, cursor=cursor, limit=2)
        seen += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"run-{number}" for number in reversed(range(7))]


def test_many_causes_of_one_place_are_listed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable.inspection.runs._MOST_CAUSES", 1)
    declined("a")
    errors.update(charge=CardDeclined("otherwise"))
    _failed(order.using(id="b").start(1))
    unlabelled("c")
    assert found(place="charge") == ["b", "a"]


def test_the_words_of_a_search_may_name_a_cause() -> None:
    declined("a")
    unlabelled("b")
    cause = cause_of("a")
    assert parse_search(f"cause:{cause}") == RunCriteria(cause=cause)
    assert parse_search(f" cause:{cause}  declined ") == RunCriteria(cause=cause, error_text="declined")
    assert parse_search(f"cause:{cause} a") == RunCriteria(cause=cause, id_prefix="a")


def test_a_bulk_recovers_the_runs_of_its_cause_and_no_other() -> None:
    declined("a")
    declined("b")
    unlabelled("c")
    chosen = Filtered(RunCriteria(cause=cause_of("a")))
    assert bulk.eligible("recover", chosen).count == 2
    assert bulk.apply("recover", chosen, in_background=False).done == 2
    assert dict(Run.objects.values_list("id", "state")) == {"a": "pending", "b": "pending", "c": "failed"}


def test_a_day_old_failure_is_no_longer_drawn() -> None:
    declined("a")
    Failure.objects.update(failed_at=now() - timedelta(days=2))
    [cause] = list_causes(now())
    assert sum(cause.bars) == 0


@pytest.mark.parametrize(("span", "days"), [("day", 1), ("week", 7), ("month", 30)])
def test_the_failures_of_a_single_cause_are_drawn_over_a_longer_time(span: str, days: int) -> None:
    at, long = now(), timedelta(days=days)
    for run_id, moment in (("before", at - long - timedelta(seconds=1)), ("first", at - long), ("newest", at)):
        declined(run_id)
        Failure.objects.filter(run=run_id).update(failed_at=moment)
    [known] = list_causes(at)
    for within in (None, Run.objects.all()):
        cause = find_cause(known.fingerprint, at, within, span=span)
        assert cause is not None
        assert {bar: number for bar, number in enumerate(cause.bars) if number} == {0: 1, BARS - 1: 1}
        assert not cause.is_sampled


def test_failures_are_drawn_in_the_half_hour_in_which_they_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    at = now().replace(microsecond=500_000)
    begin = at - BARS * WIDTH
    moments = {
        "before": begin - timedelta(microseconds=1),
        "first": begin,
        "last of the first": begin + WIDTH - timedelta(microseconds=1),
        "second": begin + WIDTH,
        "newest": at,
        "by a fast clock": at + timedelta(hours=5),
    }
    for run_id, moment in moments.items():
        declined(run_id)
        Failure.objects.filter(run=run_id).update(failed_at=moment)
    [cause] = list_causes(at)
    assert {bar: number for bar, number in enumerate(cause.bars) if number} == {0: 2, 1: 1, BARS - 1: 2}
    assert not cause.is_sampled
    monkeypatch.setattr(causes, "SAMPLE", 5)
    assert list_causes(at)[0].is_sampled  # all five of the last day, and perhaps there were more
    monkeypatch.setattr(causes, "SAMPLE", 6)
    assert not list_causes(at)[0].is_sampled


def test_the_workflow_with_the_most_failures_is_named_first() -> None:
    for number in range(3):
        errors.update(charge=CardDeclined("card of order 5 declined"))
        _failed(refund.using(id=f"refund-{number}").start())
    declined("newest")
    [cause] = list_causes(now())
    assert cause.workflows == ["tests.causes.refund", "tests.causes.order"]


def test_a_cause_tells_the_builds_that_have_seen_it() -> None:
    for build in ("7f3a", "8a0c", ""):
        with override_settings(DURABLE={**settings.DURABLE, "BUILD": build or None}):
            declined(f"of-{build}")
    [listed] = list_causes(now())
    assert listed.builds == ["8a0c"]
    single = find_cause(listed.fingerprint, now())
    assert single is not None
    assert single.builds == ["8a0c", "7f3a"]
