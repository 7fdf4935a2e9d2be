"""The outline of a run has what a plan of a replay needs, and none of the values that steps and messages carry."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from durable.core.errors import ErrorInfo
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.core.rewind.replay import Replay
from durable.models.rows import BATCH_BYTES
from durable.operations.replay_plan import Family, build_plan, outlook_of
from durable.store import Store
from tests.store.making import NOW, a_message, an_entry, at, commit, sent, started, the

VALUE = "VALUE"


def entries_of_every_kind(value: str) -> list[EntryRecord]:
    done: dict[str, Any] = {"status": EntryStatus.COMPLETED, "completed_at": at(1), "attempts": 1, "output": value}
    branch = {"status": "completed", "output": value, "open": {"m": "wait"}}
    found = [
        an_entry(
            "a", **done, arguments=value, finished_ordinal=1, data={"rollback": {"handler": "x.y", "attempts": 1}}
        ),
        an_entry("wait", kind=EntryKind.MESSAGE, data={"names": ["mail"], "received": [{"id": "m", "body": value}]}),
        an_entry("l", kind=EntryKind.LOOP, data={"iteration": 2, "state": value, "pruned": 1}),
        an_entry(
            "l/~2/b",
            status=EntryStatus.FAILED,
            error=ErrorInfo("E", value, value),
            rollback_error=ErrorInfo("E", value),
        ),
        an_entry(
            "j", kind=EntryKind.JOIN, data={"branches": {"one": branch, "two": {"status": "failed", "error": [value]}}}
        ),
        an_entry("j/one/c", **done, finished_ordinal=2),
        an_entry("r", kind=EntryKind.RACE, **done, data={"branches": {"x": branch}, "winner": "x"}),
        an_entry(
            "send~0", kind=EntryKind.SEND, arguments=value, data={"queue": "mail", "to": "run", "message_id": "m"}
        ),
        an_entry("late", kind=EntryKind.SLEEP, data={"state": "pending", "deadline": "2026-01-01"}),
    ]
    for number, entry in enumerate(found):
        entry.ordinal = number
    return found


def filled(store: Store, value: str) -> None:
    held = started(store)
    commit(store, held, entries=entries_of_every_kind(value))
    sent(store, a_message(id="m", body=value))
    sent(store, a_message(id="n", body=value))
    commit(store, held, received=[("m", "wait")], completed=[("m", value)])


def test_no_value_is_in_it(store: Store) -> None:
    filled(store, VALUE)
    entries, messages = store.outline("run")
    assert VALUE not in repr((entries, messages))
    assert [each.location for each in entries] == [each.location for each in store.history("run")]
    assert [each.id for each in messages] == ["m", "n"]
    assert [(each.received_by, each.state) for each in messages] == [("wait", "completed"), ("", "pending")]


def test_a_plan_made_of_it_is_the_plan(store: Store) -> None:
    filled(store, VALUE)
    run, outline = the(store), store.outline("run")
    whole = store.history("run"), store.messages("run")
    for target in [each.location for each in whole[0]] + ["l/~1", "j/two"]:
        plans = [
            build_plan(outlook_of(Replay(run, entries, messages, target), entries, Family(), NOW), NOW)
            for entries, messages in (outline, whole)
        ]
        assert plans[0] == plans[1]


def test_a_run_of_nothing(store: Store) -> None:
    started(store)
    assert store.outline("run") == ([], [])
    assert store.outline("nobody") == ([], [])


@pytest.mark.parametrize("kind", [EntryKind.STEP, EntryKind.MESSAGE, EntryKind.LOOP, EntryKind.JOIN])
def test_what_it_takes_does_not_grow_with_the_values(database_store: Store, kind: EntryKind) -> None:
    held, number = started(database_store), 12
    value = "x" * (BATCH_BYTES // 4)
    by_kind: dict[EntryKind, dict[str, Any]] = {
        EntryKind.STEP: {},
        EntryKind.MESSAGE: {"received": [{"id": "m", "body": value}]},
        EntryKind.LOOP: {"iteration": 0, "state": value},
        EntryKind.JOIN: {"branches": {"one": {"status": "completed", "output": value}}},
    }
    for each in range(number):
        commit(database_store, held, entries=[an_entry(f"e{each}", kind=kind, output=value, data=by_kind[kind])])
        sent(database_store, a_message(id=f"m{each}", body=value))
    tracemalloc.start()
    try:
        entries, messages = database_store.outline("run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(entries), len(messages)) == (number, number)
    assert peak < 3.5 * BATCH_BYTES < number * len(value) * 2
