"""What a run does or waits for, in words: for a list's row and for its own page."""

from datetime import timedelta
from itertools import product

import pytest
from django.utils import translation
from pytest_django import DjangoAssertNumQueries

from durable import Context, CriticalError, RollbackContext, get_run, runtime, workflow
from durable.conf import conf
from durable.core import registry
from durable.core.records import RunState
from durable.inspection.explain_states import Explanation
from durable.inspection.explanation import explain, explain_fully
from durable.models import Run
from durable.operations import bulk
from durable.operations.verbs import possible_verbs
from tests.admin import flows
from tests.admin.conftest import Stage


def explanation(stage: Stage, run_id: str) -> Explanation:
    return explain_fully(Run.objects.get(pk=run_id), stage.now)


def test_a_wait_says_what_for_until_when_and_what_came(
    stage: Stage, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    run = stage.start(flows.approve, id="waits")
    with django_assert_num_queries(0):
        of_its_row = explain(run, stage.now)
    with django_assert_num_queries(2):
        said = explain_fully(run, stage.now)
    assert said.headline.startswith("Waiting for a message in approved or rejected until ")
    assert said.headline.endswith(", in 2 d; nothing received")
    assert (said.location, said.remedies[0]) == ("approval", "send")
    assert of_its_row.headline == said.headline.removesuffix("; nothing received")
    get_run("waits").send("elsewhere", 1)
    assert explanation(stage, "waits").headline.endswith("; 1 in other queues")
    stage.advance(days=2)  # its deadline is over
    assert explanation(stage, "waits").headline == (
        "Waiting for a message in approved or rejected; a message or the deadline has come; no worker has taken it yet"
    )


def test_a_divergence_is_explained_to_its_end(stage: Stage) -> None:
    run = stage.start(flows.nap, id="waits")
    run.diverged_at = stage.now
    run.summary = f"trying again until the grace period ends: {'x' * 600} and bring it back."
    assert "and bring it back. If no deploy is under way" in explain(run, stage.now).detail


@pytest.mark.parametrize("text", ["as it is", '{"kind":"unheard_of"}', '{"kind":"waiting","doing":'])
def test_a_summary_without_data_is_shown_as_it_is(stage: Stage, text: str) -> None:
    stage.start(flows.nap, id="waits")
    Run.objects.filter(pk="waits").update(summary=text)
    assert get_run("waits").summary == text
    run = Run.objects.get(pk="waits")
    for state, diverged_at in product(RunState, (None, stage.now)):
        run.state, run.diverged_at = state, diverged_at
        said = explain(run, stage.now)
        assert said.headline, state
        if state is RunState.SLEEPING:
            assert text in said.text.replace("As it is", "as it is")


def test_a_step_in_backoff_says_which_attempt_and_when_the_next_one_is(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    run = stage.start(flows.stubborn, id="fails")
    headline = explanation(stage, "fails").headline
    assert headline.startswith('Step "charge" failed (GatewayTimeout), attempt 1 of 3, next try ')
    assert headline.endswith(", in 12 m")
    assert explain(run, stage.now).headline == headline


def test_an_exhausted_step_needs_a_person(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="exhausted")
    stage.advance(minutes=6)
    said = explanation(stage, "exhausted")
    assert said.headline.startswith('Failed at "charge" 6 m ago: GatewayTimeout: no answer for 1')
    assert (said.needs_attention, said.remedies[0], said.location) == (True, "recover", "charge")


def test_an_error_of_the_code_itself_names_the_place_to_replay(stage: Stage) -> None:
    stage.start(flows.refused, id="fails")
    found = explanation(stage, "fails")
    assert "a recovery only runs the code again" in found.detail
    assert 'To try "charge" again, replay the run from there' in found.detail
    assert (found.location, found.remedies[0]) == ("charge", "replay")


def test_a_sleep_says_its_name_and_its_end(stage: Stage) -> None:
    stage.start(flows.nap, id="sleeps")
    assert explanation(stage, "sleeps").headline.startswith('Asleep in "cool off" until ')
    assert explanation(stage, "sleeps").headline.endswith(", in 3 h")


def test_a_name_that_no_database_can_write_is_shown_as_it_is(stage: Stage) -> None:
    odd = 'a/b ~%\x00\ud800"'
    run = stage.start(flows.nap, odd, id="sleeps")
    assert run.summary.startswith(f'asleep in "{odd}"; goes on at ')
    assert explanation(stage, "sleeps").headline.startswith('Asleep in "a/b ~%')


def test_a_run_that_no_worker_takes_needs_a_person(stage: Stage) -> None:
    stage.start(flows.quick, id="due", settle=False)
    assert explanation(stage, "due").headline == 'Waiting for a worker of the queue "default"'
    stage.advance(minutes=5)
    said = explanation(stage, "due")
    assert said.headline == 'Due for 5 m, and no worker of the queue "default" has taken it'
    assert said.needs_attention
    assert "durable_worker default" in said.detail


def test_a_run_on_a_queue_that_the_settings_lack_says_what_they_have(stage: Stage) -> None:
    flows.quick.using(id="due", queue="defualt").start()
    stage.advance(minutes=5)
    said = explanation(stage, "due")
    assert "RQ_QUEUES lacks this queue, and has default" in said.detail
    assert said.remedies == ("move",)


def test_a_workflow_that_a_worker_of_an_older_build_does_not_know_is_not_said_to_be_unknown_to_all(
    stage: Stage,
) -> None:
    @workflow(name="tests.explain.flat")
    def flat(_ctx: Context) -> str:
        return "done"

    flat.using(id="run").start()
    registry.registry.unregister(flat)
    stage.run("run")
    told = explanation(stage, "run")
    assert told.headline.startswith('The worker that took it does not know the workflow "tests.explain.flat"')
    assert told.detail == "Deploy the code that has the workflow to the workers of its queue, or cancel the run"
    registry.registry.register(flat)  # in this process, which is of a newer build
    told = explanation(stage, "run")
    assert told.headline.startswith('The worker that took it does not know the workflow "tests.explain.flat"')
    assert told.detail == (
        "The code here has the workflow: a worker of its queue that runs this code takes the run when it is due"
    )
    stage.advance(minutes=1)
    assert stage.run("run").state == "completed"


def test_a_delayed_start_says_when(stage: Stage) -> None:
    flows.quick.using(id="later", delay=3600).start()
    assert explanation(stage, "later").headline.startswith("Starts ")
    assert explanation(stage, "later").headline.endswith(", in 1 h")


def test_a_running_step_says_on_which_worker(stage: Stage) -> None:
    stage.start(flows.quick, id="runs", settle=False)
    assert stage.claim("runs") is not None
    assert explanation(stage, "runs").headline == "Running on worker host:4711:abc"
    stage.advance(minutes=3)
    said = explanation(stage, "runs")
    assert said.headline == "Its worker host:4711:abc has given no sign of life for 2 m 30 s"
    assert said.needs_attention


def test_a_request_says_that_it_is_not_obeyed_yet(stage: Stage) -> None:
    stage.start(flows.quick, id="asked", settle=False)
    stage.claim("asked")
    get_run("asked").pause()
    assert explanation(stage, "asked").headline == "Asked to pause: takes effect at the next operation"


def sleepy(_rollback: RollbackContext, _output: object) -> None:
    raise OSError("the bank sleeps")


@workflow(name="tests.undone_slowly")
def undone_slowly(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", flows.value_of, 1, rollback=sleepy, retry_backoff_base=600, retry_backoff_max=600)
    raise CriticalError("out of stock")


def test_a_request_to_a_compensation_too_which_is_resumed_and_not_cancelled(stage: Stage) -> None:
    assert stage.start(undone_slowly, id="asked").state == "rolling_back"
    get_run("asked").wake()
    stage.claim("asked")
    get_run("asked").pause()
    asked = explanation(stage, "asked")
    assert (asked.headline, asked.remedies) == ("Asked to pause: takes effect at the next operation", ("resume",))
    stage.advance(minutes=1)
    stage.settle("asked")
    paused = explanation(stage, "asked")
    assert paused.headline == "Paused in the middle of its compensation, until it is resumed"
    assert paused.remedies == ("resume",)


def test_no_verb_is_named_that_a_run_of_durable_itself_does_not_have(stage: Stage) -> None:
    bulk.apply("wake", ["none"], as_id="bulk", in_background=True)
    get_run("bulk").cancel()
    assert explanation(stage, "bulk").remedies == possible_verbs(Run.objects.get(pk="bulk")) == ()


def test_a_failed_rollback_handler_is_shown_apart_from_the_failure(stage: Stage) -> None:
    flows.SWITCH["rollback_broken"] = True
    stage.start(flows.saga, id="stuck")
    said = explanation(stage, "stuck")
    assert said.headline.startswith('Compensation has stopped now, after 0 s: the rollback handler of "charge" failed')
    assert "out of stock" in said.detail
    assert said.remedies == ("recover",)


def test_a_compensated_run_says_what_was_undone_and_that_a_retry_does_it_again(
    stage: Stage, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    run = stage.start(flows.saga, id="undone")
    assert run.summary == "compensated: 1 step was undone; recover() does the undone steps again, from the earliest on"
    with django_assert_num_queries(2):
        said = explain_fully(run, stage.now)
    assert said.headline == "Failed now: CriticalError: out of stock; compensated: 1 step was undone"
    assert explain(run, stage.now).headline == said.headline
    assert said.detail.startswith(
        'Compensated: 1 step was undone ("charge"). Recovering the run does what was undone AGAIN'
    )
    assert 'from "charge" on' in said.detail
    assert "goes back to the earliest step that was undone" in explain(run, stage.now).detail


def test_a_retry_does_the_loop_again_in_which_the_first_undone_step_stands(stage: Stage) -> None:
    stage.start(flows.undone_in_a_loop, id="undone")
    assert (
        '2 steps were undone ("turns / iteration 0 / charge", "turns / iteration 1 / charge")'
        in explanation(stage, "undone").detail
    )
    assert 'from "turns" on' in explanation(stage, "undone").detail
    with translation.override("de"):
        detail = explanation(stage, "undone").detail
    assert "(„turns / Iteration 0 / charge“, „turns / Iteration 1 / charge“)" in detail
    assert '"' not in detail


def test_a_cancelled_run_says_what_was_undone(stage: Stage) -> None:
    stage.start(flows.saga_that_sleeps, id="undone")
    get_run("undone").cancel(rollback=True)
    stage.settle("undone")
    assert explanation(stage, "undone").headline.endswith("; compensated: 1 step was undone")


def test_what_the_code_has_undone_itself_is_not_done_again(stage: Stage) -> None:
    stage.start(flows.undoing_that_fails, id="undone")
    said = explanation(stage, "undone")
    assert "compensated" not in said.headline
    assert said.detail.endswith("the rest goes on from there")


@pytest.mark.parametrize(
    ("verb", "headline"),
    [("pause", "Paused, until it is resumed"), ("cancel", "Cancelled now, after 0 s")],
)
def test_what_an_operator_did_is_said(stage: Stage, verb: str, headline: str) -> None:
    stage.start(flows.approve, id="run")
    getattr(get_run("run"), verb)()
    assert explanation(stage, "run").headline == headline


def test_a_run_that_may_have_crashed_a_worker_waits_to_run_alone(stage: Stage) -> None:
    stage.start(flows.quick, id="suspect", settle=False)
    assert stage.claim("suspect") is not None
    stage.advance(minutes=3)
    record = stage.claim("suspect")
    assert record is not None
    said = explanation(stage, "suspect")
    assert said.headline == "Waits to run alone: it may have crashed a worker"
    assert said.detail == "Worker host:4711:abc has it"
    store = runtime.current().store
    store.release([("suspect", record.fence)], stage.now, due_at=stage.now + timedelta(seconds=5))
    said = explanation(stage, "suspect")
    assert (said.headline, said.detail) == ("Waits to run alone: it may have crashed a worker", "")
    stage.advance(minutes=3)
    assert explanation(stage, "suspect").headline.startswith("Due for ")
    stage.claim("suspect")
    stage.advance(minutes=3)
    stage.claim("suspect")
    said = explanation(stage, "suspect")
    assert said.headline == "Waits to run alone: it may have crashed 2 workers in a row"
    assert said.needs_attention


def test_a_run_that_crashes_its_workers_says_how_many_it_crashed(stage: Stage) -> None:
    flows.nap.using(id="kills").start()
    for _ in range(conf.MAX_CRASHES + 1):
        assert stage.claim("kills") is not None
        stage.advance(seconds=conf.LEASE + 1)
    assert stage.run("kills").state == "failed"
    assert explanation(stage, "kills").headline.endswith(f"it crashed {conf.MAX_CRASHES + 1} workers in a row")
