"""What is said beforehand of the children that the replays of many failed runs start again.

Just these children are started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable import Break, Context, Continue, get_run, workflow
from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.bulks import find_bulk
from durable.inspection.selection import Chosen
from durable.models import OperatorAction, Run
from durable.operations import bulk, eligibility
from durable.operations.eligibility import StartsCounter, starts_of_bulk, starts_of_run
from durable.operations.replay import replay_failed
from durable.store import Store
from tests.support.stores import in_force, settle

CHARGES: list[int] = []
BROKEN: set[int | str] = set()
NOTE = (
    '{} children of "tests.many.bill" are started again, as new runs with new idempotency keys: what those before did stays, '
    "and is done again"
)


def charge(number: int) -> int:
    CHARGES.append(number)
    if number in BROKEN:
        raise ValueError(f"customer {number} has no bank")
    return number


def report(name: str = "report") -> str:
    if name in BROKEN:
        raise ValueError("no paper")
    return name


@workflow(name="tests.many.bill")
def bill(ctx: Context, number: int) -> int:
    return ctx.step("charge", charge, number, max_retries=0)


@workflow(name="tests.many.night")
def night(ctx: Context, size: int = 3) -> str:
    """Fails in its map, or in its report."""
    ctx.step("customers", int)
    ctx.map("bills", bill, [(number,) for number in range(size)], at_once=1, on_failure="stop")
    return ctx.step("report", report, max_retries=0)


@workflow(name="tests.many.looping")
def looping(ctx: Context) -> str:
    """One child in each of six iterations, of which the older ones are pruned; fails in the last one."""

    def round_of(scope: Context, number: int) -> Break | Continue:
        scope.child("bill", bill, 10 + number)
        if number < 5:
            return Continue(number + 1)
        return Break(scope.step("close", report, max_retries=0))

    found: str = ctx.loop("rounds", round_of, state=0, history_prune_interval=1)
    return found


@workflow(name="tests.many.plain")
def plain(ctx: Context) -> str:
    return ctx.step("report", report, max_retries=0)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    CHARGES.clear()
    BROKEN.clear()


def failed(flow: Any, run_id: str, *args: Any) -> str:
    flow.using(id=run_id).start(*args)
    settled(run_id)
    assert get_run(run_id).state == RunState.FAILED
    return run_id


def settled(run_id: str) -> None:
    for _ in range(50):
        if get_run(run_id).state in ("completed", "failed", "cancelled"):
            return
        settle()
    raise AssertionError(get_run(run_id).state)


def family() -> list[str]:
    """Five failed runs: two of a map, one behind its map, one in a loop, one without children."""
    BROKEN.add(2)
    found = [failed(night, "stopped", 3), failed(night, "longer", 5)]
    BROKEN.clear()
    BROKEN.add("report")
    return [*found, failed(night, "behind", 3), failed(looping, "looping"), failed(plain, "plain")]


NUMBERS = {"stopped": 3, "longer": 5, "behind": 0, "looping": 6, "plain": 0}


def test_what_is_counted_is_what_is_started(store: Store) -> None:
    runs = family()
    counter = StartsCounter()
    assert counter.add(runs) == NUMBERS
    found = counter.counted(len(runs))
    assert (found.looked_at, found.parents, found.children, found.is_partial) == (5, 3, 14, False)
    assert found.workflows == (("tests.many.bill", 14),)
    assert found.note == NOTE.format(14)
    BROKEN.clear()
    for run_id in runs:
        before = len(CHARGES)
        settled(replay_failed(run_id).id)
        assert len(CHARGES) - before == NUMBERS[run_id], run_id


def test_one_run_says_it_in_the_singular_and_a_plain_one_nothing(store: Store) -> None:
    BROKEN.update({0, "report"})
    assert starts_of_run(failed(night, "single", 1)).note == (
        '1 child of "tests.many.bill" is started again, as a new run with new idempotency keys: what the one before did stays, '
        "and is done again"
    )
    assert starts_of_run(failed(plain, "plain")).note == ""
    assert starts_of_run("nobody").note == ""


def test_runs_that_did_not_fail_and_replays_that_are_refused_start_nothing(store: Store) -> None:
    BROKEN.add(2)
    failed(night, "recovered", 3)
    BROKEN.clear()
    get_run("recovered").recover()
    night.using(id="open").start(2)
    assert StartsCounter().add(["recovered", "open", "nobody"]) == {"recovered": 0, "open": 0, "nobody": 0}


@pytest.mark.parametrize(("most", "known"), [(0, []), (1, ["stopped"]), (2, ["stopped", "longer", "behind"])])
def test_beyond_its_bound_it_says_for_how_many_runs_it_was_counted(
    store: Store, most: int, known: Sequence[str]
) -> None:
    runs = family()
    # "behind" has children too, so that it counts for the bound
    counter = StartsCounter(most + (1 if "behind" in known else 0))
    assert counter.add(runs) == {name: NUMBERS[name] for name in known}
    assert counter.add(["plain"]) == {}, "it goes on behind a run that was left out"
    found = counter.counted(len(runs))
    assert (found.looked_at, found.is_partial) == (len(known), True)
    number = sum(NUMBERS[name] for name in known)
    if number:
        end = f"This was counted for {len(known)} of 5 runs: the others may start more"
        assert found.note == f"{NOTE.format(number)}. {end}"
    else:
        assert found.note == f"{len(known)} of 5 runs were examined, and start no children again"


def test_a_long_history_counts_for_many_and_is_exact(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = family()
    monkeypatch.setattr(eligibility, "_SHORT", 1)
    assert StartsCounter(40).add(runs) == NUMBERS
    assert StartsCounter(20).add(runs) == {"stopped": 3, "longer": 5}


@pytest.mark.parametrize("store", ["database"], indirect=True)
def test_children_that_are_deleted_are_counted_where_the_history_knows_them(store: Store) -> None:
    BROKEN.add(2)
    failed(night, "stopped", 3)
    Run.objects.filter(parent="stopped").delete()
    assert StartsCounter().add(["stopped"]) == {"stopped": 3}


def test_the_cost_is_bounded(db: None) -> None:
    BROKEN.update({1, "report"})
    with in_force():
        alone = [failed(plain, f"plain-{number}") for number in range(12)]
        with CaptureQueriesContext(_connection()) as plain_:
            assert sum(StartsCounter().add(alone).values()) == 0
        assert len(plain_) == 2
        nights = [failed(night, f"night-{number}", 2) for number in range(6)]
        with CaptureQueriesContext(_connection()) as few:
            assert sum(StartsCounter(2).add(nights).values()) == 4
        with CaptureQueriesContext(_connection()) as many:
            assert sum(StartsCounter(6).add(nights).values()) == 12
        assert len(few) <= 4 + 2 * 8
        assert (len(many) - len(few)) % 4 == 0, "each of the four costs the same"
        assert len(many) - len(few) <= 4 * 8


def _connection() -> Any:
    return connections[conf.DATABASE]


class TestBulks:
    @pytest.fixture(autouse=True)
    def _chosen(self, db: None) -> Iterator[None]:
        with in_force():
            yield

    def test_a_selection_is_counted_page_by_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = family()
        monkeypatch.setattr(eligibility, "_ENTRIES_PAGE", 2)
        for chosen in (Chosen(tuple(runs)), bulk.Ids(tuple(runs))):
            found = starts_of_bulk("replay", chosen, bulk.eligible("replay", chosen))
            assert found is not None
            assert (found.looked_at, found.children, found.is_partial) == (5, 14, False)
        monkeypatch.setattr(eligibility, "LOOKED_AT", 3)
        for chosen in (Chosen(tuple(runs)), bulk.Ids(tuple(runs))):
            found = starts_of_bulk("replay", chosen, bulk.eligible("replay", chosen))
            assert found is not None
            assert (found.looked_at, found.children, found.is_partial) == (3, 8, True)
            assert found.note.endswith("This was counted for 3 of 5 runs: the others may start more")

    def test_other_verbs_start_nothing_again(self) -> None:
        chosen = Chosen(tuple(family()))
        assert starts_of_bulk("recover", chosen, bulk.eligible("recover", chosen)) is None
        found = find_bulk(bulk.apply("recover", list(chosen.ids)).bulk_id)
        assert found is not None
        assert found.started is None

    def test_the_log_and_the_bulk_have_the_number(self) -> None:
        runs = family()
        done = bulk.apply("replay", runs)
        details = dict(
            OperatorAction.objects.filter(bulk_id=done.bulk_id, outcome="done").values_list("run_id", "detail")
        )
        assert {name: detail.partition("; ")[2] for name, detail in details.items()} == {
            "stopped": "3 children are started again",
            "longer": "5 children are started again",
            "behind": "",
            "looping": "6 children are started again",
            "plain": "",
        }
        found = find_bulk(done.bulk_id)
        assert found is not None
        assert found.started is not None
        assert (found.started.number, found.started.is_capped) == (14, False)
