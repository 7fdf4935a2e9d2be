"""The recovery of a map with many failed children, in batches that passes of the parent make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from durable import Context, CriticalError, runtime, workflow
from durable.core.children import maps
from durable.core.control_flow import PassAborted
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.inspection.explanation import explain_fully
from durable.inspection.tree import history_tree
from durable.models import OperatorAction, Run
from durable.runtime import Runtime
from durable.store import recovery
from durable.testing import Harness
from tests.core.flavours import declared
from tests.support.stores import in_force, passed, settle

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
COUNT = 230  # more than the transaction of the recovery and one batch of a pass recover

CALLS: list[int] = []
FAIL: set[int] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


def work(number: int) -> int:
    CALLS.append(number)
    if number in FAIL:
        raise CriticalError(f"no {number}")
    return number


@workflow(name="maprecovery.one")
def one(ctx: Context, number: int) -> int:
    return ctx.step("work", work, number)


@workflow(name="maprecovery.between")
def between(ctx: Context, number: int) -> int:
    return ctx.child("one", one, number)


@declared("maprecovery.stop")
async def parents(ctx: Any, count: int, at_once: int | None = None) -> Any:
    result = await ctx.map("bills", one, [(number,) for number in range(count)], at_once=at_once)
    return sum(result.outputs)


stops, _ = parents


@workflow(name="maprecovery.nested")
def nested(ctx: Context, count: int) -> Any:
    return sum(ctx.map("bills", between, [(number,) for number in range(count)]).outputs)


both = pytest.mark.parametrize("parent", parents, ids=["sync", "async"])


def all_fail(parent: Any, *args: Any, count: int = COUNT) -> Any:
    """A parent that has failed because all children of its map did: they had ended before it looked."""
    FAIL.update(range(count))
    at = runtime.current()
    run = parent.using(id="p").start(count, *args)
    passed(at, run.id)
    children = list(run.children())
    for child in children:
        passed(at, child.id)
        for grandchild in child.children():
            passed(at, grandchild.id)
            passed(at, child.id)
    passed(at, run.id)
    assert run.state == "failed"
    assert {each.state for each in children} == {"failed"}
    FAIL.clear()
    CALLS.clear()
    return run


def in_states(run: Any) -> Counter[str]:
    return Counter(each.state for each in run.children())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two and three children, so that nine make several."""
    monkeypatch.setattr(recovery, "_AT_ONCE", 3)
    monkeypatch.setattr(maps, "_BATCH", 2)


@both
def test_all_failed_children_are_recovered_once(h: Harness, parent: Any) -> None:
    run = all_fail(parent)
    run.recover()
    assert in_states(run) == {"pending": 100, "failed": COUNT - 100}
    settle()
    assert run.state == "completed"
    assert run.result() == sum(range(COUNT))
    assert sorted(CALLS) == list(range(COUNT))


@both
@pytest.mark.usefixtures("small")
def test_children_that_are_recovered_have_their_turns(engine: str, parent: Any) -> None:
    run = all_fail(parent, None, count=9)
    run.recover()
    settle()
    assert (run.state, run.result()) == ("completed", 36)


@pytest.mark.usefixtures("small")
def test_failed_children_of_failed_children_are_recovered_first(engine: str) -> None:
    run = all_fail(nested, count=9)
    run.recover()
    settle()
    assert (run.state, run.result()) == ("completed", 36)
    assert sorted(CALLS) == list(range(9))


@both
@pytest.mark.usefixtures("small")
def test_children_that_fail_again_fail_their_parent_again(engine: str, parent: Any) -> None:
    run = all_fail(parent, count=9)
    FAIL.add(8)
    run.recover()
    settle()
    assert run.state == "failed"
    FAIL.clear()
    run.recover()
    settle()
    assert (run.state, run.result()) == ("completed", 36)


@pytest.mark.usefixtures("small")
def test_whenever_the_worker_dies_the_next_one_goes_on(engine: str) -> None:
    at = runtime.current()
    for die_at in range(1, 8):
        run = stops.using(id=f"p{die_at}").start(9)
        FAIL.update(range(9))
        passed(at, run.id)
        for child in run.children():
            passed(at, child.id)
        passed(at, run.id)
        assert run.state == "failed"
        FAIL.clear()
        CALLS.clear()
        run.recover()
        with suppress(PassAborted), dying_at(at, die_at):
            passed(at, run.id)
        next_worker(at, run.id)
        settle()
        assert (run.state, run.result()) == ("completed", 36)
        assert sorted(CALLS) == list(range(9))


@pytest.mark.usefixtures("small")
def test_no_sweep_cancels_a_child_that_is_recovered() -> None:
    with in_force() as at:
        run = all_fail(stops, 2, count=9)
        run.recover()
        with suppress(PassAborted), dying_at(at, 4):
            passed(at, run.id)
        after = ""
        while (found := at.store.cascade(after, at.now())) is not None:
            after = found[0]
        assert "cancelled" not in in_states(run)
        next_worker(at, run.id)
        settle()
        assert (run.state, run.result()) == ("completed", 36)


@pytest.mark.usefixtures("small")
def test_the_run_says_how_many_are_recovered_and_by_whom_in_the_audit_log() -> None:
    with in_force() as at:
        run = all_fail(stops, count=9)
        run.recover()
        with suppress(PassAborted), dying_at(at, 5):
            passed(at, run.id)
        row = Run.objects.get(pk="p")
        assert 'Map "bills": 3 of 6 failed children recovered' in explain_fully(row, at.now()).detail
        [node] = history_tree(Run.objects.get(pk="p")).nodes
        assert node.note == "9 children, 3 of 6 failed children recovered"
        next_worker(at, run.id)
        settle()
        assert run.state == "completed"
        rows = OperatorAction.objects.filter(action="recover", outcome="done")
        assert Counter(rows.values_list("run_id", flat=True)) == {"p": 1} | {
            f"p:bills:{number}": 1 for number in range(9)
        }
        assert len(set(rows.values_list("source", "actor_label"))) == 1


@pytest.mark.usefixtures("small")
def test_a_cancel_in_the_middle_of_a_recovery_cancels_all(engine: str) -> None:
    run = all_fail(stops, count=9)
    run.recover()
    run.cancel("no")
    settle()
    assert run.state == "cancelled"
    assert set(in_states(run)) <= {"failed", "cancelled"}


def next_worker(at: Runtime, run_id: str) -> None:
    """The pass of another worker, an hour later: the lease of one that has died has expired."""
    later = at.now() + timedelta(hours=1)
    claimed = at.store.claim_run(run_id, now=later, lease_until=later + timedelta(hours=1), worker="next")
    assert claimed is not None
    execute_pass(claimed, store=at.store, eviction=Eviction(), at=at)


@contextmanager
def dying_at(at: Runtime, number: int) -> Iterator[None]:
    """Let the pass end without a word at its change of this number, as that of a worker that is killed."""
    changed, calls = at.store.change, 0

    def change(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise PassAborted("killed")
        return changed(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at.store, "change", change)
        yield
