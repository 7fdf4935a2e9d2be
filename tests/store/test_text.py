"""Any text survives in each column that a user can fill, however odd and however long."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from django.core import serializers

from durable.core.errors import ErrorInfo
from durable.core.location import escape
from durable.core.records import RunChange, RunRecord
from durable.core.summary import Summary, SummaryKind
from durable.models import Run, RunTag
from durable.store import Store
from tests.store.making import (
    HOSTILE,
    LEASE,
    NOW,
    a_full_entry,
    a_message,
    a_run,
    an_attempt,
    commit,
    sent,
    started,
    the,
)

TEXTS = [*HOSTILE, '"\\u0000\\ud800"', "line\nline\r\n\t", " ", "{}", "[]", "null", "日本語" * 1000]


def test_of_a_run(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        short = text[:100]
        run = a_run(
            f"run {number}",
            workflow=short,
            queue=short,
            input=text,
            output=text,
            error=ErrorInfo(text, text, text),
            origins=[text],
            generations={text: 1},
            summary=text,
            worker=text,
            request_reason=text,
            waiting_for=f"/{escape(short)}/",
        )
        store.create([run])
        assert the(store, run.id) == run
        assert store.due_queues(NOW) == [short]
        [claimed] = store.claim(queue=short, now=NOW, lease_until=NOW + LEASE, worker=text, limit=1)
        assert claimed.worker == text
        commit(
            store,
            claimed,
            run={"output": text, "error": ErrorInfo(text, text, text), "summary": text, "origins": [text]},
        )
        assert the(store, run.id) == claimed


def test_of_a_summarys_data(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        created = Summary(SummaryKind.UNKNOWN_WORKFLOW, workflow=text)
        store.create([a_run(f"run {number}", summary=created)])
        assert _with_data(the(store, f"run {number}")) == _with_data(
            replace(the(store, f"run {number}"), summary=created)
        )
        held = started(store, f"other {number}")
        patched = Summary(SummaryKind.HANDLER_FAILED, location=text, error=text)
        commit(store, held, run={"summary": patched})
        assert _with_data(the(store, held.id)) == _with_data(replace(held, summary=patched))
        changed = Summary(SummaryKind.CANCELLED, reason=text)
        answered = store.change(held.id, partial(_change, changed))
        assert _with_data(answered) == _with_data(the(store, held.id)) == (str(changed), changed.kind, changed.facts)


def test_of_a_serialized_run() -> None:
    for text in TEXTS:
        summary = Summary(SummaryKind.CANCELLED, reason=text)
        run = Run(id="run", summary=summary, created_at=NOW)
        [same] = serializers.deserialize("json", serializers.serialize("json", [run]))
        assert isinstance(same.object, Run)
        assert _data_of(same.object.summary) == _data_of(summary)


def _change(summary: Summary, _run: RunRecord, _entries: object) -> RunChange:
    return RunChange(run={"summary": summary})


def _with_data(run: RunRecord) -> tuple[str, SummaryKind, Mapping[str, object]]:
    return _data_of(run.summary)


def _data_of(summary: str) -> tuple[str, SummaryKind, Mapping[str, object]]:
    assert isinstance(summary, Summary)
    return str(summary), summary.kind, summary.facts


@pytest.mark.parametrize("count", [1, 2])
def test_of_entries(store: Store, count: int) -> None:
    for number, text in enumerate(TEXTS):
        held = started(store, f"run {number}")
        entries = [a_full_entry(f"{escape(text[:100])}/{n}", text) for n in range(count)]
        commit(store, held, entries=entries)
        assert store.history(held.id) == entries
        commit(store, held, deleted=[entries[0].location])
        assert store.history(held.id) == entries[1:]


def test_of_attempts(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        held = started(store, f"run {number}")
        attempts = [an_attempt(escape(text[:100]), 1, text)]
        commit(store, held, attempts=attempts)
        assert store.attempts(held.id) == attempts


def test_of_messages(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        held = started(store, f"run {number}")
        short = text[:60]
        message = sent(store, a_message(held.id, queue=short, body=text, idempotency_id=short))
        assert (message.queue, message.body, message.idempotency_id) == (short, text, short)
        assert store.messages(held.id) == store.inbox(held.id, [short], 9, None) == [message]
        assert sent(store, a_message(held.id, idempotency_id=short)) == message
        wait = escape(text[:100])
        commit(
            store,
            held,
            received=[(message.id, wait)],
            completed=[(message.id, text)],
            sends=[a_message(held.id, queue=short, body=text)],
        )
        assert store.message(message.id) == replace(message, state="completed", received_by=wait, response=text)
        assert [(m.queue, m.body) for m in store.messages(held.id)][1] == (short, text)


def test_of_the_engines_data_in_the_form_that_json_gives_it(store: Store) -> None:
    held = started(store)
    data = {"z": 1, "a": [1.5, 10**30, True, None, {"deep": {"\x00": "\ud800"}}], "": 1e300}
    entry = replace(a_full_entry("a", "x"), data=data)
    commit(store, held, entries=[entry])
    [loaded] = store.load("run")
    assert json.dumps(loaded.data) == json.dumps(data), "its order and number forms stay"


# -- the longest texts fit into the indexes: a key of PostgreSQL has at most a third of a page


@pytest.mark.django_db
@pytest.mark.parametrize(("first", "last"), [(0x20000, 0x2A6D0), (0xD800, 0xDFFF)], ids=["4 bytes", "surrogates"])
def test_the_longest_tag_fits_where_nothing_can_be_compressed(first: int, last: int) -> None:
    dice = random.Random(1)

    def text(low: int, high: int) -> str:
        return "".join(chr(dice.randint(low, high)) for _ in range(200))

    now = datetime(2026, 1, 1, tzinfo=UTC)
    run = Run.objects.create(id=text(0x20000, 0x2A6D0), workflow="w", queue="q", input="[]", created_at=now)
    name, value = text(0x20000, 0x2A6D0), text(first, last)
    RunTag.objects.create(run=run, name=name, value=value, start_value=value, created_at=now)
    assert RunTag.objects.get(name=name, value=value).run == run
