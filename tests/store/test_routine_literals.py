"""What the SQL of the database's functions says in literals is what the code says in enums and constants."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

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
from durable.store import routines
from durable.store.postgres.sql import RAISED
from durable.store.rules.row_rules import CASCADED_AT_ONCE, MOST_IN_LINE

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
