"""Children with a key, starts that come too late, and what is told of other runs that a pass changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, Limit, RollbackContext, get_run, runtime, signals, workflow
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.records import Batch, Committed
from durable.errors import ChildCancelledError, KeyConflictError
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.testing import Harness
from tests.core.driving import threaded_pass
from tests.core.flavours import declared
from tests.support.errors import check_failed

CALLS: list[Any] = []
FAIL: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


def work(name: str) -> str:
    CALLS.append(name)
    if name in FAIL:
        raise CriticalError(f"no {name}")
    return f"done {name}"


def undo(_rollback: Any, _output: Any) -> None:
    raise RuntimeError("the handler waits for its next attempt")


@workflow(name="child_keys.sync")
def sync(ctx: Context, name: str = "a", seconds: float = 0) -> str:
    if seconds:
        ctx.sleep("before", seconds)
    return ctx.step("work", work, name)


async def calling(ctx: Any, name: str = "a", seconds: float = 0, how: Any = None) -> Any:
    return await ctx.child("label", sync.using(key="k", if_open=how), name, seconds)


calls, acalls = declared("child_keys.calls")(calling)
both = pytest.mark.parametrize("parent", [calls, acalls], ids=["sync", "async"])


def owner() -> str | None:
    found = runtime.current().store.key_holder("child_keys.sync", "k")
    return None if found is None else found.id


@both
def test_a_child_has_its_key_as_long_as_it_is_open(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), "a", 60)
    h.settle()
    assert owner() == "p:label"
    open_run = sync.open_run(key="k")
    assert open_run is not None
    assert sync.using(key="k").start() == open_run
    assert h.finish(run).output == "done a"
    assert owner() is None


@both
@pytest.mark.parametrize("how", [None, "error"])
def test_an_open_run_with_the_key_refuses_the_child(h: Harness, parent: Any, how: str | None) -> None:
    first = sync.using(key="k", id="first").start("f", 60)
    run = h.start(parent.using(id="p"), "a", 0, how)
    h.settle()
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.type == "KeyConflictError"
    assert str(run.error.message) == (
        'run "first" is open and has the key "k": start the child when that run has ended, or with '
        'using(if_open="replace"), which cancels it'
    )
    assert first.state == "sleeping"
    assert h.finish(first).output == "done f"
    run.recover()
    assert h.finish(run).output == "done a", "the recovery starts the child"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_block_catches_the_refusal(h: Harness, is_async: bool) -> None:
    caught: list[BaseException] = []

    def body(ctx: Context) -> Any:
        try:
            return ctx.child("label", sync.using(key="k"))
        except KeyConflictError as error:
            caught.append(error)
            raise

    async def abody(ctx: AsyncContext) -> Any:
        child = await ctx.start_child("label", sync.using(key="k"))
        return await child.result("done")

    @workflow(name="child_keys.catches")
    def catches(ctx: Context) -> Any:
        found = ctx.try_block("try", body, catch=["child"])
        ctx.sleep("then", 5)
        return found.ok, found.failure and (found.failure.source, found.failure.name, found.failure.error.type)

    @workflow(name="child_keys.acatches")
    async def acatches(ctx: AsyncContext) -> Any:
        found = await ctx.try_block("try", abody, catch=["child"])
        await ctx.sleep("then", 5)
        return found.ok, found.failure and (found.failure.source, found.failure.name, found.failure.error.type)

    sync.using(key="k", id="first").start("f", 600)
    run = h.start(acatches if is_async else catches)
    assert h.finish(run).output == (False, ("child", "label", "KeyConflictError"))
    assert len(caught) == (0 if is_async else 2), "the same error in each pass"
    assert h.crash_everywhere(acatches if is_async else catches, check=lambda: None) >= 2


@both
@pytest.mark.parametrize("kind", ["run", "child"])
def test_a_run_with_the_key_is_replaced(h: Harness, parent: Any, kind: str) -> None:
    if kind == "run":
        sync.using(key="k", id="first").start("f", 600)
    else:
        h.start(calls.using(id="other"), "f", 600)
        h.settle()
    old = get_run("first" if kind == "run" else "other:label")
    run = h.start(parent.using(id="p"), "a", 5, "replace")
    h.settle()
    assert (old.state, owner()) == ("cancelled", "p:label")
    row = runtime.current().store.get(old.id)
    assert row is not None
    assert row.request_reason == 'replaced by run "p:label", which was started with its key'
    assert h.finish(run).output == "done a"
    if kind == "child":
        assert h.finish("other").state == "failed"
        check_failed(get_run("other"), ChildCancelledError.__name__)


def test_a_run_that_a_worker_has_gives_its_key_up(h: Harness) -> None:
    run = sync.using(key="k", id="first").start("f")
    held = h._store.claim_run("first", now=h.now, lease_until=h.now.replace(year=9999), worker="w")
    assert held is not None
    h.start(calls.using(id="p"), "a", 5, "replace")
    h.settle()
    assert (run.state, h._store.requests(["first"]), owner()) == ("running", {"first": "cancel"}, "p:label")


def test_a_worker_whose_lease_ran_out_replaces_no_run(h: Harness) -> None:
    old = sync.using(key="k", id="first").start("f", 600)
    h.run(old)
    h.start(calls.using(id="p"), "a", 5, "replace")
    late, _ = (h._store.claim_run("p", now=h.now, lease_until=h.now, worker=each) for each in ("late", "other"))
    assert late is not None
    with pytest.raises(LeaseLost):
        execute_pass(late, store=h._store, eviction=Eviction(), at=h._runtime)
    assert (old.state, owner()) == ("sleeping", "first")


def test_a_run_that_is_compensated_is_not_replaced(h: Harness) -> None:
    @workflow(name="child_keys.compensates")
    def compensates(ctx: Context) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("one", work, "one", rollback=undo)
        ctx.queue.next("go")

    @workflow(name="child_keys.replaces_compensated")
    def replaces(ctx: Context) -> None:
        ctx.child("label", compensates.using(key="k", if_open="replace"))

    run = h.start(compensates.using(key="k"))
    h.run(run)
    run.cancel(rollback=True)
    h.run(run)
    assert run.state == "rolling_back"
    refused = h.start(replaces)
    h.run(refused)
    check_failed(refused, "KeyConflictError")
    assert run.state == "rolling_back"


@pytest.mark.parametrize("how", ["error", "replace"])
@pytest.mark.parametrize("generations", [1, 2])
def test_a_key_of_an_ancestor_is_refused_with_the_chain(h: Harness, how: Any, generations: int) -> None:
    @workflow(name="child_keys.recurses")
    def recurses(ctx: Context, depth: int) -> str:
        if depth == 0:
            return ctx.child("last", recurses.using(key="k", if_open=how), 7)
        return ctx.child("next", recurses, depth - 1)

    run = h.start(recurses.using(id="p", key="k"), generations - 1)
    h.settle()
    last = ["p", "p:next"][generations - 1]
    assert get_run(last).state == "failed"
    error = get_run(last).error
    assert error is not None
    assert error.type == "KeyConflictError"
    assert error.message == (
        'run "p" has the key "k" until it ends, and this child is one of its descendants '
        f"({' > '.join(['p', 'p:next'][:generations])}): give the child another key"
    )
    assert run.state == "failed", "it was not cancelled for its own descendant"


@pytest.mark.parametrize("how", [None, "replace"])
@pytest.mark.parametrize("is_threaded", [False, True])
def test_two_branches_start_children_with_one_key(h: Harness, how: Any, is_threaded: bool) -> None:
    def branch(name: str) -> Any:
        def body(ctx: Context) -> Any:
            found = ctx.try_block("try", lambda ctx: ctx.child("label", sync.using(key="k", if_open=how), name, 5))
            return found.value if found.ok else found.failure and found.failure.error.type

        return body

    @workflow(name="child_keys.branches")
    def branches(ctx: Context) -> Any:
        return ctx.join("both", {"a": branch("a"), "b": branch("b")})

    run = h.start(branches.using(id="p"))
    if is_threaded:
        try:
            threaded_pass(h, "p")
        except PassAborted:  # both have seen a free key: the worker releases the run, and the next pass sees it taken
            found = h._store.get("p")
            assert found is not None
            h._store.release([("p", found.fence)], h.now)
    output = h.finish(run).output
    loser = "KeyConflictError" if how is None else "ChildCancelledError"
    assert sorted(output.values()) in (sorted(["done a", loser]), sorted(["done b", loser]))


def test_a_child_that_was_taken_back_gives_its_key_up(h: Harness) -> None:
    """A replay in place cancels the child that a worker has; the next generation takes the key from it."""
    run = h.start(calls.using(id="p"), "a")
    h.run(run)
    h.advance(1)
    run.pause()
    held = h._store.claim_run("p:label", now=h.now, lease_until=h.now.replace(year=9999), worker="w")
    assert held is not None
    run.replay("label", in_place=True)
    assert h._store.requests(["p:label"]) == {"p:label": "cancel"}
    h.run(run)
    assert (owner(), get_run("p:label").state) == ("p:label~1", "running")
    assert h.finish(run).output == "done a"


def test_recover_takes_the_key_again(h: Harness) -> None:
    FAIL.add("a")
    run = h.start(calls.using(id="p"))
    assert h.finish(run).state == "failed"
    assert owner() is None
    other = sync.using(key="k").start("o", 60)
    FAIL.clear()
    with pytest.raises(KeyConflictError):
        run.recover()
    assert (run.state, get_run("p:label").state) == ("failed", "failed"), "nothing was changed"
    h.finish(other)
    run.recover()
    assert owner() == "p:label"
    assert h.finish(run).output == "done a"


async def between(ctx: Any) -> Any:
    return await ctx.step("between", work, "between")


async def starting(ctx: Any, with_rollback: bool = False) -> Any:
    await ctx.rollback_checkpoint("from here")
    child = await ctx.start_child("label", sync.using(key="k", rollback=with_rollback), "a", 60)
    found = await ctx.try_block("between", between)
    return found.value, await child.result("done")


starts, astarts = declared("child_keys.starts")(starting)


@pytest.mark.parametrize("with_rollback", [False, True])
@pytest.mark.parametrize("parent", [starts, astarts], ids=["sync", "async"])
def test_a_recovery_whose_child_cannot_have_its_key_yet(h: Harness, parent: Any, with_rollback: bool) -> None:
    """The code has gone on behind the start, so it cannot be given the error: nothing of it is run."""
    run = h.start(parent.using(id="p"), with_rollback)
    h.settle()
    other = sync.using(key="k", id="other", if_open="replace").start("o", 600)
    h.settle()
    check_failed(run, "ChildCancelledError")
    for _ in range(2):
        run.recover()
        h.settle()
        check_failed(run, "KeyConflictError")
        assert run.error is not None
        assert run.error.message == (
            'run "other" is open and has the key "k": start the child when that run has ended, or with '
            'using(if_open="replace"), which cancels it'
        )
        assert CALLS == ["between"]
        assert owner() == "other"
    h.finish(other)
    run.recover()
    assert h.finish(run).output == ("done between", "done a")
    assert CALLS == ["between", "o", "a"]


def test_nothing_is_compensated_while_the_key_of_a_child_that_is_started_again_is_used(h: Harness) -> None:
    """A mistake in the code has stopped the parent, which frees the key of its child, and another run takes it."""

    def branch(ctx: Context) -> Any:
        child = ctx.start_child("label", sync.using(key="k"), "a", 60)
        ctx.step("between", work, "between", rollback=note_undone)
        if FAIL:
            raise KeyError("a mistake")
        return child.result("done")

    @workflow(name="child_keys.starts_in_a_branch")
    def starts_in_a_branch(ctx: Context) -> Any:
        ctx.rollback_checkpoint("from here")
        found = ctx.try_block("try", lambda c: c.join("all", {"one": branch, "two": lambda c: c.sleep("s", 600)}))
        assert found.value is not None
        return found.value["one"]

    FAIL.add("a mistake")
    run = h.start(starts_in_a_branch.using(id="p"))
    assert h.finish(run).state == "failed"
    FAIL.clear()
    other = sync.using(key="k").start("o", 600)
    run.recover()
    h.settle()
    check_failed(run, "KeyConflictError")
    h.finish(other)
    run.recover()
    assert h.finish(run).output == "done a"
    assert (CALLS, undone) == (["between", "o", "a"], [])


@both
@pytest.mark.parametrize("how", [None, "replace"])
def test_a_crash_at_each_commit(h: Harness, parent: Any, how: Any) -> None:
    assert h.crash_everywhere(parent, "a", 5, how) >= 10


def test_a_loop_starts_one_child_after_the_other_in_one_pass(h: Harness) -> None:
    @workflow(name="child_keys.one_after_the_other")
    def one_after_the_other(ctx: Context) -> list[str]:
        return [ctx.child(f"n{number}", sync.using(key="k"), str(number)) for number in range(3)]

    assert h.finish(h.start(one_after_the_other)).output == ["done 0", "done 1", "done 2"]


def test_what_a_child_cannot_have() -> None:
    for how, text in (
        ({"key": "k", "if_open": "return"}, r'using\(if_open="return"\) does not fit a child'),
        ({"key": "k", "debounce": 5, "at_most": 60}, r"using\(debounce=...\) does not fit a child"),
        ({"if_open": "error"}, r"using\(if_open=...\) needs key"),
    ):
        with pytest.raises(TypeError, match=text):
            sync.using(**how).child_request((), {})
    with pytest.raises(TypeError, match=r"ctx\.map starts several children, so they cannot share one key"):
        sync.using(key="k").map_requests([("a",)])


@both
def test_a_key_that_is_taken_at_the_commit_is_logged_as_that(
    h: Harness, parent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = h.start(parent.using(id="p"), "a")
    commit = h._store.commit

    def commit_behind_another_start(batch: Batch) -> Committed:
        sync.using(id="rival", key="k").start()
        return commit(batch)

    h._store.commit = commit_behind_another_start  # type: ignore[method-assign]  # another process is faster
    record = h._store.claim_run("p", now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert record is not None
    with pytest.raises(PassAborted, match='the key of the child "p:label" is taken by another run'):
        execute_pass(record, store=h._store, eviction=Eviction(), at=h._runtime)
    assert 'the key of the child "p:label" is taken by another run' in caplog.text
    assert "did not answer" not in caplog.text
    h._store.commit = commit  # type: ignore[method-assign]
    h._store.release([("p", record.fence)], h.now)
    h.run("p")
    check_failed(run, "KeyConflictError")


# -- A run that ends in the pass in which it was about to start a child: the child is not started


PASS_TIME: list[Any] = []
undone: list[Any] = []


def note_undone(_rollback: Any, output: Any) -> None:
    undone.append(output)


def key_after_a_while(*_: object) -> str:
    """The key of a limit, for which the start of a child asks after its operation has begun."""
    for each in PASS_TIME:
        each()
    return "k"


SLOW = Limit("late-starts", at_once=9, key=key_after_a_while)


@workflow(name="late_starts.child", limit=SLOW)
def child(ctx: Context) -> str:
    ctx.sleep("for long", 60)
    return "done"


async def calling_late(ctx: Any, with_rollback: bool) -> Any:
    await ctx.rollback_checkpoint("from here")
    if with_rollback:
        await ctx.step("charge", str, 1, rollback=note_undone)
    return await ctx.child("label", child)


late_calls, late_acalls = declared("late_starts.calls")(calling_late)


@pytest.fixture(autouse=True)
def nothing_happens() -> Iterator[None]:
    PASS_TIME.clear()
    undone.clear()
    yield
    PASS_TIME.clear()


@pytest.mark.parametrize("with_rollback", [False, True])
@pytest.mark.parametrize("parent", [late_calls, late_acalls], ids=["sync", "async"])
def test_no_child_is_started_by_a_run_that_has_reached_its_deadline(
    h: Harness, parent: Any, with_rollback: bool
) -> None:
    run = h.start(parent.using(id="p", deadline=30), with_rollback)
    PASS_TIME.append(lambda: h.advance(60))
    h.settle()
    PASS_TIME.clear()
    check_failed(run, "RunDeadlineError")
    assert runtime.current().store.get("p:label") is None
    assert run.children() == []
    assert undone == (["1"] if with_rollback else [])
    run.recover()
    h.settle()
    assert get_run("p:label").state == "sleeping", "the recovery starts it"


# -- `run_changed` of runs that a pass changes although they are not its own


SEEN: list[tuple[str, str, str]] = []


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    def note(sender: object, run: str, previous: str, state: str, **_: object) -> None:
        SEEN.append((run, previous, state))

    SEEN.clear()
    signals.run_changed.connect(note)
    yield
    signals.run_changed.disconnect(note)


def undo_nothing(_: RollbackContext, _output: str) -> None:
    """Undo nothing."""


def fail() -> None:
    raise CriticalError("no")


@workflow(name="told.one")
def one(ctx: Context, seconds: float = 0) -> str:
    ctx.rollback_checkpoint("undo")
    done = ctx.step("do", str, "a", rollback=undo_nothing)
    if seconds:
        ctx.sleep("s", seconds)
    return done


@workflow(name="told.parent")
def parent(ctx: Context) -> Any:
    ctx.rollback_checkpoint("undo")
    ctx.child("a", one.using(rollback=True, key="k", if_open="replace"))
    return ctx.step("end", fail)


def test_a_child_that_is_compensated_and_a_run_that_gives_its_key_up(h: Harness) -> None:
    h.run(one.using(key="k", id="first").start(600))
    run = h.start(parent.using(id="p"))
    assert h.finish(run).state == "failed"
    assert ("first", "sleeping", "cancelled") in SEEN
    of_child = [(previous, state) for run_id, previous, state in SEEN if run_id == "p:a"]
    assert of_child[-2:] == [("completed", "rolling_back"), ("rolling_back", "cancelled")]
    assert get_run("p:a").state == "cancelled"
