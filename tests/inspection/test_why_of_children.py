"""What `durable why`, pages of verbs and the command line say of children: waiting, undone, left running, cancelled."""

from __future__ import annotations

import io
from copy import copy
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from durable import Context, CriticalError, Handle, get_run, runtime, workflow
from durable.inspection.children import count_children
from durable.inspection.explain_states import Explanation
from durable.inspection.explanation import explain_fully
from durable.models import Run, WorkerProcess
from tests.admin.pages import text_of, url
from tests.support.stores import passed
from tests.support.worker import a_worker

pytestmark = pytest.mark.django_db(transaction=True)
BROKEN: set[str] = set()


def undo(rollback: Any, output: str) -> None:
    return None


def do(name: str) -> str:
    if name in BROKEN:
        raise CriticalError(name)
    return name


@workflow(name="why.one")
def one(ctx: Context, number: int) -> str:
    ctx.rollback_checkpoint("undo")
    return ctx.step("charge", do, f"charge {number}", rollback=undo)


@workflow(name="why.map")
def mapped(ctx: Context) -> None:
    ctx.rollback_checkpoint("undo")
    ctx.map("bills", one.using(rollback=True), [(number,) for number in range(4)], at_once=2)
    ctx.step("end", do, "end")


@workflow(name="why.single")
def single(ctx: Context) -> None:
    ctx.rollback_checkpoint("undo")
    ctx.child("bill", one.using(rollback=True), 1)
    ctx.step("end", do, "end")


@workflow(name="why.sleeper")
def sleeper(ctx: Context, number: int) -> None:
    ctx.sleep("long", "30 days")


@workflow(name="why.sleepers")
def sleepers(ctx: Context) -> None:
    ctx.map("bills", sleeper, [(number,) for number in range(3)], at_once=2)


@workflow(name="why.fails_beside_children")
def fails_beside_children(ctx: Context) -> None:
    first, second = (ctx.start_child(name, sleeper, 1) for name in ("first", "second"))
    ctx.step("end", do, "end")
    first.result("first ends")
    second.result("second ends")


@workflow(name="why.parent_of_a_failed_child")
def parent_of_a_failed_child(ctx: Context) -> None:
    ctx.child("bill", fails_beside_children)


@workflow(name="shown.one")
def twice(ctx: Context, number: int) -> int:
    return ctx.step("twice", lambda: number)


@workflow(name="shown.parent")
def parent_of_both(ctx: Context) -> int:
    ctx.start_child("alone", sleeper.using(when_parent_ends="leave"), 1)
    return len(ctx.map("bills", twice, [(number,) for number in range(5)], at_once=2).outputs)


@pytest.fixture(autouse=True)
def broken() -> Any:
    BROKEN.add("end")
    yield
    BROKEN.clear()


def why(run_id: str) -> Explanation:
    return explain_fully(Run.objects.get(id=run_id), timezone.now())


def settled(*run_ids: str) -> None:
    for each in run_ids:
        passed(runtime.current(), each)


def test_a_parent_and_its_children_are_explained_and_counted() -> None:
    run = parent_of_both.using(id="order-7").start()
    settled("order-7")
    assert why("order-7").headline == (
        'Waiting for the children of the map "bills": 0 of 5 have ended, 2 are under way, 3 wait for their turn'
    )
    turn = 'Waits for its turn: 2 of 2 of the map "bills" of "order-7" are under way'
    assert why("order-7:bills:4").headline == turn
    settled("order-7:bills:0", "order-7:bills:1")
    alone, bills = count_children("order-7").groups
    assert (alone.name, dict(alone.states)) == ("", {"pending": 1})
    assert (bills.name, dict(bills.states)) == ("bills", {"pending": 3, "completed": 2})
    assert len(run.children(group="bills", state="completed")) == 2
    settled(*(f"order-7:bills:{number}" for number in range(2, 5)), "order-7")
    assert run.result(timeout=1) == 5
    assert not count_children("order-7:alone")


def test_a_map_whose_children_are_compensated_says_so() -> None:
    run = mapped.using(id="m").start()
    settled("m", *(f"m:bills:{number}" for number in range(4)), "m")
    assert run.state == "rolling_back"
    said = why("m")
    assert said.headline == 'Compensating the children of the map "bills": 2 of 4 are under way'
    assert said.detail.startswith("Because ")
    settled("m:bills:3", "m:bills:2", "m")
    assert why("m").headline == 'Compensating the children of the map "bills": 2 of 4 are under way, 2 are left'
    settled("m:bills:0", "m:bills:1", "m")
    assert run.state == "failed"


def test_a_parent_that_waits_for_the_compensation_of_one_child_says_for_which() -> None:
    single.using(id="s").start()
    settled("s", "s:bill", "s")
    expected = 'Compensating: waiting until child "s:bill" has undone its own, which is rolling back'
    assert why("s").headline == expected


@pytest.mark.parametrize("parent", [mapped, single])
def test_a_replay_that_compensates_the_children_of_its_original_claims_no_failed_handler(parent: Any) -> None:
    BROKEN.clear()
    original = parent.using(id="o").start()
    children = ["o:bill"] if parent is single else [f"o:bills:{number}" for number in range(4)]
    settled("o", *children, "o")
    assert original.state == "completed"
    BROKEN.add("end")
    replayed: Handle[Any] = original.replay("end")
    settled(replayed.id)
    assert replayed.state == "rolling_back"
    run = Run.objects.get(id=replayed.id)
    assert run.wake_at is not None
    assert run.wake_at > timezone.now()  # it looks again in a minute
    headline = why(replayed.id).headline
    assert headline.startswith("Compensating")
    assert "handler has failed" not in headline
    assert ('child "o:bill"' if parent is single else 'map "bills"') in headline


def test_a_pause_and_a_cancel_say_what_becomes_of_children(admin_client: Client) -> None:
    sleepers.using(id="f").start()
    settled("f", "f:bills:0")
    goes_on = "3 open children are not paused with it, and go on: python manage.py durable children f --output ids | "
    cancelled = "A cancelled run is not recovered: a restart is a new run, which starts all of its children anew"
    assert goes_on in text_of(admin_client.get(url("act", "f", "pause")))
    assert cancelled in text_of(admin_client.get(url("act", "f", "cancel")))
    alone = sleeper.using(id="alone").start(1)
    for verb in ("pause", "cancel"):
        page = text_of(admin_client.get(url("act", alone.id, verb)))
        assert "open child" not in page
        assert cancelled not in page
    assert goes_on not in why("f").text
    assert goes_on in told("pause", "f", "-y")
    assert get_run("f").state == "paused"
    assert goes_on in why("f").text
    assert "open child" not in told("pause", "alone", "-y")
    assert cancelled in told("cancel", "f", "-y")


def test_a_recovery_says_that_what_cancelled_children_did_is_done_again(admin_client: Client) -> None:
    BROKEN.add("end")
    fails_beside_children.using(id="p").start()
    settled("p")
    assert [get_run(f"p:{name}").state for name in ("first", "second")] == ["cancelled", "cancelled"]
    again = (
        "2 of its children were cancelled: where the run waits for one, another is started, which executes all steps"
    )
    assert again in text_of(admin_client.get(url("act", "p", "recover")))
    parent_of_a_failed_child.using(id="alone").start()
    settled("alone", "alone:bill", "alone")
    assert get_run("alone").state == "failed"
    assert "another is started" not in text_of(admin_client.get(url("act", "alone", "recover")))
    BROKEN.clear()
    assert again in told("recover", "p", "-y")
    settled("p")
    assert [get_run(f"p:{name}~1").state for name in ("first", "second")] == ["pending", "pending"]
    assert "another is started" not in text_of(admin_client.get(url("act", "p", "recover")))


def told(*arguments: str) -> str:
    """What a command prints, with what it says beside."""
    out = io.StringIO()
    call_command("durable", *arguments, stdout=out, stderr=out)
    return out.getvalue()


class TestBacklog:
    """A plain run that is due, and other runs before it."""

    def test_alone_there_is_nothing_to_say(self) -> None:
        one.using(id="r").start(1)
        assert why("r").detail == ""

    def test_runs_that_are_due_before_it_and_workers_that_are_busy_are_counted(self) -> None:
        at = runtime.current()
        for number in range(3):
            one.using(id=f"before-{number}").start(number)
        one.using(id="held").start(0)
        one.using(id="r").start(1)
        one.using(id="later").start(2)
        one.using(id="elsewhere", queue="high").start(2)
        now = timezone.now()
        Run.objects.filter(id__startswith="before").update(wake_at=now - timedelta(seconds=9))
        Run.objects.filter(id="before-2").update(state="paused")
        Run.objects.filter(id="r").update(wake_at=now - timedelta(seconds=5))
        Run.objects.filter(id="later").update(wake_at=now - timedelta(seconds=4))
        a_worker("full", slots=1)
        a_worker("free", slots=2)
        a_worker("away", slots=1, queues=["high"])
        a_worker("dead", slots=1, last_seen_at=now - timedelta(minutes=10))
        claimed = at.store.claim_run("held", now=at.now(), lease_until=at.now() + timedelta(hours=1), worker="full")
        assert claimed is not None
        expected = "Due before it: 2 of its queue. 1 of 2 workers that serve its queue are busy"
        assert why("r").detail == expected
        Run.objects.filter(id="r").update(wake_at=now + timedelta(hours=1))
        assert why("r").detail == ""

    def test_each_of_many_workers_counts(self) -> None:
        one.using(id="r").start(1)
        now = timezone.now()
        rows = [a_worker(f"early-{number}", slots=600) for number in range(2)]
        copies = [copy(rows[0]) for _ in range(300)]
        for number, each in enumerate(copies):
            each.pk, each.name, each.queues, each.started_at = None, f"late-{number}", ["high"], now
        WorkerProcess.objects.bulk_create(copies)
        run = Run.objects.get(pk="r")
        Run.objects.bulk_create(
            Run(
                id=f"held-{number}",
                workflow=run.workflow,
                queue=run.queue,
                input=run.input,
                state="running",
                wake_at=now,
                created_at=now,
                started_at=now,
                fence=1,
                worker=rows[number % 2].name,
                lease_expires_at=now + timedelta(hours=1),
            )
            for number in range(1_200)
        )
        assert why("r").detail == "2 of 2 workers that serve its queue are busy"
