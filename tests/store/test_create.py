"""Creating runs and reading them."""

from __future__ import annotations

from durable.core.errors import ErrorInfo
from durable.core.records import RunState
from durable.store import Store
from tests.store.making import HOSTILE, NOW, a_run, at, started, the


def test_a_new_run_is_stored_as_given(store: Store) -> None:
    store.create([a_run("parent"), a_run("model")])
    run = a_run(
        "child",
        state=RunState.FAILED,
        output="1",
        error=ErrorInfo("E", "m", "t"),
        origins=["a/b"],
        wake_at=None,
        waiting_for="/x/",
        summary="waits",
        fence=3,
        worker="w1",
        crashes=2,
        change_seq=5,
        message_count=6,
        pending_request="pause",
        request_reason="because",
        state_after_rollback="failed",
        generations={"a": 2},
        diverged_at=at(1),
        started_at=at(2),
        finished_at=at(3),
        parent_id="parent",
        replay_of_id="model",
    )
    assert store.create([run]) == [(run, True)]
    assert store.get("child") == run
    assert store.get_many(["child", "none", "model"]) == {"child": run, "model": store.get("model")}
    assert store.get_many([]) == {}


def test_a_taken_id_gives_the_row_that_has_it(store: Store) -> None:
    held = started(store, "run")
    [(found, new)] = store.create([a_run("run", workflow="other", input="2")])
    assert not new
    assert found == held


def test_runs_are_answered_in_the_order_given_new_and_taken_mixed(store: Store) -> None:
    store.create([a_run("b")])
    created = store.create([a_run("c"), a_run("b", input="2"), a_run("a")])
    assert [(run.id, new) for run, new in created] == [("c", True), ("b", False), ("a", True)]
    assert the(store, "b").input == "[]"


def test_an_id_given_twice_is_created_once_with_its_first_input(store: Store) -> None:
    created = store.create([a_run("a", input="1"), a_run("a", input="2")])
    assert [(run.input, new) for run, new in created] == [("1", True), ("1", False)]


def test_creating_nothing_is_allowed(store: Store) -> None:
    assert store.create([]) == []


def test_ids_differ_in_case_accent_and_trailing_space(store: Store) -> None:
    ids = ["a", "A", "á", "a "]
    assert [new for _, new in store.create([a_run(each) for each in ids])] == [True] * 4
    assert [the(store, each).id for each in ids] == ids


def test_a_run_that_is_not_there_is_none_whatever_its_id(store: Store) -> None:
    for run_id in ["missing", "", *HOSTILE]:
        assert store.get(run_id) is None
        assert store.history(run_id) == []
        assert store.messages(run_id) == []
        assert store.attempts(run_id) == []


def test_what_a_caller_does_to_its_records_does_not_reach_the_store(store: Store) -> None:
    run = a_run("run", origins=["a"])
    [(returned, _)] = store.create([run])
    run.origins.append("b")
    run.state = RunState.FAILED
    returned.origins.append("c")
    the(store).origins.append("d")
    assert the(store).origins == ["a"]
    assert the(store).state == RunState.PENDING


def test_moments_keep_their_microseconds_and_are_aware(store: Store) -> None:
    store.create([a_run("run")])
    created_at = the(store).created_at
    assert created_at == NOW
    assert created_at.utcoffset() is not None
