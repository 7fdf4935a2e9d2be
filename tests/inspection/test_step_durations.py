"""The usual durations of steps: of one that runs now, and of all steps of a workflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from durable import Context, Handle, workflow
from durable.inspection.activities import ENTRIES, FOLDED_FROM, RUNS, usual_durations, workflow_durations
from durable.models import Entry, EntryMetadata
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

ORDER = "tests.durations.order"
#: Whether the step "label" fails.
broken: list[bool] = []


def act() -> None:
    """Does nothing."""


def label() -> None:
    if broken:
        raise ValueError("no paper")


@workflow(name=ORDER)
def order(ctx: Context) -> None:
    ctx.step("charge", act)
    ctx.step("label", label, max_retries=0)


@workflow(name="tests.durations.stubborn")
def stubborn(ctx: Context) -> None:
    ctx.step("label", label, max_retries=1, retry_backoff_base=0)


@workflow(name="tests.durations.polling")
def polling(ctx: Context, times: int) -> None:
    for number in range(times):
        ctx.step(f"poll {number}", act)


@contextmanager
def failing() -> Iterator[None]:
    """Have the step "label" fail within the block."""
    broken.append(True)
    try:
        yield
    finally:
        broken.clear()


def ended(seconds: float) -> Handle[None]:
    """An order whose step "charge" took so long."""
    run = order.start()
    pass_once(run)
    took(run, "charge", seconds)
    return run


def took(run: Handle[None], location: str, seconds: float, attempts: int = 1) -> None:
    EntryMetadata.objects.filter(entry__run=run.id, entry__location=location).update(
        last_attempt_at=F("completed_at") - timedelta(seconds=seconds), attempts=attempts
    )


def looped(iterations: dict[int, float], location: str = "polling/~{}/poll") -> Handle[None]:
    """A run with an entry for each of these iterations, which took so many seconds."""
    run = order.start()
    pass_once(run)
    for number, seconds in iterations.items():
        charge = Entry.objects.get(run=run.id, location="charge")
        metadata = EntryMetadata.objects.get(entry=charge)
        charge.pk, charge.location, charge.ordinal = None, location.format(number), 100 + number
        charge.save(force_insert=True)
        metadata.entry = charge
        metadata.save(force_insert=True)
        took(run, charge.location, seconds)
    return run


def test_the_durations_of_a_step_are_those_of_the_workflows_newest_runs() -> None:
    for seconds in (1, 2, 3, 40):
        run = ended(seconds)
    step = (ORDER, run.id, "charge")
    [usual] = usual_durations([step]).values()
    assert (usual.place, usual.sampled, usual.failed) == ("charge", 4, 0)
    assert (usual.p50, usual.p95, usual.attempts) == (3.0, 40.0, 1.0)


def test_attempts_are_counted_for_each_success_and_failures_apart() -> None:
    took(ended(1), "charge", 1, attempts=4)
    ended(1)
    with failing():
        ended(1)
    steps = {each.place: each for each in workflow_durations(ORDER)}
    assert steps["charge"].attempts == 2.0
    assert (steps["label"].sampled, steps["label"].failed) == (3, 1)


def counted(workflow: str = ORDER) -> dict[str, tuple[int, int, float | None]]:
    """How often each step was executed, how often it failed for good, and the attempts for a success."""
    return {each.place: (each.sampled, each.failed, each.attempts) for each in workflow_durations(workflow)}


def test_a_failure_for_good_is_counted_after_its_recovery_too() -> None:
    run = order.start()
    with failing():
        pass_once(run)
        run.recover()
        assert counted() == {"charge": (1, 0, 1.0), "label": (1, 1, None)}, "it has not been executed again"
        pass_once(run)
        assert counted() == {"charge": (1, 0, 1.0), "label": (2, 2, None)}
        run.recover()
    pass_once(run)
    assert run.state == "completed"
    assert counted() == {"charge": (1, 0, 1.0), "label": (3, 2, 1.0)}


def test_an_attempt_that_is_followed_by_another_one_is_no_failure_for_good() -> None:
    run = stubborn.start()
    with failing():
        pass_once(run)
        assert counted(stubborn.name) == {}
        pass_once(run)
        assert run.state == "failed"
        run.recover()
        pass_once(run)
    pass_once(run)
    assert run.state == "completed"
    assert counted(stubborn.name) == {"label": (2, 1, 2.0)}


def test_a_step_of_which_nothing_is_known_is_missing() -> None:
    run = ended(1)
    assert usual_durations([(ORDER, run.id, "charge now"), ("tests.durations.unknown", "x", "charge")]) == {}
    assert workflow_durations("tests.durations.unknown") == []
    assert usual_durations([]) == {}


def test_iterations_of_a_loop_are_one_step() -> None:
    run = looped({0: 5, 1: 6, 7000: 7, 7001: 8})
    [usual] = usual_durations([(ORDER, run.id, "polling/~7002/poll")]).values()
    assert (usual.place, usual.sampled, usual.p95) == ("polling / ~ / poll", 4, 8.0)
    assert workflow_durations(ORDER)[0].place == "polling / ~ / poll"


def test_the_innermost_loop_is_the_one_that_is_sampled() -> None:
    run = looped({0: 5, 1: 6}, location="pages/~3/rows/~{}/save")
    [usual] = usual_durations([(ORDER, run.id, "pages/~3/rows/~2/save")]).values()
    assert usual.sampled == 2


def test_steps_of_many_places_are_looked_up_with_two_statements() -> None:
    runs = [ended(number) for number in range(1, 4)]
    steps = [(ORDER, run.id, place) for run in runs for place in ("charge", "label")]
    with CaptureQueriesContext(connection) as queries:
        found = usual_durations(steps)
    assert set(found) == set(steps)
    assert len(queries) == 2
    with CaptureQueriesContext(connection) as queries:
        workflow_durations(ORDER)
    assert len(queries) == 2


def test_a_sample_is_bounded() -> None:
    for _ in range(RUNS + 5):
        ended(1)
    run = polling.start(ENTRIES + 5)
    pass_once(run)
    [charge] = [each for each in workflow_durations(ORDER) if each.place == "charge"]
    assert charge.sampled == RUNS
    assert sum(each.sampled for each in workflow_durations("tests.durations.polling")) == ENTRIES


def test_a_name_that_only_looks_like_an_iteration_is_a_name() -> None:
    run = ended(1)
    assert usual_durations([(ORDER, run.id, "%7E3")]) == {}


def test_many_numbered_steps_of_a_workflow_are_one() -> None:
    run = polling.start(FOLDED_FROM)
    pass_once(run)
    for number in range(FOLDED_FROM):
        took(run, f"poll {number}", number + 1)
    [step] = workflow_durations("tests.durations.polling")
    assert (step.place, step.sampled, step.p50) == ("poll #", FOLDED_FROM, FOLDED_FROM // 2 + 1)


def test_a_few_numbered_steps_of_a_workflow_stay_apart() -> None:
    pass_once(polling.start(FOLDED_FROM - 1))
    places = [step.place for step in workflow_durations("tests.durations.polling")]
    assert sorted(places) == [f"poll {number}" for number in range(FOLDED_FROM - 1)]
