"""Statuses of runs, as each store keeps them: the newest wins, a late worker writes none, a plain run has no row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from durable.core.control_flow import LeaseLost
from durable.core.records import Batch, RunChange, Status, StatusRecord
from durable.store import Store
from tests.store.making import HOSTILE, NOW, again, at, held


def said(fence: int, number: int = 1, **parts: Any) -> StatusRecord:
    given: dict[str, Any] = {"run_id": "run", "text": "at work", "done": None, "of": None, "eta": None, "at": NOW}
    return StatusRecord(fence=fence, number=number, **{**given, **parts})


def shown(store: Store) -> Status | None:
    found = store.statuses(["run", "other"]).get("run")
    assert store.get_shown(["run"])["run"][1] == found
    return found


def commit(store: Store, fence: int, **given: Any) -> None:
    store.commit(Batch(run_id="run", fence=fence, now=NOW, run={"summary": "works"}, **given))


def test_all_parts_come_back(store: Store) -> None:
    fence = held(store)
    assert shown(store) is None
    record = said(fence, text="page 3", done=3, of=7.5, eta=at(60), at=at(1))
    store.show([record])
    assert shown(store) == Status(text="page 3", done=3, of=7.5, eta=at(60), at=at(1))
    assert isinstance(record.status.done, int)


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 500, ""])
def test_a_text_may_have_any_characters(store: Store, text: str) -> None:
    fence = held(store)
    store.show([said(fence, text=text)])
    found = shown(store)
    assert found is not None
    assert found.text == text


def test_the_newest_wins_whichever_way_it_comes(store: Store) -> None:
    fence = held(store)
    store.show([said(fence, 2, text="second")])
    commit(store, fence, status=said(fence, 1, text="first"))
    assert shown(store) == said(fence, 2, text="second").status
    commit(store, fence, status=said(fence, 3, text="third"))
    store.show([said(fence, 2, text="second")])
    assert shown(store) == said(fence, 3, text="third").status


def test_a_worker_that_has_lost_the_run_writes_none(store: Store) -> None:
    old = held(store)
    store.show([said(old, 5, text="old")])
    new = again(store)
    store.show([said(old, 6, text="late")])
    assert shown(store) == said(old, 5, text="old").status
    with pytest.raises(LeaseLost):
        commit(store, old, status=said(old, 7, text="late"))
    assert shown(store) == said(old, 5, text="old").status
    store.show([said(new, 1, text="new")])
    store.show([said(old, 8, text="late")])
    assert shown(store) == said(new, 1, text="new").status


def test_a_released_run_shows_what_it_has_said_and_nothing_new(store: Store) -> None:
    fence = held(store)
    store.show([said(fence, 1, text="kept")])
    store.release([("run", fence)], NOW)
    store.show([said(fence, 2, text="late"), replace(said(fence), run_id="unknown")])
    assert shown(store) == said(fence, 1, text="kept").status


def test_a_change_may_take_the_status_away(store: Store) -> None:
    fence = held(store)
    store.show([said(fence)])
    store.change("run", lambda run, _: RunChange(run={"change_seq": run.change_seq + 1}))
    assert shown(store) is not None
    store.change("run", lambda run, _: RunChange(run={"change_seq": run.change_seq + 1}, is_status_over=True))
    assert shown(store) is None


def test_a_transaction_that_is_taken_back_takes_the_status_back(store: Store) -> None:
    fence = held(store)

    def fail() -> None:
        with store.transaction():
            commit(store, fence, status=said(fence))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert shown(store) is None
