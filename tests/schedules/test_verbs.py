"""The verbs on schedules: what each changes, its permission, its row in the log, and what it refuses."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from durable import Context, Schedule, get_run, workflow
from durable.core.errors import RunNotFoundError, ScheduleError, ScheduleNotFoundError, StaleScheduleError
from durable.core.registry import UnknownWorkflowError
from durable.models import Run, Tick
from durable.operations import acting_as
from durable.operations.audit import PERMISSIONS, Actor, OperationDeniedError, needed_by
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of
from durable.operations.schedules.verbs import revision_of
from durable.testing import Harness

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@workflow(name="tests.verbs.nap")
def nap(ctx: Context, team: int = 0) -> int:
    ctx.sleep("nap", "90 minutes")
    return team


@pytest.fixture
def h() -> Any:
    with Harness(NOON) as harness:
        yield harness


def make(name: str = "s", **options: Any) -> Schedule:
    return verbs.create(name, "tests.verbs.nap", "0 * * * *", **options)


def row(name: str = "s") -> Schedule:
    return Schedule.objects.get(name=name)


def of_code(name: str = "s") -> Schedule:
    return Schedule.objects.create(name=name, workflow="tests.verbs.nap", rule="0 * * * *", origin="code")


CALLS: dict[str, Callable[[], object]] = {
    "create_schedule": lambda: make("new"),
    "edit_schedule": lambda: verbs.edit("s", rule="every 6 hours"),
    "pause_schedule": lambda: verbs.pause("s"),
    "resume_schedule": lambda: verbs.resume("paused"),
    "run_schedule": lambda: verbs.run_now("s"),
    "backfill_schedule": lambda: verbs.backfill("s", NOON - timedelta(hours=2), NOON),
    "override_schedule": lambda: verbs.override("code", "every 2 hours"),
    "take_back_override": lambda: verbs.take_back("overridden"),
    "delete_schedule": lambda: verbs.delete("s"),
}


@pytest.fixture
def stage(h: Harness) -> Harness:
    make()
    make("paused")
    verbs.pause("paused")
    of_code("code")
    of_code("overridden")
    verbs.override("overridden", "every 3 hours")
    return h


@pytest.mark.parametrize("action", sorted(CALLS))
def test_each_verb_needs_its_permission_and_is_logged(stage: Harness, action: str) -> None:
    user = User.objects.create_user("ada")
    before = list(Schedule.objects.order_by("name").values())
    with pytest.raises(OperationDeniedError, match=PERMISSIONS[action]), acting_as(Actor("admin", user=user)):
        CALLS[action]()
    assert list(Schedule.objects.order_by("name").values()) == before
    for number in range(len(needed_by(action))):
        user.user_permissions.set(Permission.objects.filter(codename__in=needed_by(action)[:number]))
        user = User.objects.get(pk=user.pk)
        with pytest.raises(OperationDeniedError), acting_as(Actor("admin", user=user)):
            CALLS[action]()
    assert list(Schedule.objects.order_by("name").values()) == before
    user.user_permissions.set(Permission.objects.filter(codename__in=needed_by(action)))
    user = User.objects.get(pk=user.pk)
    with acting_as(Actor("admin", user=user), reason="month end"):
        CALLS[action]()
    *denied, done = [each for each in stage.actions if each.action == action and each.source == "admin"]
    assert {each.outcome for each in denied} == {"denied"}
    assert done.outcome == "done"
    assert (done.actor_label, done.reason) == ("ada", "month end")
    assert done.detail.startswith('schedule "')


@pytest.mark.parametrize("action", sorted(set(CALLS) - {"create_schedule"}))
def test_each_verb_refuses_a_schedule_that_has_changed(stage: Harness, action: str) -> None:
    seen = {each.name: revision_of(each) for each in Schedule.objects.all()}
    name = {"resume_schedule": "paused", "override_schedule": "code", "take_back_override": "overridden"}.get(
        action, "s"
    )
    Schedule.objects.update(changes=100)
    with pytest.raises(StaleScheduleError), acting_as(Actor("cli"), expected=seen[name]):
        CALLS[action]()


#: What is refused on the stage, with which error.
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "to create one of an unknown workflow": (
        lambda: verbs.create("new", "tests.verbs.nope", "every 1 hour"),
        UnknownWorkflowError,
        "nope",
    ),
    "to create one with other arguments": (lambda: make("new", args=[1, 2]), TypeError, "does not take the arguments"),
    "to create one under a name that is taken": (make, ScheduleError, "already"),
    "to resume what is not paused": (lambda: verbs.resume("s"), ScheduleError, "not paused"),
    "to pause twice": (lambda: verbs.pause("paused"), ScheduleError, "paused already"),
    "to edit one of the code": (lambda: verbs.edit("code", rule="1 * * * *"), ScheduleError, "override its rule"),
    "to edit it to other arguments": (lambda: verbs.edit("s", args=[1, 2, 3]), TypeError, "does not take"),
    "to override one of operators": (lambda: verbs.override("s", "1 * * * *"), ScheduleError, "edit it instead"),
    "to take back what is not overridden": (lambda: verbs.take_back("code"), ScheduleError, "not overridden"),
    "to delete one of the code": (lambda: verbs.delete("code"), ScheduleError, "pause it instead"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(stage: Harness, what: str) -> None:
    call, error, match = REFUSED[what]
    before = list(Schedule.objects.order_by("name").values())
    with pytest.raises(error, match=match):
        call()
    assert list(Schedule.objects.order_by("name").values()) == before


@pytest.mark.parametrize("call", [verbs.pause, verbs.resume, verbs.run_now, verbs.take_back, verbs.delete, verbs.edit])
def test_a_schedule_that_is_not_there(h: Harness, call: Any) -> None:
    with pytest.raises(ScheduleNotFoundError, match="no schedule has the name"):
        call("nobody")


class TestPausing:
    def test_a_paused_schedule_starts_nothing_and_makes_up_for_nothing(self, h: Harness) -> None:
        make(catch_up="all")
        verbs.pause("s")
        h.advance("31 days")
        h.settle()
        resumed = verbs.resume("s")
        assert resumed.next_at == NOON + timedelta(days=31, hours=1)
        h.settle()
        assert not Tick.objects.exists()
        h.advance("1 hour")
        h.settle()
        assert Tick.objects.get().outcome == "started"

    def test_it_says_who_and_why(self, h: Harness) -> None:
        make()
        with acting_as(Actor("cli", label="ada"), reason="bank is down"):
            verbs.pause("s")
        assert (row().paused_by, row().pause_reason, row().paused_at) == ("ada", "bank is down", NOON)

    def test_what_the_code_no_longer_has_is_not_resumed(self, h: Harness) -> None:
        of_code()
        Schedule.objects.update(gone_at=NOON, paused=True)
        with pytest.raises(ScheduleError, match="no longer in the code"):
            verbs.resume("s")


class TestRunningNow:
    def test_it_starts_a_run_for_now(self, h: Harness) -> None:
        make(args=[7])
        h.advance("10 minutes")
        tick = verbs.run_now("s")
        assert (tick.outcome, tick.kind, tick.run_id) == ("started", "run_now", "s@2026-01-01T12:10:00Z")
        assert row().next_at == NOON + timedelta(hours=1)
        assert h.finish(tick.run_id).output == 7

    def test_it_obeys_overlap_unless_forced(self, h: Harness) -> None:
        make()
        verbs.run_now("s")
        h.advance("1 second")
        assert verbs.run_now("s").outcome == "skipped"
        h.advance("1 second")
        assert verbs.run_now("s", force=True).outcome == "started"

    def test_a_tick_respects_the_run_before_a_forced_one(self, h: Harness) -> None:
        make()
        h.settle()
        verbs.run_now("s")
        h.advance("1 minute")
        forced = verbs.run_now("s", force=True)
        get_run(forced.run_id).cancel()
        h.advance("59 minutes")
        h.settle()
        assert Tick.objects.latest("number").outcome == "skipped"

    def test_a_paused_schedule_is_run_too(self, h: Harness) -> None:
        make()
        verbs.pause("s")
        assert verbs.run_now("s").outcome == "started"
        assert row().due_at is None

    def test_a_tick_that_waits_while_the_schedule_is_paused_says_so(self, h: Harness) -> None:
        make(overlap="queue")
        verbs.pause("s")
        ticks = []
        for _ in range(3):
            ticks.append(verbs.run_now("s"))
            h.advance("1 second")
        assert [each.outcome for each in ticks] == ["started", "waiting", "merged"]
        assert ticks[2].why == "the tick of 2026-01-01T12:00:01Z waits already, until the schedule is resumed"
        h.finish(ticks[0].run_id)
        h.settle()
        waiting = Tick.objects.get(number=2)
        assert waiting.why_now.startswith("the schedule is paused: this tick begins when it is resumed")
        with pytest.raises(RunNotFoundError, match="waiting: the schedule is paused"):
            get_run("s@2026-01-01T12:00:01Z").info()
        verbs.resume("s")
        h.settle()
        assert Tick.objects.get(number=2).run_id == "s@2026-01-01T12:00:01Z"


class TestBackfilling:
    def test_the_moments_without_a_run_are_started(self, h: Harness) -> None:
        make()
        h.advance("1 hour")
        h.settle()
        planned = verbs.plan_backfill("s", NOON - timedelta(hours=2), h.now)
        assert (len(planned.moments), planned.existing) == (3, 1)
        ticks = verbs.backfill("s", NOON - timedelta(hours=2), h.now)
        assert [each.run_id for each in ticks] == [f"s@2026-01-01T{hour}:00:00Z" for hour in (10, 11, 12)]
        assert {each.kind for each in ticks} == {"backfill"}
        assert verbs.backfill("s", NOON - timedelta(hours=2), h.now) == []
        assert row().next_at == NOON + timedelta(hours=2)

    def test_a_tick_respects_the_oldest_run_of_a_backfill(self, h: Harness) -> None:
        make()
        oldest, *others = verbs.backfill("s", NOON - timedelta(hours=29), NOON)
        for each in others:
            get_run(each.run_id).cancel()
        h.run(oldest.run_id)
        h.advance("1 hour")
        h.settle()
        assert Tick.objects.latest("number").outcome == "skipped"

    @pytest.mark.parametrize(("since", "until"), [(0, 1), (-1, -2), (-300, 0)])
    def test_other_periods_are_refused(self, h: Harness, since: int, until: int) -> None:
        make()
        with pytest.raises(ValueError, match=r"period"):
            verbs.backfill("s", NOON + timedelta(hours=since), NOON + timedelta(hours=until))


class TestEditing:
    def test_what_is_given_changes_and_the_rest_stays(self, h: Harness) -> None:
        make(args=[7], overlap="queue", catch_up="all", window="1 hour")
        verbs.edit("s", rule="every 6 hours", jitter="1 min", kwargs={})
        found = row()
        assert (found.rule, found.overlap) == ("every 6 hours", "queue")
        assert (found.catch_up, found.window) == ("all", timedelta(hours=1))
        assert found.next_at == NOON + timedelta(hours=6)
        assert arguments_of(found) == ([7], {})
        changed = verbs.edit("s", no_window=True, args=[8], catch_up="none")
        assert (changed.window, changed.catch_up) == (None, "none")
        assert arguments_of(row()) == ([8], {})


class TestOverriding:
    def test_the_operators_rule_is_in_force_until_it_is_taken_back(self, h: Harness) -> None:
        of_code()
        changed = verbs.override("s", "0 9 * * *", zone="Asia/Tokyo")
        assert (changed.rule, changed.is_overridden) == ("0 * * * *", True)
        assert changed.next_at == datetime(2026, 1, 2, 0, 0, tzinfo=UTC)
        changed = verbs.take_back("s")
        assert changed.next_at == NOON + timedelta(hours=1)


class TestDeleting:
    def test_the_ticks_go_and_the_runs_stay(self) -> None:
        verbs.create("s", "tests.verbs.nap", "0 * * * *")
        verbs.run_now("s")
        verbs.delete("s")
        assert not Tick.objects.exists()
        assert Run.objects.count() == 1

    def test_one_of_the_code_goes_once_the_code_no_longer_has_it(self, h: Harness) -> None:
        of_code()
        Schedule.objects.update(gone_at=NOON, paused=True)
        verbs.delete("s")
        assert not Schedule.objects.exists()


def test_creating_and_editing_need_what_a_start_needs(h: Harness) -> None:
    """A schedule starts any workflow with any arguments."""
    assert needed_by("create_schedule") == ("add_schedule", "start_run")
    assert needed_by("edit_schedule") == ("change_schedule", "start_run")


def test_a_queue_that_nobody_can_serve_is_refused(h: Harness) -> None:
    with pytest.raises(ValueError, match='no worker can serve the queue "nowhere": RQ_QUEUES has default, high'):
        make("other", queue="nowhere")
    before = make().queue
    with pytest.raises(ValueError, match="no worker can serve"):
        verbs.edit("s", queue="nowhere")
    assert [each.queue for each in Schedule.objects.all()] == [before]
