"""A commit that is not answered is made again by the same pass, and happens once: what a step has done is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection
from django.test import override_settings

from durable import AsyncContext, Break, Context, Continue, Handle, Limit, workflow
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.records import Batch, Committed, RunChange, RunRecord
from durable.core.transitions import fence_raised
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.store import Store, store_for
from durable.store.base import Renewed
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.faults.passing import pass_once
from tests.support.stores import Breaking
from tests.support.worker import work_off

LEASE = timedelta(seconds=30)


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(now=NOW, strict=False) as harness:  # steps are given the list that they fill
        yield harness


def pass_through(h: Harness, run_id: str, store: Any) -> PassOutcome:
    """One pass of the harness's run with `store` before its own."""
    claimed = h._store.claim_run(run_id, now=h.now, lease_until=h.now + LEASE, worker="worker")
    assert claimed is not None
    return execute_pass(claimed, store=store, eviction=Eviction(), at=h._runtime)


def failing_twice(calls: list[str]) -> None:
    calls.append("flaky")
    if calls.count("flaky") < 3:
        raise ValueError("not yet")


def make(calls: list[str]) -> Callable[[Context], Any]:
    """A workflow with all that a commit may carry."""

    def ship(ctx: Context) -> Any:
        ctx.queue.send("mail", "to myself")
        ctx.queue.send("mail", "to another", to="other")
        ctx.step("plain", calls.append, "plain")
        ctx.step("flaky", failing_twice, calls, retry_backoff_base=0)
        message = ctx.queue.next("mail", names=["mail"], completable=True)

        def once(c: Context, n: int) -> Any:
            if n == 1:
                message.complete("thanks")
            c.step("work", calls.append, f"work {n}")
            return Break(n) if n == 2 else Continue(n + 1)

        return ctx.loop("loop", once, state=0, history_prune_interval=1, history_size=0)

    return ship


def come_to(h: Harness, run: Handle, calls: list[str]) -> list[Any]:
    """What is to be the same, however often a commit broke."""
    history = [(each.location, each.status, each.attempts, each.data) for each in run.history()]
    attempts = [(each.location, each.number) for each in h._store.attempts(run.id)]
    mail = [
        (each.body, each.state, each.response, each.order)
        for name in (run.id, "other")
        for each in h._store.messages(name)
    ]
    return [run.state, run.output, calls, history, attempts, mail]


def lived(h: Harness, number: int, how: str) -> tuple[list[Any], int]:
    """A life in which the commit with this number breaks; what it came to, and how many commits there were."""
    calls: list[str] = []
    h.start(lambda ctx: None, id="other")
    run = h.start(make(calls), id="run")

    def strike(count: int, batch: Batch, commit: Callable[[], Committed]) -> Committed:
        if count != number:
            return commit()
        if how == "after":
            commit()
        raise OperationalError("the server closed the connection unexpectedly")

    store = Breaking(h._store, strike)
    passes = 0
    while run.state not in ("completed", "failed"):
        pass_through(h, "run", store)
        passes += 1
    assert passes == 3, "the pass that met with the break went on"
    return come_to(h, run, calls), store.commits


@pytest.mark.parametrize("how", ["before", "after"])
def test_whatever_commit_breaks_it_happens_once(how: str) -> None:
    with Harness(now=NOW, strict=False) as h:
        undisturbed, commits = lived(h, 0, how)
    assert commits > 12
    for number in range(1, commits + 1):
        with Harness(now=NOW, strict=False) as h:
            found, _ = lived(h, number, how)
        # message ids are drawn anew in each life
        assert _without_ids(found) == _without_ids(undisturbed), f"{how} commit {number}"


def _without_ids(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_ids(value) for key, value in found.items() if key not in ("id", "message_id")}
    return [_without_ids(each) for each in found] if isinstance(found, list | tuple) else found


def test_a_statement_that_is_still_on_its_way_is_refused_when_it_arrives(h: Harness) -> None:
    """The connection is gone, the server does not know yet: it carries the old statement out after the new one."""
    arrived: list[str] = []

    def strike(count: int, batch: Batch, commit: Callable[[], Committed]) -> Committed:
        if count == 2:
            on_its_way.append(commit)
            raise OperationalError("connection timed out")
        committed = commit()
        for late in on_its_way:
            with pytest.raises(LeaseLost):
                late()
            arrived.append("late")
        on_its_way.clear()
        return committed

    on_its_way: list[Callable[[], Committed]] = []
    calls: list[str] = []
    h.start(lambda ctx: None, id="other")
    run = h.start(make(calls), id="run")
    pass_through(h, "run", Breaking(h._store, strike))
    assert arrived == ["late"]
    assert [each.body for each in h._store.messages("other")] == ['"to another"']
    h.finish(run)
    assert calls.count("plain") == 1


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_a_park_that_was_not_answered_does_not_undo_what_an_operator_did_after_it(h: Harness, verb: str) -> None:
    def ship(ctx: Context) -> None:
        ctx.sleep("rest", 60)

    def strike(_count: int, _batch: Batch, commit: Callable[[], Committed]) -> Committed:
        commit()
        getattr(run, verb)()
        raise OperationalError("the server closed the connection unexpectedly")

    run = h.start(ship, id="run")
    with pytest.raises(LeaseLost):
        pass_through(h, "run", Breaking(h._store, strike))
    assert run.state == {"cancel": "cancelled", "pause": "paused"}[verb]


def test_a_run_that_another_worker_took_meanwhile_is_left_to_it(h: Harness) -> None:
    calls: list[str] = []

    def ship(ctx: Context) -> None:
        ctx.step("a", calls.append, "a")

    def strike(_count: int, _batch: Batch, _commit: Callable[[], Committed]) -> Committed:
        later = h.now + timedelta(seconds=31)
        assert h._store.claim_run("run", now=later, lease_until=later + LEASE, worker="another") is not None
        raise OperationalError("connection timed out")

    h.start(ship, id="run")
    with pytest.raises(LeaseLost):
        pass_through(h, "run", Breaking(h._store, strike))
    assert h._store.load("run") == []
    assert h._store.get("run").worker == "another"  # type: ignore[union-attr]


@workflow(name="faults.recommit.limited", limit=Limit("recommit", at_once=1))
def limited(ctx: Context) -> None:
    """Nothing."""


def test_a_queue_whose_run_got_a_slot_by_a_commit_without_an_answer_is_notified(h: Harness) -> None:
    limited.using(id="run").start()
    claimed = h._store.claim_run("run", now=h.now, lease_until=h.now + LEASE, worker="worker")
    assert claimed is not None
    next_one = limited.using(id="next", queue="high").start()

    def strike(_count: int, _batch: Batch, commit: Callable[[], Committed]) -> Committed:
        h.run("next")  # takes a place in the line
        assert next_one.state == "sleeping"
        commit()
        raise OperationalError("the server closed the connection unexpectedly")

    outcome = execute_pass(claimed, store=Breaking(h._store, strike), eviction=Eviction(), at=h._runtime)
    assert outcome.queues_to_notify >= {"high"}


# -- a supervisor beside it


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_renewal_under_the_fence_of_before_is_not_taken_for_a_loss(redis_connection: redis.Redis) -> None:
    store = store_for("default")
    renewed, has_changed = threading.Event(), threading.Event()
    seen: list[bool] = []

    class Racing:
        """The store, whose renewals wait until the fence has been raised under them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def renew(self, held: Any, lease_until: Any) -> Renewed:
            assert has_changed.wait(120)
            kept = store.renew(held, lease_until)
            renewed.set()
            return kept

    def work(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
        eviction.is_changing_fence = True
        changed = store.change(record.id, lambda row, _entries: RunChange(run=fence_raised(row)))
        has_changed.set()
        assert renewed.wait(120)
        record.fence = changed.fence
        eviction.is_changing_fence = False
        renewed.clear()
        assert renewed.wait(120)  # under the new one
        seen.append(eviction.requested)
        raise LeaseLost

    idle.start()
    with override_settings(DURABLE={"LEASE": 6.0}):
        work_off("default", store=Racing(), execute=work, seconds=1)
    assert seen == [False]


@workflow(name="faults.recommit.idle")
def idle(ctx: Context) -> None:
    """Nothing."""


# -- what PostgreSQL refuses for a while

_worked: list[str] = []


@workflow(name="faults.recommit.refused")
def refused(ctx: Context) -> str:
    ctx.step("work", _worked.append, ctx.run_id)
    ctx.queue.send("mail", 1)
    return str(ctx.queue.next("mail", names=["mail"]).body)


@workflow(name="faults.recommit.refused_async")
async def refused_async(ctx: AsyncContext) -> str:
    await ctx.step("work", _worked.append, ctx.run_id)
    await ctx.queue.send("mail", 1)
    return str((await ctx.queue.next("mail", names=["mail"])).body)


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database refuses to write entries with this error, two times out of three."""
    code = request.param
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE refusals")
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('refusals') % 3 <> 0 THEN "
            f"RAISE EXCEPTION 'refused for now' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON durable_entry FOR EACH ROW EXECUTE FUNCTION refuse()")
    yield code
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER refuse ON durable_entry")
        cursor.execute("DROP FUNCTION refuse()")
        cursor.execute("DROP SEQUENCE refusals")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("refusing", "flow", "store"),
    [
        *((code, refused, None) for code in ("53100", "40001", "40P01", "55P03", "57014")),
        ("53100", refused_async, None),
    ],
    indirect=["refusing"],
)
def test_what_is_refused_for_a_while_is_committed_by_the_same_pass(
    refusing: str, flow: Any, store: Store | None
) -> None:
    """Disk full, serialization failure, deadlock, and both timeouts; in an async workflow."""
    handle = flow.start()
    assert pass_once(handle, store=store).output == "1"
    assert _worked.count(handle.id) == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM refusals")
        [[refusals]] = cursor.fetchall()
    assert refusals >= 9


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("refusing", ["23514"], indirect=True)
def test_what_is_refused_for_good_is_not_tried_again(refusing: str) -> None:
    """A constraint is no trouble of the connection's: it says the same each time."""
    handle = refused.start()
    with pytest.raises(PassAborted, match="refused for now"):
        pass_once(handle)
    assert handle.history() == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM refusals")
        assert cursor.fetchall() == [(1,)]
