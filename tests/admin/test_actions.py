"""What operators do: each verb asks, does it once, is refused in plain words, and leaves a trace, denied ones too."""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from durable import get_run
from durable.core.summary import Summary, SummaryKind
from durable.models import OperatorAction, QueueMessage, Run
from durable.operations import ALLOWED
from durable.operations.verbs import possible_verbs
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, hidden, log_url, read, text_of, traces, url

LogIn = Callable[..., Client]


def test_cancel_asks_then_does_it_and_leaves_a_trace(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    page = operator.get(url("act", "run", "cancel"))
    assert get_run("run").state == "sleeping"
    done = operator.post(url("act", "run", "cancel"), {**hidden(page), "reason": "not wanted"}, follow=True)
    assert "It is cancelled" in text_of(done)
    assert get_run("run").state == "cancelled"
    assert traces("run") == [("ada", "cancel", "done", "not wanted")]


def test_a_stale_page_changes_nothing_and_says_so(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    page = operator.get(url("act", "run", "cancel"))
    get_run("run").pause()
    late = operator.post(url("act", "run", "cancel"), {**hidden(page), "reason": "late"})
    body = text_of(late, 409)
    assert "The run has changed since this page was made, so nothing was done" in body
    assert "late" in body  # what was typed is still there
    assert get_run("run").state == "paused"
    again = operator.post(url("act", "run", "cancel"), {**_fields(late), "reason": "now"})
    assert again.status_code == 302
    assert get_run("run").state == "cancelled"


def _fields(response: Any) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', response.content.decode()))


def test_a_run_is_moved_to_a_queue_that_is_chosen(stage: Stage, operator: Client) -> None:
    stage.start(flows.nap, id="run")
    page = operator.get(url("act", "run", "move"))
    assert re.findall(r'<option value="(\w*)"', text_of(page)) == ["", "default", "high"]
    assert "durable move run --queue QUEUE" in text_of(page)
    for queue in ("", "nowhere"):
        refused = operator.post(url("act", "run", "move"), {**hidden(page), "queue": queue})
        assert "errorlist" in text_of(refused, 422)
    assert not OperatorAction.objects.exists()
    given = {**hidden(page), "queue": "high", "reason": "the other one is full"}
    assert operator.post(url("act", "run", "move"), given).status_code == 302
    assert get_run("run").info().queue == "high"
    shown = text_of(operator.get(url("change", "run")))
    assert re.search(r"moved to another queue by \w+: the other one is full", shown)
    again = operator.post(url("act", "run", "move"), {**hidden(page), "queue": "high", "expected": ""})
    assert "is in the queue &quot;high&quot; already" in text_of(again, 409)


def test_what_the_state_does_not_allow_is_refused_in_words(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="run")
    page = operator.get(url("act", "run", "cancel"))
    assert "it would be refused" in text_of(page)
    assert "Nothing was done" in text_of(operator.post(url("act", "run", "cancel"), hidden(page)), 409)
    assert traces("run")[0][2] == "refused"


class TestTakingAMessageOut:
    """A message to the wrong run is deleted, or goes to another one, on the page of its run."""

    @pytest.fixture
    def message(self, stage: Stage) -> str:
        for each in ("run", "other"):
            stage.start(flows.approve, id=each)
        return get_run("run").send("stray", 7)

    def test_it_is_moved_to_another_run(self, stage: Stage, operator: Client, message: str) -> None:
        address = url("message_act", "run", message, "move")
        assert address in operator.get(f"{url('change', 'run')}?part=messages").content.decode()
        page = operator.get(address)
        assert f"durable move-message run {message} RUN" in text_of(page)
        given = {**hidden(page), "to": "other", "reason": "wrong run"}
        done = operator.post(address, given)
        assert done["Location"] == url("change", "other")
        assert [(each.run_id, each.id) for each in QueueMessage.objects.all()] == [("other", message)]
        assert traces("run") == traces("other") == [("ada", "move_message", "done", "wrong run")]
        assert "Nothing was done" in text_of(operator.post(address, given), 422)

    def test_it_is_deleted(self, stage: Stage, operator: Client, message: str) -> None:
        address = url("message_act", "run", message, "delete")
        assert address in operator.get(f"{url('change', 'run')}?part=messages").content.decode()
        assert confirm(operator, address).status_code == 302
        assert not QueueMessage.objects.exists()
        assert traces("run")[0][:3] == ("ada", "delete_message", "done")

    @pytest.mark.parametrize(
        ("to", "problem"), [("nowhere", "There is no run"), ("run", "in the inbox of the run"), ("", "required")]
    )
    def test_a_run_that_cannot_have_it_is_refused_in_words(
        self, stage: Stage, operator: Client, message: str, to: str, problem: str
    ) -> None:
        address = url("message_act", "run", message, "move")
        assert problem in unescape(text_of(confirm(operator, address, to=to), 422))
        assert QueueMessage.objects.get().run_id == "run"

    def test_a_received_message_has_no_button_and_stays(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        message = get_run("run").send("approved", 7)
        stage.settle("run")
        address = url("message_act", "run", message, "delete")
        assert address not in operator.get(f"{url('change', 'run')}?part=messages").content.decode()
        page = operator.get(address)
        assert "it would be refused" in text_of(page)
        assert "has received the message" in unescape(text_of(operator.post(address, hidden(page)), 422))

    def test_it_needs_the_permission_and_a_message(self, stage: Stage, log_in: LogIn, message: str) -> None:
        client = log_in("view_run", "view_payload", "start_run")
        address = url("message_act", "run", message, "delete")
        assert address not in client.get(f"{url('change', 'run')}?part=messages").content.decode()
        text_of(client.post(address, {"token": "x"}), 403)
        assert traces("run")[0][1:3] == ("delete_message", "denied")
        operator = log_in(*OPERATOR, name="olga")
        for each in (("run", "none", "delete"), ("other", message, "move"), ("run", message, "keep")):
            text_of(operator.get(url("message_act", *each)), 404)


class TestSending:
    def test_the_awaited_queues_come_first_and_the_message_arrives_once(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        page = operator.get(url("send", "run"))
        assert text_of(page).index(">approved<") < text_of(page).index('name="queue"')
        message = {**hidden(page), "queue": "approved", "body": '{"by": 7}', "reason": "asked for"}
        assert operator.post(url("send", "run"), message).status_code == 302
        assert operator.post(url("send", "run"), message).status_code == 302
        assert QueueMessage.objects.count() == 1
        run = stage.settle("run")
        assert (run.state, run.output) == ("completed", '"approved"')
        assert traces("run")[0] == ("ada", "send", "done", "asked for")

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ("{by: 7}", "This is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
            ("yes", "This is not JSON"),
            ("NaN", "NaN is not a number that JSON has"),
            ('{"amount": 1e400}', "the number 1e400 is too large"),
            ("[" * 100_000, "cannot be read as JSON"),
            ('"' + "x" * 1_100_000 + '"', "This cannot be recorded"),
        ],
    )
    def test_a_body_that_is_wrong_is_said_beside_it(
        self, stage: Stage, operator: Client, body: str, problem: str
    ) -> None:
        stage.start(flows.approve, id="run")
        refused = confirm(operator, url("send", "run"), queue="approved", body=body)
        assert problem in text_of(refused, 422).replace("&quot;", '"')
        assert not QueueMessage.objects.exists()

    def test_an_unknown_queue_is_asked_about_once(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        message = {**hidden(operator.get(url("send", "run"))), "queue": "aproved", "body": "1"}
        refused = text_of(operator.post(url("send", "run"), message), 422)
        assert "The run has not asked for the queue" in refused
        assert "approved, rejected" in refused
        assert not QueueMessage.objects.exists()
        assert operator.post(url("send", "run"), {**message, "anyway": "on"}).status_code == 302
        assert QueueMessage.objects.get().queue == "aproved"

    def test_the_declared_messages_are_offered_with_their_shape(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.declaring, id="run")
        page = read(operator, url("send", "run"))
        assert re.findall(r'<option value="(\w*)"(?: selected)?>', page) == ["", "verdict", "cancel"]
        assert '"required": [\n    "by"\n  ]' in page
        assert '{\n  "by": 0\n}' in page.partition('name="body"')[2]
        assert "null" in read(operator, f"{url('send', 'run')}?queue=cancel").partition('name="body"')[2]

    @pytest.mark.parametrize(
        ("queue", "body", "problem"),
        [
            ("verdict", '{"by": "seven"}', "by: expected a whole number, found text"),
            ("verdict", '{"by": 7, "nte": ""}', 'nte: is not a field of Verdict, did you mean "note"?'),
            ("cancel", "1", "expected null, found a whole number"),
            ("verdct", "1", "Select a valid choice. verdct is not one of the available choices."),
        ],
    )
    def test_a_message_that_is_not_declared_is_refused_at_its_field(
        self, stage: Stage, operator: Client, queue: str, body: str, problem: str
    ) -> None:
        stage.start(flows.declaring, id="run")
        message = {**hidden(operator.get(url("send", "run"))), "queue": queue, "body": body, "anyway": "on"}
        refused = operator.post(url("send", "run"), message)
        assert problem in unescape(text_of(refused, 422))
        assert not QueueMessage.objects.exists()
        message = {**message, "queue": "verdict", "body": '{"by": 7}'}
        assert operator.post(url("send", "run"), message).status_code == 302
        assert stage.settle("run").output == '"verdict"'

    def test_a_run_with_messages_that_were_not_accepted_is_shown(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.missending, id="run")
        Run.objects.update(workflow="tests.admin.elsewhere")  # as for a process that does not know it
        get_run("run").send("verdict", {"by": "seven"})
        Run.objects.update(workflow="tests.admin.missending")
        stage.advance(hours=2)
        run = stage.run("run")
        assert (run.state, get_run("run").error.type) == ("failed", "MessageBodyError")  # type: ignore[union-attr]
        page = read(operator, url("change", "run"))
        assert "by: expected a whole number, found text" in page
        for entry in get_run("run").history():
            text_of(operator.get(url("step", "run"), {"at": entry.location}))
        get_run("run").recover()
        assert stage.settle("run").state == "failed"
        assert QueueMessage.objects.get().state == "received"

    def test_a_former_message_is_shown_and_copied(self, stage: Stage, log_in: LogIn) -> None:
        stage.start(flows.approve, id="before")
        get_run("before").send("approved", {"by": 7, "note": "<b>"})
        get_run("before").send("other", {"secret": 1})
        stage.start(flows.approve, id="run")
        operator = log_in(*OPERATOR)
        page = text_of(operator.get(url("send", "run")))
        assert "What was sent before" in page
        assert "to run before" in page
        assert "secret" not in page  # the run has nothing to do with that queue
        [link] = re.findall(r'href="(\?queue=approved&copy=[^"]+)"', unescape(page))
        copied = text_of(operator.get(url("send", "run") + link))
        body = unescape(copied).partition('name="body"')[2].partition(">")[2].partition("</textarea>")[0]
        assert json.loads(body) == {"by": 7, "note": "<b>"}
        forged = QueueMessage.objects.get(queue="other").pk
        assert "secret" not in text_of(operator.get(f"{url('send', 'run')}?queue=approved&copy={forged}"))
        viewer = log_in("view_run", "operate_run", name="bob")
        assert "What was sent before" not in text_of(viewer.get(url("send", "run")))

    def test_a_former_message_that_is_redacted_is_not_offered(
        self, stage: Stage, operator: Client, settings: Any
    ) -> None:
        stage.start(flows.approve, id="run")
        get_run("run").send("approved", {"card": "4242"})
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
        assert "What was sent before" not in text_of(operator.get(url("send", "run")))

    def test_a_run_that_has_ended_takes_none(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        assert "Nothing was done" in text_of(confirm(operator, url("send", "run"), queue="q", anyway="on"), 409)


class TestReplay:
    def test_the_preview_says_what_runs_again_and_then_it_does(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.branches, id="run")
        address = f"{url('replay', 'run')}?at=ship/label/buy"
        page = operator.get(address)
        body = text_of(page)
        assert "Steps that run again" in body
        assert "ship/label/buy" in body
        done = operator.post(address, {**hidden(page), "reason": "wrong label"})
        assert done.status_code == 302
        [new] = Run.objects.exclude(pk="run")
        assert new.replay_of_id == "run"
        related = {name: text_of(operator.get(url("change", name), {"part": "related"})) for name in ("run", new.id)}
        assert f'<li>repeated by <a href="{url("change", new.id)}">' in related["run"]
        assert f'<li>repeats <a href="{url("change", "run")}">' in related[new.id]
        assert operator.post(address, hidden(page)).status_code == 302  # twice is once
        assert Run.objects.count() == 2
        assert stage.settle(new.id).state == "completed"

    def test_a_stale_plan_and_a_place_that_there_is_not_are_refused(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        assert operator.get(f"{url('replay', 'run')}?at=nowhere").status_code == 404
        address = f"{url('replay', 'run')}?at=prepare"
        fields = hidden(operator.get(address))
        get_run("run").send("approved")
        stage.settle("run")
        assert "has changed" in text_of(operator.post(address, fields), 409)
        assert Run.objects.count() == 1


class TestBulk:
    def test_a_selection_is_shown_first_and_done_run_by_run(self, stage: Stage, operator: Client) -> None:
        for number in range(3):
            stage.start(flows.approve, id=f"run-{number}")
        stage.start(flows.quick, id="done")
        chosen = {"verb": "cancel", "id": ["run-0", "run-1", "done"], "filter": "?state=sleeping"}
        page = operator.post(url("bulk"), chosen)
        body = text_of(page)
        assert "<strong>2</strong> runs of the 3 that were chosen" in body
        assert Run.objects.filter(state="cancelled").count() == 0
        given = {**hidden(page), **chosen, "confirmed": "1", "reason": "all of them"}
        done = operator.post(url("bulk"), given, follow=True)
        assert "done for 2 runs" in text_of(done)
        assert "Done: 3; 1 refused" in text_of(done)
        assert url("change", "done") in text_of(done)
        assert set(Run.objects.filter(state="cancelled").values_list("id", flat=True)) == {"run-0", "run-1"}
        assert traces("run-0") == [("ada", "cancel", "done", "all of them")]

    def test_all_of_a_filter_run_in_the_background(self, stage: Stage, operator: Client) -> None:
        for number in range(3):
            stage.start(flows.approve, id=f"run-{number}")
        chosen = {"verb": "pause", "all": "on", "filter": "?workflow=tests.approve&state=sleeping"}
        page = operator.post(url("bulk"), chosen)
        assert "in the background" in text_of(page)
        done = operator.post(url("bulk"), {**hidden(page), **chosen, "confirmed": "1", "reason": "night"})
        bulk_run = Run.objects.get(workflow="durable.bulk")
        assert done["Location"] == url("bulk_result", bulk_run.id)
        assert "Under way: 0 of 3" in text_of(operator.get(done["Location"]))
        assert stage.settle(bulk_run.id).state == "completed"
        assert "Done: 3 of 3" in text_of(operator.get(done["Location"]))
        assert Run.objects.filter(state="paused").count() == 3
        assert traces("run-1") == [("ada", "pause", "done", "night")]

    @pytest.mark.parametrize(
        "posted", [{"verb": "", "id": ["run"]}, {"verb": "cancel"}, {"verb": "explode", "id": ["x"]}]
    )
    def test_nothing_chosen_is_said(self, operator: Client, posted: dict[str, Any]) -> None:
        assert "Choose" in text_of(operator.post(url("bulk"), posted, follow=True))


def test_a_session_that_ended_is_said_and_nothing_is_done(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    fields = hidden(operator.get(url("act", "run", "cancel")))
    operator.logout()
    answer = operator.post(url("act", "run", "cancel"), fields, follow=True)
    assert "Your session has ended. Nothing was done" in text_of(answer)
    assert get_run("run").state == "sleeping"


def test_changes_are_posts(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    for name in ("wake", "pause", "cancel", "restart"):
        operator.get(url("act", "run", name))
    operator.get(url("send", "run"), {"queue": "approved", "body": "1"})
    operator.get(url("bulk"), {"verb": "cancel", "id": "run", "confirmed": "1"})
    assert get_run("run").state == "sleeping"
    assert traces("run") == []
    assert Client(enforce_csrf_checks=True).post(url("act", "run", "cancel")).status_code in {302, 403}


@pytest.mark.parametrize("state", ["pending", "running", "sleeping", "paused", "rolling_back", "completed", "failed"])
def test_what_is_offered_is_what_is_allowed(state: str) -> None:
    """To settle, and to recover an open run, where a step waits for a person."""
    row: dict[str, Any] = {"state": state, "pending_request": "", "state_after_rollback": ""}
    allowed = {verb for verb, states in ALLOWED.items() if state in states}
    assert set(possible_verbs(Run(**row))) & set(ALLOWED) == allowed - {"settle"}
    doing = {"kind": "unknown", "location": "charge", "error": "BankError", "attempt": 1}
    held = Summary(SummaryKind.WAITING, doing=[doing], queues=None, until=None)
    is_open = state in ALLOWED["settle"]
    offered = set(possible_verbs(Run(**row, summary=held))) & set(ALLOWED)
    assert offered == allowed | ({"recover", "settle"} if is_open else set())


def test_the_audit_log_is_to_be_read(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    get_run("run").pause()
    body = text_of(operator.get(log_url()))
    assert "pause" in body
    [action] = OperatorAction.objects.all()
    detail = text_of(operator.get(log_url("change", action.pk)))
    for page in (body, detail):
        assert f'<time datetime="{action.created_at.isoformat()}"' in page
        assert ' UTC <span class="durable-quiet">(' in page
        assert f'<a href="{url("change", "run")}">run</a>' in page
    assert "Pause, by no user" in detail
    assert 'aria-label="Pages of durable"' in detail
    for query, number in (("action=pause", 1), ("outcome=denied", 0), ("q=ru", 1), ("source__exact=code", 1)):
        assert operator.get(f"{log_url()}?{query}").context["cl"].result_count == number
