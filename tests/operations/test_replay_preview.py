"""The preview of a replay: what a database counts is what the whole history says, for histories of every shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from random import Random
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from durable import Context, Handle, StalePlanError, workflow
from durable.core.errors import EntryNotFoundError
from durable.core.records import Batch, EntryKind, EntryRecord, EntryStatus, RunRecord
from durable.operations import plan_replay
from durable.operations.queries import record
from durable.operations.replay_plan import ReplayPlan, build_plan
from durable.runtime import Runtime
from tests.operations.histories import BEGAN, made_history
from tests.support.stores import passed

pytestmark = pytest.mark.slow

REPLAY = import_module("durable.operations.replay")  # the package has a function of that name


@contextmanager
def undone() -> Iterator[None]:
    """Undo what the block writes."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@workflow(name="tests.preview.rests")
def rests(ctx: Context) -> None:
    """A step and a long rest."""
    ctx.step("a", str)
    ctx.sleep("b", "30 days")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No history is short enough to be read whole."""
    monkeypatch.setattr(REPLAY, "_SHORT", -1)


def whole(at: Runtime, run_id: str, target: str, *, is_given: bool) -> ReplayPlan | str:
    """The plan from all of the history, or what is said of a place that is not in it."""
    try:
        return build_plan(REPLAY._whole(at, record(run_id), target, is_given=is_given), at.now())
    except EntryNotFoundError as error:
        return str(error)


def previewed(run_id: str, target: str, *, is_given: bool) -> ReplayPlan | str:
    try:
        return plan_replay(run_id, target, with_output=is_given)
    except EntryNotFoundError as error:
        return str(error)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 1_000_000))
@example(seed=30_785)  # a pruned loop with children goes back because of what a compensation has undone
@example(seed=238)  # a pruned loop whose children the database does not know
def test_what_is_counted_is_what_the_whole_history_says(at: Runtime, counted: None, seed: int) -> None:
    chance = Random(seed)
    made = made_history(chance, "run")
    targets = [*chance.sample(made.targets, min(5, len(made.targets))), "nowhere"]
    with undone():
        made.store(at.store)
        for target, is_given in itertools.product(targets, (False, True)):
            expected = whole(at, made.run.id, target, is_given=is_given)
            assert previewed(made.run.id, target, is_given=is_given) == expected, f"{target} of {made.targets}"


def test_so_is_a_history_whose_lists_are_longer_than_a_plans(at: Runtime, counted: None) -> None:
    """Sends among steps, the first ones far from each other, the others in a row."""
    made = made_history(Random(1), "run")
    made.entries, made.messages = {}, []
    for number in range(400):
        kind = EntryKind.SEND if number in (1, 200) or number > 330 else EntryKind.STEP
        data = {"queue": "m", "to": "other", "message_id": "x"} if kind == EntryKind.SEND else {}
        entry = EntryRecord(f"e{number}", kind, number, BEGAN, status=EntryStatus.COMPLETED, data=data)
        made.entries[entry.location] = replace(entry, finished_ordinal=1_000 + number, completed_at=BEGAN)
    made.store(at.store)
    for target in ("e0", "e1", "e60", "e399"):
        plan = previewed("run", target, is_given=False)
        assert plan == whole(at, "run", target, is_given=False)
        assert isinstance(plan, ReplayPlan)
        assert plan.counts.removed == 400 - int(target[1:])
        assert len(plan.removed) == min(50, plan.counts.removed)


@pytest.mark.parametrize("limit", ["_MOST_COMPENSATED", "_MOST_REGIONS"])
def test_what_would_take_too_many_conditions_is_read_whole(
    at: Runtime, counted: None, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_history(Random(1), "run")
    made.entries, made.messages = {}, []
    for number in range(4):
        entry = EntryRecord(f"e{number}", EntryKind.STEP, number, BEGAN, status=EntryStatus.COMPLETED)
        undone: dict[str, Any] = {
            "data": {"rollback": {"handler": "x.y"}},
            "rollback_completed_at": BEGAN,
            "completed_at": BEGAN,
        }
        made.entries[entry.location] = replace(entry, finished_ordinal=10 + number, **undone)
    made.store(at.store)
    expected = previewed("run", "e3", is_given=False)
    assert isinstance(expected, ReplayPlan)
    assert expected.boundary == "e0"
    monkeypatch.setattr(REPLAY, limit, 1)
    assert REPLAY._surveyed(at, record("run"), "e3", is_given=False) is None
    assert previewed("run", "e3", is_given=False) == expected


class TestStale:
    """What happens to a run between its plan and its replay."""

    @staticmethod
    def planned(at: Runtime) -> tuple[Handle[Any], str]:
        run = rests.using(id="run").start()
        passed(at, "run")
        return run, run.plan_replay("a").hash

    @staticmethod
    def refused(run: Handle[Any], plan: str) -> bool:
        try:
            run.replay("a", plan_hash=plan)
        except StalePlanError:
            return True
        return False

    def test_nothing(self, at: Runtime) -> None:
        run, plan = self.planned(at)
        assert not self.refused(run, plan)

    @pytest.mark.parametrize("verb", ["pause", "wake", "cancel"])
    def test_a_verb(self, at: Runtime, verb: str) -> None:
        run, plan = self.planned(at)
        getattr(run, verb)()
        assert self.refused(run, plan)

    def test_a_message(self, at: Runtime) -> None:
        run, plan = self.planned(at)
        run.send("m", 1)
        assert self.refused(run, plan)

    def test_a_claim_that_has_written_nothing_yet(self, at: Runtime) -> None:
        run, plan = self.planned(at)
        claim(at)
        assert self.refused(run, plan)

    def test_an_earlier_replay_in_place(self, at: Runtime) -> None:
        run, plan = self.planned(at)
        run.replay("b", in_place=True)
        assert self.refused(run, plan)

    @pytest.mark.parametrize("change", ["begins", "ends", "fails", "undone", "runs"])
    def test_a_commit_of_the_worker_that_has_it(self, at: Runtime, change: str) -> None:
        """Neither the fence nor `change_seq` tells."""
        run, _ = self.planned(at)
        held = claim(at)
        [entry] = [each for each in at.store.history("run") if each.location == "b"]
        entry = replace(
            entry, kind=EntryKind.STEP, status=EntryStatus.PENDING, finished_ordinal=None, completed_at=None
        )
        at.store.commit(Batch(run_id="run", fence=held.fence, now=at.now(), entries=[entry]))
        plan = run.plan_replay("a").hash
        now = at.now()
        after = {
            "begins": replace(entry, location="c", ordinal=90),
            "ends": replace(entry, status=EntryStatus.COMPLETED, completed_at=now, finished_ordinal=91),
            "fails": replace(entry, attempts=entry.attempts + 1),
            "undone": replace(entry, data={**entry.data, "rollback": {"handler": "x.y"}}, rollback_completed_at=now),
            "runs": replace(entry, status=EntryStatus.RUNNING),
        }[change]
        assert not self.is_new(run, plan)
        at.store.commit(Batch(run_id="run", fence=held.fence, now=now, entries=[after]))
        assert (record("run").fence, record("run").change_seq) == (held.fence, held.change_seq)
        assert self.is_new(run, plan)
        assert self.refused(run, plan)

    @staticmethod
    def is_new(run: Handle[Any], plan: str) -> bool:
        return run.plan_replay("a").hash != plan

    def test_a_commit_between_the_reads_of_a_plan(self, at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        """The run's row is read first: what is newer in a plan than its hash makes the plan stale."""
        run, _ = self.planned(at)
        read = type(at.store).surveyor
        worker = iter([True])

        def surveyor(store: Any, run_id: str) -> Any:
            if next(worker, False):
                passed(at, run_id)
            return read(store, run_id)

        monkeypatch.setattr(type(at.store), "surveyor", surveyor)
        assert self.refused(run, run.plan_replay("a").hash)


def claim(at: Runtime) -> RunRecord:
    now = at.now()
    held = at.store.claim_run("run", now=now, lease_until=now + timedelta(hours=1), worker="other")
    assert held is not None
    return held
