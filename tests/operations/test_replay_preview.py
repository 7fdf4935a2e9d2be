"""The preview of a replay: what a database counts is what the whole history says, and what starts again is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from random import Random
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from durable import Break, Context, Continue, Handle, current_step, get_run, workflow
from durable.core.errors import EntryNotFoundError
from durable.core.records import Batch, EntryKind, EntryRecord, EntryStatus, RunRecord
from durable.errors import StalePlanError
from durable.inspection import landmarks
from durable.inspection.history_counts import COUNTED, REST, count_long_histories, count_noted
from durable.models import HistoryCount, Run
from durable.models.rows import dump_json, load_json
from durable.operations import plan_replay
from durable.operations.queries import record
from durable.operations.replay_plan import ReplayPlan, StartsAgain, build_plan
from durable.runtime import Runtime
from durable.store import Store
from durable.store.tables import surveys
from durable.worker.executor import note
from tests.operations.histories import BEGAN, MadeHistory, made_history
from tests.support.stores import passed, settle

pytestmark = pytest.mark.slow


REPLAY = import_module("durable.operations.replay")  # the package has a function of that name


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@workflow(name="tests.preview.rests")
def rests(ctx: Context) -> None:
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


def count_ahead(run_id: str) -> None:
    """Count the history as the sweep counts a long one, unless a worker has the run."""
    note(run_id)
    count_long_histories(timezone.now() + 2 * REST)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 1_000_000), is_given=st.booleans())
@example(seed=30_785, is_given=False)  # a pruned loop with children goes back because of what a compensation has undone
@example(seed=30_785, is_given=True)
@example(seed=238, is_given=False)  # a pruned loop whose children the database does not know
@example(seed=238, is_given=True)
def test_what_is_counted_is_what_the_whole_history_says(
    at: Runtime, counted: None, monkeypatch: pytest.MonkeyPatch, seed: int, is_given: bool
) -> None:
    """Whether it is counted now or was counted ahead."""
    chance = Random(seed)
    monkeypatch.setattr(landmarks, "_STRETCHES", chance.choice([1, 3, 8, 512]))
    monkeypatch.setattr(surveys, "_MOST_BESIDE", chance.choice([5, 2_000]))
    made = made_history(chance, "run")
    targets = [*chance.sample(made.targets, min(5, len(made.targets))), "nowhere"]
    with undone():
        made.store(at.store)
        expected = {target: whole(at, made.run.id, target, is_given=is_given) for target in targets}
        for is_ahead in (False, True):
            if is_ahead:
                count_ahead("run")
            for target, plan in expected.items():
                found = previewed(made.run.id, target, is_given=is_given)
                assert found == plan, f"{target} of {made.targets}, counted ahead: {is_ahead}"


@pytest.mark.parametrize("is_ahead", [False, True], ids=["counted now", "counted ahead"])
def test_so_is_a_history_whose_lists_are_longer_than_a_plans(
    at: Runtime, counted: None, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    """Sends among steps, the first ones far from each other, the others in a row."""
    monkeypatch.setattr(landmarks, "_STRETCHES", 20)
    made = made_history(Random(1), "run")
    made.entries, made.messages = {}, []
    for number in range(400):
        kind = EntryKind.SEND if number in (1, 200) or number > 330 else EntryKind.STEP
        data = {"queue": "m", "to": "other", "message_id": "x"} if kind == EntryKind.SEND else {}
        entry = EntryRecord(f"e{number}", kind, number, BEGAN, status=EntryStatus.COMPLETED, data=data)
        made.entries[entry.location] = replace(entry, finished_ordinal=1_000 + number, completed_at=BEGAN)
    made.store(at.store)
    if is_ahead:
        count_ahead("run")
    for target in ("e0", "e1", "e60", "e399"):
        plan = previewed("run", target, is_given=False)
        assert plan == whole(at, "run", target, is_given=False)
        assert isinstance(plan, ReplayPlan)
        assert plan.counts.removed == 400 - int(target[1:])
        assert len(plan.removed) == min(50, plan.counts.removed)


def a_history(*statuses: EntryStatus) -> MadeHistory:
    """A run that rests, with steps of these statuses."""
    mark = {"reason": "unknown", "since": BEGAN.isoformat(), "failure": {}}
    made = MadeHistory(RunRecord(id="run", workflow="w", queue="q", input="[]", created_at=BEGAN, state="sleeping"))
    for number, status in enumerate(statuses):
        entry = EntryRecord(f"e{number}", EntryKind.STEP, number, BEGAN, status=status)
        if status == EntryStatus.COMPLETED:
            entry = replace(entry, finished_ordinal=1_000 + number, completed_at=BEGAN)
        elif status == EntryStatus.UNKNOWN:
            entry = replace(entry, data={"once": {"key": "k"}})
        elif status == EntryStatus.HELD:
            entry = replace(entry, data={"once": {"key": "k"}, "held": mark})
        made.entries[entry.location] = entry
    return made


def have_landmarks(at: Runtime) -> bool:
    surveyor: Any = at.store.surveyor("run")
    surveyor.find_landmarks(record("run"))
    return surveyor.landmarks is not None


@pytest.mark.parametrize("is_ahead", [False, True], ids=["counted now", "counted ahead"])
def test_it_warns_of_steps_of_which_nobody_knows_whether_they_were_done(
    at: Runtime, counted: None, is_ahead: bool
) -> None:
    statuses = (EntryStatus.COMPLETED, EntryStatus.UNKNOWN, EntryStatus.HELD, EntryStatus.COMPLETED)
    a_history(*statuses, *statuses).store(at.store)
    if is_ahead:
        count_ahead("run")
    assert have_landmarks(at) == is_ahead
    for target, places in (("e0", '"e1", "e2", "e5", "e6"'), ("e2", '"e2", "e5", "e6"'), ("e3", '"e5", "e6"')):
        plan = previewed("run", target, is_given=False)
        assert plan == whole(at, "run", target, is_given=False)
        assert isinstance(plan, ReplayPlan)
        assert plan.notes[0] == f"nobody knows whether {places} were done: they would be done again"


@pytest.mark.parametrize("when", ["after the count", "during the count"])
def test_what_was_counted_before_the_run_went_on_is_not_used(at: Runtime, counted: None, when: str) -> None:
    a_history(*[EntryStatus.COMPLETED] * 8).store(at.store)

    def go_on(*_run: object) -> None:
        held = claim(at)
        later = replace(at.store.history("run")[-1], location="later", ordinal=8, finished_ordinal=2_000)
        rests: Any = {"state": "sleeping", "lease_expires_at": None, "worker": ""}
        at.store.commit(Batch(run_id="run", fence=held.fence, now=at.now(), entries=[later], run=rests))

    if when == "after the count":
        count_ahead("run")
        assert have_landmarks(at)
        go_on()
    else:
        note("run")
        counters = {what: import_string(path) for what, path in COUNTED.items()}
        count_noted(timezone.now() + 2 * REST, {"first": go_on, **counters})
        assert HistoryCount.objects.get(pk="run").counts
    assert not have_landmarks(at)
    plan = previewed("run", "e4", is_given=False)
    assert plan == whole(at, "run", "e4", is_given=False)
    assert isinstance(plan, ReplayPlan)
    assert plan.removed == ("e4", "e5", "e6", "e7", "later")


def test_counts_of_another_format_are_not_used(at: Runtime, counted: None) -> None:
    a_history(*[EntryStatus.COMPLETED] * 8).store(at.store)
    count_ahead("run")
    assert have_landmarks(at)
    row = HistoryCount.objects.get(pk="run")
    HistoryCount.objects.update(counts=dump_json({**load_json(row.counts), "format": 0}))
    assert not have_landmarks(at)


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

    @pytest.mark.parametrize(
        ("change", "is_stale"),
        [
            (lambda _at, _run: None, False),
            (lambda _at, run: run.pause(), True),
            (lambda _at, run: run.wake(), True),
            (lambda _at, run: run.cancel(), True),
            (lambda _at, run: run.send("m", 1), True),
            (lambda at, _run: claim(at), True),
            (lambda _at, run: run.replay("b", in_place=True), True),
        ],
        ids=["nothing", "pause", "wake", "cancel", "a message", "a claim that has written nothing yet", "a replay"],
    )
    def test_a_change(self, at: Runtime, change: Callable[[Runtime, Handle[Any]], object], is_stale: bool) -> None:
        run, plan = self.planned(at)
        change(at, run)
        assert self.refused(run, plan) == is_stale

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


# -- what the preview of a replay says of the children that it starts again, and that just these are started


KEYS: list[str] = []


def do(number: int) -> int:
    KEYS.append(current_step().idempotency_key)
    return number


@workflow(name="tests.again.bill")
def bill(ctx: Context, number: int) -> int:
    return ctx.step("charge", do, number)


@workflow(name="tests.again.label")
def label(ctx: Context, number: int) -> int:
    return ctx.step("print", do, number)


@workflow(name="tests.again.night")
def night(ctx: Context) -> int:
    """Three ways to start children, among steps."""
    ctx.step("customers", int)
    mail = ctx.start_child("mail", label, 0)
    ctx.map("bills", bill, [(number,) for number in range(3)])
    ctx.child("label", label, 1)
    mail.result("mailed")
    return ctx.step("report", int)


@workflow(name="tests.again.looping")
def looping(ctx: Context) -> int:
    """A child and a map of two in each of five iterations, of which the older ones are pruned."""

    def round_of(scope: Context, number: int) -> Break | Continue:
        scope.child("label", label, number)
        scope.map("bills", bill, [(1,), (2,)])
        return Break(number) if number == 5 else Continue(number + 1)

    ctx.loop("rounds", round_of, state=1, history_prune_interval=1)
    return ctx.step("report", int)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    KEYS.clear()


def completed(flow: Any) -> None:
    flow.using(id="one").start()
    ended("one")


def ended(run_id: str) -> None:
    for _ in range(50):
        if get_run(run_id).state == "completed":
            return
        settle()
    raise AssertionError(get_run(run_id).state)


MAIL = StartsAgain(location="mail", workflow="tests.again.label", number=1)
BILLS = StartsAgain(location="bills", workflow="tests.again.bill", number=3)
LABEL = StartsAgain(location="label", workflow="tests.again.label", number=1)
STARTS = [
    ("customers", (MAIL, BILLS, LABEL)),
    ("mail", (MAIL, BILLS, LABEL)),
    ("bills", (BILLS, LABEL)),
    ("label", (LABEL,)),
    ("mailed", ()),
    ("report", ()),
]


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize(("location", "starts"), STARTS, ids=[location for location, _ in STARTS])
def test_what_is_said_is_what_is_started(
    store: Store, location: str, starts: tuple[StartsAgain, ...], in_place: bool
) -> None:
    completed(night)
    before = list(KEYS)
    plan = get_run("one").plan_replay(location)
    assert plan.starts == starts
    number = sum(each.number for each in starts)
    assert (plan.counts.starts, plan.counts.started_children) == (len(starts), number)
    assert [each for each in plan.notes if "started again" in each] == ([plan.starts_note] if starts else [])
    assert before == KEYS
    new = get_run("one").replay(location, in_place=in_place, plan_hash=plan.hash)
    ended(new.id)
    assert len(KEYS) - len(before) == number
    assert set(before).isdisjoint(KEYS[len(before) :])


def test_the_first_note_has_the_number_and_the_workflows(store: Store) -> None:
    completed(night)
    run = get_run("one")
    plan = run.plan_replay("bills")
    assert plan.notes[0] == plan.starts_note
    assert plan.starts_note == (
        '4 children of "tests.again.bill", "tests.again.label" are started again, as new runs with new idempotency keys: '
        "what those before did stays, and is done again"
    )
    assert run.plan_replay("label").starts_note == (
        '1 child of "tests.again.label" is started again, as a new run with new idempotency keys: what the one before did '
        "stays, and is done again"
    )


@pytest.mark.parametrize("is_short", [False, True])
def test_the_children_of_pruned_iterations_are_counted(
    store: Store, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("durable.operations.replay"), "_SHORT", 1_000 if is_short else -1)
    completed(looping)
    before = len(KEYS)
    entries = [each for each in get_run("one").history() if each.kind in (EntryKind.CHILD, EntryKind.MAP)]
    assert len(entries) < 10, "none was pruned"
    plan = get_run("one").plan_replay("rounds")
    assert plan.starts == (
        StartsAgain(location="rounds", workflow="tests.again.bill", number=10),
        StartsAgain(location="rounds", workflow="tests.again.label", number=5),
    )
    assert get_run("one").plan_replay("report").starts == ()
    ended(get_run("one").replay("rounds").id)
    assert len(KEYS) - before == plan.counts.started_children


def test_a_plan_lists_the_first_operations_and_counts_all(at: Runtime) -> None:
    many.using(id="one").start()
    ended("one")
    plan = get_run("one").plan_replay("before")
    assert (len(plan.starts), plan.counts.starts, plan.counts.started_children) == (50, 60, 60)
    assert [each.location for each in plan.starts] == [f"child {number}" for number in range(50)]
    assert Run.objects.filter(workflow="tests.again.bill").count() == 60


@workflow(name="tests.again.many")
def many(ctx: Context) -> None:
    ctx.step("before", int)
    for each in [ctx.start_child(f"child {number}", bill, number) for number in range(60)]:
        each.result(f"{each.id} read")


def test_a_start_that_was_refused_has_started_nothing(store: Store) -> None:
    label.using(id="taken").start(1)
    refused.using(id="one").start()
    for _ in range(5):
        settle()
    assert get_run("one").state == "failed"
    assert get_run("one").plan_replay("before").starts == ()


@workflow(name="tests.again.refused")
def refused(ctx: Context) -> None:
    ctx.step("before", int)
    ctx.child("mine", bill.using(id="taken"), 1)


def test_the_plan_of_a_replay_of_a_replay_counts_what_it_has_copied(store: Store) -> None:
    completed(night)
    second = get_run("one").replay("report")
    ended(second.id)
    assert second.plan_replay("bills").starts == (BILLS, LABEL)
