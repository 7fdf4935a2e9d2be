"""Children of a map that were cancelled without their rollback.

They undo what they did before others are started in their places.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from pytest_django import Settings

from durable import Context, CriticalError, RollbackContext, current_step, get_run, runtime, workflow
from durable.core.compatibility import FORMAT
from durable.core.records import RunState
from durable.models import Run
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import declared
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.slow

DONE: list[str] = []
FAIL: set[str] = set()
MISTAKE: set[str] = set()
CHARGED: dict[int, set[str]] = defaultdict(set)  # by child: the runs that have charged
UNDONE: dict[int, set[str]] = defaultdict(set)
COUNT = 5


@pytest.fixture(autouse=True)
def fresh() -> None:
    DONE.clear()
    FAIL.clear()
    MISTAKE.clear()
    CHARGED.clear()
    UNDONE.clear()


def do(name: str) -> str:
    if name in FAIL:
        raise CriticalError(f"no {name}")
    DONE.append(name)
    return name


def charge(number: int) -> str:
    done = do(f"charge {number}")
    CHARGED[number].add(current_step().run_id)
    return done


def undo(context: RollbackContext, name: str) -> None:
    do(f"undo {name}")
    UNDONE[int(name.removeprefix("charge "))].add(context.run_id)


@workflow(name="replaced.pay")
def pay(ctx: Context, number: int) -> str:
    ctx.rollback_checkpoint("undo")
    paid = ctx.step("charge", charge, number, rollback=undo)
    if "slow" in MISTAKE:
        ctx.sleep("s", 600)
    ctx.step("book", do, f"book {number}")
    return paid


def inputs() -> list[tuple[int]]:
    return [(number,) for number in range(COUNT)]


@declared("replaced.bills")
async def bills(ctx: Any, at_once: int | None = None, on_failure: Any = "stop") -> Any:
    await ctx.rollback_checkpoint("undo")

    async def errs(branch: Any) -> None:
        await branch.sleep("s", 30)
        if "parent" in MISTAKE:
            raise TypeError("a mistake of the code")

    async def bill(branch: Any) -> Any:
        found = await branch.map("bills", pay.using(rollback=True), inputs(), at_once=at_once, on_failure=on_failure)
        return found.outputs

    return (await ctx.join("both", {"bills": bill, "errs": errs}))["bills"]


each_flavour = pytest.mark.parametrize("parent", bills, ids=["sync", "async"])
each_shape = pytest.mark.parametrize(
    ("at_once", "on_failure"), [(None, "stop"), (2, "stop"), (2, "finish"), (1, "finish")]
)


def balance(number: int) -> int:
    """How many charges of the child are not undone."""
    return DONE.count(f"charge {number}") - DONE.count(f"undo charge {number}")


def balances() -> list[int]:
    return [balance(number) for number in range(COUNT)]


def stopped_by_a_mistake(h: Harness, parent: Any, at_once: int | None = None, on_failure: str = "stop") -> Any:
    """A parent that a mistake has stopped: it has undone nothing, and its children were cancelled with it."""
    MISTAKE.update({"parent", "slow"})
    run = h.start(parent.using(id="p"), at_once, on_failure)
    h.settle()
    h.advance(30)
    h.settle()
    begun = COUNT if at_once is None else at_once
    assert (run.state, balances()) == ("failed", [1] * begun + [0] * (COUNT - begun))
    assert {each.state for each in run.children()} == {"cancelled"}
    MISTAKE.clear()
    return run


def check_counts(run: Any, *, completed: int) -> None:
    """Check the group's counts against a recount of its children."""
    *_, group = sorted(runtime.current().store.groups_of(run.id), key=lambda each: each.spec.generation)
    members = runtime.current().store.members(group.spec.id, -1, 100)
    states = [each.state for each in members]
    assert (group.created, group.waiting, group.running) == (len(members), 0, 0)
    assert (group.completed, group.failed, group.cancelled) == tuple(
        states.count(each) for each in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
    )
    assert group.completed == completed


@each_flavour
@each_shape
def test_what_they_did_is_undone_before_others_begin(
    h: Harness, parent: Any, at_once: int | None, on_failure: str
) -> None:
    run = stopped_by_a_mistake(h, parent, at_once, on_failure)
    run.recover()
    assert h.finish(run).state == "completed"
    assert run.output == [f"charge {number}" for number in range(COUNT)]
    assert balances() == [1] * COUNT
    for number in range(COUNT if at_once is None else at_once):
        first, undone, again = (
            DONE.index(f"charge {number}"),
            DONE.index(f"undo charge {number}"),
            len(DONE) - 1 - DONE[::-1].index(f"charge {number}"),
        )
        assert first < undone < again
    check_counts(run, completed=COUNT)
    [entry] = [each for each in h._store.load("p") if each.kind == "map"]
    assert {"replaced", "anew", "format"}.isdisjoint(entry.data)


@each_flavour
def test_while_they_are_undone_the_parent_waits_for_one_of_them(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    run.recover()
    h.run(run)
    assert run.state == "sleeping"
    assert {each.state for each in run.children()} == {"rolling_back"}
    assert "waiting for child" in run.summary
    [entry] = [each for each in h._store.load("p") if each.kind == "map"]
    assert entry.data["format"] == FORMAT, "a release before this one leaves it alone"
    h.settle()
    assert balances() == [1] * COUNT


@each_flavour
@pytest.mark.parametrize("at_once", [None, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_whenever_a_worker_dies_each_charge_is_undone_before_the_next(
    parent: Any, at_once: int | None, when: Any
) -> None:
    deaths = 0
    while True:
        DONE.clear()
        with Harness() as h:
            run = stopped_by_a_mistake(h, parent, at_once, "finish")
            run.recover()
            try:
                with h.crash_at(deaths + 1, when):
                    h.finish(run)
                break
            except SimulatedCrash:
                deaths += 1
            h.advance("1 hour")
            assert h.finish(run).state == "completed"
            assert run.output == [f"charge {number}" for number in range(COUNT)]
            assert len(run.children()) == 2 * COUNT, "each place has had two children"
            for number in range(COUNT if at_once is None else at_once):
                charged = [place for place, each in enumerate(DONE) if each == f"charge {number}"]
                undone = [place for place, each in enumerate(DONE) if each == f"undo charge {number}"]
                assert charged[0] < min(undone) <= max(undone) < charged[-1]
            check_counts(run, completed=COUNT)
    assert deaths >= 15


@each_flavour
def test_a_handler_that_fails_for_good_keeps_the_parent_waiting_until_it_is_recovered(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent, 2, "finish")
    FAIL.add("undo charge 1")
    run.recover()
    h.settle()
    for _ in range(2):
        stuck = get_run("p:both:bills:bills:1")
        assert (run.state, stuck.state, balances()) == ("sleeping", "failed", [0, 1, 0, 0, 0])
        assert f'waiting for child "{stuck.id}"' in run.summary
        assert len(run.children()) == COUNT, "one is started although the one before has charged"
        h.advance("1 minute")
        h.settle()
    FAIL.clear()
    stuck.recover()
    h.settle()
    h.advance("1 minute")
    assert h.finish(run).state == "completed"
    assert balances() == [1] * COUNT


@each_flavour
def test_a_cancel_with_rollback_meanwhile_undoes_them_and_stops_at_a_handler_that_fails(
    h: Harness, parent: Any
) -> None:
    run = stopped_by_a_mistake(h, parent, 2, "finish")
    FAIL.add("undo charge 1")
    run.recover()
    h.settle()
    run.cancel("not wanted", rollback=True)
    h.settle()
    assert (run.state, balance(1)) == ("failed", 1)
    assert "the compensation of child" in run.summary
    FAIL.clear()
    run.recover()
    h.settle()
    assert (run.state, balances(), len(run.children())) == ("cancelled", [0] * COUNT, COUNT)


@each_flavour
def test_a_cancel_without_rollback_meanwhile_lets_them_undo_what_they_have_begun_to(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent, 2, "finish")
    run.recover()
    h.run(run)
    assert "rolling_back" in {each.state for each in run.children()}
    run.cancel("not wanted")
    h.settle()
    assert (run.state, balances(), len(run.children())) == ("cancelled", [0] * COUNT, COUNT)
    assert {each.state for each in run.children()} == {"cancelled"}


@each_flavour
def test_the_parent_is_stopped_by_its_crashes_in_the_middle(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent, 2, "finish")
    run.recover()
    h.run(run)
    assert len([each for each in run.children() if each.state in ("rolling_back", "cancelled")]) == COUNT
    h._store._runs["p"].crashes = 1_000
    run.wake()
    h.run(run)
    assert run.state == "failed", "it is stopped without a rollback"
    h.settle()
    run.recover()
    assert h.finish(run).state == "completed"
    assert balances() == [1] * COUNT
    check_counts(run, completed=COUNT)


@each_flavour
def test_a_second_recovery_replaces_those_that_were_started_in_the_places_of_others(h: Harness, parent: Any) -> None:
    MISTAKE.update({"parent", "slow"})
    run = h.start(parent.using(id="p"), 1, "finish")
    h.settle()
    get_run("p:both:bills:bills:0").cancel("by an operator")
    h.settle()
    h.advance(30)
    h.settle()
    assert (run.state, balances()) == ("failed", [1, 1, 0, 0, 0])
    MISTAKE.discard("parent")
    run.recover()
    h.run(run)
    h.run("p:both:bills:bills:0")
    h.run(run)
    h.run("p:both:bills:bills:0~1")
    states = [get_run(f"p:both:bills:bills:{each}").state for each in ("0", "0~1", "1")]
    assert (states, balances()) == (["cancelled", "sleeping", "rolling_back"], [1, 1, 0, 0, 0])
    h._store._runs["p"].crashes = 1_000
    run.wake()
    h.run(run)
    assert run.state == "failed"
    h.settle()
    assert get_run("p:both:bills:bills:0~1").state == "cancelled"
    MISTAKE.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert run.output == [f"charge {number}" for number in range(COUNT)]
    assert balances() == [1] * COUNT
    check_counts(run, completed=COUNT)


@each_flavour
def test_children_whose_runs_are_gone_are_started_anew_all_the_same(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    run.recover()
    h.run(run)
    for child in run.children():
        h._store._runs.pop(child.id)
        h._store._children._children["p"].pop(child.id)
    run.wake()
    assert h.finish(run).state == "completed"
    assert run.output == [f"charge {number}" for number in range(COUNT)]


@each_flavour
def test_failed_children_are_recovered_beside_those_that_are_undone(h: Harness, parent: Any) -> None:
    MISTAKE.update({"parent", "slow"})
    FAIL.add("charge 1")
    run = h.start(parent.using(id="p"), 2, "finish")
    h.settle()
    h.advance(30)
    h.settle()
    assert (run.state, balances()) == ("failed", [1, 0, 1, 0, 0])
    MISTAKE.clear()
    FAIL.clear()
    run.recover()
    get_run("p:both:bills:bills:1").recover()
    assert h.finish(run).state == "completed"
    assert balances() == [1] * COUNT
    check_counts(run, completed=COUNT)


@workflow(name="replaced.waits")
def waits(ctx: Context, number: int) -> str:
    ctx.rollback_checkpoint("undo")
    paid = ctx.step("charge", charge, number, rollback=undo)
    ctx.queue.next("end")
    return paid


@workflow(name="replaced.listening")
def listening(ctx: Context, at_once: int | None, on_failure: Any) -> Any:
    ctx.rollback_checkpoint("undo")

    def errs(branch: Context) -> None:
        branch.queue.next("go")
        if "parent" in MISTAKE:
            raise TypeError("a mistake of the code")

    def bill(branch: Context) -> Any:
        return branch.map("bills", waits.using(rollback=True), inputs(), at_once=at_once, on_failure=on_failure).outputs

    return ctx.join("both", {"bills": bill, "errs": errs})["bills"]


@pytest.mark.django_db
@each_shape
def test_rows_are_undone_and_replaced_too(at_once: int | None, on_failure: str, settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "DIVERGENCE_GRACE": 0}
    MISTAKE.add("parent")
    with in_force():
        run = listening.using(id="p").start(at_once, on_failure)
        settle()
        run.send("go")
        settle()
        begun = COUNT if at_once is None else at_once
        assert (run.state, balances()) == ("failed", [1] * begun + [0] * (COUNT - begun))
        MISTAKE.clear()
        run.recover()
        settle()
        for _ in range(COUNT):
            for child in run.children():
                if child.state == "sleeping":
                    child.send("end")
            settle()
        assert run.state == "completed"
        assert run.output == [f"charge {number}" for number in range(COUNT)]
        assert balances() == [1] * COUNT
        assert [DONE.count(f"undo charge {number}") for number in range(COUNT)] == [1] * begun + [0] * (COUNT - begun)
        check_counts(run, completed=COUNT)


@pytest.mark.django_db
def test_rows_of_a_rollback_in_the_middle(settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "DIVERGENCE_GRACE": 0}
    MISTAKE.add("parent")
    with in_force():
        run = listening.using(id="p").start(2, "finish")
        settle()
        run.send("go")
        settle()
        MISTAKE.clear()
        run.recover()
        settle(1)
        assert sorted(each.state for each in run.children())[-1] == "rolling_back"
        run.cancel("not wanted", rollback=True)
        settle()
        assert (run.state, balances(), len(run.children())) == ("cancelled", [0] * COUNT, COUNT)


@each_flavour
@each_shape
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_between_no_charge_is_left_twice(
    h: Harness, parent: Any, at_once: int | None, on_failure: str, seed: int
) -> None:
    """Passes in any order, workers that die, stops by the limit of crashes, and recoveries; then an end."""
    chosen = random.Random(f"{seed} {at_once} {on_failure}")
    run = stopped_by_a_mistake(h, parent, at_once, on_failure)
    run.recover()
    for _ in range(chosen.randrange(25)):
        due = [each for each in (run, *run.children()) if each.wake_at is not None and each.wake_at <= h.now]
        if not due:
            h.advance("1 minute")
            continue
        one = chosen.choice(due)
        if one.id == run.id and chosen.random() < 0.2:
            h._store._runs[run.id].crashes = 1_000
        # before the commit of a step its function has run, and nothing says so: what it did could not be undone
        when: Any = chosen.choice(["before", "after"]) if one.id == run.id else "after"
        try:
            with h.crash_at(chosen.randrange(1, 6), when):
                h.run(one)
        except SimulatedCrash:
            h.advance("1 minute")  # the lease runs out
        if run.state == "failed":
            run.recover()
    is_cancelled = chosen.random() < 0.4 and run.state != "completed"
    if is_cancelled:
        run.cancel("not wanted", rollback=True)
    for _ in range(20):
        h.settle()
        if run.state in ("completed", "cancelled"):
            break
        if run.state == "failed":
            run.recover()
        h.advance("1 minute")
    if run.state == "completed":
        assert all(number == 1 for number in kept()), kept()
        assert run.output == [f"charge {number}" for number in range(COUNT)]
        check_counts(run, completed=COUNT)
    else:
        assert (run.state, is_cancelled) == ("cancelled", True)
        assert kept() == [0] * COUNT


def kept() -> list[int]:
    """By input: how many runs have charged it and have not undone that."""
    return [len(CHARGED[number] - UNDONE[number]) for number in range(COUNT)]


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(8))
def test_rows_stay_right_whatever_happens_in_between(seed: int, settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "DIVERGENCE_GRACE": 0}
    chosen = random.Random(seed)
    at_once, on_failure = chosen.choice([(None, "stop"), (2, "stop"), (2, "finish"), (1, "finish")])
    MISTAKE.add("parent")
    with in_force():
        run = listening.using(id="p").start(at_once, on_failure)
        settle()
        run.send("go")
        settle()
        assert run.state == "failed"
        MISTAKE.clear()
        run.recover()
        for _ in range(chosen.randrange(12)):
            if chosen.random() < 0.25:
                Run.objects.filter(pk="p").update(crashes=1_000)
            settle(1)
            if run.state == "failed":
                run.recover()
        is_cancelled = chosen.random() < 0.5
        if is_cancelled:
            run.cancel("not wanted", rollback=True)
        for _ in range(4 * COUNT):
            settle()
            if run.state in ("completed", "cancelled"):
                break
            if run.state == "failed":
                run.recover()
            for child in run.children():
                if child.state == "sleeping":
                    child.send("end")
        assert run.state == ("cancelled" if is_cancelled else "completed")
        assert kept() == [0 if is_cancelled else 1] * COUNT
        check_counts(run, completed=0 if is_cancelled else COUNT)
