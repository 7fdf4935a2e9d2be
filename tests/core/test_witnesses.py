"""For what each commit of a pass looks, so that it notices that the database has lost the one before."""

from __future__ import annotations

from durable.core.journal import Node
from durable.core.records import EntryKind, Witness
from durable.core.witnesses import columns_of
from tests.core.journals import commit, entry, journal, make, take


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
    found.mark(a, data={"later": True})
    assert commit(found).witnesses == (Witness("a", a.ordinal),)
    make(found, "c")
    assert commit(found).witnesses == (Witness("b", b.ordinal),), "a new one says more than a changed one"


def test_of_a_commit_that_changes_entries_the_next_one_looks_for_what_it_wrote() -> None:
    found = journal()
    a = make(found, "a")
    commit(found)
    found.mark(a, data={"iteration": 20})
    commit(found)
    found.mark(a, data={"iteration": 40})
    [witness] = commit(found).witnesses
    assert witness.version is not None
    assert (witness.location, witness.ordinal) == ("a", a.ordinal)
    assert columns_of(witness)["data"] == {"iteration": 20}, "as it was written, not as it has become"


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
