"""Actions over REST: what they do, in which states, on which revision, how often, and what the audit log says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import DatabaseError

from durable import get_run
from durable.api import requests
from durable.models import OperatorAction, QueueMessage, Run
from durable.operations import idempotency
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import add, ask, fail, loop, refuse, typed
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


def hide_responses(_workflow: str, field: str, value: Any) -> Any:
    return "hidden" if field.startswith("response:") else value


def actions() -> list[tuple[str, str, str]]:
    return list(OperatorAction.objects.order_by("id").values_list("action", "run_id", "outcome"))


def test_pause_resume_wake_cancel(api: Api) -> None:
    pass_once(loop.using(id="a").start(1))
    for action, state in (("pause", "paused"), ("resume", "pending"), ("wake", "pending"), ("cancel", "cancelled")):
        answer = api.post(f"/runs/a/{action}", {"reason": f"to {action}"})
        assert answer.status_code == 200, answer.content
        assert answer.json() == {"id": "a", "workflow": "tests.api.loop", "state": state}
    assert actions() == [(each, "a", "done") for each in ("pause", "resume", "wake", "cancel")]
    logged = OperatorAction.objects.first()
    assert logged is not None
    assert (logged.source, logged.reason, logged.before, logged.after) == ("api", "to cancel", "pending", "cancelled")
    assert logged.actor == api.user
    shown = api.get("/operator-actions?run=a&limit=1").json()
    assert shown["results"][0]["reason"] == "to cancel"
    older = api.get(f"/operator-actions?run=a&cursor={shown['next_cursor']}").json()
    assert [each["action"] for each in older["results"]] == ["wake", "resume", "pause"]


def test_recover_and_restart(api: Api) -> None:
    pass_once(fail.using(id="a").start())
    assert api.post("/runs/a/recover").json()["state"] == "pending"
    again = api.post("/runs/a/restart", {"id": "b"})
    assert again.status_code == 201
    assert again["Location"] == "/api/runs/b"
    assert api.post("/runs/a/restart", {"id": "b"}).status_code == 200
    assert api.get("/runs/b").json()["replay_of"] == "a"


def test_a_transition_that_is_not_allowed_says_what_is(api: Api) -> None:
    pass_once(add.using(id="a").start(1))
    document = problem(api.post("/runs/a/pause"), 409, "invalid-transition")
    assert (document["state"], document["action"]) == ("completed", "pause")
    assert set(document["allowed"]) == {"pending", "sleeping", "running", "rolling_back"}
    assert actions() == [("pause", "a", "refused")]


def test_a_run_that_has_moved_on_is_refused(api: Api) -> None:
    pass_once(loop.using(id="a").start(1))
    seen = api.get("/runs/a").json()["revision"]
    get_run("a").send("news")
    document = problem(api.post("/runs/a/cancel", {"revision": seen}), 409, "run-moved-on")
    assert document["state"] == "sleeping"
    assert get_run("a").state == "sleeping"
    fresh = api.get("/runs/a").json()["revision"]
    assert api.post("/runs/a/cancel", {"revision": fresh}).status_code == 200


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.django_db(transaction=True)
def test_what_is_refused_is_logged_whatever_was_taken_back_with_it(api: Api, key: str | None) -> None:
    add.using(id="a").start(1)
    problem(api.post("/runs", {"workflow": "tests.api.add", "args": [2], "id": "a"}, key=key), 409, "id-taken")
    problem(api.post("/runs/a/resume", key=key and f"{key}2"), 409, "invalid-transition")
    problem(api.post("/runs/a/restart", {"id": "a"}, key=key and f"{key}3"), 409, "id-taken")
    assert actions() == [("start", "a", "conflict"), ("resume", "a", "refused"), ("restart", "a", "conflict")]


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_logged_even_if_its_answer_is_not_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_now: datetime) -> None:
        raise DatabaseError("the connection is lost")

    add.using(id="a").start(1)
    monkeypatch.setattr(idempotency, "_forget_expired", fails)
    with pytest.raises(DatabaseError):
        api.post("/runs/a/resume", key="k")
    assert actions() == [("resume", "a", "refused")]


@pytest.mark.parametrize("verb", ["restart", "replay"])
def test_what_was_ordered_in_anothers_name_is_not_done_again(api: Api, verb: str) -> None:
    loop.using(id="a").start(1)
    Run.objects.filter(pk="a").update(workflow="durable.bulk")
    problem(api.post(f"/runs/a/{verb}", {"location": "x"} if verb == "replay" else {}), 409, "refused")
    assert Run.objects.count() == 1


class TestReplaying:
    def test_a_plan_then_a_new_run_and_a_replay_in_place(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(3))
        plan = api.get("/runs/a/replay-plan?location=step%201").json()
        assert (plan["boundary"], plan["kept"], plan["reruns"]) == ("step 1", ["step 0"], ["step 1", "step 2"])
        made = api.post("/runs/a/replay", {"location": "step 1", "plan_hash": plan["hash"]})
        assert made.status_code == 201
        new = made.json()["id"]
        assert new != "a"
        assert [each["location"] for each in api.get(f"/runs/{new}/entries").json()["results"]] == ["step 0"]
        done = api.post("/runs/a/replay", {"location": "step 1", "in_place": True})
        assert (done.status_code, done.json()["id"]) == (200, "a")
        assert [each["location"] for each in api.get("/runs/a/entries").json()["results"]] == ["step 0"]

    def test_a_stale_plan(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(3))
        plan = api.get("/runs/a/replay-plan?location=step%201").json()
        get_run("a").wake(end_sleeps=True)
        pass_once(get_run("a"))
        document = problem(
            api.post("/runs/a/replay", {"location": "step 1", "plan_hash": plan["hash"]}), 409, "plan-stale"
        )
        assert "plan it again" in document["detail"]
        assert Run.objects.count() == 1

    @pytest.mark.parametrize("request_", [("GET", "/replay-plan?location=nowhere"), ("POST", "/replay")])
    def test_from_nowhere(self, api: Api, request_: tuple[str, str]) -> None:
        pass_once(loop.using(id="a").start(3))
        method, path = request_
        answer = api.get(f"/runs/a{path}") if method == "GET" else api.post(f"/runs/a{path}", {"location": "nowhere"})
        problem(answer, 404, "entry-not-found")


class TestMessages:
    def test_sent_listed_and_received(self, api: Api) -> None:
        pass_once(ask.using(id="a").start())
        sent = api.post("/runs/a/messages", {"queue": "question", "body": {"n": 1}})
        assert sent.status_code == 201
        message = api.get(f"/runs/a/messages/{sent.json()['id']}").json()
        assert (message["queue"], message["body"], message["state"]) == ("question", {"n": 1}, "pending")
        assert sent["Location"] == f"/api/runs/a/messages/{sent.json()['id']}"
        pass_once(get_run("a"))
        assert api.get(f"/runs/a/messages/{sent.json()['id']}").json()["response"] == {"answer": {"n": 1}}

    def test_pages(self, api: Api) -> None:
        ask.using(id="a").start()
        for number in range(3):
            get_run("a").send("numbers", number)
        first = api.get("/runs/a/messages?limit=2").json()
        rest = api.get(f"/runs/a/messages?limit=2&cursor={first['next_cursor']}").json()
        assert [each["body"] for each in first["results"] + rest["results"]] == [0, 1, 2]
        assert rest["next_cursor"] is None

    def test_deleted_and_moved_before_they_are_received(self, api: Api, make_api: MakeApi) -> None:
        for each in ("a", "b"):
            pass_once(ask.using(id=each).start())
        wrong, right = (get_run("a").send("question", number) for number in range(2))
        assert api.post(f"/runs/a/messages/{wrong}/delete", {"reason": "a slip"}).json() == {"id": wrong, "run": "a"}
        problem(api.post(f"/runs/a/messages/{wrong}/delete"), 409, "message-not-pending")
        denied = make_api("view_run", "view_payload", name="bob")
        problem(denied.post(f"/runs/a/messages/{right}/move", {"to": "b"}), 403, "permission-denied")
        problem(api.post(f"/runs/a/messages/{right}/move", {"to": "nobody"}), 404, "run-not-found")
        problem(api.post(f"/runs/a/messages/{right}/move", {"to": "a"}), 422, "arguments-refused")
        moved = api.post(f"/runs/a/messages/{right}/move", {"to": "b", "reason": "it is for b"})
        assert (moved.status_code, moved.json()) == (200, {"id": right, "run": "b"})
        done = OperatorAction.objects.filter(outcome="done", run_id="a")
        assert list(done.order_by("pk").values_list("reason", flat=True)) == ["a slip", "it is for b"]
        assert api.get("/runs/a/messages").json()["results"] == []
        pass_once(get_run("b"))
        assert api.get(f"/runs/b/messages/{right}").json()["response"] == {"answer": 1}

    def test_an_id_of_ones_own_sends_once(self, api: Api) -> None:
        ask.using(id="a").start()
        body = {"queue": "q", "body": 1, "id": "m1"}
        assert api.post("/runs/a/messages", body).json() == api.post("/runs/a/messages", body).json()
        assert QueueMessage.objects.count() == 1

    def test_asking_a_run_that_answers(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        pass_once(ask.using(id="a").start())
        passed: list[float] = []

        def pass_instead_of_waiting(seconds: float) -> None:
            if not passed:
                pass_once(get_run("a"))
            passed.append(seconds)

        monkeypatch.setattr("durable.api.long_poll.time.sleep", pass_instead_of_waiting)
        answer = api.post("/runs/a/ask?wait=10", {"queue": "question", "body": 7})
        assert answer.status_code == 200, answer.content
        assert answer.json()["response"] == {"answer": 7}

    def test_asking_a_run_that_takes_its_time(self, api: Api) -> None:
        pass_once(ask.using(id="a").start())
        answer = api.post("/runs/a/ask", {"queue": "question", "body": 7}, key="k")
        assert (answer.status_code, answer.json()["is_answered"]) == (202, False)
        pass_once(get_run("a"))
        again = api.post("/runs/a/ask", {"queue": "question", "body": 7}, key="k")
        assert (again.status_code, again.json()["response"]) == (200, {"answer": 7})
        assert QueueMessage.objects.count() == 1

    def test_asking_a_run_that_refuses(self, api: Api) -> None:
        pass_once(refuse.using(id="a").start())
        question = {"queue": "order", "body": {"sku": "tea"}}
        sent = api.post("/runs/a/ask", question, key="k")
        pass_once(get_run("a"))
        document = problem(api.post("/runs/a/ask", question, key="k"), 409, "message-refused")
        assert document["reason"] == "tea is out of stock"
        assert document["detail"] == 'Run "a" refused the message: tea is out of stock'
        assert document["message"] == sent.json()["message"]
        message = api.get(f"/runs/a/messages/{document['message']}").json()
        assert (message["state"], message["response"]) == ("refused", "tea is out of stock")
        entry = api.get("/runs/a/entries/order").json()
        assert entry["data"]["received"][0]["refused"] is True
        assert "out of stock" not in str(entry["data"])

    def test_the_reason_of_a_refusal_is_redacted(self, api: Api, settings: Any) -> None:
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.api.test_actions.hide_responses"}
        pass_once(refuse.using(id="a").start())
        question = {"queue": "order", "body": {"sku": "tea"}}
        api.post("/runs/a/ask", question, key="k")
        pass_once(get_run("a"))
        assert "tea" not in str(problem(api.post("/runs/a/ask", question, key="k"), 409, "message-refused"))

    def test_asking_a_run_that_ends_without_an_answer(self, api: Api) -> None:
        pass_once(ask.using(id="a").start())
        api.post("/runs/a/ask", {"queue": "other", "body": 7}, key="k")
        get_run("a").cancel()
        document = problem(api.post("/runs/a/ask?wait=30", {"queue": "other", "body": 7}, key="k"), 409, "run-ended")
        assert document["state"] == "cancelled"

    def test_sending_to_a_run_that_has_ended(self, api: Api) -> None:
        pass_once(add.using(id="a").start(1))
        problem(api.post("/runs/a/messages", {"queue": "q"}), 409, "invalid-transition")


class TestKeys:
    START = {"workflow": "tests.api.add", "args": [1]}

    def test_the_same_request_starts_one_run(self, api: Api) -> None:
        first = api.post("/runs", self.START, key="k")
        again = api.post("/runs", b'{ "args": [1],\n"workflow": "tests.api.add" }', key="k")
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.content == again.content
        assert first["Location"] == again["Location"]
        assert (first.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
        assert Run.objects.count() == 1

    def test_another_request_with_the_key_is_refused(self, api: Api) -> None:
        api.post("/runs", self.START, key="k")
        problem(api.post("/runs", {**self.START, "args": [2]}, key="k"), 422, "idempotency-key-reused")
        run_id = Run.objects.get().id
        problem(api.post(f"/runs/{run_id}/pause", key="k"), 422, "idempotency-key-reused")
        assert Run.objects.get().state == "pending"

    def test_what_was_refused_stays_refused(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(1))
        refused = api.post("/runs/a/resume", key="k")
        problem(refused, 409, "invalid-transition")
        get_run("a").pause()
        again = api.post("/runs/a/resume", key="k")
        assert again.content == refused.content
        assert again["Content-Type"] == "application/problem+json"
        assert get_run("a").state == "paused"

    def test_a_form_that_does_not_fit_leaves_the_key_free(self, api: Api) -> None:
        problem(api.post("/runs", {"flow": 1}, key="k"), 400, "invalid-request")
        assert api.post("/runs", self.START, key="k").status_code == 201

    def test_a_denial_leaves_the_key_free_and_a_trace(self, make_api: MakeApi) -> None:
        viewer = make_api("view_run")
        problem(viewer.post("/runs", self.START, key="k"), 403, "permission-denied")
        assert actions() == [("start", "", "denied")]
        assert viewer.user is not None
        viewer.user.user_permissions.add(Permission.objects.get(codename="start_run"))
        assert viewer.post("/runs", self.START, key="k").status_code == 201

    def test_a_message_is_sent_once(self, api: Api) -> None:
        loop.using(id="a").start(1)
        answers = [api.post("/runs/a/messages", {"queue": "q"}, key="k") for _ in range(2)]
        assert [each.status_code for each in answers] == [201, 201]
        assert answers[0].content == answers[1].content
        assert QueueMessage.objects.count() == 1

    def test_a_crash_between_doing_and_answering_does_nothing(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(data: Any) -> str:
            raise RuntimeError("the process died")

        with monkeypatch.context() as patch:
            patch.setattr(requests, "as_json", crash)
            with pytest.raises(RuntimeError):
                api.post("/runs", self.START, key="k")
        assert not Run.objects.exists()
        assert not OperatorAction.objects.exists()
        assert api.post("/runs", self.START, key="k").status_code == 201

    @pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\tb"])
    def test_what_cannot_be_a_key(self, api: Api, key: str) -> None:
        problem(api.post("/runs", self.START, key=key), 400, "invalid-request")
        assert not Run.objects.exists()


class TestDeclaredMessages:
    """Of a workflow that says which messages it accepts."""

    def test_a_body_that_fits_reaches_the_workflow_as_its_type(self, api: Api) -> None:
        pass_once(typed.using(id="a").start())
        assert api.post("/runs/a/messages", {"queue": "verdict", "body": {"by": 7}}).status_code == 201
        assert pass_once(get_run("a")).output == "by 7"

    def test_a_body_that_does_not_fit_is_refused_at_its_fields(self, api: Api) -> None:
        pass_once(typed.using(id="a").start())
        refused = api.post("/runs/a/messages", {"queue": "verdict", "body": {"by": "seven", "nte": ""}})
        document = problem(refused, 422, "message-not-accepted")
        assert document["errors"] == [
            {"at": "body/by", "detail": "expected a whole number, found text", "code": "type"},
            {"at": "body/nte", "detail": 'is not a field of Verdict, did you mean "note"?', "code": "type"},
        ]
        assert not QueueMessage.objects.exists()
        assert actions() == [("send", "a", "invalid")]

    def test_a_name_that_is_not_declared_is_refused(self, api: Api) -> None:
        pass_once(typed.using(id="a").start())
        for path in ("messages", "ask"):
            document = problem(api.post(f"/runs/a/{path}", {"queue": "verdct"}), 422, "message-not-accepted")
            assert (
                document["detail"]
                == 'The workflow tests.api.typed accepts no message "verdct"; did you mean "verdict"?'
            )
            assert document["nearest"] == ["verdict"]
            assert [each["at"] for each in document["errors"]] == ["queue"]

    def test_a_name_of_a_field_that_no_database_takes_harms_nothing(self, api: Api) -> None:
        pass_once(typed.using(id="a").start())
        message = {"queue": "verdict", "body": {"by": 7, "a\0\ud800": 1}}
        problem(api.post("/runs/a/messages", message), 422, "message-not-accepted")
        assert actions() == [("send", "a", "invalid")]
        Run.objects.filter(id="a").update(workflow="tests.api.elsewhere")  # as for a process that does not know it
        get_run("a").send("verdict", message["body"])
        Run.objects.filter(id="a").update(workflow="tests.api.typed")
        failed = pass_once(get_run("a"))
        assert failed.state == "failed"
        assert failed.error is not None
        assert failed.error.type == "MessageBodyError"
        [received] = api.get("/runs/a/entries").json()["results"][0]["data"]["received"]
        assert received.keys() == {"id", "name", "sent_at", "misfit"}
        assert received["misfit"] is True  # what is wrong may quote a value: the error says it, redacted

    def test_a_start_with_a_message_that_is_not_accepted_starts_nothing(self, api: Api) -> None:
        message = {"queue": "verdict", "body": {}}
        refused = api.post("/runs", {"workflow": "tests.api.typed", "key": "k", "message": message})
        assert [each["at"] for each in problem(refused, 422, "message-not-accepted")["errors"]] == ["body/by"]
        assert not Run.objects.exists()

    def test_the_schemas_are_shown_with_the_workflow(self, api: Api) -> None:
        listed = {each["name"]: each["messages"] for each in api.get("/workflows").json()["results"]}
        assert listed["tests.api.add"] is None
        verdict, cancel, settings = listed["tests.api.typed"]
        assert (verdict["name"], verdict["example"]) == ("verdict", {"by": 0})
        assert verdict["schema"]["properties"]["by"] == {"type": "integer"}
        assert cancel == {"name": "cancel", "schema": {"type": "null"}, "example": None}
        assert settings["schema"]["properties"]["token"]["default"] == "s3cret"

    def test_a_default_is_not_shown_without_the_permission_to_see_payloads(self, make_api: MakeApi) -> None:
        answer = make_api("view_run").get("/workflows")
        assert "s3cret" not in answer.content.decode()
        listed = {each["name"]: each["messages"] for each in answer.json()["results"]}
        assert listed["tests.api.typed"][2]["schema"]["properties"].keys() == {"default", "token"}


# -- starting again with another input, and giving the output of a step, over REST


EVERY = (*ALL, "give_output", "edit_input")
GIVEN: dict[str, Any] = {"location": "break", "output": {"by": "hand"}, "reason": "approved by telephone"}


@pytest.fixture
def boss(make_api: MakeApi) -> Api:
    return make_api(*EVERY)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_output_is_given(boss: Api, in_place: bool) -> None:
    pass_once(fail.using(id="a").start())
    plan = boss.get("/runs/a/replay-plan?location=break&with_output=true").json()
    assert plan["reruns"] == []
    order = {**GIVEN, "in_place": in_place, "plan_hash": plan["hash"]}
    answer = boss.post("/runs/a/give-output", order)
    assert answer.status_code == (200 if in_place else 201)
    run_id = answer.json()["id"]
    assert (run_id == "a") is in_place
    pass_once(get_run(run_id))
    entry = boss.get(f"/runs/{run_id}/entries/break").json()
    assert entry["data"]["given"]["reason"] == "approved by telephone"
    assert get_run(run_id).state == "completed"


def test_what_cannot_be_given_is_told(boss: Api) -> None:
    pass_once(fail.using(id="a").start())
    problem(boss.post("/runs/a/give-output", {**GIVEN, "reason": ""}), 400, "invalid-request")
    problem(boss.post("/runs/a/give-output", {"location": "break", "reason": "x"}), 400, "invalid-request")
    problem(boss.post("/runs/a/give-output", {**GIVEN, "location": "nowhere"}), 404, "entry-not-found")
    problem(boss.post("/runs/a/give-output", {**GIVEN, "plan_hash": "0" * 32}), 409, "plan-stale")
    assert Run.objects.count() == 1


def test_a_run_starts_again_with_another_input(boss: Api) -> None:
    pass_once(add.using(id="a").start(1, 2))
    answer = boss.post("/runs/a/restart", {"changes": {"other": 40}, "id": "b", "reason": "typing error"})
    assert answer.status_code == 201
    pass_once(get_run("b"))
    assert get_run("b").result() == 41
    assert OperatorAction.objects.get().action == "edit_input"
    problem(boss.post("/runs/a/restart", {"changes": {"third": 1}}), 422, "arguments-refused")


def test_two_runs_are_compared(boss: Api, make_api: MakeApi) -> None:
    pass_once(fail.using(id="a").start())
    run_id = boss.post("/runs/a/give-output", GIVEN).json()["id"]
    pass_once(get_run(run_id))
    found = boss.get(f"/runs/a/comparison?other={run_id}").json()
    [place] = [each for each in found["rows"] if each["location"] == "break"]
    assert place["differs"] == ["status", "error", "given by hand", "output"]
    assert (place["left"]["output"], place["right"]["output"]) == (None, {"by": "hand"})
    seen = make_api("view_run", name="vera").get(f"/runs/a/comparison?other={run_id}").json()
    assert [each["right"]["output"] for each in seen["rows"]] == [None]
    problem(boss.get("/runs/a/comparison?other=nowhere"), 404, "run-not-found")
    problem(boss.get("/runs/a/comparison"), 400, "invalid-request")
    problem(make_api("operate_run", name="olga").get("/runs/a/comparison?other=a"), 403, "permission-denied")
