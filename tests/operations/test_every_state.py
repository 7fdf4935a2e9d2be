"""Every verb in every state of a run, on every store: what the table of transitions says, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from durable import operations, runtime
from durable.core import transitions
from durable.core.errors import InvalidTransitionError, ReplayRefusedError
from durable.core.records import (
    ENDED,
    Batch,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Request,
    RunPatch,
    RunRecord,
    RunState,
)
from durable.core.transitions import TRANSITIONS
from durable.runtime import Runtime
from durable.store.memory import MemoryStore
from tests.support.transitions import NOW, at, columns_of, odd_run, patched

pytestmark = pytest.mark.django_db

FAILED, CANCELLED = str(RunState.FAILED), str(RunState.CANCELLED)
STORES = ("database", "memory")


@dataclass(frozen=True)
class Case:
    """A state of a run, with what else decides what a verb does to it."""

    name: str
    state: RunState
    is_held: bool = False  # a worker has a live lease
    state_after_rollback: str = ""  # the run is, or was, being compensated
    is_compensable: bool = True  # a step has a handler that has not run
    pending_request: str = ""

    def row(self) -> RunRecord:
        has_lease = self.state in (RunState.RUNNING, RunState.ROLLING_BACK)
        lease = (at(30) if self.is_held else at(-1)) if has_lease else None
        return odd_run(
            self.state,
            id="run",
            lease_expires_at=lease,
            parent_id=None,
            replay_of_id=None,
            state_after_rollback=self.state_after_rollback,
            pending_request=self.pending_request,
        )

    def entry(self) -> EntryRecord:
        policy = {"handler": "tests.core.undoing.undo", "attempts": 1, "retry_at": None}
        data = {"rollback": policy} if self.is_compensable else {}
        return EntryRecord(
            "a", EntryKind.STEP, 1, at(-500), EntryStatus.COMPLETED, 1, "1", "[]", data, completed_at=at(-400)
        )


S = RunState
CASES = [
    Case("pending", S.PENDING),
    Case("sleeping", S.SLEEPING),
    Case("sleeping, nothing to compensate", S.SLEEPING, is_compensable=False),
    Case("running", S.RUNNING, is_held=True),
    Case("running, to be paused", S.RUNNING, is_held=True, pending_request=Request.PAUSE),
    Case("crashed", S.RUNNING),
    Case("crashed, to be paused", S.RUNNING, pending_request=Request.PAUSE),
    Case("released, to be paused", S.PENDING, pending_request=Request.PAUSE),
    Case("rolling back", S.ROLLING_BACK, is_held=True, state_after_rollback=FAILED),
    Case("rolling back, parked or crashed", S.ROLLING_BACK, state_after_rollback=CANCELLED),
    Case("paused", S.PAUSED),
    Case("paused while rolling back", S.PAUSED, state_after_rollback=FAILED),
    Case("completed", S.COMPLETED),
    Case("failed", S.FAILED),
    Case("failed, the compensation has stopped", S.FAILED, state_after_rollback=FAILED),
    Case("failed, compensated", S.FAILED, state_after_rollback=FAILED, is_compensable=False),
    Case("cancelled", S.CANCELLED),
]

Decide = Callable[[RunRecord, RunRecord], RunPatch]


@dataclass(frozen=True)
class Verb:
    """A verb, the transition that a case asks for (None: the verb is refused), and that transition's call.

    Summaries and generations of the call are those of the row afterwards.
    """

    act: Callable[[], Any]
    transition: Callable[[Case], str | None]
    patch: dict[str, Decide]


def cancelling(case: Case, request: Request) -> str | None:
    if case.state == S.PAUSED and case.state_after_rollback:
        return None
    if case.is_held:
        return "cancel_requested"
    has_rollback = request == Request.CANCEL_ROLLBACK and case.is_compensable
    return "cancelled_with_rollback" if has_rollback else "cancelled_at_once"


def cancel(request: Request) -> dict[str, Decide]:
    return {
        "cancel_requested": lambda run, _: transitions.cancel_requested(run, request=request, reason="enough"),
        "cancelled_at_once": lambda run, after: transitions.cancelled_at_once(
            run, now=NOW, reason="enough", summary=after.summary
        ),
        "cancelled_with_rollback": lambda run, after: transitions.cancelled_with_rollback(
            run, now=NOW, reason="enough", summary=after.summary
        ),
    }


def resuming(case: Case) -> str:
    if case.pending_request == Request.PAUSE:
        return "pause_withdrawn"
    return "rollback_resumed" if case.state_after_rollback else "resumed"


def replaying(case: Case) -> str | None:
    is_compensating = bool(case.state_after_rollback) and case.state == S.PAUSED
    return None if case.is_held or is_compensating else "replayed"


def claim() -> None:
    store = runtime.current().store
    if store.claim_run("run", now=NOW, lease_until=at(60), worker="worker") is None:
        raise InvalidTransitionError("", ())


VERBS = {
    "wake": Verb(
        lambda: operations.wake("run", end_sleeps=True),
        lambda _: "woken",
        {"woken": lambda run, _: transitions.woken(run, now=NOW)},
    ),
    "move": Verb(
        lambda: operations.move("run", queue="high"),
        lambda case: None if case.state in ENDED else "requeued",
        {"requeued": lambda run, _: transitions.requeued(run, queue="high", now=NOW)},
    ),
    "pause": Verb(
        lambda: operations.pause("run"),
        lambda case: "pause_requested" if case.is_held else "paused_at_once",
        {
            "pause_requested": lambda run, _: transitions.pause_requested(run),
            "paused_at_once": lambda run, after: transitions.paused_at_once(run, summary=after.summary),
        },
    ),
    "resume": Verb(
        lambda: operations.resume("run"),
        resuming,
        {
            "pause_withdrawn": lambda run, _: transitions.pause_withdrawn(run),
            "resumed": lambda run, after: transitions.resumed(run, now=NOW, summary=after.summary),
            "rollback_resumed": lambda run, after: transitions.rollback_resumed(run, now=NOW, summary=after.summary),
        },
    ),
    "cancel": Verb(
        lambda: operations.cancel("run", reason="enough"),
        lambda case: cancelling(case, Request.CANCEL),
        cancel(Request.CANCEL),
    ),
    "cancel with its rollback": Verb(
        lambda: operations.cancel("run", reason="enough", rollback=True),
        lambda case: cancelling(case, Request.CANCEL_ROLLBACK),
        cancel(Request.CANCEL_ROLLBACK),
    ),
    "recover": Verb(
        lambda: operations.recover("run"),
        lambda case: "rollback_recovered" if case.state_after_rollback and case.is_compensable else "recovered",
        {
            "recovered": lambda run, after: transitions.recovered(
                run, now=NOW, generations=after.generations, summary=after.summary
            ),
            "rollback_recovered": lambda run, after: transitions.rollback_recovered(
                run, now=NOW, summary=after.summary
            ),
        },
    ),
    "replay in place": Verb(
        lambda: operations.replay("run", "a", in_place=True),
        replaying,
        {
            "replayed": lambda run, after: transitions.replayed(
                run, now=NOW, generations=after.generations, summary=after.summary
            )
        },
    ),
    "send": Verb(
        lambda: operations.send("run", "odd", 1),
        lambda case: None if case.state in ENDED else "sent_to",  # a workflow may send to an ended run, in vain
        {"sent_to": lambda run, _: transitions.sent_to(run, count=1, awaited_since=NOW)},
    ),
    "claim": Verb(
        claim,
        lambda case: None if case.is_held else "claimed",
        {"claimed": lambda run, _: transitions.claimed(run, now=NOW, lease_until=at(60), worker="worker")},
    ),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """The runtime with this store, at a fixed time; it sends no notifications."""
    made = runtime.production()
    made = replace(
        made,
        store=MemoryStore() if request.param == "memory" else made.store,
        now=lambda: NOW,
        notify=lambda _queues: None,
        notify_at=lambda _queue, _moment: None,
        after_commit=lambda callback: callback(),
    )
    runtime.activate(made)
    try:
        yield made
    finally:
        runtime.deactivate(made)


def planted(at: Runtime, case: Case) -> RunRecord:
    """The run of this case, which has one entry."""
    row = case.row()
    at.store.create([row])
    at.store.commit(Batch(run_id="run", fence=row.fence, now=NOW, entries=[case.entry()]))
    assert columns_of(the_run(at)) == columns_of(row)
    return row


def the_run(at: Runtime) -> RunRecord:
    row = at.store.get("run")
    assert row is not None
    return row


def test_every_state_is_tried() -> None:
    assert {case.state for case in CASES} == set(RunState)


def test_every_transition_from_outside_is_tried() -> None:
    tried = {name for verb in VERBS.values() for case in CASES if (name := verb.transition(case))}
    outside = list(TRANSITIONS)[1 : list(TRANSITIONS).index("renewed")]
    # no verbs on a run: tests/store/test_ending.py, tests/operations/test_keys.py, tests/core/test_child_rollback.py; a
    # cancel in a process without the code: tests/execution/test_on_end.py; what needs a held step: below
    others = {"child_ended", "moved", "undone_by_parent", "cancel_handed_over", "settled"}
    assert tried == set(outside) - others


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_in_a_state(store: Runtime, case: Case, verb: str) -> None:
    before = planted(store, case)
    name = VERBS[verb].transition(case)
    leads_to = None if name is None else TRANSITIONS[name].get(case.state)
    if name is None or leads_to is None:
        with pytest.raises((InvalidTransitionError, ReplayRefusedError)) as caught:
            VERBS[verb].act()
        assert columns_of(the_run(store)) == columns_of(before)
        if name is not None and verb not in ("claim", "replay in place"):
            assert isinstance(caught.value, InvalidTransitionError)
            assert caught.value.state == case.state
            assert case.state not in caught.value.allowed
            assert f"a run that is {case.state}" in str(caught.value)
        return
    VERBS[verb].act()
    after = the_run(store)
    assert columns_of(after) == columns_of(patched(before, VERBS[verb].patch[name](before, after)))
    assert after.state == leads_to


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("verb", ["settle", "recover"])
def test_a_held_step_is_settled_or_tried_again_in_every_open_state(store: Runtime, case: Case, verb: str) -> None:
    before = planted(store, case)
    mark = {"reason": "exhausted", "since": NOW.isoformat(), "failure": {"kind": "exhausted"}}
    entry = EntryRecord("b", EntryKind.STEP, 2, at(-300), EntryStatus.HELD, 3, data={"held": mark})
    store.store.commit(Batch(run_id="run", fence=before.fence, now=NOW, entries=[entry]))

    def act() -> None:
        if verb == "settle":
            operations.settle("run", "b", not_done=True)
        else:
            operations.recover("run")

    if case.state not in TRANSITIONS["settled"]:
        if verb == "settle":
            with pytest.raises(InvalidTransitionError, match=f"cannot settle a run that is {case.state}"):
                act()
            assert columns_of(the_run(store)) == columns_of(before)
        return
    act()
    assert columns_of(the_run(store)) == columns_of(patched(before, transitions.settled(before, now=NOW)))
    assert {each.location: each.status for each in store.store.history("run")} == {"a": "completed", "b": "pending"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_restart_in_every_state_leaves_the_run_and_starts_another(store: Runtime, case: Case) -> None:
    before = planted(store, case)
    new = operations.restart("run")
    assert columns_of(the_run(store)) == columns_of(before)
    started = store.store.get(new.id)
    assert started is not None
    fresh = RunRecord(
        id=new.id,
        workflow=before.workflow,
        queue=before.queue,
        input=before.input,
        created_at=NOW,
        replay_of_id="run",
        carried=before.carried,
        **transitions.started(NOW),
    )
    assert columns_of(started) == columns_of(fresh)


@pytest.mark.parametrize("request_", [Request.CANCEL, Request.CANCEL_ROLLBACK])
@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("verb", ["pause", "cancel", "cancel with its rollback"])
def test_a_requested_cancel_is_replaced_by_nothing_but_itself(
    store: Runtime, verb: str, is_held: bool, request_: Request
) -> None:
    before = planted(store, Case("", S.RUNNING, is_held=is_held, pending_request=request_))
    repeated = {"cancel": Request.CANCEL, "cancel with its rollback": Request.CANCEL_ROLLBACK}
    if repeated.get(verb) == request_:
        VERBS[verb].act()
        assert the_run(store).pending_request == (request_ if is_held else "")
        return
    with pytest.raises(InvalidTransitionError, match="it is being cancelled"):
        VERBS[verb].act()
    assert columns_of(the_run(store)) == columns_of(before)
