"""An operation with another name: what is rewritten, and how old and new code go on with the runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from durable import Break, Context, Continue, current_step, get_run
from durable.core.names.renames import Names, Rename, put_in_force
from durable.inspection import history_counts, places
from durable.migrations import MoveClass, RenameQueue, RenameStep, RenameWorkflow
from durable.models import (
    Attempt,
    Cause,
    Child,
    Entry,
    Failure,
    LogLine,
    QueueMessage,
    RenamedStep,
    Run,
    StepSave,
)
from durable.renames.operations import OfRecords
from durable.renames.rewriting import RenameRefused
from durable.worker.executor import note
from tests.renames.conftest import apply, go_on, locations, unapply
from tests.replay_check.conftest import NAME, Deploys

RENAME = RenameStep(NAME, "charge", "charge card", wait=0)


class Shop:
    """Workflows that differ in the name of a step, and what their steps have done."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fails = False

    def charge(self) -> str:
        self.keys.append(current_step().idempotency_key)
        if self.fails:
            raise ConnectionError("no answer")
        return "payment"

    def order(self, name: str) -> Callable[[Context], str]:
        def order(ctx: Context) -> str:
            payment: str = ctx.step(name, self.charge, retry_backoff_base=3600, retry_backoff_max=3600)
            ctx.sleep("cool off", "1 day")
            return payment

        return order


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("name", ["charge", "charge card"])
def test_code_of_either_name_goes_on_with_a_rewritten_run(deploys: Deploys, shop: Shop, name: str) -> None:
    deploys.deploy(shop.order("charge")).start()
    apply(RENAME)
    assert locations() == ["charge card", "cool off"]
    deploys.deploy(shop.order(name))
    assert deploys.goes_on()
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


def test_an_old_worker_that_does_not_know_of_the_rename_learns_of_it(
    deploys: Deploys, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    deploys.deploy(shop.order("charge")).start()
    apply(RENAME, is_known=False)
    with caplog.at_level(logging.CRITICAL):
        go_on(deploys)  # does not fit: it waits for other code, and reads the table
    assert Run.objects.get().diverged_at is not None
    assert len(shop.keys) == 1
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


@pytest.mark.parametrize(("before", "after"), [("charge", "charge card"), ("charge card", "charge")])
def test_a_run_that_began_after_the_migration_goes_on_with_code_of_the_other_name(
    deploys: Deploys, shop: Shop, before: str, after: str
) -> None:
    apply(RENAME)
    deploys.deploy(shop.order(before)).start()
    assert locations() == [before, "cool off"]
    deploys.deploy(shop.order(after))
    assert deploys.goes_on()
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


def test_the_next_attempt_has_the_key_of_the_one_before(deploys: Deploys, shop: Shop) -> None:
    shop.fails = True
    deploys.deploy(shop.order("charge")).start()
    apply(RENAME)
    assert list(Attempt.objects.values_list("location", flat=True)) == ["charge card"]
    shop.fails = False
    deploys.deploy(shop.order("charge card"))
    go_on(deploys)
    assert len(shop.keys) == 2
    assert shop.keys[0] == shop.keys[1]


def test_an_attempt_of_which_nothing_is_recorded_had_the_key_that_the_next_one_has(
    deploys: Deploys, shop: Shop
) -> None:
    """A worker that is killed in the first attempt leaves no record of it."""

    def dies() -> None:
        shop.keys.append(current_step().idempotency_key)
        raise KeyboardInterrupt

    def order(ctx: Context) -> None:
        ctx.step("charge", dies)

    apply(RENAME, is_known=False)  # the worker is older
    put_in_force(())
    deploys.deploy(order)
    with pytest.raises(KeyboardInterrupt):
        deploys.start()
    assert not Entry.objects.exists()
    Run.objects.update(lease_expires_at=None, wake_at=timezone.now(), state="pending")
    deploys.at.store.learn_names()
    deploys.deploy(shop.order("charge card"))
    go_on(deploys)
    assert len(shop.keys) == 2
    assert shop.keys[0] == shop.keys[1]


def test_the_reverse_gives_the_old_name_back(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order("charge card"))
    apply(RENAME)
    deploys.start()
    unapply(RENAME)
    assert locations() == ["charge", "cool off"]
    deploys.deploy(shop.order("charge"))
    assert go_on(deploys) == "completed"
    apply(RENAME)
    assert locations() == ["charge card", "cool off"]
    assert RenamedStep.objects.count() == 1


def test_a_name_that_is_taken_is_refused_before_anything_is_written(deploys: Deploys, shop: Shop) -> None:
    def both(ctx: Context, second: str) -> None:
        ctx.step("charge", print)
        ctx.step(second, print)
        ctx.sleep("wait", "1 day")

    deploys.deploy(both).start("other", id="order-1")
    deploys.start("charge card", id="order-2")
    with pytest.raises(RenameRefused, match='the run "order-2" has a record "charge card" already'):
        apply(RENAME)
    assert not RenamedStep.objects.exists()
    assert locations("order-1") == ["charge", "other", "wait"]


def test_a_name_of_another_rename_is_refused(deploys: Deploys) -> None:
    apply(RENAME)
    with pytest.raises(RenameRefused, match=r'"charge" of gate\.order was the name of another operation'):
        apply(RenameStep(NAME, "pay", "charge"))
    assert RenamedStep.objects.count() == 1


def test_a_branch_is_refused(deploys: Deploys) -> None:
    def ships(ctx: Context) -> None:
        ctx.join("ship", {"label": lambda c: c.step("buy", print), "mail": lambda c: c.step("send", print)})

    deploys.deploy(ships).start()
    with pytest.raises(RenameRefused, match='in the run "order-1", "label" is a branch of "ship"'):
        apply(RenameStep(NAME, "ship/label", "ship/sticker"))
    apply(RenameStep(NAME, "ship/label/buy", "ship/label/purchase"))
    assert "ship/label/purchase" in locations()


def test_code_that_gives_both_names_to_operations_of_a_scope_is_stopped(deploys: Deploys, shop: Shop) -> None:
    def both(ctx: Context) -> None:
        ctx.step("charge", shop.charge)
        ctx.step("charge card", shop.charge)

    apply(RENAME)
    deploys.deploy(both).start()
    assert Run.objects.get().diverged_at is not None
    assert len(shop.keys) == 1


def crawl(loop: str, step: str, block: str) -> Callable[[Context], int]:
    def body(ctx: Context, number: int) -> Any:
        drawn = ctx.random.random()
        ctx.step(step, lambda: drawn)
        ctx.try_block(block, lambda inner: inner.step("check", lambda: number))
        if number == 2:
            ctx.sleep("rest", "1 day")
            return Break(number)
        return Continue(number + 1)

    def crawls(ctx: Context) -> int:
        found: int = ctx.loop(loop, body, 0)
        return found

    return crawls


def test_what_is_below_a_loop_or_a_block_moves_with_it(deploys: Deploys) -> None:
    deploys.deploy(crawl("pages", "get", "safely")).start()
    deploys.start(id="order-2")
    apply(RenameStep(NAME, "pages", "sites", wait=0))
    apply(RenameStep(NAME, "sites/~/get", "sites/~/fetch", wait=0))
    apply(RenameStep(NAME, "sites/~/safely", "sites/~/carefully", wait=0))
    found = locations()
    assert "sites" in found
    assert {"sites/~2/fetch", "sites/~2/carefully/check", "sites/~2/rest"} <= set(found)
    assert not [each for each in found if "pages" in each or "get" in each or "safely" in each]
    assert not [each for each in locations("order-2") if "pages" in each or "get" in each]
    deploys.deploy(crawl("sites", "fetch", "carefully"))
    assert deploys.goes_on()
    assert go_on(deploys) == "completed"
    deploys.deploy(crawl("pages", "get", "safely"))
    assert deploys.goes_on(of="order-2")
    assert go_on(deploys, "order-2") == "completed"


def test_a_run_with_a_live_lease_is_passed_by_and_a_late_worker_is_refused(
    deploys: Deploys, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    deploys.deploy(shop.order("charge")).start(id="held")
    deploys.start(id="late")
    now = timezone.now()
    Run.objects.filter(pk="held").update(lease_expires_at=now + timedelta(hours=1), state="running")
    Run.objects.filter(pk="late").update(lease_expires_at=now - timedelta(hours=1), state="running")
    fences = dict(Run.objects.values_list("id", "fence"))
    apply(RENAME)
    assert locations("held") == ["charge", "cool off"]
    assert locations("late") == ["charge card", "cool off"]
    assert Run.objects.get(pk="held").fence == fences["held"]
    assert Run.objects.get(pk="late").fence > fences["late"]
    assert "1 run that workers have keeps the old name" in capsys.readouterr().out
    Run.objects.filter(pk="held").update(lease_expires_at=None, state="sleeping")
    deploys.deploy(shop.order("charge card"))
    assert go_on(deploys, "held") == "completed"
    assert len(shop.keys) == 2


def test_what_names_the_operation_beside_its_entry_is_rewritten(deploys: Deploys, shop: Shop) -> None:
    shop.fails = True

    def fails(ctx: Context) -> None:
        ctx.step("charge", shop.charge, max_retries=0)

    deploys.deploy(fails).start()
    assert Run.objects.get().origins == ["charge"]
    LogLine.objects.create(run_id="order-1", at=timezone.now(), level=20, location="charge", text="paid")
    save: dict[str, Any] = {"fence": 1, "attempt": 1, "number": 1, "details": "1"}
    StepSave.objects.create(run_id="order-1", location="charge", **save)
    Run.objects.update(generations={"charge": 2, "": 1})
    apply(RENAME)
    run = Run.objects.get()
    assert run.origins == ["charge card"]
    assert run.generations == {"charge card": 2, "": 1}
    assert LogLine.objects.get().location == StepSave.objects.get().location == "charge card"
    assert Failure.objects.get().cause.place == "charge card"
    shop.fails = False
    get_run("order-1").recover()
    deploys.deploy(shop.order("charge card"))
    deploys.settle("order-1")
    assert Run.objects.get().state == "sleeping"
    assert Cause.objects.filter(place="charge").count() == 1


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("charge 1", "pay", "charge #", "pay"),
        ("charge 1", "charge 2", "charge #", "charge #"),
        ("charge", "pay 1", "charge", "pay #"),
        ("other 1", "pay", "charge #", "charge #"),
    ],
)
def test_the_cause_of_a_numbered_step_is_that_of_its_new_name(
    deploys: Deploys, shop: Shop, old: str, new: str, before: str, after: str
) -> None:
    """A cause leaves numbers out; a run that failed at a step with another number keeps its cause."""
    failing = "charge 3" if old == "other 1" else old
    shop.fails = True

    def fails(ctx: Context) -> None:
        ctx.step("other 1", str)
        ctx.step(failing, shop.charge, max_retries=0)

    deploys.deploy(fails).start()
    assert Failure.objects.get().cause.place == before
    apply(RenameStep(NAME, old, new, wait=0))
    assert Failure.objects.get().cause.place == after


def test_a_step_beside_a_renamed_one_keeps_its_cause(deploys: Deploys, shop: Shop) -> None:
    def fails(ctx: Context) -> None:
        ctx.step("charge 1", str)
        shop.fails = True
        ctx.step("charge 2", shop.charge, max_retries=0)

    deploys.deploy(fails).start()
    apply(RenameStep(NAME, "charge 1", "pay", wait=0))
    assert Failure.objects.get().cause.place == "charge #"


def test_messages_and_children_know_their_place(deploys: Deploys) -> None:
    def waits(ctx: Context) -> None:
        ctx.queue.next("answer")
        ctx.sleep("wait", "1 day")

    deploys.deploy(waits).start()
    get_run("order-1").send("answer", 1)
    deploys.settle("order-1")
    other = Run.objects.get()
    other.pk = "child"
    other.parent_id = "order-1"
    other.workflow = "gate.child"
    other.save(force_insert=True)
    Child.objects.create(
        run_id="child", parent_id="order-1", location="answer", group="answer", position=1, when_parent_ends="cancel"
    )
    apply(RenameStep(NAME, "answer", "reply", wait=0))
    assert QueueMessage.objects.get().received_by == "reply"
    assert Child.objects.values_list("location", "group").get() == ("reply", "reply")


def test_many_runs_in_an_atomic_migration_are_refused(deploys: Deploys) -> None:
    now = timezone.now()
    Run.objects.bulk_create(
        Run(id=f"run-{number}", workflow=NAME, queue="default", input="{}", created_at=now) for number in range(501)
    )
    with pytest.raises(RenameRefused, match="atomic = False"):
        apply(RENAME)
    assert not RenamedStep.objects.exists()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("charge", "charge", "is the name already"),
        ("ship/buy", "post/buy", "in different scopes"),
        ("pages/~3/get", "pages/~3/fetch", "names one iteration"),
        ("send~0", "send~1", "names a number"),
        ("pages/~", "pages/x", "ends with an iteration"),
        ("", "charge", "is not a location"),
        ("a//b", "a//c", "is not a location"),
    ],
)
def test_what_is_no_place_of_an_operation_is_refused_when_the_file_is_read(old: str, new: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RenameStep(NAME, old, new)


def test_the_oldest_name_stands_for_all() -> None:
    names = Names(
        [
            Rename(NAME, "a", "b"),
            Rename(NAME, "b", "c"),
            Rename(NAME, "c/~/x", "c/~/y"),
            Rename(NAME, "c", "a"),
        ]
    )
    assert [names.canonical(each) for each in ("a", "b", "c", "d")] == ["a", "a", "a", "d"]
    assert names.canonical("b/~3/y") == names.canonical("a/~3/x") == "a/~3/x"
    assert names.canonical("d/~3/y") == "d/~3/y"


def test_what_was_counted_of_a_long_history_does_not_keep_the_old_name(
    deploys: Deploys, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "EXACT", 0)
    monkeypatch.setattr(history_counts, "LONG", 0)

    def order(ctx: Context) -> None:
        ctx.join("charge", {f"part {number}": lambda inner: inner.step("pay", shop.charge) for number in range(2)})
        ctx.sleep("cool off", "1 day")

    deploys.deploy(order).start()
    note("order-1")
    later = timezone.now() + 2 * history_counts.REST
    history_counts.count_long_histories(later)
    assert shown_places() == ["charge", "charge/part #/pay", "cool off"]
    assert history_counts.stored(counted_run(), "places") is not None
    apply(RENAME)
    assert history_counts.stored(counted_run(), "places") is None
    assert shown_places() == ["charge card", "charge card/part #/pay", "cool off"]
    note("order-1")  # as the next pass does
    history_counts.count_long_histories(later)
    assert history_counts.stored(counted_run(), "places") is not None, "it is counted again"
    assert shown_places() == ["charge card", "charge card/part #/pay", "cool off"]


def counted_run() -> Run:
    return Run.objects.with_side_rows().get(pk="order-1")


def shown_places() -> list[str]:
    """The places of the run, as its page has them."""
    return [each.location for each in places.read_places(counted_run()).places]


def test_a_rename_of_an_ended_run_raises_its_change_seq(deploys: Deploys, shop: Shop) -> None:
    def order(ctx: Context) -> None:
        ctx.step("charge", shop.charge)

    deploys.deploy(order).start()
    before = Run.objects.get(pk="order-1")
    assert before.state == "completed"
    apply(RENAME)
    assert locations() == ["charge card"]
    assert Run.objects.get(pk="order-1").change_seq == before.change_seq + 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("move", "told"),
    [
        (apply, "is applied before durable's own: add"),
        (unapply, "taken back, and durable's tables are not there: apply durable's migrations first"),
    ],
    ids=["forwards", "backwards"],
)
@pytest.mark.parametrize(
    "operation",
    [RENAME, RenameWorkflow("a.b", "a.c", wait=0), RenameQueue("a", "b", wait=0), MoveClass("a.B", "a.C")],
    ids=lambda each: type(each).__name__,
)
def test_without_durables_tables_it_is_told_what_to_do(
    operation: OfRecords, move: Callable[[OfRecords], None], told: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {operation.table} RENAME TO away")
    with pytest.raises(RenameRefused, match=told):
        move(operation)
