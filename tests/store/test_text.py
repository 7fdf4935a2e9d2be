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
from django.db import connections
from django.db.models import Max

from durable.core.clock import EARLIEST, LATEST
from durable.core.errors import ErrorInfo
from durable.core.location import escape
from durable.core.records import RunChange, RunRecord
from durable.core.summary import Summary, SummaryKind
from durable.models import Run, RunTag
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.making import (
    HOSTILE,
    LEASE,
    NOW,
    a_full_entry,
    a_message,
    a_run,
    an_attempt,
    an_entry,
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


# -- rows with times that Python cannot hold


UNREADABLE = ["infinity", "-infinity", "20000-01-01 00:00:00+00", "0044-03-15 BC"]


def shown(moment: str) -> datetime:
    return EARLIEST if moment.startswith("-") or moment.endswith("BC") else LATEST


def write(alias: str, column: str, moment: str, run_id: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"UPDATE durable_run SET {column} = %s WHERE id = %s", [moment, run_id])


@pytest.fixture
def two_runs(postgres_store: PostgresStore) -> PostgresStore:
    postgres_store.create([a_run("one", wake_at=NOW), a_run("two", wake_at=NOW)])
    return postgres_store


@pytest.mark.parametrize("moment", UNREADABLE)
def test_an_unreadable_time_hides_no_other_run(two_runs: PostgresStore, moment: str) -> None:
    write(two_runs.alias, "wake_at", moment, "one")
    runs = {run.id: run for run in Run.objects.using(two_runs.alias)}
    assert set(runs) == {"one", "two"}
    assert runs["one"].wake_at == shown(moment)
    assert runs["two"].wake_at == the(two_runs, "two").wake_at
    assert the(two_runs, "one").wake_at == shown(moment)
    assert dict(Run.objects.using(two_runs.alias).values_list("id", "wake_at"))["one"] == shown(moment)


def test_the_largest_of_unreadable_times_can_be_asked_for(two_runs: PostgresStore) -> None:
    write(two_runs.alias, "wake_at", "infinity", "one")
    assert Run.objects.using(two_runs.alias).aggregate(Max("wake_at"))["wake_at__max"] == LATEST


@pytest.mark.parametrize("moment", UNREADABLE)
@pytest.mark.parametrize("is_observed", [False, True])
def test_a_claim_passes_by_no_run_for_an_unreadable_time(
    two_runs: PostgresStore, moment: str, is_observed: bool
) -> None:
    write(two_runs.alias, "start_tag", moment, "one")
    if is_observed:
        connection = connections[two_runs.alias]
        with connection.execute_wrapper(lambda run, *args: run(*args)):
            claimed = two_runs.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    else:
        claimed = two_runs.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    assert {run.id for run in claimed} == {"one", "two"}


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("moment", UNREADABLE)
def test_a_history_with_an_unreadable_time_is_loaded(two_runs: PostgresStore, moment: str, is_observed: bool) -> None:
    commit(two_runs, started(two_runs, "other"), entries=[an_entry("a"), an_entry("b", ordinal=2)])
    with connections[two_runs.alias].cursor() as cursor:
        cursor.execute("UPDATE durable_entrymetadata SET next_attempt_at = %s", [moment])
        cursor.execute(
            "INSERT INTO durable_runlimit (run_id, deadline, length, work_limit, worked) VALUES ('other', %s, NULL, NULL, 0)",
            [moment],
        )
    if is_observed:
        with connections[two_runs.alias].execute_wrapper(lambda run, *args: run(*args)):
            history = two_runs.load("other")
    else:
        history = two_runs.load("other")
    assert [entry.next_attempt_at for entry in history] == [shown(moment)] * 2
    assert history.limits is not None
    assert history.limits.deadline == shown(moment)


def test_a_readable_time_is_read_exactly(database_store: SQLiteStore | PostgresStore) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    database_store.create([a_run("run", wake_at=moment), a_run("none", wake_at=None)])
    found = dict(Run.objects.using(database_store.alias).values_list("id", "wake_at"))
    assert found == {"run": moment, "none": None}
