"""Questions over REST and on the command line: the inbox, one question, and what a person does with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse

from durable import Context, workflow
from durable.models import OperatorAction
from durable.people import question, questions_of
from durable.testing import Harness
from tests.api.conftest import Api, problem
from tests.cli.conftest import Shell
from tests.people.conftest import CHANGE, People, begun
from tests.people.forms import Careless, GroupForm, RefundForm, Unshowable


@workflow(name="tests.people.surfaces")
def refund(ctx: Context, /, form: str = "refund", **options: Any) -> Any:
    asked = {"refund": RefundForm, "group": GroupForm, "careless": Careless, "unshowable": Unshowable, "": None}[form]
    verdict = ctx.ask_person("approve refund", asked, **options)
    return [verdict.data, verdict.by, verdict.comment]


@pytest.fixture
def h(db: None) -> Iterator[Harness]:
    with Harness(store="database") as harness:
        yield harness


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


def opened(h: Harness, form: str = "refund", **options: Any) -> tuple[Any, str]:
    run = begun(h, refund, form, **(options or {"permission": CHANGE}))
    return run, questions_of(run.id)[0].id


def grant(user: User, *permissions: str) -> User:
    user.user_permissions.add(*Permission.objects.filter(content_type__app_label="durable", codename__in=permissions))
    return User.objects.get(pk=user.pk)


def own_runs(request: Any, runs: Any) -> Any:
    return runs.filter(id__startswith=f"{request.user.username}-")


# -- REST


def test_the_inbox_of_the_caller(h: Harness, people: People) -> None:
    run, key = opened(h, permission=CHANGE, text="<b>Late</b>", about="shop.order:42", approvals=2)
    anna = Api(people.allowed("anna"))
    [found] = anna.get("/questions").json()["results"]
    assert found == {
        "id": key,
        "name": "approve refund",
        "text": "<b>Late</b>",
        "run": None,
        "location": "approve refund",
        "about": "shop.order:42",
        "to": "",
        "permission": CHANGE,
        "has_form": True,
        "approvals": 2,
        "answered_by": [],
        "claimed_by": "",
        "asked_at": found["asked_at"],
        "expires_at": found["expires_at"],
    }
    viewer = Api(grant(people.allowed("bert"), "view_run"))
    assert [each["run"] for each in viewer.get("/questions").json()["results"]] == [run.id]
    assert Api(people.eve).get("/questions").json() == {"results": [], "next_cursor": None}
    problem(Api(None).get("/questions"), 401, "not-authenticated")


def test_the_inbox_is_read_by_pages(h: Harness, people: People) -> None:
    keys = [opened(h)[1] for _ in range(5)]
    anna = Api(people.allowed("anna"))
    found: list[str] = []
    cursor = ""
    while True:
        page = anna.get(f"/questions?limit=2{cursor}").json()
        found += [each["id"] for each in page["results"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert (sorted(found), len(found)) == (sorted(keys), 5)
    for cursor in ("x", "WyJ4IiwieCJd", "WzEsMl0"):
        problem(anna.get(f"/questions?cursor={cursor}"), 400, "invalid-cursor")


def test_one_question_has_the_fields_of_its_form(h: Harness, people: People) -> None:
    anna = Api(people.allowed("anna"))
    found = anna.get(f"/questions/{opened(h)[1]}").json()
    assert [(each["name"], each["kind"], each["is_required"]) for each in found["fields"]] == [
        ("approved", "BooleanField", False),
        ("amount", "DecimalField", True),
        ("reason", "CharField", False),
    ]
    assert (found["is_open"], found["problem"], found["notes"]) == (True, "", [])
    choices = anna.get(f"/questions/{opened(h, 'group')[1]}").json()["fields"][0]["choices"]
    assert {"value": str(people.managers.pk), "label": "managers"} in choices
    assert anna.get(f"/questions/{opened(h, '')[1]}").json()["fields"] == []


def test_an_answer_is_audited_with_its_user(h: Harness, people: People) -> None:
    run, key = opened(h)
    anna = Api(people.allowed("anna"))
    given = {"data": {"amount": 12.5, "approved": True}, "comment": "fine", "reason": "ticket 7"}
    done = anna.post(f"/questions/{key}/answer", given, key="once").json()
    assert done == {"id": key, "is_open": False, "outcome": "answered"}
    assert anna.post(f"/questions/{key}/answer", given, key="once").json() == done
    h.settle()
    assert [run.output[0]["amount"], run.output[1], run.output[2]] == [12.5, "anna", "fine"]
    [row] = OperatorAction.objects.filter(run_id=run.id, action="answer")
    assert (row.source, row.outcome, row.actor, row.reason) == ("api", "done", people.anna, "ticket 7")


def test_what_the_form_refuses_is_said_field_by_field_and_asked_again(h: Harness, people: People) -> None:
    _run, key = opened(h)
    anna = Api(people.allowed("anna"))
    path = f"/questions/{key}/answer"
    told = problem(anna.post(path, {"data": {"amount": "a lot"}}), 422, "answer-refused")
    assert told["errors"] == [{"at": "data/amount", "detail": "Enter a number.", "code": "invalid"}]
    nothing: list[Any] = [None, [], "x", 7, True, {}]
    for data in nothing:
        problem(anna.post(path, {"data": data}), 422, "answer-refused")
    odds: list[Any] = [[1, 2], {"a": [1]}, [{"a": 1}], True, None, 1e400, "\x00", "x" * 100_000, -1]
    for odd in odds:
        status = anna.post(path, {"data": {"amount": odd, "approved": odd}}).status_code
        assert status in (400, 422), odd
    problem(anna.post(path, {}), 400, "invalid-request")
    assert question(key).is_open


def test_a_form_that_fails_is_named(h: Harness, people: People) -> None:
    _run, key = opened(h, "careless")
    anna = Api(people.allowed("anna"))
    told = problem(anna.post(f"/questions/{key}/answer", {"data": {"amount": "a lot"}}), 422, "answer-refused")
    [fault] = told["errors"]
    assert fault["at"] == "data"
    assert "the form tests.people.forms:Careless has failed: KeyError;" in fault["detail"]
    assert anna.post(f"/questions/{key}/answer", {"data": {"amount": 7}}).json()["outcome"] == "answered"


def test_a_form_that_cannot_be_shown_is_named(h: Harness, people: People) -> None:
    _run, key = opened(h, "unshowable")
    anna = Api(people.allowed("anna"))
    shown = anna.get(f"/questions/{key}").json()
    assert shown["fields"] == []
    assert "the form tests.people.forms:Unshowable has failed: RuntimeError;" in shown["problem"]


def test_hostile_text_is_data(h: Harness, people: People) -> None:
    run, key = opened(h)
    hostile = "<script>alert(1)</script>'; DROP TABLE x; --\u202e"
    given = {"data": {"amount": 1, "reason": hostile}, "comment": hostile}
    assert Api(people.allowed("anna")).post(f"/questions/{key}/answer", given).status_code == 200
    h.settle()
    assert (run.output[0]["reason"], run.output[2]) == (hostile, hostile)


@pytest.mark.parametrize("verb", ["answer", "comment", "hand-over", "claim", "release"])
def test_whom_it_is_not_for_learns_nothing(h: Harness, people: People, verb: str) -> None:
    run, key = opened(h, permission=CHANGE, not_by=people.allowed("bert").pk)
    body = {"answer": {"data": True}, "comment": {"comment": "x"}, "hand-over": {"to": "bert"}}.get(verb, {})
    unknown = f"/questions/{'0' * 16}"
    for each in (people.eve, grant(people.viewer, "view_run"), people.bert):
        api = Api(each)
        problem(api.get(f"/questions/{key}"), 404, "not-found")
        problem(api.post(f"/questions/{key}/{verb}", body), 404, "not-found")
        assert api.post(f"{unknown}/{verb}", body).json()["detail"] == api.get(unknown).json()["detail"]
    rows = OperatorAction.objects.filter(run_id=run.id).values_list("outcome", "source")
    assert set(rows) == {("denied", "api")}
    operator = Api(grant(people.operator, "view_run", "operate_run"))
    assert operator.get(f"/questions/{key}").json()["run"] == run.id
    if verb == "hand-over":
        people.allowed("carl")
        assert operator.post(f"/questions/{key}/hand-over", {"to": "carl"}).status_code == 200
    else:
        problem(operator.post(f"/questions/{key}/{verb}", body), 403, "permission-denied")


def test_claims_comments_and_hand_overs(h: Harness, people: People) -> None:
    _run, key = opened(h)
    anna, bert = Api(people.allowed("anna")), Api(people.allowed("bert"))
    assert anna.post(f"/questions/{key}/claim").json() == {"id": key, "is_open": True, "outcome": ""}
    assert bert.get("/questions").json()["results"] == []
    problem(bert.post(f"/questions/{key}/answer", {"data": {"amount": 1}}), 404, "not-found")
    assert anna.post(f"/questions/{key}/release").status_code == 200
    assert bert.post(f"/questions/{key}/comment", {"comment": "<i>who?</i>"}).status_code == 200
    told = problem(bert.post(f"/questions/{key}/hand-over", {"to": "nobody"}), 422, "answer-refused")
    assert told["errors"][0]["at"] == "to"
    problem(bert.post(f"/questions/{key}/hand-over", {"to": "user:eve"}), 422, "answer-refused")  # not there yet
    people.allowed("eve")
    assert bert.post(f"/questions/{key}/hand-over", {"to": "user:eve", "comment": "yours"}).status_code == 200
    notes = Api(people.eve).get(f"/questions/{key}").json()["notes"]
    assert [(each["by"], each["text"]) for each in notes] == [("bert", "<i>who?</i>"), ("bert", "→ eve: yours")]


def test_a_question_that_was_answered_says_so_to_whom_it_was_for(h: Harness, people: People) -> None:
    run, key = opened(h)
    h.answer(run, "approve refund", {"amount": 1}, by=people.allowed("anna"))
    problem(Api(people.allowed("bert")).post(f"/questions/{key}/answer", {"data": {}}), 409, "question-closed")
    problem(Api(people.eve).post(f"/questions/{key}/answer", {"data": {}}), 404, "not-found")


def test_where_runs_are_limited_a_question_for_operators_is_for_those_who_see_its_run(
    h: Harness, people: People
) -> None:
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.own_runs"}):
        run = begun(h, refund.using(id="anna-1"), "")
        key = questions_of(run.id)[0].id
        anna, bert = (Api(grant(each, "operate_run", "view_run")) for each in (people.anna, people.bert))
        assert [each["run"] for each in anna.get("/questions").json()["results"]] == ["anna-1"]
        assert bert.get("/questions").json()["results"] == []
        problem(bert.post(f"/questions/{key}/answer", {"data": True}), 404, "not-found")
        assert anna.post(f"/questions/{key}/answer", {"data": True}).status_code == 200


def test_both_surfaces_ask_the_same_people_a_question_for_operators(h: Harness, people: People) -> None:
    rule = f"{__name__}.own_runs"
    with override_settings(DURABLE={"API_RUNS": rule, "ADMIN_RUNS": rule}):
        run = begun(h, refund.using(id="anna-1"), "")
        key = questions_of(run.id)[0].id
        for each, is_asked in ((people.anna, True), (people.bert, False)):
            user = grant(each, "operate_run", "view_run")
            user.is_staff = True
            user.save()
            client = Client()
            client.force_login(user)
            inbox = client.get(reverse("admin:durable_run_inbox")).content.decode()
            assert bool(Api(user).get("/questions").json()["results"]) is is_asked
            assert (key in inbox) is is_asked


# -- the command line


def test_a_shell_lists_shows_and_answers(h: Harness, people: People, shell: Shell) -> None:
    run, key = opened(h)
    people.allowed("anna")
    assert shell("questions", "anna", "-o", "ids").lines == [key]
    assert key in shell("questions", "anna").out
    assert shell("questions", "nobody").status == 2
    assert "USER: there is no user 'nobody'" in shell("questions", "nobody").err
    assert people.eve is not None
    assert "No question waits" in shell("questions", "eve").err
    shown = shell("question", key).out
    assert "approve refund" in shown
    assert "DecimalField" in shown
    assert shell("question", key, "-o", "json").json["run"] == run.id
    refused = shell("answer-question", key, '{"amount": "a lot"}', "--as", "anna")
    assert (refused.status, "amount: Enter a number." in refused.err) == (1, True)
    assert shell("answer-question", key, '{"amount": 1}').status == 2
    assert "--as" in shell("answer-question", key, '{"amount": 1}').err
    assert shell("comment-question", key, "who?", "--as", "anna").status == 0
    assert shell("claim-question", key, "--as", "anna").lines == ["open"]
    assert shell("release-question", key, "--as", "anna").status == 0
    people.allowed("bert")
    assert shell("hand-over-question", key, "bert", "--as", "anna", "--comment", "yours").status == 0
    assert shell("answer-question", key, '{"amount": 1}', "--as", "anna").status == 1
    done = shell("answer-question", key, '{"amount": 1, "approved": true}', "--as", "bert", "--comment", "ok")
    assert (done.status, done.lines) == (0, ["answered"])
    h.settle()
    assert run.output[1:] == ["bert", "ok"]
    rows = OperatorAction.objects.filter(run_id=run.id, action="answer").order_by("id")
    assert [(each.source, each.outcome, each.actor and each.actor.username) for each in rows] == [
        ("cli", "invalid", "anna"),
        ("cli", "denied", "anna"),
        ("cli", "done", "bert"),
    ]
    assert shell("answer-question", key, "yes", "--as", "bert").status == 1
    assert shell("question", "0" * 16).status == 1
    assert "not open any more" in shell("question", key).out


def test_yes_and_no_on_a_shell(h: Harness, people: People, shell: Shell) -> None:
    run, key = opened(h, "")
    User.objects.create_superuser("root")
    assert "yes or no" in shell("question", key).out
    assert shell("answer-question", key, "no", "--as", "root").lines == ["refused"]
    h.settle()
    assert run.output[0] is False


def test_rest_and_the_shell_say_the_same(h: Harness, people: People, shell: Shell) -> None:
    _run, key = opened(h)
    anna = Api(grant(people.allowed("anna"), "view_run"))
    assert shell("questions", "anna", "-o", "json").all_json == anna.get("/questions").json()["results"]
    assert shell("question", key, "-o", "json").json == anna.get(f"/questions/{key}").json()
