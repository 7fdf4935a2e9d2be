"""`ctx.compensate`, and a mistake, on each store; and what verbs do to the failure of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, Handle, get_run, operations, workflow
from durable.core.control_flow import LeaseLost
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.models import Entry, Run
from durable.runtime import Runtime
from durable.testing import Harness
from tests.core.flavours import Flavour
from tests.support.stores import in_force, passed

LEDGER: list[str] = []
MEANWHILE: list[Callable[[], Any]] = []
CODE: dict[str, bool] = {}


def charge(name: str) -> str:
    LEDGER.append(f"charge {name}")
    return name


def refund(_rollback: Any, name: str) -> None:
    LEDGER.append(f"refund {name}")
    if MEANWHILE:
        MEANWHILE.pop()()


async def rejecting_in_either(ctx: AsyncContext) -> str:
    await ctx.rollback_checkpoint("from here")
    for name in ("a", "b", "c"):
        await ctx.step(name, charge, name, rollback=refund)
    await ctx.compensate("rejected")
    await ctx.step("notify", LEDGER.append, "notified")
    return "rejected"


rejecting, rejecting_async = (
    workflow(name=f"tests.compensate_{each}")(Flavour(each)(rejecting_in_either)) for each in ("sync", "async")
)


@workflow(name="tests.compensate_mistaken")
def mistaken(ctx: Context) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("a", charge, "a", rollback=refund)
    if CODE["is wrong"]:
        raise KeyError("a typo")
    return "done"


@pytest.fixture
def at(db: None) -> Iterator[Runtime]:
    LEDGER.clear()
    MEANWHILE.clear()
    with in_force() as at:
        yield at


CHARGED = ["charge a", "charge b", "charge c"]


@pytest.mark.parametrize("flow", [rejecting, rejecting_async])
def test_it_is_recorded_and_the_run_completes(at: Runtime, flow: Any) -> None:
    run: Handle = flow.start()
    passed(at, run.id)
    assert (run.state, run.output) == ("completed", "rejected")
    assert [*CHARGED, "refund c", "refund b", "refund a", "notified"] == LEDGER
    entry = Entry.objects.get(run_id=run.id, kind="compensate")
    assert entry.location == "compensate~0"
    assert entry.data == {"reason": "rejected", "handlers": 3}
    assert Entry.objects.filter(run_id=run.id, metadata__rollback_completed_at__isnull=False).count() == 3


@workflow(name="tests.compensate_hostile")
def hostile(ctx: Context, reasons: list[int]) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.compensate("".join(map(chr, reasons)))
    ctx.sleep("z", "1 hour")
    return "rejected"


@pytest.mark.parametrize("reason", ["", "a\x00b\ud800", "é" * 5_000, 'q"/~%'])
def test_any_text_is_a_reason(at: Runtime, reason: str) -> None:
    run = hostile.start([ord(each) for each in reason])
    for _ in range(2):
        passed(at, run.id)
        assert run.state == "sleeping"
    assert Entry.objects.get(run_id=run.id, kind="compensate").data["reason"] == reason[:1_000]


@pytest.mark.parametrize("flow", [rejecting, rejecting_async])
def test_an_eviction_in_the_middle_goes_on_with_the_next_handler(at: Runtime, flow: Any) -> None:
    run: Handle = flow.start()
    eviction = Eviction()
    MEANWHILE.append(lambda: eviction.request("the worker stops"))
    execute_pass(claimed(at, run.id), store=at.store, eviction=eviction, at=at)
    assert run.state == "pending"
    assert [*CHARGED, "refund c"] == LEDGER
    passed(at, run.id)
    assert run.output == "rejected"
    assert [*CHARGED, "refund c", "refund b", "refund a", "notified"] == LEDGER


def test_a_worker_that_lost_its_lease_writes_nothing_more(at: Runtime) -> None:
    run = rejecting.start()

    def take_over() -> None:
        Run.objects.filter(pk=run.id).update(lease_expires_at=at.now() - timedelta(seconds=1))
        passed(at, run.id)
        assert run.state == "completed"

    MEANWHILE.append(take_over)
    with pytest.raises(LeaseLost):
        passed(at, run.id)
    assert run.output == "rejected"
    # its handler was under way when it lost the lease: that one ran twice, with one key
    assert [*CHARGED, "refund c", "refund c", "refund b", "refund a", "notified"] == LEDGER


def test_a_mistake_is_tried_again_and_another_workers_code_goes_on(at: Runtime) -> None:
    """With the grace period of the settings, as workers have it."""
    CODE["is wrong"] = True
    run = mistaken.start()
    passed(at, run.id)
    row = Run.objects.get(pk=run.id)
    assert row.state == "sleeping"
    assert row.diverged_at is not None
    assert row.summary.startswith("a mistake in the code, trying again until the grace period ends: KeyError: 'a typo'")
    CODE["is wrong"] = False
    run.wake()
    passed(at, run.id)
    assert run.output == "done"
    assert Run.objects.get(pk=run.id).diverged_at is None
    assert LEDGER == ["charge a"]


def test_after_the_grace_period_it_stops_whole_and_recovers(at: Runtime) -> None:
    CODE["is wrong"] = True
    run = mistaken.start()
    passed(at, run.id)
    Run.objects.filter(pk=run.id).update(diverged_at=at.now() - timedelta(hours=1))
    passed(at, run.id)
    row = Run.objects.get(pk=run.id)
    assert (row.state, row.error.type if row.error else None) == ("failed", "KeyError")
    assert row.diverged_at is not None
    assert row.summary.startswith("stopped: KeyError: 'a typo' (tests.operations.test_compensate.mistaken, line ")
    assert LEDGER == ["charge a"]
    CODE["is wrong"] = False
    get_run(run.id).recover()
    assert Run.objects.get(pk=run.id).diverged_at is None
    passed(at, run.id)
    assert run.output == "done"
    assert LEDGER == ["charge a"]
    assert operations.record(run.id).summary == ""


def claimed(at: Runtime, run_id: str) -> Any:
    now = at.now()
    return at.store.claim_run(run_id, now=now, lease_until=now + timedelta(seconds=30), worker="test")


# -- what verbs do to the failure of a run: those that let it continue close it, the others leave it


#: What the step raises next; it succeeds once the list is empty.
errors: list[Exception] = []


def charge_or_fail() -> None:
    if errors:
        raise errors.pop(0)


@workflow(name="tests.failures.order")
def order(ctx: Any) -> None:
    ctx.step("reserve", int)
    ctx.step("charge", charge_or_fail)


@pytest.fixture(autouse=True)
def _no_errors() -> Iterator[None]:
    errors.clear()
    yield
    errors.clear()


def failed(h: Harness, *more: Exception) -> Handle:
    """A run that has failed, and what its step raises then."""
    errors[:] = [CriticalError("no 1"), *more]
    run = order.start()
    h.run(run)
    assert run.state == "failed"
    assert is_open(h, run)
    return run


def is_open(h: Harness, run: Handle) -> bool:
    failure = h._store.failure(run.id)
    assert failure is not None
    return failure.is_open


def test_recover_closes_it(h: Harness) -> None:
    run = failed(h)
    run.recover()
    assert not is_open(h, run)
    h.run(run)
    assert run.state == "completed"
    assert not is_open(h, run)


def test_a_run_that_fails_again_has_the_new_cause(h: Harness) -> None:
    run = failed(h, ValueError("other"))
    run.recover()
    for _ in range(9):
        h.run_due()
        h.advance(3600)
    assert run.state == "completed"
    run = failed(h, CriticalError("quite another"))
    run.recover()
    h.run(run)
    failure = h._store.failure(run.id)
    assert failure is not None
    assert failure.is_open
    assert failure.cause.pattern == "quite another"


def test_a_replay_in_place_closes_it_and_new_runs_leave_it(h: Harness) -> None:
    run = failed(h)
    replayed = operations.replay(run.id, "reserve")
    again = operations.restart(run.id)
    assert is_open(h, run)
    assert [h._store.failure(each) for each in (replayed.id, again.id)] == [None, None]
    operations.replay(run.id, "reserve", in_place=True)
    assert not is_open(h, run)
