"""What a commit takes from the journal and looks for, what goes back if it did not happen, and regions of histories."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from durable.core.errors import ErrorInfo
from durable.core.journal import Journal, Node
from durable.core.records import AttemptRecord, EntryKind, EntryStatus, HeldOver, SavesForgotten, Witness
from durable.core.rewind.rewinding import Region, simplified
from durable.core.witnesses import columns_of
from tests.core.conftest import NOW
from tests.core.journals import Clock, commit, entry, journal, make, take


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


def test_a_step_that_is_held_is_listed_with_the_commit_that_happens() -> None:
    """The first one did not, and what it said of the step goes back with the entry."""
    found = journal()
    held = make(found, "a")
    found.update(held, status=EntryStatus.HELD, error=ErrorInfo("E", "m", "t"))
    found.note_held(held)
    batch = take(found)
    assert batch.failure is not None
    found.restore_batch(batch)
    again = take(found)
    assert again.failure == batch.failure
    make(found, "b")
    assert take(found).failure is None


def test_a_step_that_is_held_anew_is_listed_whatever_an_earlier_commit_would_have_said() -> None:
    found = journal()
    held = make(found, "a")
    found.update(held, status=EntryStatus.HELD, error=ErrorInfo("E", "m", "t"))
    found.note_held(held)
    take(found)
    found.update(held, status=EntryStatus.COMPLETED)
    batch = take(found)
    assert batch.of(HeldOver) == [HeldOver()]
    found.restore_batch(batch)
    other = make(found, "b")
    found.update(other, status=EntryStatus.HELD, error=ErrorInfo("E", "m", "t"))
    found.note_held(other)
    again = take(found)
    assert again.failure is not None
    assert not again.of(HeldOver)


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


# -- for what each commit of a pass looks, so that it notices that the database has lost the one before


def test_the_first_commit_of_a_new_run_looks_for_nothing() -> None:
    found = journal()
    make(found, "a")
    assert commit(found).witnesses == ()


def test_the_first_commit_of_a_pass_looks_for_the_newest_entry_that_was_loaded() -> None:
    found = journal(entry("b", 4), entry("c", 9), entry("a", 2))
    make(found, "d")
    assert commit(found).witnesses == (Witness("c", 9),)


def test_each_commit_looks_for_an_entry_that_the_one_before_has_made() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    b = make(found, "b")
    found.update(a, data={"later": True})
    assert commit(found).witnesses == (Witness("a", a.ordinal),)
    make(found, "c")
    assert commit(found).witnesses == (Witness("b", b.ordinal),), "a new one says more than a changed one"


def test_of_a_commit_that_changes_entries_the_next_one_looks_for_what_it_wrote() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    found.update(a, data={"iteration": 20})
    commit(found)
    found.update(a, data={"iteration": 40})
    [witness] = commit(found).witnesses
    assert witness.version is not None
    assert (witness.location, witness.ordinal) == ("a", a.ordinal)
    assert columns_of(witness)["data"] == {"iteration": 20}, "as it was written, not as it has become"


def test_of_a_commit_that_gives_an_output_to_an_entry_of_the_pass_the_next_one_looks_for_an_output() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    found.update(a, output="1")
    commit(found)
    found.update(a, data={"later": True})
    assert commit(found).witnesses == (Witness("a", a.ordinal, has_output=True),)
    make(found, "b")
    [witness] = commit(found).witnesses
    assert witness.version is not None, "the output was there before this change"


def test_an_output_says_nothing_of_an_entry_that_was_loaded() -> None:
    found = journal(entry("a", 1))
    a = found.entry_at("a")
    assert a is not None
    found.update(a, output="1")
    commit(found)
    make(found, "b")
    [witness] = commit(found).witnesses
    assert witness.version is not None


def test_an_output_says_nothing_of_an_entry_that_had_one_and_was_made_again() -> None:
    found = journal()
    make(found, "a")
    commit(found)
    found._pending.deleted["a"] = None
    commit(found)
    again = make(found, "a")
    found.update(again, output="1")
    commit(found)
    found.update(again, output="2")
    commit(found)
    make(found, "b")
    [witness] = commit(found).witnesses
    assert witness.version is not None


def test_of_a_commit_that_changes_the_state_alone_the_next_one_looks_for_the_state() -> None:
    found = journal()
    make(found, "a")
    commit(found)
    commit(found, {"state": "rolling_back"})
    make(found, "b")
    assert commit(found).witnesses == (Witness(state="rolling_back"),)


def test_a_commit_that_leaves_nothing_keeps_what_was_there() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    commit(found, {"crashes": 0})
    make(found, "b")
    assert commit(found).witnesses == (Witness("a", a.ordinal),)


def test_an_entry_that_is_deleted_is_looked_for_no_longer() -> None:
    found = journal()
    make(found, "a")
    commit(found)
    found.prune(found.root, "a")
    found._pending.deleted["a"] = None
    commit(found)
    make(found, "b")
    assert commit(found).witnesses == ()


def test_commits_beside_each_other_leave_a_witness_each() -> None:
    """Their order is known to the database alone."""
    found = journal()
    first = make(found, "first")
    commit(found)
    a, b = make(found, "a"), make(found, "b")
    of_a, of_b = take(found, only="a"), take(found, only="b")
    assert of_a.witnesses == of_b.witnesses == (Witness("first", first.ordinal),)
    found.mark_committed(of_b)
    found.mark_committed(of_a)
    make(found, "c")
    assert commit(found).witnesses == (Witness("b", b.ordinal), Witness("a", a.ordinal))
    make(found, "d")
    assert len(commit(found).witnesses) == 1


def test_a_commit_beside_another_one_may_delete_what_that_one_leaves() -> None:
    found = journal()
    make(found, "a")
    of_a = take(found, only="a")
    make(found, "b")
    found._pending.deleted["a"] = None
    of_b = take(found)
    found.mark_committed(of_a)
    found.mark_committed(of_b)
    make(found, "c")
    assert [each.location for each in commit(found).witnesses] == ["b"]


def test_a_commit_that_did_not_happen_leaves_nothing() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    make(found, "b")
    found.restore_batch(take(found), without="none")
    b = found.entry_at("b")
    assert b is not None
    assert commit(found).witnesses == (Witness("a", a.ordinal),)
    make(found, "c")
    assert commit(found).witnesses == (Witness("b", b.ordinal),)


def test_what_is_deleted_before_it_is_committed_leaves_no_trace() -> None:
    found = journal()
    for number in range(10):
        iteration = found.attach(found.root, f"~{number}", Node(f"~{number}"))
        found.create(iteration, "step", Node(f"~{number}/step"), EntryKind.STEP)
        found.prune(found.root, f"~{number}")
    assert found._witnesses._new == set()


# -- regions of a history that are said with fewer conditions have the same entries


LOCATIONS = ["a", "a/b", "a/b/c", "a/d", "ab", "e", "e/f"]
ORDINALS = range(6)

regions = st.builds(Region, st.sampled_from(["", *LOCATIONS]), st.integers(-1, 4), st.sampled_from(["", *LOCATIONS]))


@given(st.lists(regions, max_size=5))
def test_the_same_entries_are_in_simplified_regions(given_regions: list[Region]) -> None:
    found = simplified(given_regions)
    assert len(found) <= len(given_regions)
    for location in LOCATIONS:
        for ordinal in ORDINALS:
            is_in = any(each.covers(location, ordinal) for each in given_regions)
            assert any(each.covers(location, ordinal) for each in found) is is_in


def test_what_another_region_has_is_not_left_out() -> None:
    """A replay at a step deletes the step with all inside, and what began later beside it."""
    assert simplified([Region("a"), Region("", 4, "a")]) == [Region("", 4), Region("a")]
    assert simplified([Region("a", 3), Region("", 4, "a")]) == [Region("", 4, "a"), Region("a", 3)]
