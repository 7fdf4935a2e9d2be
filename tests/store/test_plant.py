"""What verbs write that no pass does: the history of a new run, what is retracted, the audit log."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from durable.core.records import ActionRecord, Message, MessageState, RunChange
from durable.execution.queries import may_have_history
from durable.store import Store
from durable.store.memory import MemoryStore
from tests.store.making import (
    HOSTILE,
    NOW,
    a_full_entry,
    a_message,
    a_run,
    an_attempt,
    an_entry,
    at,
    commit,
    sent,
    started,
    the,
)


def an_action(**values: object) -> ActionRecord:
    given: dict[str, object] = {
        "action": "pause",
        "run_id": "run",
        "source": "cli",
        "outcome": "done",
        "created_at": NOW,
        **values,
    }
    return ActionRecord(**given)  # type: ignore[arg-type]  # the tests' own keywords


def logged(store: Store) -> list[ActionRecord]:
    """The audit log, oldest first."""
    if isinstance(store, MemoryStore):
        return store.actions
    from durable.models import OperatorAction

    rows = OperatorAction.objects.using(store.alias).order_by("id")  # type: ignore[attr-defined]  # a store on a database
    names = [name for name in ActionRecord.__slots__ if name != "actor_id"]
    return [ActionRecord(actor_id=row.actor_id, **{name: getattr(row, name) for name in names}) for row in rows]


def a_stored_message(order: int, run_id: str = "new", **values: object) -> Message:
    given: dict[str, object] = {
        "id": f"planted-{order}",
        "run_id": run_id,
        "queue": "mail",
        "body": '"hi"',
        "sent_at": NOW,
        "order": order,
        **values,
    }
    return Message(**given)  # type: ignore[arg-type]  # the tests' own keywords


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
    held = store.claim_run("new", now=NOW, lease_until=NOW, worker="w")
    assert held is not None
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
