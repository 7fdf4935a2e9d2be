"""Verbs that come when a worker has claimed a run and has not begun it, or has read its history and not gone on.

The worker is stopped there, the verb is called on a connection of its own, then the worker goes on. Whatever the verb,
each step runs once for each time that a user asks for it, the log has the verb, and the run comes to where it should.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from durable import Context, Handle, workflow
from durable.conf import conf
from durable.core.errors import EntryNotFoundError, InvalidTransitionError, ReplayRefusedError
from durable.core.records import RunRecord
from durable.core.time_limits import History
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.models import OperatorAction, Run
from durable.operations.audit import Actor, acting_as
from durable.store import Store
from durable.worker import executor, scheduler
from durable.worker.executor import Execute, RunExecutor
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.faults.passing import production_store
from tests.support.waiting import eventually
from tests.support.worker import lease_manager

pytestmark = [
    pytest.mark.redis,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection"),
]
QUEUES = (QUEUE, OTHER) = ("default", "high")
WAIT = 120.0  # seconds until a test gives up

_done: list[tuple[str, str]] = []  # run and what was done, in the order of time


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    _done.clear()
    yield
    _done.clear()


def do(run: str, what: str) -> str:
    _done.append((run, what))
    return what


def undo(rollback: Any, output: str) -> None:
    _done.append((rollback.run_id, f"undo {output}"))


def done(run: str) -> list[str]:
    return [what for each, what in _done if each == run]


@workflow(name="faults.gap")
def gap(ctx: Context) -> str:
    """Three steps, a sleep before the second and a message before the third."""
    ctx.rollback_checkpoint("from here")
    ctx.step("first", do, ctx.run_id, "first", rollback=undo)
    ctx.sleep("nap", "1 hour")
    ctx.step("second", do, ctx.run_id, "second", rollback=undo)
    news: str = ctx.queue.next("news", names=["news"]).body
    ctx.step("third", do, ctx.run_id, news)
    return news


class Worker:
    """One worker process's keeping of runs, driven by hand."""

    def __init__(self, store: Store | None = None, execute: Execute = execute_pass) -> None:
        self.stop = ShutdownFlag()
        self.leases = lease_manager(production_store(), self.stop)
        self.holder = RunExecutor(
            store=store or production_store(), execute=execute, leases=self.leases, stop=self.stop
        )

    def claim(self, *queues: str) -> list[RunRecord]:
        claimed: list[RunRecord] = []
        for queue in queues or QUEUES:
            found = self.holder.claim(queue, 10, 0.0)
            assert found is not None
            claimed += found
        return claimed

    def carry_on(self, records: list[RunRecord]) -> None:
        for record in records:
            self.holder.execute(record)

    def outlive_leases(self, records: list[RunRecord]) -> None:
        """The process was stopped for so long that its leases have run out, as every clock says."""
        past = timezone.now() - timedelta(seconds=1)
        assert Run.objects.filter(pk__in=[each.id for each in records]).update(lease_expires_at=past) == len(records)
        self.leases.add(records, time.monotonic() - conf.LEASE)


def settle() -> None:
    """Pass what is due until nothing is."""
    worker = Worker()
    while batch := worker.claim():
        worker.carry_on(batch)


def elsewhere(call: Callable[[], object]) -> None:
    """Call it on a connection of its own. Raises what it raises."""

    def called() -> None:
        try:
            call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(called).result(WAIT)


def due_again(count: int) -> list[Handle]:
    """Runs in the middle of their history: the sleep has ended, the second step comes next."""
    handles: list[Handle] = gap.start_many([()] * count)
    settle()
    for each in handles:
        each.wake(end_sleeps=True)
    return handles


OPERATOR = Actor(source="cli", label="somebody")
FIRST, BOTH, ALL = ["first"], ["first", "second"], ["first", "second", "third"]


@dataclass(frozen=True, kw_only=True)
class Verb:
    """What is called, and what is to come of it.

    `early` is done by the run, in all, if the verb comes before its pass begins, and `late` if the pass learns of it
    only by its first commit. `refused` are the errors while a worker holds the run, and when its lease has run out.
    `new` is done by the run that the verb makes.
    """

    call: Callable[[Handle], object]
    state: str = "sleeping"
    early: list[str] = field(default_factory=lambda: BOTH)
    late: list[str] = field(default_factory=lambda: BOTH)
    refused: tuple[type[Exception] | None, type[Exception] | None] = (None, None)
    new: list[str] | None = None


UNDONE = ["first", "undo first"]
VERBS = {
    "pause": Verb(call=Handle.pause, state="paused", early=FIRST),
    "cancel": Verb(call=Handle.cancel, state="cancelled", early=FIRST),
    "cancel, rollback": Verb(
        call=lambda run: run.cancel(rollback=True),
        state="cancelled",
        early=UNDONE,
        late=[*BOTH, "undo second", "undo first"],
    ),
    "wake": Verb(call=Handle.wake),
    "move": Verb(call=lambda run: run.move(OTHER)),
    "wake, end sleeps": Verb(call=lambda run: run.wake(end_sleeps=True)),
    "send": Verb(call=lambda run: run.send("news", "third"), state="completed", early=ALL, late=ALL),
    "resume": Verb(call=Handle.resume, refused=(InvalidTransitionError, InvalidTransitionError)),
    "recover": Verb(call=Handle.recover, refused=(InvalidTransitionError, InvalidTransitionError)),
    "restart": Verb(call=Handle.restart, new=FIRST),
    "replay": Verb(call=lambda run: run.replay("second"), refused=(EntryNotFoundError, EntryNotFoundError)),
    "replay, known": Verb(call=lambda run: run.replay("first"), new=FIRST),
    "replay in place": Verb(call=lambda run: run.replay("nap", in_place=True), refused=(ReplayRefusedError, None)),
}
every_verb = pytest.mark.parametrize("name", VERBS)


def asked(name: str, handle: Handle, *, is_held: bool = True) -> None:
    """An operator's call, elsewhere, and what it says in the log."""
    verb = VERBS[name]
    refused = verb.refused[0 if is_held else 1]
    before = row(handle)

    def call() -> None:
        with acting_as(OPERATOR):
            if refused is None:
                verb.call(handle)
                return
            with pytest.raises(refused):
                verb.call(handle)

    elsewhere(call)
    [logged] = OperatorAction.objects.filter(run_id=handle.id, actor_label=OPERATOR.label)
    after = row(handle)
    assert (logged.action, logged.before, logged.after) == (name.split()[0].rstrip(","), before.state, after.state)
    assert (logged.outcome == "done") == (refused is None)
    if is_held:  # it is the worker's, and stays so
        assert (after.fence, after.lease_expires_at, after.worker) == (
            before.fence,
            before.lease_expires_at,
            before.worker,
        )


def row(handle: Handle) -> Run:
    return Run.objects.get(pk=handle.id)


def check(name: str, handle: Handle, does: list[str], *, is_held: bool = True, crashes: int = 0) -> None:
    """The run has come to where the verb leaves it, and nothing is left over; from there it goes to its end."""
    verb = VERBS[name]
    found = row(handle)
    assert (found.state, done(handle.id)) == (verb.state, does)
    assert (found.pending_request, found.lease_expires_at, found.worker, found.crashes) == ("", None, "", crashes)
    new = Run.objects.filter(replay_of=handle.id)
    assert [done(each.id) for each in new] == ([] if verb.new is None else [verb.new])
    if verb.state in ("cancelled", "completed"):
        return
    if verb.state == "paused":
        handle.resume()
    if not is_held and name == "replay in place":
        handle.wake(end_sleeps=True)  # it naps once more
    handle.send("news", "third")
    settle()
    assert (handle.state, done(handle.id)) == ("completed", ALL)


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is looked at again, however short it waits."""
    monkeypatch.setattr(executor, "RECHECK_AFTER", 0.0)


@pytest.mark.usefixtures("attentive")
@pytest.mark.parametrize("count", [1, 2])
@every_verb
def test_a_verb_before_the_pass(name: str, count: int) -> None:
    handles = due_again(count)
    worker = Worker()
    batch = worker.claim()
    assert len(batch) == count
    for each in handles:
        asked(name, each)
    worker.carry_on(batch)
    settle()
    for each in handles:
        check(name, each, VERBS[name].early)


@every_verb
def test_a_verb_between_the_load_and_the_first_step(name: str) -> None:
    [handle] = due_again(1)

    class Slow:
        def load(self, run_id: str) -> History:
            found = production_store().load(run_id)
            asked(name, handle)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(production_store(), name)

    worker = Worker(store=cast("Store", Slow()))
    worker.carry_on(worker.claim())
    settle()
    check(name, handle, VERBS[name].late)


@every_verb
def test_a_verb_after_histories_were_loaded_together(name: str) -> None:
    handles = {each.id: each for each in due_again(2)}

    def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        asked(name, handles[record.id])
        return execute_pass(record, store=store, eviction=eviction)

    worker = Worker(execute=execute)
    worker.carry_on(worker.claim())
    settle()
    for each in handles.values():
        check(name, each, VERBS[name].late)


@pytest.mark.usefixtures("attentive")
@every_verb
def test_a_verb_before_a_run_goes_back(name: str) -> None:
    """One is released, the other one is deferred."""
    handles = due_again(2)
    worker = Worker()
    batch = worker.claim()
    for each in handles:
        asked(name, each)
    back, off = batch
    worker.leases.release([back], [off])
    assert Run.objects.filter(pk=off.id, wake_at__gt=timezone.now()).update(wake_at=timezone.now()) == 1
    settle()
    for each in handles:
        check(name, each, VERBS[name].early)


@every_verb
def test_a_verb_after_the_lease(name: str) -> None:
    """The worker wakes up late and does nothing; no other worker has claimed the run yet."""
    [handle] = due_again(1)
    worker = Worker()
    batch = worker.claim()
    worker.outlive_leases(batch)
    asked(name, handle, is_held=False)
    worker.carry_on(batch)
    assert done(handle.id) == FIRST
    settle()
    does = FIRST if name == "replay in place" else VERBS[name].early  # to sleep again
    check(name, handle, does, is_held=False, crashes=row(handle).crashes)


@pytest.mark.usefixtures("attentive")
@every_verb
def test_a_verb_when_another_worker_has_claimed_the_run(name: str) -> None:
    [handle] = due_again(1)
    late, worker = Worker(), Worker()
    batch = late.claim()
    late.outlive_leases(batch)
    mine = worker.claim()
    assert [(each.id, each.crashes) for each in mine] == [(handle.id, 1)]
    asked(name, handle)
    before = Run.objects.values().get(pk=handle.id)
    late.carry_on(batch)
    assert Run.objects.values().get(pk=handle.id) == before
    assert done(handle.id) == FIRST
    worker.carry_on(mine)
    settle()
    check(name, handle, VERBS[name].early, crashes=row(handle).crashes)


@pytest.mark.parametrize("aside", [0.0, math.inf], ids=["looks again", "does not look"])
def test_a_pause_that_the_claim_has_returned_is_taken_back_before_the_pass(
    aside: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "RECHECK_AFTER", aside)
    [handle] = due_again(1)
    worker = Worker()
    batch = worker.claim()
    elsewhere(handle.pause)
    worker.leases.release(batch)
    batch = worker.claim()
    assert [each.pending_request for each in batch] == ["pause"]
    elsewhere(handle.resume)
    worker.carry_on(batch)
    settle()
    check("wake", handle, BOTH)


@pytest.mark.usefixtures("attentive")
@pytest.mark.parametrize(
    ("verb", "refused", "state", "does"),
    [
        (Handle.pause, None, "paused", FIRST),
        (Handle.wake, None, "cancelled", UNDONE),
        (lambda run: run.send("news", "third"), None, "cancelled", UNDONE),
        (Handle.cancel, InvalidTransitionError, "cancelled", UNDONE),
        (Handle.resume, InvalidTransitionError, "cancelled", UNDONE),
        (lambda run: run.replay("first", in_place=True), ReplayRefusedError, "cancelled", UNDONE),
    ],
    ids=["pause", "wake", "send", "cancel", "resume", "replay in place"],
)
def test_a_verb_before_a_compensation_goes_on(
    verb: Callable[[Handle], object], refused: type[Exception] | None, state: str, does: list[str]
) -> None:
    [handle] = due_again(1)
    handle.cancel(rollback=True)
    worker = Worker()
    batch = worker.claim()
    assert [each.state for each in batch] == ["rolling_back"]
    with pytest.raises(refused) if refused else nullcontext():
        elsewhere(lambda: verb(handle))
    worker.carry_on(batch)
    settle()
    assert (handle.state, done(handle.id)) == (state, does)
    if state == "paused":
        handle.resume()
        settle()
        assert (handle.state, done(handle.id)) == ("cancelled", UNDONE)


@pytest.mark.usefixtures("attentive")
def test_a_run_that_is_moved_while_a_worker_has_it_goes_on_in_the_other_queue_after_the_pass() -> None:
    [handle] = due_again(1)
    worker = Worker()
    [record] = worker.claim(QUEUE)
    elsewhere(lambda: handle.move(OTHER))
    assert worker.claim() == []
    worker.carry_on([record])
    assert (done(handle.id), row(handle).queue) == (BOTH, OTHER)
    assert worker.claim(QUEUE) == []
    assert [each.id for each in worker.claim(OTHER)] == [handle.id]
    logged = OperatorAction.objects.get(run_id=handle.id, action="move")
    assert logged.detail == f'from the queue "{QUEUE}" to "{OTHER}"; worker {record.worker} goes on to its next park'


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.usefixtures("attentive")
def test_verbs_on_runs_that_wait_for_a_slot(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes were quick, so a worker has claimed runs ahead of its slots, which are busy now."""
    monkeypatch.setattr(scheduler, "CLAIM_AHEAD_WINDOW", 1e6)
    monkeypatch.setattr(
        scheduler, "MAX_WAIT", WAIT
    )  # a slow machine asks for longer than other workers are kept waiting
    go, busy = threading.Event(), threading.Semaphore(0)

    def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        if record.id in holding_up:
            busy.release()
            assert go.wait(WAIT)
        return execute_pass(record, store=store, eviction=eviction)

    holding_up: set[str] = set()
    many = override_settings(DURABLE={"CLAIM_BATCH": 2 * len(VERBS)})
    with many, WorkerLoop(ThreadPool(size), store=production_store(), execute=execute, stop=ShutdownFlag()) as loop:
        quick: Handle = gap.start()
        loop.work(QUEUE)
        loop.wait_for_room()
        eventually(lambda: quick.state == "sleeping")
        long = due_again(size + len(VERBS))
        handles = {name: long.pop() for name in VERBS}
        holding_up.update(each.id for each in long)
        Run.objects.filter(pk__in=holding_up).update(wake_at=timezone.now() - timedelta(hours=1))
        loop.work(QUEUE)
        for _ in long:
            assert busy.acquire(timeout=WAIT)
        assert not Run.objects.filter(pk__in=[each.id for each in handles.values()], lease_expires_at=None)
        for name, handle in handles.items():
            asked(name, handle)
        go.set()
        eventually(lambda: not Run.objects.filter(lease_expires_at__isnull=False).exists())
    settle()
    for name, handle in handles.items():
        check(name, handle, VERBS[name].early)
    assert [done(each.id) for each in long] == [BOTH] * size


def test_a_run_that_is_claimed_anew_by_the_process_that_passes_it_loses_its_first_pass() -> None:
    """As when the clock of the wall has jumped, and the other one has not."""
    [handle] = due_again(1)
    worker = Worker()
    [record] = worker.claim()
    first = Eviction()
    assert worker.leases.pass_started(record, first)
    past = timezone.now() - timedelta(seconds=1)
    Run.objects.filter(pk=handle.id).update(lease_expires_at=past)
    again = worker.claim()
    assert first.is_lost
    worker.leases.pass_ended(record)
    worker.carry_on(again)
    check("wake", handle, BOTH)
