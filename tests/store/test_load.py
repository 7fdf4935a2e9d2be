"""Histories of several runs at once: those that are short."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable.core.records import EntryRecord
from durable.store import Store
from durable.store.postgres import PostgresStore, sql
from tests.store.conftest import POSTGRES
from tests.store.making import HOSTILE, a_full_entry, an_entry, commit, started


def with_entries(store: Store, run_id: str, entries: list[EntryRecord]) -> dict[str, EntryRecord]:
    commit(store, started(store, run_id), entries=entries)
    return by_location(entries)


def by_location(entries: list[EntryRecord]) -> dict[str, EntryRecord]:
    return {entry.location: entry for entry in entries}


def test_each_short_history_comes_whole_and_a_long_one_not_at_all(store: Store) -> None:
    expected = {
        run_id: with_entries(store, run_id, [a_full_entry(f"{run_id}{number}", text) for number in range(length)])
        for run_id, length, text in [("one", 1, "x"), ("three", 3, "\x00"), ("four", 4, "y")]
    }
    started(store, "none")
    found = store.load_short(["four", "one", "none", "three", "nobody"], 3, 999)
    expected |= {"none": {}, "nobody": {}}
    del expected["four"]
    assert {run_id: by_location(history) for run_id, history in found.items()} == expected


def test_one_of_many_bytes_comes_not_at_all(store: Store) -> None:
    for run_id, length in (("small", 50), ("large", 51)):
        entries = [an_entry("a", output="x" * length), an_entry("b", arguments="y" * 50), an_entry("c")]
        with_entries(store, run_id, entries)
    assert list(store.load_short(["small", "large"], 9, 100)) == ["small"]


@pytest.mark.parametrize("run_id", [each for each in HOSTILE if each.isprintable() and "/" not in each])
def test_ids_are_kept_apart_whatever_they_are_made_of(store: Store, run_id: str) -> None:
    expected = with_entries(store, run_id, [an_entry("mine")])
    with_entries(store, "other", [an_entry("theirs")])
    found = store.load_short([run_id, "other"], 9, 999)
    assert by_location(found[run_id]) == expected
    assert list(by_location(found["other"])) == ["theirs"]


def test_of_no_runs_there_are_no_histories(store: Store) -> None:
    with_entries(store, "run", [an_entry()])
    assert store.load_short([], 9, 999) == {}


def test_observed_or_not_the_answer_is_the_same(postgres_store: PostgresStore) -> None:
    for run_id in "ab":
        with_entries(postgres_store, run_id, [a_full_entry("x", "ä\x1a"), an_entry("y")])
    plain = postgres_store.load_short(["a", "b"], 5, 999)
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        observed: Any = postgres_store.load_short(["a", "b"], 5, 999)
    assert len(captured) == 1
    assert {run: by_location(entries) for run, entries in observed.items()} == {
        run: by_location(entries) for run, entries in plain.items()
    }


@pytest.mark.usefixtures("new_tables")
def test_metadata_of_other_runs_is_not_read(postgres_store: PostgresStore) -> None:
    for run_id in ("one", "two"):
        with_entries(postgres_store, run_id, [an_entry(f"step-{number}") for number in range(2000)])
    asked: list[tuple[str, dict[str, Any]]] = [
        (sql.LOAD, {"run": "one"}),
        (sql.LOAD_SHORT, {"runs": ["one"], "most": 9999, "size": 99999}),
    ]
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("ANALYZE durable_entry, durable_entrymetadata")
        for statement, parameters in asked:
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on durable_entrymetadata" not in plan, plan
