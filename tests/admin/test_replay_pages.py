"""Replay with another input, with an output given by hand, and of children: the pages, their refusals, and who may."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import translation

from durable import get_run
from durable.models import Failure, OperatorAction, Run
from durable.operations import eligibility
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, hidden, text_of, url

pytestmark = pytest.mark.django_db


LogIn = Callable[..., Client]
ALL = (*OPERATOR, "give_output", "edit_input")


@pytest.fixture
def boss(log_in: LogIn) -> Client:
    return log_in(*ALL)


def failed(stage: Stage, run_id: str = "run") -> Run:
    flows.SWITCH["broken"] = True
    return stage.start(flows.switched, 7, id=run_id)


def giving(run_id: str = "run", location: str = "charge") -> str:
    return f"{url('give_output', run_id)}?at={location}"


# -- an output


@pytest.mark.parametrize("in_place", [False, True])
def test_an_output_is_given(stage: Stage, boss: Client, in_place: bool) -> None:
    failed(stage)
    asked = boss.get(giving())
    body = text_of(asked)
    assert "The step “charge” does not run again" in body
    assert "Steps that run again" not in body
    given = {**hidden(asked), "output": '"by hand"', "reason": "seen in the bank's books"}
    done = boss.post(giving(), {**given, **({"in_place": "on"} if in_place else {})}, follow=True)
    [run_id] = [each.id for each in Run.objects.exclude(state="failed")]
    assert (run_id == "run") is in_place
    assert stage.settle(run_id).state == "completed"
    assert get_run(run_id).result() == "by hand"
    assert "output given by hand by ada (admin): seen in the bank&#x27;s books" in text_of(
        boss.get(f"{url('step', run_id)}?at=charge")
    )
    assert "this is the run that does" in text_of(done)
    row = OperatorAction.objects.get(action="give_output")
    assert (row.run_id, row.outcome, row.reason) == ("run", "done", "seen in the bank's books")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"output": "{no"}, "This is not JSON"),
        ({"reason": ""}, "This field is required"),
        ({"output": "NaN"}, "not a number that JSON has"),
    ],
)
def test_a_mistake_gives_nothing(stage: Stage, boss: Client, given: dict[str, str], problem: str) -> None:
    failed(stage)
    answer = confirm(boss, giving(), {"output": "1", "reason": "known", **given})
    assert problem in text_of(answer, 422)
    assert Run.objects.count() == 1


def test_a_page_of_before_gives_nothing(stage: Stage, boss: Client) -> None:
    failed(stage)
    fields = {**hidden(boss.get(giving())), "output": "1", "reason": "known", "in_place": "on"}
    flows.SWITCH["broken"] = False
    get_run("run").recover()
    stage.settle("run")
    assert "has changed since this page was made" in text_of(boss.post(giving(), fields), 409)


def test_a_step_that_would_be_undone_is_refused(stage: Stage, boss: Client) -> None:
    stage.start(flows.saga, id="saga")
    assert "has a rollback handler" in text_of(boss.get(giving("saga", "charge")))


def test_the_replay_page_leads_there_and_says_why_no_argument_can_be_edited(stage: Stage, log_in: LogIn) -> None:
    failed(stage)
    replay = f"{url('replay', 'run')}?at=charge"
    words = "they cannot be edited here. To change them, change the code, the input of the run"
    boss = log_in(*ALL)
    shown = text_of(boss.get(replay))
    assert url("give_output", "run") in shown
    assert words in shown
    assert words not in text_of(boss.get(giving()))
    assert url("give_output", "run") not in text_of(log_in(*OPERATOR, name="olga").get(replay))


def test_the_plan_names_places_in_words(stage: Stage, boss: Client) -> None:
    stage.start(flows.looping, 2, id="loop")
    location = next(each.location for each in get_run("loop").history() if "/~" in each.location)
    body = text_of(boss.get(f"{url('replay', 'loop')}?at={location}"))
    assert "iteration 0" in body
    assert "/~0" not in body.partition("<form")[0]
    assert "Nothing goes from this run, unless you replay it in place" in body


# -- another input


def editing(run_id: str = "run") -> str:
    return url("edit_input", run_id)


def test_a_run_starts_again_with_another_input(stage: Stage, boss: Client) -> None:
    stage.start(flows.quick, 7, id="run")
    asked = boss.get(editing())
    assert "&quot;value&quot;: 7" in text_of(asked)
    given = {**hidden(asked), "values": '{"value": {"amount": 9}}', "reason": "typing error"}
    done, again = boss.post(editing(), given), boss.post(editing(), given)
    assert done["Location"] == again["Location"]
    [new] = Run.objects.exclude(pk="run")
    stage.settle(new.id)
    assert get_run(new.id).result() == {"amount": 9}
    row = OperatorAction.objects.filter(action="edit_input").earliest("id")
    assert (row.run_id, row.outcome, row.reason) == ("run", "done", "typing error")
    assert row.detail == f"as run {new.id}, with another value"
    assert "edit-input" in text_of(boss.get(url("act", "run", "restart")))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ("[1]", "not a JSON object"),
        ('{"valu": 1}', "no argument &#x27;valu&#x27;; its arguments are value"),
        ("{", "This is not JSON"),
    ],
)
def test_an_input_that_does_not_fit_starts_nothing(stage: Stage, boss: Client, values: str, problem: str) -> None:
    stage.start(flows.quick, 7, id="run")
    assert problem in text_of(confirm(boss, editing(), values=values), 422)
    assert Run.objects.count() == 1


@pytest.mark.parametrize("missing", ["edit_input", "start_run", "view_payload", "view_run"])
def test_editing_needs_its_permissions(stage: Stage, log_in: LogIn, missing: str) -> None:
    stage.start(flows.quick, 7, id="run")
    client = log_in(*(each for each in ALL if each != missing))
    for run_id in ("run", "nowhere"):
        assert client.get(editing(run_id)).status_code == 403
        assert client.post(editing(run_id), {"values": "{}"}).status_code == 403
    assert Run.objects.count() == 1
    denied = OperatorAction.objects.get(outcome="denied")  # the others are counted in it
    assert f"durable.{missing}" in denied.detail


def hide(workflow: str, field: str, value: Any) -> Any:
    return {**value, "args": ["****"]} if field == "input" else value


def test_a_hidden_argument_is_neither_shown_nor_written_over(stage: Stage, boss: Client) -> None:
    stage.start(flows.quick, "card-number-of-ada", id="run")
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide"}):
        asked = boss.get(editing())
        body = text_of(asked)
        assert "card-number-of-ada" not in body
        assert "hidden: value" in body
        boss.post(editing(), {**hidden(asked), "values": "{}"})
    [new] = Run.objects.exclude(pk="run")
    stage.settle(new.id)
    assert get_run(new.id).result() == "card-number-of-ada"


def test_a_bulk_of_durable_itself_is_not_started_with_another_order(stage: Stage, boss: Client) -> None:
    from durable.operations import bulk

    run_id = bulk.apply("pause", ["nowhere"], in_background=True).run_id
    assert run_id is not None
    assert confirm(boss, editing(run_id), values='{"order": {"verb": "cancel"}}').status_code == 422
    assert Run.objects.count() == 1


# -- side by side


def test_a_run_and_its_replay_are_compared(stage: Stage, boss: Client, log_in: LogIn) -> None:
    failed(stage)
    confirm(boss, giving(), output='"paid"', reason="known")
    [new] = Run.objects.exclude(pk="run")
    stage.settle(new.id)
    related = boss.get(f"{url('change', new.id)}?part=related")
    assert f"{url('compare', new.id)}?with=run" in text_of(related)
    assert re.search(
        f'<form method="get" action="{url("compare", new.id)}".*?<input name="with" required', text_of(related)
    )
    body = text_of(boss.get(url("compare", new.id)))
    assert "status, error, given by hand, output" in body
    assert "&quot;paid&quot;" in body
    assert ">null</pre>" not in body  # the step that failed has no output
    seen = text_of(log_in("view_run", name="vera").get(url("compare", new.id)))
    assert "status, error, given by hand<" in seen
    assert "paid" not in seen
    assert boss.get(url("compare", "run")).status_code == 404
    assert boss.get(url("compare", "run"), {"with": "nowhere"}).status_code == 404
    assert boss.get(url("compare", "run"), {"with": f" {new.id}\n"}).status_code == 200, "as it was pasted"
    for run_id in ("run", "nowhere"):
        assert log_in("operate_run", name=f"o{run_id}").get(url("compare", run_id)).status_code == 403


class TestRepeatedAlready:
    """A failed run stays failed when another run repeats it: the pages that offer its recovery say so."""

    def test_the_page_of_the_run_names_the_newest_ones(self, stage: Stage, boss: Client) -> None:
        failed(stage)
        assert "repeated already" not in text_of(boss.get(url("change", "run")))
        flows.SWITCH["broken"] = False
        for number in range(4):
            stage.now += timedelta(seconds=1)
            get_run("run").replay("charge", id=f"again-{number}")
        stage.settle("again-3")
        page = text_of(boss.get(url("change", "run")))
        told = page.partition("It was repeated already")[2].partition("</p>")[0]
        assert re.findall("again-[0-9]</a>", told) == ["again-3</a>", "again-2</a>", "again-1</a>"]
        assert "completed" in told
        stage.settle("again-2")
        assert "repeated already" not in text_of(boss.get(url("change", "again-2")))
        get_run("run").recover()
        stage.settle("run")
        assert "repeated already" not in text_of(boss.get(url("change", "run")))

    @pytest.mark.parametrize("verb", ["recover", "replay"])
    def test_the_confirmation_of_a_bulk_counts_them(self, stage: Stage, boss: Client, verb: str) -> None:
        for number in range(3):
            failed(stage, f"run-{number}")
        cause = Failure.objects.values_list("cause__fingerprint", flat=True).first()
        chosen: list[dict[str, Any]] = [
            {"id": ["run-0", "run-1", "run-2"]},
            {"all": "on", "filter": "?state=failed"},
            {"all": "on", "filter": f"?cause={cause}"},
        ]
        for each in chosen:
            assert "a second time" not in text_of(boss.get(url("bulk"), {"verb": verb, **each}))
        for number, name in enumerate(["run-0", "run-0", "run-1"]):
            get_run(name).restart(id=f"again-{number}")
        for each in chosen:
            body = text_of(boss.get(url("bulk"), {"verb": verb, **each}))
            assert "2 of them were repeated by other runs already" in body, each
        body = text_of(boss.get(url("bulk"), {"verb": verb, "id": ["run-1", "run-2"]}))
        assert "1 of them was repeated by another run already" in body
        assert "a second time" not in text_of(boss.get(url("bulk"), {"verb": "cancel", **chosen[0]}))

    def test_where_causes_are_recovered_at_once_it_is_told_too(self, stage: Stage, boss: Client) -> None:
        for number in range(2):
            stage.now += timedelta(seconds=1)  # or either may be the newest
            failed(stage, f"run-{number}")
        told = "Another run repeats the newest one"
        pages = [reverse("admin:index"), reverse("admin:app_list", args=["durable"]), url("causes")]
        get_run("run-0").restart(id="of-the-older-one")
        for each in pages:
            assert told not in text_of(boss.get(each))
        get_run("run-1").restart(id="of-the-newest")
        for each in pages:
            assert told in text_of(boss.get(each)), each

    def test_a_count_is_bounded(self, stage: Stage, boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.inspection.causes._EXAMINED", 2)
        for number in range(3):
            failed(stage, f"run-{number}")
            get_run(f"run-{number}").restart(id=f"again-{number}")
        body = text_of(boss.get(url("bulk"), {"verb": "recover", "all": "on", "filter": "?state=failed"}))
        assert "At least 2 of them were repeated by other runs already" in body


# -- replays of failed runs that start children again


NOTE = (
    "8 children of &quot;tests.bill&quot; are started again, as new runs with new idempotency keys: what those before did "
    "stays, and is done again"
)
EVERY_FAILURE = {"verb": "replay", "all": "on", "filter": "?workflow=tests.stopping"}


@pytest.fixture
def failures(stage: Stage) -> Stage:
    """Runs "one" and "two", which have failed in maps of four children each, and "plain", which has none."""
    flows.SWITCH["broken"] = True
    for run_id in ("one", "two"):
        stage.start(flows.stopping, 4, id=run_id)
        for number in range(3):
            stage.settle(f"{run_id}:bills:{number}")
            if Run.objects.get(pk=f"{run_id}:bills:{number}").state == "failed":
                break
        assert stage.settle(run_id).state == "failed"
    assert stage.start(flows.switched, id="plain").state == "failed"
    flows.SWITCH["broken"] = False
    stage.advance(seconds=1)
    return stage


@pytest.mark.parametrize("how", ["ids", "filter"])
def test_the_confirmation_and_the_result_say_how_many(failures: Stage, operator: Client, how: str) -> None:
    chosen = {"verb": "replay", "id": ["one", "two", "plain"]} if how == "ids" else EVERY_FAILURE
    before = Run.objects.count()
    page = operator.post(url("bulk"), chosen)
    text = text_of(page)
    assert f"{NOTE}." in text
    assert text.index(NOTE) < text.index('type="submit" value="Replay"'), "it comes before the button"
    assert Run.objects.count() == before
    answer = operator.post(url("bulk"), {**hidden(page), **chosen, "reason": "paper is back"})
    assert answer.status_code == 302
    for order in Run.objects.filter(workflow="durable.bulk"):
        failures.settle(order.id)
    made = Run.objects.filter(replay_of__in=["one", "two"])
    assert made.count() == 2
    result = text_of(operator.get(answer["Location"]))
    assert "<dt>Children that are started again</dt><dd>8</dd>" in result
    details = OperatorAction.objects.filter(run_id__in=["one", "two"], outcome="done").values_list("detail", flat=True)
    assert all(each.endswith("; 4 children are started again") for each in details)


def test_a_bulk_that_starts_none_says_nothing(failures: Stage, operator: Client) -> None:
    page = operator.post(url("bulk"), {"verb": "replay", "id": ["plain"]})
    assert "started again" not in text_of(page)
    answer = operator.post(url("bulk"), {**hidden(page), "verb": "replay", "id": ["plain"], "reason": "again"})
    assert "started again" not in text_of(operator.get(answer["Location"]))
    assert "started again" not in text_of(operator.post(url("bulk"), {**EVERY_FAILURE, "verb": "recover"}))


def test_it_is_said_of_one_run_up_to_a_bound_and_in_german(
    failures: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "4 children of &quot;tests.bill&quot; are started again"
    assert said in text_of(operator.get(url("act", "one", "replay")))
    assert "started again" not in text_of(operator.get(url("act", "plain", "replay")))
    with monkeypatch.context() as patch:
        patch.setattr(eligibility, "LOOKED_AT", 1)
        text = text_of(operator.post(url("bulk"), EVERY_FAILURE))
    assert said in text
    assert "This was counted for 1 of 2 runs: the others may start more." in text
    with translation.override("de"):
        operator.cookies.load({"django_language": "de"})
        text = text_of(operator.post(url("bulk"), EVERY_FAILURE))
    assert "8 Kinder von" in text
    assert "are started again" not in text


# -- A parent that has completed with failed children: its page, their recovery, and replays of it


CHILDREN = [f"night-1:bills:{number}" for number in range(4)]
RECOVER = "python manage.py durable recover --children-of night-1"
STAYS = "2 of its 4 children have failed; its output stays as it is"
GIVE = "Give the output of this step by hand instead"


@pytest.fixture
def night(stage: Stage) -> Stage:
    """The parent "night-1" has completed; two of its four children have failed, and would complete by now."""
    flows.SWITCH["broken"] = True
    stage.start(flows.night, 4, id="night-1")
    for child in CHILDREN:
        stage.settle(child)
    assert stage.settle("night-1").state == "completed"
    flows.SWITCH["broken"] = False
    stage.advance(seconds=1)
    return stage


def recovered(night: Stage, operator: Client) -> str:
    """Recover the failed children with the bulk of the page; return its id."""
    page = operator.get(operator.get(url("change", "night-1")).context["recover_children_url"])
    assert operator.post(url("bulk"), {**hidden(page), "reason": "a new card"}).status_code == 302
    [order] = Run.objects.filter(workflow="durable.bulk")
    night.settle(order.id)
    for child in CHILDREN[1:3]:
        assert night.settle(child).state == "completed"
    night.advance(seconds=1)
    return order.id


def test_the_page_says_it_and_has_the_command(night: Stage, operator: Client) -> None:
    page = operator.get(url("change", "night-1"))
    assert f"{STAYS}: {RECOVER}" in page.context["explanation"].detail
    assert RECOVER in page.context["copies"]
    assert STAYS in text_of(page)
    recovered(night, operator)
    page = operator.get(url("change", "night-1"))
    assert RECOVER not in page.context["copies"]
    assert STAYS not in text_of(page)


def test_the_recovery_of_its_children_says_that_its_output_stays(night: Stage, operator: Client) -> None:
    address = operator.get(url("change", "night-1")).context["recover_children_url"]
    text = text_of(operator.get(address))
    assert "the failed children of night-1, which has completed. Its output stays as it is." in text
    assert "if it has failed too" not in text
    assert RECOVER in text
    assert f"{RECOVER} --group bills" in text_of(operator.get(f"{address}&group=bills"))
    before = Run.objects.values().get(pk="night-1")
    order = recovered(night, operator)
    assert Run.objects.values().get(pk="night-1") == before
    for page in (url("bulk_result", order), url("change", order)):
        text = text_of(operator.get(page))
        assert "failed children of &quot;night-1&quot;, which has completed: its output stays as it is" in text
        assert "if it has failed too" not in text


def test_a_replay_from_the_map_says_first_what_it_starts_again(night: Stage, boss: Client) -> None:
    """An output can be given for a step alone."""
    page = boss.get(f"{url('replay', 'night-1')}?at=bills")
    text = text_of(page)
    assert "4 children of &quot;tests.bill&quot; are started again, as new runs with new idempotency keys" in text
    look, title, names, more = page.context["parts"][0]
    assert (look, title, names, more) == ("grave", "Children that are started again", ["bills: 4 of tests.bill"], 0)
    assert Run.objects.filter(workflow="tests.bill").count() == 4
    assert GIVE not in text
    behind, before = (text_of(boss.get(f"{url('replay', 'night-1')}?at={each}")) for each in ("report", "numbers"))
    assert GIVE in behind
    assert GIVE in before
    assert "started again" not in behind


def test_a_replay_in_place_from_behind_the_children_still_says_what_was_recovered(
    night: Stage, operator: Client
) -> None:
    """The report is made anew of what the map has recorded, which knows nothing of the recoveries."""
    recovered(night, operator)
    said = "2 of these were recovered after this run had ended, last by ada: a new card"
    assert said in text_of(operator.get(url("change", "night-1")))
    get_run("night-1").replay("report", in_place=True)
    assert night.settle("night-1").output is not None
    assert get_run("night-1").result() == {"failed": 2}
    said = "2 of these were recovered after this run had read how they ended, last by ada: a new card"
    assert said in text_of(operator.get(url("change", "night-1")))


def test_a_replay_in_place_that_reads_the_children_anew_says_nothing_of_recoveries(
    night: Stage, operator: Client
) -> None:
    recovered(night, operator)
    get_run("night-1").replay("bills", in_place=True)
    night.settle("night-1")
    for child in Run.objects.filter(workflow="tests.bill", state="pending").values_list("id", flat=True):
        night.settle(child)
    assert night.settle("night-1").state == "completed"
    assert get_run("night-1").result() == {"failed": 0}
    assert Run.objects.filter(workflow="tests.bill").count() == 8
    assert "recovered after" not in text_of(operator.get(url("change", "night-1")))
