"""The database loses commits behind a pass that goes on: what is missing is done again, and no history has a hole.

That is what a failover to a standby that lags does, and a restored backup. Each commit of each program is lost in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import connections
from django.utils import timezone

from durable import AsyncContext, Break, Context, Continue, CriticalError, Handle, get_run, workflow
from durable.core.control_flow import CommitsLost
from durable.core.current import current_step
from durable.core.errors import RunNotFoundError
from durable.core.records import ENDED, Batch, Committed
from durable.core.witnesses import LOST_COMMITS
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.models import Entry, EntryMetadata, OperatorAction, Run
from durable.operations import messages
from durable.testing import Harness
from project.shop.models import Mail
from tests.core.conftest import NOW
from tests.faults.passing import pass_once
from tests.support.stores import Breaking
from tests.support.worker import work_off

LEASE: Final = timedelta(seconds=30)

# -- each commit of each program, in memory


def undo(_rollback: Any, output: Any) -> None:
    _calls.append(f"undo {output}")


def done(what: str) -> str:
    _calls.append(what)
    return what


def flaky(what: str) -> str:
    _calls.append(what)
    if current_step().attempt == 1:
        raise ValueError("not yet")
    return what


_calls: list[str] = []


def in_a_row(ctx: Context) -> Any:
    first = ctx.step("first", done, "first")
    ctx.step("note", done, "note", ephemeral=True)
    ctx.queue.send("mail", first)
    ctx.step("flaky", flaky, "flaky", retry_backoff_base=0)
    message = ctx.queue.next("mail", names=["mail"], completable=True)
    message.complete("thanks")
    return [message.body, ctx.step("atomic", done, "atomic", atomic=True), ctx.step("last", done, "last")]


def in_a_loop(ctx: Context) -> Any:
    def once(c: Context, n: int) -> Any:
        c.step("work", done, f"work {n}")
        return Break(n) if n == 5 else Continue(n + 1)

    found = ctx.loop("loop", once, state=0, history_prune_interval=1, history_size=0)
    return [found, ctx.step("after", done, "after")]


def in_branches(ctx: Context) -> Any:
    def branch(name: str) -> Callable[[Context], Any]:
        def body(c: Context) -> Any:
            c.step("one", done, f"{name} one")
            return c.step("two", done, f"{name} two", atomic=name == "a")

        return body

    joined = ctx.join("join", {name: branch(name) for name in "abc"})
    won = ctx.race("race", {"quick": branch("quick"), "slow": lambda c: c.sleep("long", 600)})
    block = ctx.try_block("block", lambda c: c.step("fails", fails, "fails"))
    return [joined, won.winner, block.ok, ctx.step("after", done, "after")]


def fails(what: str) -> None:
    _calls.append(what)
    raise CriticalError("no")


def compensated(ctx: Context) -> Any:
    ctx.rollback_checkpoint("from here")
    for name in "abc":
        ctx.step(name, done, name, rollback=undo)
    raise CriticalError("the code gives up")


PROGRAMS: Final[dict[str, Callable[[Context], Any]]] = {
    "in a row": in_a_row,
    "in a loop": in_a_loop,
    "in branches": in_branches,
    "compensated": compensated,
}


def come_to(h: Harness, run: Handle) -> list[Any]:
    history = [(each.location, each.kind, each.status, each.data) for each in run.history()]
    attempts = [(each.location, each.number) for each in h._store.attempts(run.id)]
    messages = [(each.body, each.state, each.response) for each in h._store.messages(run.id)]
    row = h._store.get(run.id)
    assert row is not None
    return [run.state, run.output, run.error, row.crashes, _without_ids(history), attempts, messages]


def _without_ids(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_ids(value) for key, value in found.items() if key not in ("id", "message_id")}
    return [_without_ids(each) for each in found] if isinstance(found, list | tuple) else found


def lived(program: Callable[[Context], Any], lost: int) -> tuple[list[Any], int, int]:
    """A life in which the database loses the commit of this number. What it came to, how many commits were made, and
    how often that was noticed.
    """
    _calls.clear()
    noticed = 0
    with Harness(now=NOW, strict=False) as h:
        is_lost = False

        def strike(number: int, batch: Batch, commit: Callable[[], Committed]) -> Committed:
            nonlocal is_lost
            if number != lost:
                committed = commit()
                assert not is_lost, f"commit {number} was accepted after commit {lost} was lost"
                return committed
            store: Any = h._store
            before = store._tables()
            committed = commit()
            store._put_back(before)
            is_lost = True
            return committed

        run = h.start(program, id="run")
        store = Breaking(h._store, strike)
        while run.state not in ENDED:
            record = h._store.claim_run("run", now=h.now, lease_until=h.now + LEASE, worker="worker")
            if record is None:  # the commit that ended the pass is lost
                assert is_lost
                [row] = [each for each in [h._store.get("run")] if each is not None]
                h._store.release([(row.id, row.fence)], h.now)
                is_lost = False
                continue
            try:
                execute_pass(record, store=store, eviction=Eviction(), at=h._runtime)
            except CommitsLost:
                noticed += 1
                h._store.release([(record.id, record.fence)], h.now)
                is_lost = False
        return come_to(h, run), store.commits, noticed


@pytest.mark.django_db
@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_commit_is_lost_the_next_one_notices(name: str) -> None:
    program = PROGRAMS[name]
    undisturbed, commits, noticed = lived(program, 0)
    assert commits >= 6
    assert noticed == 0, "a false alarm"
    found_out = 0
    for number in range(1, commits + 1):
        found, _, noticed = lived(program, number)
        assert found == undisturbed, f"commit {number} of {commits} is lost"
        found_out += noticed
    assert found_out >= commits - 4, "those that end a pass have no next one"


# -- a worker on the default database

_behind: list[Callable[[], None]] = []


def book(to: str) -> str:
    _calls.append("book")
    Mail.objects.create(to=to, subject="booked", body="", idempotency_key=f"{to} {len(_calls)}")
    return to


def wait(what: str) -> str:
    """What happens behind the pass happens while this function runs."""
    _calls.append(what)
    while _behind:
        _behind.pop(0)()
    return what


@workflow(name="faults.lost.plain")
def plain(ctx: Context, is_atomic: bool) -> list[Any]:
    first = ctx.step("first", done, "first")
    booked = ctx.step("book", book, ctx.run_id, atomic=is_atomic)
    return [first, booked, ctx.step("wait", wait, "wait"), ctx.step("last", done, "last")]


@workflow(name="faults.lost.async")
async def later(ctx: AsyncContext, is_atomic: bool) -> list[Any]:
    first = await ctx.step("first", done, "first")
    booked = await ctx.step("book", book, ctx.run_id, atomic=is_atomic)
    return [first, booked, await ctx.step("wait", wait, "wait"), await ctx.step("last", done, "last")]


@workflow(name="faults.lost.joined")
def joined(ctx: Context, is_atomic: bool) -> list[Any]:
    def branch(c: Context) -> list[Any]:
        return [c.step("book", book, ctx.run_id, atomic=is_atomic), c.step("wait", wait, "wait")]

    first = ctx.step("first", done, "first")
    found = ctx.join("both", {"one": branch})
    return [first, *found["one"], ctx.step("last", done, "last")]


@pytest.fixture
def calls() -> list[str]:
    _calls.clear()
    _behind.clear()
    return _calls


def lose_entry(name: str) -> None:
    entry = Entry.objects.get(location__endswith=name)
    EntryMetadata.objects.filter(entry=entry).delete()
    assert entry.delete()[0] == 1


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_atomic", [True, False])
@pytest.mark.parametrize("flow", [plain, later, joined])
def test_a_step_whose_commit_is_lost_is_done_again_by_the_worker(
    flow: Any, is_atomic: bool, calls: list[str], caplog: pytest.LogCaptureFixture, redis_connection: Any
) -> None:
    def lose() -> None:
        lose_entry("book")
        if is_atomic:
            assert Mail.objects.all().delete()[0] == 1

    _behind.append(lose)
    handle = flow.start(is_atomic)
    work_off()
    assert (handle.state, handle.output) == ("completed", ["first", handle.id, "wait", "last"])
    assert calls == ["first", "book", "wait", "book", "wait", "last"]
    assert {each.location.rpartition("/")[2] for each in handle.history() if each.kind == "step"} == {
        "first",
        "book",
        "wait",
        "last",
    }
    assert Mail.objects.count() == (1 if is_atomic else 2), "the rows of an atomic step are there once"
    assert Run.objects.get(pk=handle.id).crashes == 0
    assert [each.action for each in OperatorAction.objects.filter(run_id=handle.id)] == [LOST_COMMITS]
    assert caplog.text.count("the database has lost commits of run") == 1
    [found] = [each for each in collect_findings(timezone.now(), worker_overview()) if each.kind == "commits_lost"]
    assert (found.runs, found.count.number, found.is_urgent) == ([(handle.id, flow.name)], 1, False)
    later = collect_findings(timezone.now() + timedelta(hours=25), worker_overview())
    assert "commits_lost" not in {each.kind for each in later}


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_run_whose_start_is_lost_is_told_of_by_its_worker_and_by_who_sends_to_it(
    calls: list[str], caplog: pytest.LogCaptureFixture, redis_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        Run.objects.filter(pk=handle.id).delete()

    monkeypatch.setattr(messages._log_this, "_said", {})
    handle = plain.start(False)
    _behind.append(lose)
    work_off()
    assert calls == ["first", "book", "wait"]
    assert f"run {handle.id} is gone, and this worker had it" in caplog.text
    for _ in range(3):
        with pytest.raises(RunNotFoundError):
            handle.send("news", 1)
    [told] = [each for each in caplog.records if "there is no such run" in each.getMessage()]
    assert (told.name, told.levelname) == ("durable.operations", "WARNING")
    assert f"a message to run '{handle.id}' is refused" in told.getMessage()
    assert "the database has lost it" in told.getMessage()


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_two_passes_of_one_process_the_second_alone_books(calls: list[str], redis_connection: Any) -> None:
    """The claim of the first one is lost, so that the run is claimed again under it."""
    row: dict[str, Any] = {}

    def start_beside() -> None:
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join(120)
        assert not thread.is_alive()

    def beside() -> None:
        try:
            Run.objects.filter(pk=row["id"]).update(**row)
            pass_once(get_run(row["id"]))
        finally:
            connections.close_all()

    @workflow(name="faults.lost.booking")
    def booking(ctx: Context) -> str:
        return str(ctx.step("book", both, ctx.run_id, atomic=True))

    def both(run_id: str) -> str:
        wait("begun")
        return book(run_id)

    handle = booking.start()
    row.update(Run.objects.filter(pk=handle.id).values().get())
    _behind.append(start_beside)
    work_off()
    assert calls == ["begun", "begun", "book", "book"]
    assert get_run(handle.id).state == "completed"
    assert Mail.objects.count() == 1
