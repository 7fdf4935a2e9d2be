"""Replay with another input, and with the output of a step given by hand: the pages, what they refuse, and who may."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse

from durable import get_run
from durable.models import Failure, OperatorAction, Run
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import hidden, text_of, url

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
    fields = {**hidden(boss.get(giving())), "output": "1", "reason": "known", **given}
    assert problem in text_of(boss.post(giving(), fields), 422)
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


def test_the_replay_page_leads_there_for_those_who_may(stage: Stage, log_in: LogIn) -> None:
    failed(stage)
    replay = f"{url('replay', 'run')}?at=charge"
    assert url("give_output", "run") in text_of(log_in(*ALL).get(replay))
    assert url("give_output", "run") not in text_of(log_in(*OPERATOR, name="olga").get(replay))


def test_the_replay_page_says_why_no_argument_can_be_edited(stage: Stage, boss: Client) -> None:
    failed(stage)
    words = "they cannot be edited here. To change them, change the code, the input of the run"
    shown = text_of(boss.get(url("replay", "run") + "?at=charge"))
    assert words in shown
    assert words not in text_of(boss.get(giving()))


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
    done = boss.post(editing(), {**hidden(asked), "values": '{"value": {"amount": 9}}', "reason": "typing error"})
    again = boss.post(editing(), {**hidden(asked), "values": '{"value": {"amount": 9}}', "reason": "typing error"})
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
    fields = {**hidden(boss.get(editing())), "values": values}
    assert problem in text_of(boss.post(editing(), fields), 422)
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
    asked = boss.get(editing(run_id))
    fields = {**hidden(asked), "values": '{"order": {"verb": "cancel"}}'}
    assert boss.post(editing(run_id), fields).status_code == 422
    assert Run.objects.count() == 1


# -- side by side


def test_a_run_and_its_replay_are_compared(stage: Stage, boss: Client, log_in: LogIn) -> None:
    failed(stage)
    fields = {**hidden(boss.get(giving())), "output": '"paid"', "reason": "known"}
    boss.post(giving(), fields)
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
