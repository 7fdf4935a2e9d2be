"""What a commit takes from the journal, and what goes back if the commit did not happen."""

from __future__ import annotations

from dataclasses import replace

from durable.core.errors import ErrorInfo
from durable.core.journal import Journal
from durable.core.records import AttemptRecord, SavesForgotten
from tests.core.conftest import NOW
from tests.core.journals import Clock, commit, journal, make, take


def test_the_commit_of_one_entry_makes_no_other_change() -> None:
    found = journal()
    make(found, "a")
    assert take(found, only="a").changes == {}


def test_a_change_that_goes_with_one_entry_leaves_nothing_to_commit() -> None:
    found = journal()
    make(found, "a")
    found.add(SavesForgotten("a"))
    assert take(found, only="a").changes == {SavesForgotten: [SavesForgotten("a")]}
    assert found.take_batch(None, None) is None


def test_a_commit_that_did_not_happen_has_not_ended_a_series_of_crashes() -> None:
    """The next one does: else the next crash would count as one of the same series."""
    found = Journal(replace(journal().run, crashes=2), (), Clock())  # type: ignore[arg-type]  # it needs no more
    make(found, "a")
    batch = take(found, only="a")
    assert batch.run == {"crashes": 0}
    found.restore_batch(batch, without="a")
    make(found, "b")
    assert commit(found).run == {"crashes": 0}
    make(found, "c")
    assert commit(found).run is None


def test_what_goes_back_comes_before_what_was_added_since() -> None:
    found = journal()
    first, second = (AttemptRecord("a", number, "w", NOW, NOW, ErrorInfo("E", "m", "t")) for number in (1, 2))
    make(found, "a")
    found.add(first)
    batch = take(found)
    make(found, "b")
    found.add(second)
    found.restore_batch(batch, without="a")
    again = take(found)
    assert [each.location for each in again.entries] == ["b"]
    assert again.of(AttemptRecord) == [first, second]
