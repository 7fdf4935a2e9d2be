"""The pages of workflows: code, numbers and steps; starting one, and holding and releasing new starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from html import unescape
from typing import Any, Literal

import pytest
from django.test import Client
from django.utils.translation import override

from durable import Context, Continue, get_run, workflow
from durable.admin.start_page import StartForm, misfit
from durable.core import registry
from durable.core.records import HoldKind
from durable.core.registry import BULK
from durable.inspection.activities import FOLDED_FROM
from durable.inspection.queues import find_hold
from durable.inspection.run_facts import key_of, limits_of
from durable.inspection.workflows import workflow_stats
from durable.models import Build, Entry, OperatorAction, Run, RunRank, RunTag
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, hidden, statements, text_of, url
from tests.support.rollups import settle
from tests.support.runs import NOW, stored_runs
from tests.support.worker import a_worker

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


@workflow(name="tests.described")
def described(ctx: Context, order_id: int, secret: str = "hunter2") -> int:
    """Charge the card, then <send> the mail."""
    return ctx.step("charge", int, order_id)


def post(client: Client, *, arguments: str, **values: str) -> str:
    """The page after a start."""
    answer = confirm(client, url("workflow_start", "tests.described"), values, follow=True, arguments=arguments)
    return text_of(answer, answer.status_code)


def test_all_workflows_are_listed(operator: Client, stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="a")
    page, following = "", url("workflows")
    while following:  # a session of all tests knows more workflows than one page shows
        found = text_of(operator.get(following))
        page += found
        [following] = re.findall(r'href="([^"]*)" rel="next"', found) or [""]
        following = unescape(following) and url("workflows") + unescape(following)
    for expected in ("tests.described", "tests.switched", "start at once"):
        assert expected in page, expected
    assert f'href="{url("changelist")}?workflow=tests.switched&amp;state=failed">1</a>' in page


def test_the_list_counts_the_last_day_as_the_charts_of_a_workflow_do(operator: Client, stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="a")
    stage.advance(seconds=180)
    settle(stage.now)
    flows.SWITCH["broken"] = False
    get_run("a").recover()
    assert stage.settle("a").state == "completed"
    stage.advance(seconds=180)
    settle(stage.now)
    # which of the others are there, other tests decide
    shown = operator.get(url("workflows"), {"after": "tests.switche"})
    [listed] = [each for each, *_ in shown.context["workflows"] if each.name == "tests.switched"]
    day = operator.get(url("workflow", "tests.switched")).context["charts"][-1].throughput
    assert (listed.completed, listed.failed_today, listed.failed.number) == (day.completed, day.failed, 0) == (1, 1, 0)


def test_the_list_goes_on_where_a_page_ends(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable.inspection.workflows.MOST_WORKFLOWS", 1)
    names = [each.name for each in registry.all() if each.name != BULK]
    before, last = sorted(names)[-2:]
    page = text_of(operator.get(url("workflows"), {"after": before}))
    assert last in page
    assert "More workflows" not in page
    assert f'href="?after={before}" rel="next"' in text_of(operator.get(url("workflows"), {"after": sorted(names)[-3]}))
    assert "No workflow has a later name." in text_of(operator.get(url("workflows"), {"after": last}))


def test_a_workflow_tells_what_it_is_and_where_its_runs_stand(operator: Client, stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="failed")
    flows.SWITCH["broken"] = False
    for number in range(3):
        stage.start(flows.switched, id=f"done-{number}")
    stage.start(flows.switched, id="due", settle=False)
    Build.objects.create(name="7f3a", first_seen_at=stage.now - timedelta(hours=1))
    a_worker(queues=["default"])
    page = text_of(operator.get(url("workflow", "tests.switched")))
    for expected in ("charge", "7f3a", "GatewayTimeout", "Of the newest 3 completed runs", "flakiest"):
        assert expected in page, expected
    assert f"{url('changelist')}?workflow=tests.switched&amp;state=pending" in page


def test_the_charts_count_every_run_of_the_workflow_and_of_no_other(operator: Client, stage: Stage) -> None:
    stage.now = NOW + timedelta(minutes=45)
    stored_runs(1_200, "completed", "tests.switched", minutes=20)
    stored_runs(2, "failed", "tests.switched", minutes=20)
    stored_runs(7, "completed", "tests.quick", minutes=20)
    until = settle(stage.now)
    response = operator.get(url("workflow", "tests.switched"))
    page = unescape(text_of(response))
    assert page.count(": 1,200 completed, 2 failed, 0 cancelled") == 2
    assert f"Counted up to {until:%H:%M} UTC." in page
    addresses = [bar.url for chart in response.context["charts"] for bar in chart.bars if bar.url]
    assert len(addresses) == 2
    for address in addresses:
        assert {row.run.workflow for row in operator.get(address).context["rows"]} == {"tests.switched"}


def test_the_page_says_of_how_many_runs_it_tells(operator: Client, stage: Stage) -> None:
    stage.now = NOW + timedelta(minutes=45)
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="newest")
    stored_runs(199, "failed", "tests.switched", minutes=20)
    page = text_of(operator.get(url("workflow", "tests.switched")))
    assert "Why its runs are failed" in page
    assert "of its newest 200" not in page
    stored_runs(1, "failed", "tests.switched", minutes=30)
    page = text_of(operator.get(url("workflow", "tests.switched")))
    assert "of its newest 200 failed runs" in page
    assert "of its newest 1,000 runs" not in page
    stored_runs(799, "completed", "tests.switched", minutes=20)
    assert "of its newest 1,000 runs" in text_of(operator.get(url("workflow", "tests.switched")))


def test_code_is_shown_as_far_as_the_user_may_see_it(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "view_payload", "view_source")
    page = text_of(client.get(url("workflow", "tests.described")))
    doc = "Charge the card, then &lt;send&gt; the mail."
    for expected in (doc, "hunter2", "tests/admin/test_workflows.py:", "def described"):
        assert expected in page, expected
    client = log_in("view_run", name="eve")
    page = text_of(client.get(url("workflow", "tests.described")))
    assert "order_id: int" in page
    assert "hunter2" not in page
    assert "def described" not in page


def test_one_is_started_with_json_arguments(operator: Client, stage: Stage) -> None:
    assert "order_id" in text_of(operator.get(url("workflow_start", "tests.described")))
    assert "It is started." in post(operator, arguments='{"order_id": 7}', run_id="order-7", reason="by hand")
    run = Run.objects.get(pk="order-7")
    assert json.loads(run.input) == {"args": [], "kwargs": {"order_id": 7}}
    log = OperatorAction.objects.values_list("actor_label", "action", "run_id", "reason")
    assert list(log) == [("ada", "start", "order-7", "by hand")]
    assert "It is started." in post(operator, arguments="[8]")


def test_one_is_started_with_the_options_of_a_start(operator: Client, stage: Stage) -> None:
    options = {"queue": "high", "delay": "3 hours", "deadline": "30 days", "work_limit": "1 hour", "key": "customer-7"}
    assert "It is started." in post(operator, arguments="[7]", run_id="order-7", **options)
    run = Run.objects.select_related("limit", "key").get(pk="order-7")
    assert run.queue == "high"
    assert run.wake_at is not None
    assert timedelta(hours=2) < run.wake_at - run.created_at <= timedelta(hours=3)
    limits = limits_of(run)
    assert limits is not None
    assert limits.deadline is not None
    assert limits.deadline - run.created_at == timedelta(days=30)
    assert key_of(run).key == "customer-7"  # type: ignore[union-attr]  # it has one
    again = post(operator, arguments="[8]", key="customer-7", if_open="return")
    assert "Such a run exists; this is it." in again
    assert "order-7" in again
    assert "Nothing was done" in post(operator, arguments="[8]", key="customer-7", if_open="error")
    assert Run.objects.count() == 1
    post(operator, arguments="[8]", key="customer-7", if_open="replace", deadline="2099-05-01 12:30")
    assert Run.objects.get(pk="order-7").state == "cancelled"
    assert Run.objects.count() == 2


def test_one_is_started_with_a_debounce_a_weight_and_tags(operator: Client, stage: Stage) -> None:
    given = {"key": "k", "debounce": "5 min", "at_most": "1 hour", "keep": "first", "share": "acme", "weight": "2"}
    tags = "tenant=acme\r\n\r\norder:42 a"
    assert "It is started." in post(operator, arguments="[7]", run_id="order-7", tags=tags, **given)
    assert "Such a run exists" in post(operator, arguments="[8]", **given)
    run = Run.objects.select_related("key").get(pk="order-7")
    assert json.loads(run.input) == {"args": [7], "kwargs": {}}
    assert run.wake_at is not None
    assert timedelta(minutes=4) < run.wake_at - run.created_at <= timedelta(minutes=6)
    assert dict(RunTag.objects.filter(run=run).values_list("name", "value")) == {"tenant": "acme", "order": "42 a"}
    assert RunRank.objects.get(run=run).weight == 2


def test_one_is_started_with_a_rank(operator: Client, stage: Stage, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "PRIORITIES": {"high": "10 min"}}
    assert '<option value="high">' in text_of(operator.get(url("workflow_start", "tests.described")))
    for name in ("first", "order-7"):
        assert "It is started." in post(operator, arguments="[7]", run_id=name, priority="high", share="<b>acme")
    page = text_of(operator.get(url("change", "order-7")))
    assert "high, a head start of 10 m" in page
    assert "<bdi>&lt;b&gt;acme</bdi>" in page
    assert "before it come 1, of its own share 1" in page


def test_one_is_refused_by_a_rate(operator: Client, stage: Stage, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"starts": {"rate": "1/hour"}}}
    options = {"rate": "starts/acme", "when_full": "drop"}
    assert "It is started." in post(operator, arguments="[7]", run_id="order-7", **options)
    assert "has no room before" in post(operator, arguments="[8]", run_id="order-8", **options)
    assert [run.pk for run in Run.objects.all()] == ["order-7"]
    assert list(OperatorAction.objects.order_by("id").values_list("outcome", flat=True)) == ["done", "refused"]
    shown = " ".join(text_of(operator.get(url("limit", "starts"))).split())
    assert 'data-label="Refused starts">1<br><span' in shown


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rate": "starts"}, "Say what the start does if this rate has no room."),
        ({"rate": "a/", "when_full": "drop"}, "empty key"),
        ({"when_full": "drop"}, "needs rate="),
        ({"queue": "nowhere"}, "No worker can serve this queue"),
        ({"priority": "urgent"}, "no priority is named"),
        ({"priority": "2 days"}, "at most 24 hours"),
        ({"share": "a\tb"}, "printable"),
        ({"delay": "soon"}, "Delay"),
        ({"delay": "-3 hours"}, "must not be negative"),
        ({"deadline": "2099-13-01 12:30"}, "month must be in 1..12"),
        ({"work_limit": "0"}, "must be longer than zero"),
        ({"key": "a\x07b"}, "printable"),
        ({"debounce": "5 min"}, "Give the key that the debounce is about"),
        ({"debounce": "5 min", "key": "k"}, "Say when the run begins at the latest"),
        ({"keep": "first"}, "Give the debounce"),
        ({"debounce": "5 min", "at_most": "1 min", "key": "k"}, "at_most"),
        ({"weight": "2"}, "Give the share"),
        ({"weight": "0", "share": "a"}, "0.001 to"),
        ({"tags": "acme"}, "write a tag as name=value"),
        ({"tags": "a=1\na=2"}, "a run has one value of the tag"),
        ({"if_open": "error"}, "Give the key that the choice below is about"),
        ({"if_open": "perhaps", "key": "k"}, "perhaps is not one of the available choices"),
        ({"when_deleted": "cancel"}, "Say what the run is about, whose deletion the choice below is about."),
    ],
)
def test_options_that_make_no_sense_start_nothing(operator: Client, options: dict[str, str], told: str) -> None:
    shown = post(operator, arguments="[7]", **options)
    assert told in shown
    assert '<details id="durable-options" open>' in shown
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"), [("about", "shop.order"), ("work_limit", "0"), ("share", "a\tb"), ("rate", "a/")]
)
def test_an_option_that_makes_no_sense_is_refused_beside_its_field(name: str, value: str) -> None:
    form = StartForm({"arguments": "[7]", "token": "a", name: value})
    assert name in form.errors


def test_an_option_is_refused_in_the_language_of_the_page() -> None:
    with override("de"):
        form = StartForm({"arguments": "[7]", "token": "a", "about": "shop.order"})
        [refusal] = form.errors["about"]
    assert str(refusal).startswith("wovon ein Lauf handelt, wird als app.model:schlüssel geschrieben")


def test_a_run_is_replaced_only_by_who_may_cancel(log_in: Callable[..., Client], stage: Stage) -> None:
    workflow_ = described.using(id="open", key="k")
    workflow_.start(1)
    starter = log_in("view_run", "start_run", "view_payload")
    given = {"arguments": "[8]", "key": "k", "if_open": "replace"}
    assert confirm(starter, url("workflow_start", "tests.described"), given).status_code == 403
    assert Run.objects.get().state == "pending"


def test_a_form_that_is_sent_twice_starts_one_run(operator: Client) -> None:
    form = {**hidden(operator.get(url("workflow_start", "tests.described"))), "arguments": "[1]"}
    for _ in range(2):
        text_of(operator.post(url("workflow_start", "tests.described"), form, follow=True))
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"order": 7}', "cannot be started with these arguments"),
        ("[1, 2, 3]", "too many positional arguments"),
        ("{order_id: 7}", "This is not JSON"),
        ("7", "Give an object of keywords or a list"),
        ("null", "Give an object of keywords or a list"),
        ("[NaN]", "is not a number that JSON has"),
        ('{"order_id": null}', "is int, and null was given"),
        ('["7"]', "is int, and "),
        ('{"order_id": 7, "secret": 8}', "is str, and 8 was given"),
    ],
)
def test_wrong_arguments_start_nothing_and_say_why(operator: Client, arguments: str, told: str) -> None:
    assert told in post(operator, arguments=arguments)
    assert not Run.objects.exists()


def test_an_operator_holds_and_releases_new_starts(log_in: Callable[..., Client], stage: Stage) -> None:
    client = log_in("view_run", "hold_workflow", "start_run")
    page = text_of(confirm(client, url("workflow_hold", "tests.described", "hold"), reason="bank", follow=True))
    for expected in ("New starts are held", "Release new starts", "bank"):
        assert expected in page, expected
    assert "The run will be accepted and wait" in text_of(client.get(url("workflow_start", "tests.described")))
    post(client, arguments="[1]", run_id="a")
    assert "new starts of" in text_of(client.get(url("change", "a")))
    assert "held" in text_of(client.get(url("workflows"), {"after": "tests.desc"}))
    text_of(confirm(client, url("workflow_hold", "tests.described", "release"), follow=True))
    assert find_hold(HoldKind.WORKFLOW, "tests.described") is None
    assert Run.objects.get().state == "pending"


def test_starting_needs_its_permission(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "operate_run")
    page = text_of(client.get(url("workflow", "tests.described")))
    address = url("workflow_start", "tests.described")
    assert address not in page
    assert url("workflow_hold", "tests.described", "hold") not in page
    assert "durable.start_run" in text_of(client.get(address), 403)
    assert "durable.start_run" in text_of(client.post(address), 403)
    assert OperatorAction.objects.get().outcome == "denied"


def test_what_is_not_there_is_not_found(operator: Client) -> None:
    assert "There is no workflow" in text_of(operator.get(url("workflow", "no.body")), 404)
    assert "There is no workflow" in text_of(operator.get(url("workflow_start", "no.body")), 404)
    assert "There is no workflow" in text_of(operator.get(url("workflow_start", "durable.bulk")), 404)


def test_a_workflow_that_only_runs_know_has_a_page(operator: Client, stage: Stage) -> None:
    stage.start(flows.quick, id="a")
    Run.objects.update(workflow="old.code")
    page = text_of(operator.get(url("workflow", "old.code")))
    assert "This process does not have its code" in page
    assert "Start one" not in page


def test_the_statements_do_not_grow(operator: Client, stage: Stage) -> None:
    counts = []
    for numbers in (range(1), range(1, 9)):
        for number in numbers:
            stage.start(flows.quick, number, id=f"run-{number}")
        made = statements(operator, url("workflows")) + statements(operator, url("workflow", "tests.quick"))
        counts.append(len(made))
    assert Entry.objects.count() == 9
    assert counts[0] == counts[1] < 40


@workflow(name="tests.dozing")
def dozing(ctx: Context, number: int) -> None:
    ctx.sleep(f"nap {number}", "3 hours")


@workflow(name="tests.turning")
def turning(ctx: Context, times: int) -> None:
    def turn(scope: Context, number: int) -> Continue:
        scope.sleep("rest", "1 hour" if number == times else 0)
        return Continue(number + 1)

    ctx.loop("turns", turn, state=0)


def stands_of(name: str) -> list[tuple[str, str, int]]:
    return [(each.state, each.place, each.count) for each in workflow_stats([name]).places]


def test_open_runs_of_many_numbered_places_stand_at_one_and_of_a_few_apart(stage: Stage) -> None:
    for number in range(FOLDED_FROM - 1):
        stage.start(dozing, number, id=f"run-{number}")
    assert sorted(stands_of("tests.dozing")) == [("sleeping", f"nap {number}", 1) for number in range(FOLDED_FROM - 1)]
    stage.start(dozing, FOLDED_FROM, id="one more")
    assert stands_of("tests.dozing") == [("sleeping", "nap #", FOLDED_FROM)]


def test_open_runs_in_iterations_of_a_loop_stand_at_one_place(stage: Stage) -> None:
    for times in (1, 2):
        stage.start(turning, times, id=f"run-{times}")
    assert stands_of("tests.turning") == [("sleeping", "turns / any iteration / rest", 2)]


def test_where_open_runs_stand_is_told_in_words_of_the_language(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.mistaken, {"id": 1}, id="mistaken", settle=False)
    stage.run("mistaken")
    stage.start(flows.approve, id="waits")
    assert stands_of("tests.mistaken") == [("sleeping", "a mistake in the code", 1)]
    with override("de"):
        assert stands_of("tests.mistaken") == [("sleeping", "ein Programmfehler", 1)]
        assert stands_of("tests.approve") == [("sleeping", "eine Nachricht in approved, rejected", 1)]


# -- arguments that a person types are compared with annotations that JSON can tell, and with no others


def typed(  # type: ignore[no-untyped-def]  # one of its parameters has no annotation
    ctx: Any,
    number: int = 0,
    part: float = 0,
    name: str | None = None,
    flag: bool = False,
    tags: list[str] | None = None,
    options: dict[str, int] | None = None,
    how: Literal["fast", "slow"] = "fast",
    amount: Decimal | str = "",
    free: Any = None,
    plain=None,
    *rest: int,
    limit: int = None,  # type: ignore[assignment]  # noqa: RUF013  # a habit of some projects
) -> None:
    """A workflow's function."""


def unresolved(ctx: Any, order: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821  # as below
    """A function with an annotation that only a type checker can resolve."""


def odd(ctx: Any, order: [int]) -> None:  # type: ignore[misc, valid-type]  # a project's code may have it
    """A function with an annotation that is no type."""


@pytest.mark.parametrize(
    "kwargs",
    [
        {"number": 7},
        {"part": 7},
        {"part": 7.5},
        {"name": None},
        {"name": "ada"},
        {"flag": True},
        {"tags": ["a"]},
        {"tags": None},
        {"options": {}},
        {"how": "slow"},
        {"amount": 7},
        {"free": [1]},
        {"plain": {}},
        {"nobody": 1},
        {"limit": None},
    ],
)
def test_what_fits(kwargs: dict[str, Any]) -> None:
    assert misfit(typed, [], kwargs) is None


@pytest.mark.parametrize(
    ("kwargs", "annotation"),
    [
        ({"number": "7"}, "int"),
        ({"number": None}, "int"),
        ({"number": True}, "int"),
        ({"number": 7.5}, "int"),
        ({"part": "7"}, "float"),
        ({"name": 7}, "str | None"),
        ({"flag": 1}, "bool"),
        ({"tags": "a"}, "list[str] | None"),
        ({"options": []}, "dict[str, int] | None"),
        ({"limit": "7"}, "int"),
        ({"how": "no"}, "Literal['fast', 'slow']"),
    ],
)
def test_what_does_not_fit(kwargs: dict[str, Any], annotation: str) -> None:
    found = misfit(typed, [], kwargs)
    assert found is not None
    assert (found[0], found[1].replace("typing.", "")) == (*kwargs, annotation)


def test_positional_arguments_are_compared_too() -> None:
    assert misfit(typed, [7, "half"], {}) == ("part", "float", '"half"')
    assert misfit(typed, [*(1, 1, "a", True, [], {}, "fast", "1", 1, 1), "rest"], {}) is None


def test_what_cannot_be_resolved_accepts_everything() -> None:
    assert misfit(unresolved, ["x"], {}) is None
    assert misfit(odd, ["x"], {}) is None


def test_a_long_value_is_cut() -> None:
    found = misfit(typed, ["x" * 10_000], {})
    assert found is not None
    assert len(found[2]) <= 60
