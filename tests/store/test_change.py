"""Verbs from outside: decided under the run's lock, all or nothing; what they write that no pass does; and failures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo, InvalidTransitionError, Origin, RunNotFoundError
from durable.core.records import (
    ActionRecord,
    Cause,
    EntryRecord,
    FailureRecord,
    Message,
    MessageState,
    Request,
    RunChange,
    RunPatch,
    RunRecord,
    RunState,
)
from durable.execution.queries import may_have_history
from durable.models import Cause as CauseModel
from durable.models import CauseBuild, Failure
from durable.models.causes import names_of
from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.children import a_child, start_children
from tests.store.conftest import POSTGRES
from tests.store.making import (
    DECLINED,
    HOSTILE,
    NOW,
    a_failure,
    a_full_entry,
    a_message,
    a_run,
    an_attempt,
    an_entry,
    at,
    claimed,
    commit,
    finished,
    park,
    sent,
    started,
    the,
)

Entries = Callable[[], list[EntryRecord]]


def test_a_change_is_decided_by_the_row_and_its_entries(store: Store) -> None:
    held = started(store)
    written = [an_entry("a"), an_entry("b")]
    commit(store, held, entries=written)
    seen: list[object] = []

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        seen.extend([run, entries()])
        return RunChange(run={"summary": "changed"})

    changed = store.change("run", decide)
    assert seen == [held, written]
    assert changed == the(store) == replace(held, summary="changed", change_seq=held.change_seq + 1)


def test_a_change_writes_entries_deletes_them_and_returns_messages(store: Store) -> None:
    held = started(store)
    one, two, three = (sent(store, a_message()) for _ in range(3))
    commit(
        store,
        held,
        entries=[an_entry("a"), an_entry("b"), an_entry("w")],
        attempts=[an_attempt("b")],
        received=[(one.id, "w"), (two.id, "w2"), (three.id, "w")],
        completed=[(one.id, "1")],
    )
    new = an_entry("a", attempts=2)

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        return RunChange(run={}, entries=[new], deleted=["b", "w"], unreceive=["w"])

    store.change("run", decide)
    assert store.load("run") == [new]
    assert store.attempts("run") == []
    assert store.inbox("run", [], 9, None) == [one, three]
    assert [m.state for m in store.messages("run")] == [
        MessageState.PENDING,
        MessageState.RECEIVED,
        MessageState.PENDING,
    ]


def test_what_decide_raises_is_raised_and_nothing_is_changed(store: Store) -> None:
    held = started(store)

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        run.state = RunState.FAILED
        raise InvalidTransitionError(run.state, ["sleeping"])

    with pytest.raises(InvalidTransitionError):
        store.change("run", decide)
    assert the(store) == held


def test_a_run_that_is_not_there_cannot_be_changed(store: Store) -> None:
    with pytest.raises(RunNotFoundError):
        store.change("none", lambda run, entries: RunChange(run={}))


def test_a_raised_fence_takes_the_run_away_from_its_worker(store: Store) -> None:
    held = started(store)
    changed = store.change(
        "run", lambda run, entries: RunChange(run={"lease_expires_at": None, "fence": run.fence + 1})
    )
    assert changed.fence == the(store).fence == held.fence + 1
    assert store.renew([("run", held.fence)], at(99)) == ({}, frozenset())
    with pytest.raises(LeaseLost):
        commit(store, held, entries=[an_entry()])


def test_a_change_signals_a_pass_that_is_about_to_park(store: Store) -> None:
    held = started(store)
    store.change("run", lambda run, entries: RunChange(run={"pending_request": "pause"}))
    park(store, held, wake_at=at(60))
    assert the(store).wake_at == NOW


def test_a_change_may_set_the_signal_itself(store: Store) -> None:
    store.create([a_run(change_seq=3)])
    assert store.change("run", lambda run, entries: RunChange(run={"change_seq": 3})).change_seq == 3
    assert the(store).change_seq == 3


# -- A pass that pauses its run writes the request that it has read


PAUSED: dict[str, Any] = {
    "state": RunState.PAUSED,
    "wake_at": None,
    "lease_expires_at": None,
    "worker": "",
    "pending_request": Request.NONE,
    "summary": "paused",
}


def requested(store: Store, *requests: str, **columns: Any) -> RunRecord:
    """A run in the hands of a worker, of which this was asked, one after the other."""
    run = started(store)
    for request in requests:
        change(store, {"pending_request": request, **columns})
    return run


def change(store: Store, columns: dict[str, Any]) -> None:
    store.change("run", lambda _run, _entries: RunChange(run=cast("RunPatch", columns)))


def test_a_pause_that_is_still_asked_for_happens(store: Store) -> None:
    commit(store, requested(store, "pause"), run=PAUSED)
    run = the(store)
    assert (run.state, run.wake_at, run.pending_request, run.summary) == (RunState.PAUSED, None, "", "paused")


@pytest.mark.parametrize("requests", [["pause", ""], ["pause", "cancel"], ["pause", "cancel_rollback"]])
def test_one_that_was_withdrawn_leaves_the_run_due(store: Store, requests: list[str]) -> None:
    done = commit(store, requested(store, *requests), run=PAUSED, now=at(5))
    run = the(store)
    assert (run.state, run.wake_at, run.pending_request, run.summary) == (RunState.PENDING, at(5), requests[-1], "")
    assert run.lease_expires_at is None
    assert done.queues_to_notify == {"q"}
    [again] = store.claim(queue="q", now=at(6), lease_until=at(60), worker="other", limit=1)
    assert again.pending_request == requests[-1]


def test_a_compensating_run_goes_on_compensating(store: Store) -> None:
    run = requested(store, "pause", "", state_after_rollback="failed", state=RunState.ROLLING_BACK)
    commit(store, run, run=PAUSED, now=at(5))
    after = the(store)
    assert (after.state, after.wake_at) == (RunState.ROLLING_BACK, at(5))


def test_a_verb_pauses_whatever_was_asked_for_before(store: Store) -> None:
    started(store)
    change(store, PAUSED)
    assert the(store).state == RunState.PAUSED


# -- what verbs write that no pass does: the history of a new run, what is retracted, the audit log


def an_action(**values: object) -> ActionRecord:
    given: dict[str, Any] = {"action": "pause", "run_id": "run", "source": "cli", "outcome": "done", "created_at": NOW}
    return ActionRecord(**{**given, **values})


def logged(store: Store) -> list[ActionRecord]:
    """The audit log, oldest first."""
    if isinstance(store, MemoryStore):
        return store.actions
    from durable.models import OperatorAction

    rows = OperatorAction.objects.using(store.alias).order_by("id")  # type: ignore[attr-defined]  # a store on a database
    names = [name for name in ActionRecord.__slots__ if name != "actor_id"]
    return [ActionRecord(actor_id=row.actor_id, **{name: getattr(row, name) for name in names}) for row in rows]


def a_stored_message(order: int, run_id: str = "new", **values: object) -> Message:
    given: dict[str, Any] = {
        "id": f"planted-{order}",
        "run_id": run_id,
        "queue": "mail",
        "body": '"hi"',
        "sent_at": NOW,
    }
    return Message(**{**given, "order": order, **values})


@pytest.mark.parametrize("text", ["plain", *HOSTILE])
def test_a_history_is_planted_as_it_is(store: Store, text: str) -> None:
    entries = [a_full_entry("a", text), an_entry("b/c")]
    attempts = [an_attempt("a", 1, text), an_attempt("a", 2)]
    messages = [
        a_stored_message(2, state=str(MessageState.RECEIVED), received_by="w", response=text),
        a_stored_message(7, queue=text, body=text, idempotency_id=text),
    ]
    with store.transaction():
        store.create([a_run("new", fence=1)])
        store.import_history("new", entries=entries, attempts=attempts, messages=messages)
    assert store.history("new") == entries
    assert store.attempts("new") == attempts
    assert store.messages("new") == messages
    assert store.inbox("new", [], 9, None) == messages[1:]
    assert the(store, "new").message_count == 7


def test_messages_go_on_behind_what_was_planted(store: Store) -> None:
    with store.transaction():
        store.create([a_run("new", fence=1)])
        store.import_history("new", entries=[], attempts=[], messages=[a_stored_message(3, idempotency_id="once")])
    assert sent(store, a_message("new")).order == 4
    assert sent(store, a_message("new", idempotency_id="once")).id == "planted-3"
    assert sent(store, a_message("new")).order == 5


def test_a_planted_run_is_passed_like_any(store: Store) -> None:
    with store.transaction():
        store.create([a_run("new", fence=1)])
        store.import_history("new", entries=[an_entry("a")], attempts=[], messages=[])
    held = claimed(store, "new")
    assert may_have_history(held)
    again = replace(store.load("new")[0], attempts=3)
    commit(store, held, entries=[again])
    assert store.load("new") == [again]


def test_what_is_planted_in_a_transaction_that_rolls_back_is_not_there(store: Store) -> None:
    with suppress(ZeroDivisionError), store.transaction():
        store.create([a_run("new", fence=1)])
        store.import_history("new", entries=[an_entry("a")], attempts=[an_attempt()], messages=[a_stored_message(1)])
        store.log([an_action()])
        raise ZeroDivisionError
    assert (store.get("new"), store.history("new"), store.message("planted-1"), logged(store)) == (None, [], None, [])


def test_retracted_messages_go_and_leave_a_gap(store: Store) -> None:
    held = started(store)
    one, two, three = (sent(store, a_message()) for _ in range(3))
    other = sent(store, a_message(to=_another(store)))
    commit(store, held, received=[(three.id, "w")])
    store.change("run", lambda run, entries: RunChange(run={}, unreceive=["w"], retracted=[two.id, three.id, other.id]))
    assert store.messages("run") == [one]
    assert store.messages("other") == [other]
    assert sent(store, a_message()).order == 4


def _another(store: Store) -> str:
    store.create([a_run("other")])
    return "other"


def test_the_action_of_a_change_is_logged_with_it(store: Store) -> None:
    started(store)
    action = an_action(reason="why", before="running", after="paused", detail="\x00 detail", actor_label="ops")
    store.change("run", lambda run, entries: RunChange(run={"summary": "x"}, action=action))
    assert logged(store) == [action]


def test_actions_are_kept_in_their_order(store: Store) -> None:
    actions = [an_action(action=each, run_id=text) for each in ("a", "b") for text in HOSTILE]
    store.log(actions)
    store.log([])
    assert logged(store) == actions


def test_the_states_of_runs(store: Store) -> None:
    started(store)
    store.create([a_run("p"), a_run("q")])
    assert store.states(["q", "run", "none"]) == {"q": "pending", "run": "running"}
    assert store.states([]) == {}


def test_repeats_of_one_action_are_counted_in_one_row(store: Store) -> None:
    denied = an_action(outcome="denied", actor_label="ada", detail="may not (a) pause")
    assert not store.log_repeat(denied, NOW)
    store.log([denied])
    for second in range(1, 12):
        later = replace(denied, run_id=f"run-{second}", created_at=at(second))
        assert store.log_repeat(later, NOW)
    [row] = logged(store)
    assert row.run_id == "run"
    assert row.detail == "may not (a) pause (11 more like it until 2026-01-02 03:04:16 UTC)"


def test_what_is_no_repeat(store: Store) -> None:
    denied = an_action(outcome="denied", actor_label="ada")
    store.log([denied])
    others: list[dict[str, str]] = [{"action": "wake"}, {"source": "api"}, {"outcome": "done"}, {"actor_label": "eve"}]
    for other in others:
        assert not store.log_repeat(replace(denied, **other), NOW)  # type: ignore[arg-type]  # columns of text
    assert not store.log_repeat(denied, at(1))  # too long ago
    assert [each.detail for each in logged(store)] == [""]


# -- the failure of a run: written with the commit that makes it failed, closed by the verb that lets it continue


ENDS: dict[str, Any] = {"state": RunState.FAILED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}


def failed(store: Store, run_id: str = "run", **values: Any) -> FailureRecord:
    """The failure of a new run."""
    failure = a_failure(run_id, **values)
    commit(store, started(store, run_id), run=ENDS, failure=failure)
    return failure


def recover(store: Store, run_id: str = "run") -> None:
    patch: Any = {"state": RunState.PENDING, "wake_at": NOW, "finished_at": None}
    store.change(run_id, lambda _run, _entries: RunChange(run=patch))


def test_a_failure_is_written_with_its_run(store: Store) -> None:
    failure = failed(store)
    assert store.failure("run") == failure
    assert the(store).state == RunState.FAILED


def test_a_run_that_does_not_fail_has_none(store: Store) -> None:
    finished(store, started(store))
    assert store.failure("run") is None
    assert store.failure("no such run") is None


def test_any_text_is_kept_of_a_failure_and_of_what_the_error_comes_from(store: Store) -> None:
    for number, text in enumerate(HOSTILE):
        run_id = f"run {number}"
        failure = a_failure(run_id, cause=Cause(place=text, error_type=text, pattern=text), worker=text)
        error = ErrorInfo("JoinError", text, text, Origin(text, text, text, text))
        commit(store, started(store, run_id), run={**ENDS, "error": error}, failure=failure)
        assert (store.failure(run_id), the(store, run_id).error) == (failure, error)


def test_a_run_that_was_lost_gets_none(store: Store) -> None:
    held = started(store)
    with pytest.raises(LeaseLost):
        commit(store, replace(held, fence=held.fence - 1), run=ENDS, failure=a_failure())
    assert store.failure("run") is None


def test_a_recovery_closes_the_failure_and_the_next_one_replaces_it(store: Store) -> None:
    failure = failed(store)
    recover(store)
    assert store.failure("run") == replace(failure, is_open=False)
    held = claimed(store, "run", at(9))
    other = a_failure(cause=replace(DECLINED, error_type="Other"), worker="other", failed_at=at(10))
    commit(store, held, run=ENDS, failure=other)
    assert store.failure("run") == other


def test_a_verb_that_leaves_a_run_failed_leaves_its_failure_open(store: Store) -> None:
    failure = failed(store)
    store.change("run", lambda _run, _entries: RunChange(run={"summary": "seen"}))
    assert store.failure("run") == failure


def test_a_change_that_is_refused_closes_nothing(store: Store) -> None:
    failure = failed(store)
    patch: Any = {"state": RunState.PENDING}  # which has no `finished_at`
    with pytest.raises(Exception, match="finished"):
        store.change("run", lambda _run, _entries: RunChange(run=patch))
    assert store.failure("run") == failure


def test_a_failure_is_undone_with_its_transaction(store: Store) -> None:
    with suppress(ZeroDivisionError), store.transaction():
        failed(store)
        raise ZeroDivisionError
    assert store.failure("run") is None


def test_a_name_differs_with_each_part() -> None:
    parts = [("a", "b", "c"), ("x", "b", "c"), ("a", "x", "c"), ("a", "b", "x"), ("ab", "", "c"), ("a", "\udfff", "c")]
    found = {names_of(Cause(place=one, error_type=two, pattern=three))[0] for one, two, three in parts}
    assert len(found) == len(parts)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in found)


def test_nobody_finds_a_cause_by_trying_patterns(database_store: SQLiteStore | PostgresStore) -> None:
    """Its name is shown to users who may not see its pattern."""
    failed(database_store, "a")
    name = CauseModel.objects.using(database_store.alias).get().fingerprint
    text = f"{DECLINED.place}\0{DECLINED.error_type}\0{DECLINED.pattern}"
    assert name != hashlib.sha256(text.encode()).hexdigest()[:16]
    with override_settings(SECRET_KEY="another"):
        assert names_of(DECLINED)[0] != name


def test_a_known_cause_keeps_its_name(database_store: SQLiteStore | PostgresStore) -> None:
    """That of earlier versions, and of keys that were rotated."""
    causes = CauseModel.objects.using(database_store.alias)
    failed(database_store, "a")
    causes.update(fingerprint=names_of(DECLINED)[-1])
    failed(database_store, "b")
    assert causes.get().fingerprint == names_of(DECLINED)[-1]
    causes.update(fingerprint=names_of(DECLINED)[0])
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        failed(database_store, "c")
        assert causes.count() == 1
    with override_settings(SECRET_KEY="another"):
        failed(database_store, "d")
        assert causes.count() == 2


def test_failures_of_one_cause_share_its_row(database_store: SQLiteStore | PostgresStore) -> None:
    failed(database_store, "a")
    failed(database_store, "b", failed_at=at(5))
    failed(database_store, "c", cause=replace(DECLINED, pattern="other"))
    rows = CauseModel.objects.using(database_store.alias).order_by("id")
    assert [row.record for row in rows] == [DECLINED, replace(DECLINED, pattern="other")]
    assert [row.first_seen_at for row in rows] == [at(1), at(1)]
    assert [row.fingerprint for row in rows] == [names_of(row.record)[0] for row in rows]
    shared = Failure.objects.using(database_store.alias).filter(cause=rows[0])
    assert set(shared.values_list("run_id", flat=True)) == {"a", "b"}


def test_the_builds_that_have_seen_a_cause_are_noted_once(database_store: SQLiteStore | PostgresStore) -> None:
    assert failed(database_store, "a", build="7f3a").build == "7f3a"
    failed(database_store, "b", build="7f3a", failed_at=at(5))
    failed(database_store, "c", build="8a0c\x00", failed_at=at(6))
    failed(database_store, "d")
    stored = database_store.failure("c")
    assert stored is not None
    assert stored.build == "8a0c\x00"
    rows = CauseBuild.objects.using(database_store.alias).order_by("first_seen_at")
    assert [(row.build, row.first_seen_at) for row in rows] == [("7f3a", at(1)), ("8a0c\x00", at(6))]


def test_a_commit_that_fails_a_run_is_one_statement_too(postgres_store: PostgresStore) -> None:
    held = [started(postgres_store, each) for each in "abc"]
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        for each in held:
            commit(postgres_store, each, run=ENDS, failure=a_failure(each.id))
    assert ["durable_fail_2" in each["sql"] for each in captured.captured_queries] == [True] * 3


def test_the_failure_of_a_child_names_its_parent(database_store: SQLiteStore | PostgresStore) -> None:
    start_children(database_store, started(database_store, "parent"), a_child("child"))
    database_store.create([a_run("other", parent_id="parent")])  # as a step starts one
    rows = Failure.objects.using(database_store.alias)
    for run_id, parent in {"child": "parent", "other": None}.items():
        for _ in range(2):  # and once more after a recovery
            held = claimed(database_store, run_id)
            commit(database_store, held, run=ENDS, failure=a_failure(run_id))
            assert rows.get(run_id=run_id).parent_id == parent
            recover(database_store, run_id)
