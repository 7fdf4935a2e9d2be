"""What is shown of failures: of joins and races, before a recovery, and of compensations."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from durable import get_run, operations
from durable.core.errors import InvalidTransitionError
from durable.inspection.comparison import compare_runs
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.explanation import explain_fully
from durable.inspection.forks import first_failed_branch
from durable.inspection.progress import progress_of
from durable.inspection.runs import RunCriteria, list_runs
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.inspection.undone import is_undone, state_word
from durable.models import EntryMetadata, Failure, Run
from durable.operations.audit import Actor, acting_as
from durable.operations.verbs import possible_verbs
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url


@pytest.fixture(autouse=True)
def _broken() -> None:
    flows.SWITCH["broken"] = True


def statuses(run_id: str, **options: Any) -> dict[str, str]:
    return {node.location: node.status for node in history_tree(Run.objects.get(pk=run_id), **options).nodes}


class TestAFailedJoin:
    def test_its_status_is_the_outcome_that_it_handed_on(self, stage: Stage) -> None:
        stage.start(flows.album, id="run")
        [images] = history_tree(Run.objects.get(pk="run")).roots
        assert (images.status, images.note) == ("failed", "1 of 30 branches failed")
        ends = [branch.status for branch in images.children]
        assert (ends.count("completed"), ends[28]) == (29, "failed")
        assert statuses("run")["images/image 28/sides"] == "failed"
        flows.SWITCH["broken"] = False
        get_run("run").recover()
        stage.settle("run")
        assert set(statuses("run").values()) == {"completed"}

    def test_only_what_failed_leaves_its_completed_branches_out(self, stage: Stage) -> None:
        stage.start(flows.album, id="run")
        assert statuses("run", only_failed=True) == {
            "images": "failed",
            "images/image 28": "failed",
            "images/image 28/sides": "failed",
            "images/image 28/sides/front": "failed",
            "images/image 28/sides/front/watermark": "exhausted",
        }
        stage.start(flows.broken_branch, id="no-entry")
        assert statuses("no-entry", only_failed=True) == {"ship": "failed", "ship/label": "failed"}

    def test_the_explanation_leads_to_the_innermost_step_that_failed(self, stage: Stage, operator: Client) -> None:
        run = stage.start(flows.album, id="run")
        said = explain_fully(run, stage.now)
        assert said.location == "images/image 28/sides/front/watermark"
        assert said.headline.startswith(
            'Failed at "images / image 28 / sides / front / watermark" now: CriticalError: no such image'
        )
        assert "no such image" in said.headline
        run = stage.start(flows.broken_branch, id="no-entry")
        assert explain_fully(run, stage.now).location == "ship"

    def test_its_page_tells_the_errors_of_its_branches(self, stage: Stage, operator: Client) -> None:
        run = stage.start(flows.album, id="run")
        detail = read_entry_detail(run, "images", with_payloads=True)
        assert detail is not None
        assert detail.status == "failed"
        first, second = detail.branches[:2]
        place = "images/image 28/sides/front/watermark"
        assert (first.name, first.status, first.location) == ("image 28", "failed", place)
        assert first.error is not None
        assert "no such image" in first.error.message
        assert (second.name, second.status, second.error) == ("image 0", "completed", None)
        page = text_of(operator.get(url("step", "run"), {"at": "images"}))
        assert "no such image" in page
        assert "at=images%2Fimage%2028%2Fsides%2Ffront%2Fwatermark" in page

    def test_a_failure_that_the_code_has_caught_is_said_to_be(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.caught_join, id="run")
        nodes = {node.location: node for node in history_tree(Run.objects.get(pk="run")).nodes}
        assert {location for location, node in nodes.items() if node.is_caught} == {
            "careful/ship",
            "careful/ship/label",
            "careful/ship/label/buy",
        }
        assert "durable-caught" in text_of(operator.get(url("change", "run"), {"part": "history"}))
        stage.start(flows.album, id="fatal")
        assert not any(node.is_caught for node in history_tree(Run.objects.get(pk="fatal")).nodes)


class TestTheBranchThatFailedFirst:
    def test_it_is_named_with_its_step(self, stage: Stage, operator: Client) -> None:
        error = stage.start(flows.parcels, id="run").error
        assert error is not None
        assert error.origin is not None
        assert error.origin.location == "ship/label/charge"
        first = replace(error.origin, location="ship/mail/charge", place="ship/mail/charge")  # as if it had been slower
        Run.objects.filter(pk="run").update(error=replace(error, origin=first))
        found = first_failed_branch(Run.objects.get(pk="run"))
        assert found is not None
        assert found.text == 'Branch "mail" of "ship" failed first (2 of 3 branches failed)'
        assert found.location == "ship/mail/charge"
        page = text_of(operator.get(url("change", "run")))
        assert "Branch &quot;mail&quot; of &quot;ship&quot; failed first" in page
        assert "at=ship%2Fmail%2Fcharge" in page

    def test_one_that_failed_alone_is_not_called_the_first(self, stage: Stage) -> None:
        found = first_failed_branch(stage.start(flows.broken_branch, id="run"))
        assert found is not None
        assert found.text == 'Branch "label" of "ship" failed (1 of 2 branches failed)'
        assert found.location == ""

    def test_a_run_that_failed_in_no_branch_has_none(self, stage: Stage) -> None:
        assert first_failed_branch(stage.start(flows.switched, id="run")) is None
        assert first_failed_branch(stage.start(flows.quick, id="quick")) is None


class TestARecovery:
    def test_failed_attempts_from_before_it_stay(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.switched, id="run")
        flows.SWITCH["broken"] = False
        stage.advance(minutes=4)
        with acting_as(Actor("cli", label="ada"), reason="bank is back"):
            operations.recover("run")
        run = stage.settle("run")
        assert run.state == "completed"
        assert statuses("run", only_failed=True) == {"charge": "completed"}
        [charge] = history_tree(Run.objects.get(pk="run"), only_failed=True).nodes
        assert charge.failed_attempts == 1
        [row] = [row for row in build_timeline(run, stage.now).rows if row.location == "charge"]
        assert [span.kind for span in row.spans] == ["failed", "attempt"]  # what is between is no backoff
        assert "1 failed" in text_of(operator.get(url("change", "run"), {"part": "history"}))

    def test_what_is_given_by_hand_takes_no_time(self, stage: Stage, operator: Client) -> None:
        """A replay has made none of the attempts that it takes over, and a given output has not taken an hour."""
        stage.start(flows.switched, id="run")
        lasting = EntryMetadata.objects.filter(entry__run="run", entry__location="before")
        lasting.update(last_attempt_at=F("completed_at") - timedelta(minutes=20))
        stage.advance(hours=1)
        with acting_as(Actor("cli", label="ada"), reason="paid in cash"):
            get_run("run").give_output("charge", "by hand", id="again")
        run = stage.settle("again")
        assert run.state == "completed"
        assert progress_of(run).active < 60
        [row] = [row for row in build_timeline(run, stage.now).rows if row.location == "charge"]
        *_, last = row.spans
        assert (last.kind, last.begins_at) == ("given", last.ends_at)
        page = text_of(operator.get(url("change", "again")))
        assert '<td role="cell">1 attempt, given by hand</td>' in page
        assert "given by hand</li>" in page
        history = text_of(operator.get(url("change", "again"), {"part": "history"}))
        assert history.count("-1 h") == 2  # what it has taken over began before it
        compared = compare_runs(run, Run.objects.get(pk="run"), with_payloads=False)
        [charge] = [each.left for each in compared.rows if each.location == "charge"]
        assert charge is not None
        assert (charge.is_given, charge.took) == (True, None)
        shown = text_of(operator.get(url("compare", "again"), {"with": "run"}))
        assert "1 h" not in shown.partition("by hand")[0][-300:]

    @pytest.mark.parametrize(
        ("workflow", "argument", "why"),
        [
            (flows.switched, 1, "no attempts are left"),
            (flows.bill, 1, "its error allows no further attempt"),
        ],
    )
    def test_a_step_says_in_words_why_it_failed_for_good(
        self, stage: Stage, operator: Client, workflow: Any, argument: int, why: str
    ) -> None:
        stage.start(workflow, argument, id="run")
        page = text_of(operator.get(url("step", "run"), {"at": "charge"}))
        assert f"<dt>Failed for good</dt><dd>{why}</dd>" in page
        assert "durable-exhausted" in page
        assert ">failed for good</span>" in page

    def test_what_operators_did_is_marked_on_the_timeline(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.switched, id="run")
        stage.advance(minutes=4)
        flows.SWITCH["broken"] = False
        with acting_as(Actor("cli", label="ada"), reason="bank is back"):
            operations.recover("run")
        stage.advance(minutes=4)
        run = stage.settle("run")
        with pytest.raises(InvalidTransitionError), acting_as(Actor("cli", label="ada")):
            operations.recover("run")  # refused: not shown
        drawn = build_timeline(run, stage.now, is_folded=False)
        [action] = drawn.actions
        assert action.title == "recovered by ada: bank is back"
        assert drawn.axis.position(action.at) == pytest.approx(0.5, abs=0.05)
        page = text_of(operator.get(url("change", "run")))
        assert "recovered by ada: bank is back" in page
        assert page.count('class="durable-fall-action"') == 1


class TestACompensation:
    def test_an_undone_run_has_a_word_of_its_own(self, stage: Stage, operator: Client) -> None:
        run = stage.start(flows.saga, id="undone")
        assert (run.state, state_word(run), is_undone(run)) == ("failed", "failed, undone", True)
        replay = f"{url('replay', 'undone')}?at=charge"
        for page in (url("change", "undone"), url("changelist"), url("act", "undone", "recover"), replay):
            assert "failed, undone" in text_of(operator.get(page))
        run = stage.start(flows.switched, id="failed")
        assert (state_word(run), is_undone(run)) == ("failed", False)

    def test_undone_runs_can_be_listed(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.saga, id="undone")
        stage.start(flows.switched, id="failed")
        stage.start(flows.saga_that_sleeps, id="cancelled")
        get_run("cancelled").cancel(rollback=True)
        stage.settle("cancelled")
        found = list_runs(RunCriteria(is_undone=True)).runs
        assert {run.id for run in found} == {"undone", "cancelled"}
        failed = list_runs(RunCriteria(is_undone=True, states=frozenset({"failed"}))).runs
        assert [run.id for run in failed] == ["undone"]
        page = text_of(operator.get(url("changelist"), {"undone": "1"}))
        assert "Choose run undone" in page
        assert "Choose run failed" not in page

    def test_a_stuck_one_leads_to_its_step_and_tells_the_handlers_error(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["rollback_broken"] = True
        run = stage.start(flows.saga, id="stuck")
        said = explain_fully(run, stage.now)
        assert said.location == "charge"
        page = text_of(operator.get(url("change", "stuck")))
        error = page.partition('aria-label="Error"')[2].partition("</section>")[0]
        assert "the bank is closed" in error
        drawn = build_timeline(run, stage.now)
        assert "charge" in [row.location for row in drawn.failed]
        [row] = [row for row in drawn.rows if row.location == "charge"]
        assert (row.is_stuck, row.note, row.status) == (True, "compensation failed", "completed")
        assert "in refund" in error  # the handler's traceback
        assert "out of stock" in error
        assert [span.kind for span in row.spans] == ["attempt", "rollback failed"]
        step = text_of(operator.get(url("step", "stuck"), {"at": "charge"}))
        assert "Its rollback handler failed." in step
        assert 'class="durable-card durable-headline durable-failed"' in step

    def test_failed_attempts_have_the_handler(
        self, stage: Stage, operator: Client, log_in: Callable[..., Client]
    ) -> None:
        flows.SWITCH["rollback_broken"] = True
        stage.start(flows.saga, id="stuck")
        address = f"{url('change', 'stuck')}?part=attempts"
        shown = text_of(operator.get(address))
        assert "rollback handler, 1 attempt failed" in shown
        assert "the bank is closed" in shown
        assert "in refund" in shown  # the traceback
        assert "No attempt has failed" not in shown
        assert "in refund" not in text_of(log_in("view_run", name="bob").get(address))
        stage.start(flows.approve, id="healthy")
        assert "No attempt has failed" in text_of(operator.get(f"{url('change', 'healthy')}?part=attempts"))

    def test_the_failure_that_it_undoes_is_told_as_elsewhere(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["rollback_broken"] = True
        run = stage.start(flows.saga_of_steps, id="stuck")
        said = explain_fully(run, stage.now).detail
        assert said.startswith(
            'It was undoing its steps because it failed at "charge": GatewayTimeout: no answer for 1. Fix what'
        )
        get_run("stuck").recover()
        said = explain_fully(Run.objects.get(pk="stuck"), stage.now).detail
        assert said == 'Because it failed at "charge": GatewayTimeout: no answer for 1'

    def test_one_of_the_codes_own_too(self, stage: Stage) -> None:
        flows.SWITCH["rollback_broken"] = True
        run = stage.start(flows.undoing, id="stuck")
        assert run.state == "failed"
        assert explain_fully(run, stage.now).location == "charge"


class TestTheStepsPage:
    def test_a_failed_step_tells_its_traceback_once_and_offers_a_recovery(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.switched, id="run")
        page = text_of(operator.get(url("step", "run"), {"at": "charge"}))
        assert page.count("Traceback (most recent call last)") == 1
        assert url("act", "run", "recover") in page
        assert 'href="' + url("step", "run") + '?at=before" rel="prev"' in page
        assert 'rel="next"' not in page
        before = text_of(operator.get(url("step", "run"), {"at": "before"}))
        assert url("act", "run", "recover") not in before
        assert '?at=charge" rel="next"' in before

    def test_a_paused_run_has_no_next_try(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.stubborn, id="run")
        assert "next try" in text_of(operator.get(url("live", "run"), {"part": "history"})).partition("History")[2]
        get_run("run").pause()
        stage.advance(hours=1)
        page = text_of(operator.get(url("live", "run"), {"part": "history"}))
        assert "next try" not in page.partition("History")[2]
        assert "tried again once the run is resumed" in page
        assert "Next try" not in text_of(operator.get(url("step", "run"), {"at": "charge"}))


def test_verbs_that_make_no_sense_are_not_offered(stage: Stage, operator: Client) -> None:
    run = stage.start(flows.approve, id="run")
    assert {"wake", "cancel", "restart"} <= set(possible_verbs(run))
    get_run("run").wake()
    stage.claim("run")
    get_run("run").cancel()
    run.refresh_from_db()
    assert "cancel" not in possible_verbs(run)
    page = text_of(operator.get(url("change", "run")))
    assert url("act", "run", "wake") not in page
    assert url("act", "run", "cancel") not in page
    run.workflow = "durable.bulk"
    assert "restart" not in possible_verbs(run)


def verbs_of(operator: Client, name: str) -> list[str]:
    """The verbs of a run's page, in their order."""
    shown = text_of(operator.get(url("live", name)))
    part = shown.partition('aria-label="What you can do"')[2].partition("</div>")[0]
    return re.findall(r">([^<>]+)</a>", part)


def test_verbs_lead_by_what_the_state_calls_for(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="due", settle=False)
    assert verbs_of(operator, "due") == [
        *("Pause", "Cancel", "Start again", "Move to a queue", "Send a message")  # waking changes nothing
    ]
    stage.start(flows.approve, id="waits")
    assert verbs_of(operator, "waits")[0] == "Send a message"
    stage.start(flows.nap, id="sleeps")
    assert verbs_of(operator, "sleeps")[0] == "Wake now"
    assert verbs_of(operator, "sleeps")[-1] == "Send a message"


def test_options_that_can_have_no_effect_are_not_offered(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="due", settle=False)
    shown = text_of(operator.get(url("act", "due", "cancel")))
    assert "Interrupt the running step" not in shown
    assert "Compensate first" not in shown
    stage.start(flows.approve, id="waits")
    assert "Compensate first" in text_of(operator.get(url("act", "waits", "cancel")))


def test_the_list_offers_the_verbs_that_its_states_allow(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="waits")
    stage.start(flows.switched, id="failed")

    def offered(query: str) -> list[str]:
        return re.findall(r'name="verb" value="(\w+)"', text_of(operator.get(url("changelist") + query)))

    assert offered("?state=failed") == ["recover", "replay"]
    assert offered("?state=sleeping") == ["wake", "pause", "cancel", "move"]
    assert offered("") == ["recover", "replay", "wake", "pause", "resume", "cancel", "move"]


@pytest.mark.parametrize("seconds", [0.4, 3.0, 5.9, 61.0])
def test_no_label_of_a_timeline_is_told_twice(stage: Stage, operator: Client, seconds: float) -> None:
    run = stage.start(flows.quick, id="run")
    begun = run.created_at.replace(second=0, microsecond=900_000)
    ended = begun + timedelta(seconds=seconds)
    Run.objects.filter(pk="run").update(created_at=begun, started_at=begun, finished_at=ended)
    EntryMetadata.objects.update(created_at=begun, last_attempt_at=begun, completed_at=ended)
    shown = text_of(operator.get(f"{url('change', 'run')}?time=real"))
    labels = re.findall(r"<text[^>]*>(\d\d:\d\d:\d\d(?:\.\d+)?)</text>", shown)
    assert len(labels) >= 2
    assert sorted(set(labels)) == sorted(labels)


def test_lists_name_the_step_that_made_a_join_fail(
    stage: Stage, operator: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run's page does, which reads the joins; a list reads the causes of its runs, with one statement."""
    stage.start(flows.album, id="album")
    stage.start(flows.parcels, id="parcels")
    pages = [url("changelist"), url("cause", Failure.objects.get(run="album").cause.fingerprint), "/api/runs"]
    shown = [unescape(operator.get(page).content.decode()).replace('\\"', '"') for page in pages]
    call_command("durable", "list")
    for each in (*shown, capsys.readouterr().out):
        assert 'Failed at "images / image 28 / sides / front / watermark"' in each
    assert 'Failed at "ship / label / charge"' in shown[0]


def test_a_list_without_failed_joins_asks_for_no_causes(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="run")
    with CaptureQueriesContext(connection) as queries:
        assert 'Failed at "charge"' in unescape(operator.get(url("changelist")).content.decode())
    assert not [each for each in queries if "durable_cause" in each["sql"]]
