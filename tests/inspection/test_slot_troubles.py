"""What findings, the doctor and metrics tell of limits: slots that are kept, lines that do not move, unused limits."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, Limit, get_run, runtime, workflow
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.findings import Finding
from durable.inspection.limits import count_slots, unused_limits
from durable.metrics.rows import RowsCollector
from durable.models import Limit as LimitRow
from durable.models import Run, Slot, SlotNote
from durable.operations import holds
from durable.operations.audit import Actor, acting_as
from durable.worker.timer import Sweep
from tests.inspection.conftest import findings
from tests.support.plans import scans
from tests.support.stores import passed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

#: A clock that is read a day and a minute after the runs have begun.
LATER = timedelta(days=1, minutes=1)


@workflow(name="tests.troubles.open", limit=Limit("crm", at_once=1, key=lambda tenant: tenant, hold="open"))
def holding(ctx: Context, tenant: str) -> None:
    ctx.queue.next("never")


def begin(*ids: str, tenant: str = "acme 🎉") -> None:
    for each in ids:
        holding.using(id=each).start(tenant)
        passed(runtime.current(), each)


def found(now: datetime) -> dict[str, Finding]:
    return {each.kind: each for prefix in ("slot_", "line_") for each in findings(prefix, now)}


def test_a_line_that_moves_or_has_just_begun_is_no_finding() -> None:
    assert found(timezone.now()) == {}
    begin("a", "b")
    assert found(timezone.now()) == {}
    Slot.objects.filter(is_held=False).update(since=timezone.now() - timedelta(hours=2))
    assert found(timezone.now()) == {}, "the slot has been taken a moment ago"


def test_a_line_that_has_not_moved_for_an_hour() -> None:
    begin("a", "b", "c")
    told = found(timezone.now() + timedelta(minutes=61))["line_still"]
    assert told.title.endswith(': "crm/acme 🎉"')
    assert told.count.number == 1
    assert told.runs == [("b", holding.name)]
    assert not told.is_urgent
    assert told.command == "python manage.py durable limits crm"


def waiting(number: int, since: datetime, *, paused: int = 0) -> None:
    """Let so many runs wait in the line whose slot the run "a" holds, the first of them since then."""
    begin("a")
    Slot.objects.update(since=timezone.now())
    names = [f"w-{each:03}" for each in range(number + paused)]
    Run.objects.bulk_create(
        Run(id=each, workflow=holding.name, state="sleeping", created_at=since, input="[]") for each in names[:number]
    )
    Run.objects.bulk_create(
        Run(id=each, workflow=holding.name, state="paused", created_at=since, input="[]") for each in names[number:]
    )
    Slot.objects.bulk_create(
        Slot(run_id=each, limit="crm", key="acme 🎉", kind="open", is_held=False, place=place, since=since)
        for place, each in enumerate(names, 1)
    )


def test_a_long_line_that_moves_for_a_limit_that_is_full() -> None:
    now = timezone.now()
    waiting(20, now)
    assert found(now) == {}, "the line has just begun"
    told = found(now + timedelta(minutes=2))
    assert set(told) == {"line_long"}
    line = told["line_long"]
    assert line.title.endswith(': "crm/acme 🎉"')
    assert (line.count.number, line.count.is_capped) == (20, False)
    assert line.runs[0] == ("w-000", holding.name)
    assert (line.since, line.names, line.is_urgent) == (now, ["crm"], False)
    assert line.command == "python manage.py durable limits crm"
    assert set(found(now + timedelta(minutes=61))) == {"line_still"}, "a line is told of once"


def test_a_line_that_is_short_without_its_paused_runs_is_no_finding() -> None:
    now = timezone.now()
    waiting(19, now, paused=5)
    assert found(now + timedelta(minutes=2)) == {}


def test_a_long_line_beside_a_free_slot_is_not_told_of_as_a_full_limit() -> None:
    now = timezone.now()
    waiting(20, now)
    LimitRow.objects.update(at_once=2)
    assert found(now + timedelta(minutes=2)) == {}, "the next look of a worker hands the slot on"


def test_a_very_long_line_is_counted_up_to_a_cap() -> None:
    now = timezone.now()
    waiting(510, now)
    count = found(now + timedelta(minutes=2))["line_long"].count
    assert (count.number, count.is_capped) == (500, True)


def test_a_line_of_paused_runs_alone_is_no_finding() -> None:
    begin("a", "b")
    get_run("b").pause()
    assert found(timezone.now() + timedelta(minutes=61)) == {}


def test_a_slot_is_free_and_nobody_gives_it_to_those_who_wait() -> None:
    begin("a", "b")
    Slot.objects.filter(run_id="a").delete()
    SlotNote.objects.all().delete()
    told = found(timezone.now() + timedelta(minutes=61))
    assert set(told) == {"slot_free"}
    assert told["slot_free"].is_urgent


@pytest.mark.parametrize("idle", ["paused", "diverged"])
def test_a_slot_that_a_run_keeps_for_a_day_without_going_on(idle: str) -> None:
    begin("a", "b", tenant="x")
    assert "slot_kept" not in found(timezone.now() + LATER), "the run waits for a message, as its code says"
    if idle == "paused":
        get_run("a").pause()
    else:
        Run.objects.filter(id="a").update(diverged_at=timezone.now())
    assert "slot_kept" not in found(timezone.now() + timedelta(hours=23))
    told = found(timezone.now() + LATER)["slot_kept"]
    assert told.title.endswith(': "crm/x"')
    assert told.runs == [("a", holding.name)]
    get_run("a").cancel()
    assert "slot_kept" not in found(timezone.now() + LATER)


@workflow(name="tests.troubles.two_steps")
def two_steps(ctx: Context) -> str:
    ctx.step("one", str, limit="gpu")
    ctx.queue.next("go on")
    return ctx.step("two", lambda: "two", limit="gpu")


def test_a_slot_that_a_sleeping_run_keeps_for_a_step_and_that_it_gives_up_when_it_is_woken() -> None:
    """No fault of the present code leaves one: it would be of a version before, or of a hand."""
    LimitRow.objects.create(name="gpu", at_once=1)
    for each in ("a", "b"):
        two_steps.using(id=each).start()
        passed(runtime.current(), each)
    now = timezone.now()
    Slot.objects.create(run_id="a", location="one", limit="gpu", kind="step", is_held=True, since=now)
    assert found(now) == {}, "it may have been handed to the run a moment ago"
    told = found(now + timedelta(minutes=2))["slot_idle"]
    assert told.title.endswith(': "gpu"')
    assert told.runs == [("a", two_steps.name)]
    assert told.is_urgent
    assert told.command == "python manage.py durable wake a"
    get_run("a").send("go on", None)
    assert found(now + timedelta(minutes=2)) == {}, "it is due"
    passed(runtime.current(), "a")  # it waits in line, and is next: the slot that it has given up is its own
    passed(runtime.current(), "a")
    assert get_run("a").output == "two"
    assert not Slot.objects.exists()


@pytest.mark.parametrize("by", ["a person", "the sweep"])
def test_a_run_that_waits_for_a_slot_of_its_own_says_so_and_goes_on(by: str, caplog: pytest.LogCaptureFixture) -> None:
    LimitRow.objects.create(name="gpu", at_once=1)
    for each in ("a", "b"):
        two_steps.using(id=each).start()
    Slot.objects.create(run_id="b", location="zero", limit="gpu", kind="step", is_held=True, since=timezone.now())
    passed(runtime.current(), "a")
    told = explain(Run.objects.get(id="a"), timezone.now())
    assert told is not None
    assert told.headline.startswith("Number 1 in line for limit gpu")
    Slot.objects.filter(run_id="b").update(run_id="a")
    told = explain(Run.objects.get(id="a"), timezone.now())
    assert told is not None
    assert told.headline.startswith("In line for limit gpu for ")
    assert told.headline.endswith(", of which it holds a slot itself")
    assert told.detail == "A durable_worker takes the slot back within two minutes. To have it done now, wake the run"
    assert told.needs_attention
    assert told.remedies == ("wake", "pause", "cancel")
    assert found(timezone.now()) == {}, "it may have been handed to the run a moment ago"
    finding = found(timezone.now() + timedelta(minutes=2))["slot_idle"]
    assert finding.runs == [("a", two_steps.name)]
    assert finding.command == "python manage.py durable wake a"
    if by == "a person":
        get_run("a").wake()
    else:
        Slot.objects.filter(is_held=True).update(since=timezone.now() - timedelta(minutes=2))
        Sweep(runtime.current().store).tick(timezone.now())
        assert "run a slept with slots that are for its passes alone" in caplog.text
        assert not Slot.objects.filter(is_held=True).exists()
    assert "slot_idle" not in found(timezone.now() + timedelta(minutes=2))
    passed(runtime.current(), "a")
    passed(runtime.current(), "a")
    assert Slot.objects.count() == 0


def test_a_run_that_is_passed_by_because_its_queue_is_paused_says_so() -> None:
    LimitRow.objects.create(name="gpu", at_once=1)
    for each in ("a", "b"):
        two_steps.using(id=each).start()
    Slot.objects.create(run_id="b", location="zero", limit="gpu", kind="step", is_held=True, since=timezone.now())
    passed(runtime.current(), "a")
    with acting_as(Actor("cli", label="ann"), reason="the disk is full"):
        holds.pause_queue("default")
    told = explain_fully(Run.objects.get(id="a"), timezone.now())
    assert told is not None
    assert told.headline.startswith("In line for limit gpu for ")
    assert ', and its queue "default" is paused by ann for ' in told.headline
    assert told.headline.endswith(": the disk is full")
    assert told.detail.startswith(
        "It keeps its place. Free slots go to runs of other queues until the queue is resumed"
    )


def test_limits_that_nothing_names_and_nobody_uses() -> None:
    begin("a")
    LimitRow.objects.bulk_create(LimitRow(name=each, at_once=3) for each in ("left behind", "in use"))
    Slot.objects.create(run_id="a", location="x", limit="in use", kind="step", is_held=True, since=timezone.now())
    assert unused_limits() == ["left behind"]


def test_metrics_count_slots_by_limit() -> None:
    begin("a", "b", "c")
    begin("d", tenant="x")
    LimitRow.objects.create(name="left behind", at_once=3)
    Slot.objects.filter(run_id="b").update(since=timezone.now() - timedelta(minutes=5))
    samples = {
        (sample.name, sample.labels.get("limit")): sample.value
        for metric in RowsCollector().collect()
        for sample in metric.samples
    }
    assert (samples["durable_slots_held", "crm"], samples["durable_slots_waiting", "crm"]) == (2, 2)
    assert 300 <= samples["durable_slot_wait_seconds", "crm"] < 3_600
    assert samples["durable_slots_held", "left behind"] == samples["durable_slot_wait_seconds", "left behind"] == 0


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="plans of PostgreSQL")
def test_a_line_of_ten_thousand_is_read_along_an_index() -> None:
    begin("a")
    Run.objects.bulk_create(
        Run(id=f"r-{number}", workflow=holding.name, state="sleeping", created_at=timezone.now(), input="[]")
        for number in range(10_000)
    )
    Slot.objects.bulk_create(
        Slot(
            run_id=f"r-{number}",
            limit="crm",
            key="acme 🎉",
            kind="open",
            is_held=False,
            place=number,
            since=timezone.now(),
        )
        for number in range(10_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_slot")
    with CaptureQueriesContext(connection) as queries:
        assert set(found(timezone.now() + LATER)) == {"line_still"}
        [counts] = count_slots(1_000)
    assert (counts.held.number, counts.waiting.number, counts.waiting.is_capped) == (1, 1_000, True)
    assert scans(queries, {"durable_slot"}) == []
