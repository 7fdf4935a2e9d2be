"""The drivers with real threads and tasks: what branches do to each other's commits, and what ends a pass."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.journal import Journal
from durable.core.records import Batch, Committed
from durable.store.memory import MemoryStore
from durable.testing import Harness
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed


class Interfering:
    """The harness's store, with something done around a call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MemoryOnly(Interfering):
    """Transactions of the store in memory, without rows of a database."""

    def transaction(self) -> Any:
        return MemoryStore.transaction(self.inner)


class Transactional(Interfering):
    """Transactions that exclude no other writer, as a database's: what they commit is written when they end."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.open: dict[int, list[Batch]] = {}
        self.committed: list[tuple[bool, Batch]] = []
        self.refuses = False

    def commit(self, batch: Batch) -> Committed:
        held = self.open.get(threading.get_ident())
        if held is None:
            self.committed.append((False, batch))
            found: Committed = self.inner.commit(batch)
            return found
        held.append(batch)
        return Committed()

    @contextmanager
    def transaction(self) -> Any:
        held = self.open[threading.get_ident()] = []
        try:
            yield
            if self.refuses:
                raise ValueError("refused at the end")
        finally:
            del self.open[threading.get_ident()]
        for batch in held:
            self.committed.append((True, batch))
            self.inner.commit(batch)


@pytest.mark.parametrize("refuses", [False, True])
def test_another_branch_does_not_commit_an_atomic_steps_record(h: Harness, refuses: bool) -> None:
    """Promise 6: the record is written by the step's own transaction, or not at all."""
    store = Transactional(h._store)
    store.refuses = refuses

    def atomic(ctx: Any) -> None:
        for number in range(20):
            ctx.try_step(f"a{number}", int, atomic=True, max_retries=0)

    def saving(ctx: Any) -> None:
        for number in range(60):
            ctx.step(f"b{number}", int)

    def ship(ctx: Any) -> None:
        ctx.join("join", {"atomic": atomic, "one": saving, "two": saving})

    run = h.start(ship, id="run")
    threaded_pass(h, "run", store=store)
    assert run.state == "completed"
    for in_transaction, batch in store.committed:
        for entry in batch.entries:
            if "/atomic/" in entry.location and entry.status == "completed":
                assert in_transaction
                assert not refuses
    statuses = {each.status for each in run.history() if "/atomic/" in each.location}
    assert statuses == {"exhausted" if refuses else "completed"}


def test_atomic_steps_beside_other_commits_where_there_is_one_writer(h: Harness) -> None:
    """On SQLite and in memory a transaction excludes every other writer: branches must not wait for each other."""

    def atomic(ctx: Any) -> None:
        for number in range(30):
            ctx.step(f"a{number}", int, atomic=True)

    def saving(ctx: Any) -> None:
        for number in range(100):
            ctx.step(f"b{number}", int)

    def ship(ctx: Any) -> str:
        ctx.join("join", {"one": atomic, "two": saving, "three": atomic, "four": saving})
        return "done"

    run = h.start(ship, id="run")
    store = MemoryOnly(h._store)
    done = threading.Thread(target=threaded_pass, args=(h, "run"), kwargs={"store": store}, daemon=True)
    done.start()
    done.join(120)
    assert not done.is_alive(), "two branches wait for each other"
    assert run.output == "done"


class Failing(Interfering):
    """The commit of one entry is not answered, or comes too late."""

    def __init__(self, inner: Any, location: str, error: BaseException) -> None:
        super().__init__(inner)
        self.location = location
        self.error = error
        self.after: list[str] = []
        self.has_failed = threading.Event()

    def commit(self, batch: Batch) -> Committed:
        if any(entry.location == self.location for entry in batch.entries):
            self.has_failed.set()
            raise self.error
        if self.has_failed.is_set():
            self.after += [entry.location for entry in batch.entries]
        found: Committed = self.inner.commit(batch)
        return found


@pytest.mark.parametrize("at_once", [True, False])
def test_after_a_commit_that_was_not_answered_nothing_more_is_written(
    h: Harness, flavour: Flavour, at_once: bool
) -> None:
    store = Failing(h._store, "join/lost/a", ConnectionError("the connection is gone"))

    async def lost(ctx: Any) -> None:
        await ctx.step("a", int)

    async def going_on(ctx: Any) -> None:
        if not flavour.is_async:
            await ctx.step("first", lambda: store.has_failed.wait(120))
        await ctx.step("second", int)

    async def ship(ctx: Any) -> Any:
        await ctx.join("join", {"lost": lost, "going on": going_on})
        return "done"

    run = h.start(flavour(ship), id="run")
    with pytest.raises(PassAborted):
        threaded_pass(h, "run", store=store)
    assert store.after == []
    h.advance(60)
    assert h.finish(run).output == "done"


def test_a_worker_that_lost_its_lease_writes_nothing_more(h: Harness, flavour: Flavour) -> None:
    """Promise 3."""
    calls: list[str] = []

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", take_over)
        await ctx.step("b", lambda: calls.append("b"))
        return "done"

    def take_over() -> None:
        calls.append("a")
        if len(calls) > 1:
            return
        h.advance(31)
        h._store.claim_run("run", now=h.now, lease_until=h.now, worker="another")

    run = h.start(flavour(ship), id="run")
    with pytest.raises(LeaseLost):
        threaded_pass(h, "run")
    assert run.history() == []
    h.advance(60)
    assert h.finish(run).output == "done"
    assert calls == ["a", "a", "b"]


class Held(Interfering):
    """Commits are answered once `count` saves wait for theirs."""

    def __init__(self, inner: Any, count: int) -> None:
        super().__init__(inner)
        self.left = count
        self.all_wait = threading.Event()
        self.lock = threading.Lock()
        self.batches: list[set[str]] = []

    def begun(self) -> None:
        with self.lock:
            self.left -= 1
        if not self.left:
            self.all_wait.set()

    def commit(self, batch: Batch) -> Committed:
        self.batches.append({each.location for each in batch.entries if each.kind == "step"})
        assert self.all_wait.wait(120)
        found: Committed = self.inner.commit(batch)
        return found


def test_threads_that_wait_for_a_commit_are_committed_together_and_once(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Held(h._store, 6)
    due = Journal.generation_due

    def noting(journal: Journal) -> int:
        number = due(journal)
        store.begun()
        return number

    def branch(ctx: Any) -> None:
        ctx.step("a", int)

    def ship(ctx: Any) -> Any:
        ctx.join("join", dict.fromkeys("abcdef", branch))
        return "done"

    monkeypatch.setattr(Journal, "generation_due", noting)
    run = h.start(ship, id="run")
    threaded_pass(h, "run", store=store)
    assert run.output == "done"
    written = [each for each in store.batches if each]
    assert len(written) <= 2  # what one branch had when it came first, and what gathered behind it
    assert set().union(*written) == {f"join/{name}/a" for name in "abcdef"}
    assert len(store.batches) <= len(written) + 2  # the join's end and the run's


def test_branches_of_an_async_workflow_are_concurrent(h: Harness) -> None:
    barrier = asyncio.Barrier(3)

    async def meet() -> str:
        await barrier.wait()
        return "met"

    async def branch(ctx: Any) -> Any:
        return await ctx.step("a", meet, timeout=120)

    async def ship(ctx: Any) -> Any:
        return await ctx.join("join", dict.fromkeys("abc", branch))

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == dict.fromkeys("abc", "met")


def test_branches_of_a_sync_workflow_are_concurrent(h: Harness) -> None:
    barrier = threading.Barrier(3)

    def branch(ctx: Any) -> Any:
        return ctx.step("a", lambda: barrier.wait(120) is not None)

    def ship(ctx: Any) -> Any:
        return ctx.join("join", dict.fromkeys("abc", branch))

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == dict.fromkeys("abc", True)


@pytest.mark.parametrize("returns_awaitable", [False, True])
def test_synchronous_steps_in_branches_of_an_async_workflow_are_concurrent(h: Harness, returns_awaitable: bool) -> None:
    barrier = threading.Barrier(3)

    async def met() -> bool:
        return True

    def meet() -> Any:
        barrier.wait(120)
        return met() if returns_awaitable else True

    async def branch(ctx: Any) -> Any:
        return await ctx.step("a", meet)

    async def outer(ctx: Any) -> Any:
        return await ctx.join("inner", dict.fromkeys("bc", branch))

    async def ship(ctx: Any) -> Any:
        return await ctx.join("join", {"a": branch, "nested": outer})

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == {"a": True, "nested": {"b": True, "c": True}}


def test_synchronous_steps_of_an_async_workflow_have_no_more_threads_than_the_setting_says(
    h: Harness, settings: Any
) -> None:
    settings.DURABLE = {**settings.DURABLE, "MAX_BRANCH_THREADS": 2}
    lock, both = threading.Lock(), threading.Barrier(2)
    now = most = 0

    def note() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        both.wait(120)
        with lock:
            now -= 1

    async def branch(ctx: Any) -> Any:
        await ctx.step("a", note, timeout=0)

    async def ship(ctx: Any) -> Any:
        await ctx.join("join", dict.fromkeys("abcdef", branch))

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert (run.state, most) == ("completed", 2)


def test_a_synchronous_step_of_an_async_branch_fails_and_times_out_as_any_other(h: Harness) -> None:
    def fail() -> None:
        raise ValueError("no")

    def hang() -> None:
        while True:
            threading.Event().wait(0.001)

    async def failing(ctx: Any) -> Any:
        return (await ctx.try_step("f", fail, max_retries=0)).failure.error.message

    async def hanging(ctx: Any) -> Any:
        return (await ctx.try_step("h", hang, timeout=0.05)).failure.kind

    async def ship(ctx: Any) -> Any:
        return await ctx.join("join", {"failing": failing, "hanging": hanging})

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == {"failing": "no", "hanging": "timeout"}


def test_no_more_threads_than_the_setting_says(h: Harness, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "MAX_BRANCH_THREADS": 3}
    lock, two_at_once = threading.Lock(), threading.Event()
    threads: set[int] = set()
    now = most = 0

    def note() -> None:
        nonlocal now, most
        with lock:
            threads.add(threading.get_ident())
            now += 1
            most = max(most, now)
            if now > 1:
                two_at_once.set()
        two_at_once.wait(120)
        threading.Event().wait(0.002)
        with lock:
            now -= 1

    def inner(ctx: Any) -> Any:
        ctx.step("a", note)

    def outer(ctx: Any) -> Any:
        ctx.join("inner", dict.fromkeys("abcd", inner))

    def ship(ctx: Any) -> Any:
        ctx.join("outer", dict.fromkeys("abcd", outer))

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.state == "completed"
    assert 1 < most <= 3


def test_a_divergence_in_one_branch_stops_the_others(h: Harness, flavour: Flavour) -> None:
    state = {"name": "a"}

    async def changing(ctx: Any) -> None:
        await ctx.step(state["name"], int)
        await ctx.sleep("rest", 60)

    async def other(ctx: Any) -> None:
        await ctx.sleep("rest", 60)

    async def ship(ctx: Any) -> Any:
        await ctx.join("join", {"changing": changing, "other": other})

    run = h.start(flavour(ship), id="run")
    threaded_pass(h, "run")
    state["name"] = "b"
    threaded_pass(h, "run")
    check_failed(run, "HistoryDivergedError")
