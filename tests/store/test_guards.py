"""Rows that contradict themselves are refused by the database, and its functions say what the code says."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connections, models, transaction

from durable.core.limits.rates import BUCKETS, END, LONGEST, SECONDS
from durable.core.limits.slot_records import SlotKind
from durable.core.records import (
    ENDED,
    EntryKind,
    EntryStatus,
    HoldKind,
    MessageState,
    OnFailure,
    Request,
    RunState,
    WhenParentEnds,
)
from durable.core.summary import DROPPED, PARENT_ENDED, SummaryKind
from durable.models import Entry, EntryMetadata, Run
from durable.store import Store, routines
from durable.store.postgres.sql import RAISED
from durable.store.rules.row_rules import CASCADED_AT_ONCE, MOST_IN_LINE
from tests.store.conftest import POSTGRES, SQLITE
from tests.store.making import NOW, an_entry, at, commit, park, started

#: For each check of the models something that it refuses, as columns of an update.
BROKEN: dict[str, tuple[type[models.Model], list[dict[str, Any]]]] = {
    "durable_run_has_an_id": (Run, [{"id": ""}]),
    "durable_run_state_is_known": (Run, [{"state": "lost"}, {"state": ""}]),
    "durable_run_pending_request_is_known": (Run, [{"pending_request": "stop"}]),
    "durable_run_state_after_rollback_is_an_end": (Run, [{"state_after_rollback": "running"}]),
    "durable_run_counts_from_zero": (Run, [{"crashes": -1}, {"fence": -1}, {"message_count": -1}, {"change_seq": -1}]),
    "durable_run_end_is_final": (
        Run,
        [
            {"state": "completed", "finished_at": None, "wake_at": None, "lease_expires_at": None},
            {"state": "failed", "finished_at": NOW, "wake_at": NOW, "lease_expires_at": None},
            {"state": "cancelled", "finished_at": NOW, "wake_at": None, "lease_expires_at": NOW},
        ],
    ),
    "durable_run_finished_means_ended": (Run, [{"finished_at": NOW}]),
    "durable_run_is_not_its_own_parent": (Run, [{"parent_id": "run"}]),
    "durable_entry_kind_is_known": (Entry, [{"kind": "leap"}]),
    "durable_metadata_status_is_known": (EntryMetadata, [{"status": "done"}]),
    "durable_metadata_attempts_from_zero": (EntryMetadata, [{"attempts": -1}]),
}

CASES = [(name, model, columns) for name, (model, broken) in BROKEN.items() for columns in broken]


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def alias(request: pytest.FixtureRequest) -> str:
    """A database with a run and an entry."""
    store: Store = request.getfixturevalue(request.param)
    run = started(store)
    commit(store, run, entries=[an_entry("step")])
    return SQLITE if request.param == "sqlite_store" else POSTGRES


def test_every_check_has_its_cases() -> None:
    checks = {
        each.name
        for model in (Run, Entry, EntryMetadata)
        for each in model._meta.constraints
        if isinstance(each, models.CheckConstraint)
    }
    assert checks == set(BROKEN)


@pytest.mark.parametrize(("name", "model", "columns"), CASES)
def test_a_row_that_contradicts_itself_is_refused_by_name(
    alias: str, name: str, model: type[models.Model], columns: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError, match=name), transaction.atomic(using=alias):
        model._default_manager.using(alias).update(**columns)


@pytest.mark.parametrize("state", list(RunState))
def test_every_state_is_accepted_as_it_should_be(alias: str, state: str) -> None:
    has_ended = state in ("completed", "failed", "cancelled")
    columns = {"finished_at": NOW if has_ended else None, "wake_at": None, "lease_expires_at": None}
    assert Run.objects.using(alias).update(state=state, **columns) == 1


def test_a_new_row_is_looked_at_as_well(alias: str) -> None:
    with pytest.raises(IntegrityError, match="durable_run_state_is_known"), transaction.atomic(using=alias):
        Run.objects.using(alias).create(id="new", workflow="w", queue="q", input="1", state="lost", created_at=at(0))


@pytest.mark.parametrize("table", ["durable_run", "durable_entry"])
def test_nothing_goes_and_leaves_behind_what_belongs_to_it(alias: str, table: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(f"DELETE FROM {table}")
    assert Entry.objects.using(alias).filter(run_id="run").exists()


def test_a_run_that_has_entries_keeps_its_id(alias: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(using=alias):
        Run.objects.using(alias).update(id="other")
    assert Run.objects.using(alias).get().id == "run"


def test_a_run_goes_with_all_that_is_its(alias: str) -> None:
    Run.objects.using(alias).all().delete()
    assert not Entry.objects.using(alias).exists()
    assert not EntryMetadata.objects.using(alias).exists()


@pytest.mark.parametrize(
    "tables",
    [
        "durable_run CASCADE",
        "durable_entry, durable_run CASCADE",
        "durable_run, durable_entry, durable_entrymetadata CASCADE",
    ],
)
def test_emptying_the_table_of_runs_leaves_nothing_behind(postgres_store: Store, tables: str) -> None:
    commit(postgres_store, started(postgres_store), entries=[an_entry("step")])
    execute(f"TRUNCATE {tables}")
    for model in (Run, Entry, EntryMetadata):
        assert not model._default_manager.using(POSTGRES).exists()


def test_many_rows_at_once_are_each_looked_at(postgres_store: Store) -> None:
    run = started(postgres_store)
    commit(postgres_store, run, entries=[an_entry(f"step {number}") for number in range(5)])
    park(postgres_store, run)
    with pytest.raises(IntegrityError, match="durable_entry_kind_is_known"), transaction.atomic(using=POSTGRES):
        execute("UPDATE durable_entry SET kind = CASE location WHEN 'step 4' THEN 'leap' ELSE kind END")


def test_there_and_back(postgres_store: Store) -> None:
    """Backwards the checks and foreign keys return, forwards they make way for the guards again."""
    before = constraints()
    try:
        call_command("migrate", "durable", "0001", database=POSTGRES, verbosity=0)
        assert constraints() == before | set(BROKEN) | {"entry to run", "metadata to entry"}
    finally:
        call_command("migrate", "durable", database=POSTGRES, verbosity=0)
    assert constraints() == before


def constraints() -> set[str]:
    """What constraints the guarded tables have: checks by name, foreign keys by what they say."""
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT contype, conname, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint "
            "WHERE contype IN ('c', 'f') AND conparentid = 0 AND conrelid::regclass::text = ANY(%s)",
            [["durable_run", "durable_entry", "durable_entrymetadata"]],
        )
        return {
            name if kind == "c" else f"{table} to {other}".replace("durable_", "").replace("entrymetadata", "metadata")
            for kind, name, table, other in cursor.fetchall()
        }


def execute(statement: str) -> None:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(statement)


# -- what the SQL of the database's functions says in literals is what the code says in enums and constants


TEXTS = {each.stem: each.read_text() for each in Path(str(routines.__file__)).parent.glob("*.sql")}

#: The enums that the values of a column are of, in any table.
ENUMS: dict[str, tuple[type[StrEnum], ...]] = {
    "state": (RunState, MessageState),
    "kind": (HoldKind, SlotKind, EntryKind),
    "status": (EntryStatus,),
    "pending_request": (Request,),
    "state_after_rollback": (RunState,),
    "when_parent_ends": (WhenParentEnds,),
    "on_failure": (OnFailure,),
}
COMPARED = re.compile(r"\b(\w+)\)? *(?:=|<>|NOT IN|IN)\s*(\('[^)]*\)|'[^']*')")

#: The columns of the guards, each with all values that it may have.
GUARDED: dict[str, set[str]] = {
    "NEW.state NOT IN": set(RunState),
    "NEW.kind NOT IN": set(EntryKind),
    "NEW.status NOT IN": set(EntryStatus),
    "NEW.pending_request NOT IN": set(Request),
    "NEW.state_after_rollback NOT IN": {"", *ENDED},
}
NUMBERS = {
    "rates": (LONGEST, END, BUCKETS, SECONDS * 1_000_000_000),
    "slots": (MOST_IN_LINE,),
    "ending": (CASCADED_AT_ONCE,),
}


def words(literals: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", literals))


def compared(text: str) -> list[tuple[str, set[str]]]:
    """The columns that are compared with literals, and the literals."""
    return [(column, words(literals)) for column, literals in COMPARED.findall(text) if column in ENUMS]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_column_is_compared_with_values_that_it_may_have(name: str) -> None:
    for column, literals in compared(TEXTS[name]):
        assert literals <= {"", *(value for enum in ENUMS[column] for value in enum)}, (column, literals)


def test_columns_are_found() -> None:
    assert {column for text in TEXTS.values() for column, _ in compared(text)} == set(ENUMS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_what_names_several_ends_names_all_of_them(name: str) -> None:
    for column, literals in compared(TEXTS[name]):
        if column == "state" and len(literals & ENDED) > 1:
            assert literals >= ENDED, literals


@pytest.mark.parametrize("condition", GUARDED)
def test_a_guard_knows_every_value(condition: str) -> None:
    found = [words(each) for each in re.findall(rf"{condition} (\([^)]*\))", TEXTS["guards"])]
    assert found[0] == GUARDED[condition]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_code(name: str) -> None:
    found = {int(each) for each in re.findall(r"\b\d+\b", TEXTS[name])}
    assert found >= set(NUMBERS[name])
    assert max(found) == max(NUMBERS[name])


def test_fences_are_raised_as_the_code_raises_them() -> None:
    text = "".join(TEXTS.values())
    assert text.count("fence + CASE") == text.count(RAISED) > 0


def test_the_summary_of_a_child_says_why_it_ended() -> None:
    text = TEXTS["ending"]
    for words_of, kind in (
        (DROPPED.format(parent="%s"), SummaryKind.DROPPED),
        (PARENT_ENDED, SummaryKind.PARENT_ENDED),
    ):
        assert words_of.format(parent="%s", state="%s") in text
        assert f'{{"kind":"{kind}"' in text
