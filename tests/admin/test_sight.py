"""A user of the admin sees the runs that `ADMIN_RUNS` allows; no answer shows anything of the others."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from django.contrib.admin import site
from django.db.models import QuerySet
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

import durable
from durable import operations
from durable.admin import access
from durable.admin.run_admin import RunAdmin
from durable.admin.run_parts import PART_NAMES
from durable.core.control_flow import Park
from durable.core.limits.slot_records import Admission
from durable.core.registry import BULK
from durable.core.summary import in_line, waiting
from durable.models import Cause, Child, Failure, Hold, OperatorAction, QueueMessage, Run, SavedView, Slot
from durable.operations import bulk
from durable.operations.audit import Actor, acting_as
from durable.operations.verbs import RUN_VERBS
from tests.admin import flows
from tests.admin.addresses import PAGES
from tests.admin.conftest import Stage
from tests.admin.every_page import addresses, fill
from tests.admin.pages import confirm, log_url, read, text_of, url
from tests.support.addresses import path_of

pytestmark = pytest.mark.django_db

EVERY: Final = (
    *("view_run", "view_payload", "start_run", "operate_run", "replay_run", "give_output", "edit_input", "settle_step"),
    *("pause_queue", "hold_workflow", "view_source", "change_limit", "add_schedule", "operate_schedule"),
    *("share_savedview",),
)
RULE: Final = {"ADMIN_RUNS": f"{__name__}.own_runs"}
FAILING: Final = {"ADMIN_RUNS": f"{__name__}.failing"}
EMPTY: Final = {"ADMIN_RUNS": f"{__name__}.nothing"}


def own_runs(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """The user's runs begin with "mine"."""
    return runs.filter(id__startswith="mine")


def failing(_request: HttpRequest, _runs: QuerySet[Run]) -> QuerySet[Run]:
    """A function with a mistake."""
    raise LookupError("no tenant")


def nothing(_request: HttpRequest, _runs: QuerySet[Run]) -> None:
    """A function without a return."""


@pytest.fixture
def ada(log_in: Callable[..., Client]) -> Client:
    """A user with all permissions."""
    return log_in(*EVERY)


@pytest.fixture
def limited() -> Iterator[None]:
    with override_settings(DURABLE=RULE):
        yield


def answered(client: Client, path: str, data: dict[str, Any] | None = None) -> tuple[int, str]:
    """The status and the text of an answer, that of a stream as well, and where a redirect leads."""
    response: Any = client.get(path) if data is None else client.post(path, data)
    body = b"".join(response.streaming_content) if response.streaming else response.content
    said = [str(each) for each in response.wsgi_request._messages] if response.status_code == 302 else []
    return response.status_code, "\n".join([body.decode(), response.get("Location", ""), *said])


# -- the markers of all hidden runs in every answer

#: What `fill` leaves behind of runs that the rule hides: ids, reasons, messages, errors, and workflows of hidden runs
#: alone.
MARKS: Final = re.compile(r"\brun-\d+\b|\bzq\b|no answer for|went wrong|the bank is closed|tests\.(?!quick\b)\w+")


def _one_for_each_hidden_run(paths: Iterable[str]) -> list[str]:
    """Paths of a page: all but those of a hidden run after the first. Such a page is refused before it reads more."""
    found: dict[str, str] = {}
    for path in paths:
        of_run = re.search(r"/(run-\d+)/", path)
        found.setdefault(of_run[1] if of_run else path, path)
    return list(found.values())


@pytest.mark.slow
def test_no_page_shows_anything_of_a_hidden_run(stage: Stage, ada: Client, make_user: Any) -> None:
    stage.start(flows.quick, id="mine-1")
    fill(stage, make_user(*EVERY, name="zq"))
    without_the_rule = "".join(
        read(ada, url(each)) for each in ("changelist", "causes", "workflows", "limits", "schedules")
    )
    assert {re.split(r"\W", mark)[0] for mark in MARKS.findall(without_the_rule)} >= {"run", "zq", "tests"}
    Hold.objects.update(held_by="bob", reason="a deploy")  # of a workflow and a queue, and of no run
    every = [path for paths in addresses().values() for path in _one_for_each_hidden_run(paths)]
    every += [f"{url('change', 'mine-1')}?part={part}" for part in PART_NAMES]
    every += [url(name, "mine-1") for name in ("export", "live", "edit_input")]
    every += [url("names", kind) + "?q=" for kind in ("workflow", "queue", "worker")]
    every += [url("changelist") + "?q=run-", url("changelist") + "?q=mine", url("changelist") + "?children=1&alerts=1"]
    every += [log_url() + each for each in ("?q=run-1", "?person=zq", "?bulk=b")]
    with override_settings(DURABLE=RULE):
        for path in every:
            status, text = answered(ada, path)
            assert status < 500, path
            found = {each for each in MARKS.findall(text) if each not in path}
            assert not found, (path, status, found)


# -- a hidden run and none at all

OF_A_RUN: Final = {
    name: address for name, address in PAGES.items() if address.keys[:1] == ("run",) and name not in ("bulk_result",)
}


@pytest.mark.parametrize("is_posted", [False, True])
def test_a_hidden_run_is_answered_like_none(stage: Stage, ada: Client, limited: None, is_posted: bool) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="xhidden")
    before = Run.objects.values().get()
    for name, address in OF_A_RUN.items():
        data = {"reason": "why", "queue": "q", "body": "1", "in_place": "on", **address.data} if is_posted else None
        hidden, none = (
            answered(ada, path_of(f"admin:durable_run_{name}", replace(address, query=query), {"run": run_id}), data)
            for run_id, query in (("xhidden", address.query.replace("=run", "=xhidden")), ("xnobody", address.query))
        )
        assert hidden[0] == none[0] == (302 if name == "lead" else 404), name
        assert _without_tokens(hidden[1], "xhidden") == _without_tokens(none[1], "xnobody"), name
        assert Run.objects.values().get() == before, name


def _without_tokens(text: str, run_id: str) -> str:
    text = re.sub(r'(csrfmiddlewaretoken" value|durable-now" content)="[^"]*"', "", text)
    return text.replace(run_id, "ID")


def test_no_verb_reaches_a_hidden_run(stage: Stage, ada: Client, limited: None) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="run")
    before = Run.objects.values().get()
    for verb in RUN_VERBS:
        assert ada.post(url("act", "run", verb), {"reason": "why"}).status_code == 404, verb
        assert Run.objects.values().get() == before, verb


def test_a_verb_reaches_a_visible_run(stage: Stage, ada: Client, limited: None) -> None:
    stage.start(flows.nap, id="mine")
    assert confirm(ada, url("act", "mine", "pause"), reason="why").status_code == 302
    assert Run.objects.get(pk="mine").state == "paused"


def test_a_new_run_that_its_user_would_not_see_is_not_made(stage: Stage, ada: Client, limited: None) -> None:
    stage.start(flows.quick, id="mine")
    assert "you would not see the run" in text_of(confirm(ada, url("act", "mine", "restart"), reason="why"), 409)
    assert Run.objects.count() == 1


# -- what a visible run says of its relatives


@pytest.fixture
def related(stage: Stage) -> None:
    """A visible run with a hidden parent, original, child, successor and started run."""
    for run_id in ("hid-parent", "hid-original", "hid-child", "hid-next", "hid-started", "mine"):
        stage.start(flows.approve if run_id == "mine" else flows.quick, id=run_id)
    Run.objects.filter(pk="mine").update(parent="hid-parent", replay_of="hid-original")
    Run.objects.filter(pk="hid-next").update(replay_of="mine")
    Run.objects.filter(pk__in=["hid-started", "hid-child"]).update(parent="mine")
    Child.objects.create(run_id="hid-child", parent_id="mine", location="child", position=1, when_parent_ends="cancel")
    now = timezone.now()
    rows = [("replay", "done", 'from "a", as run hid-next'), ("restart", "conflict", 'run "hid-next" exists')]
    given = {"source": "admin", "created_at": now}
    for action, outcome, detail in rows:
        OperatorAction.objects.create(action=action, run_id="mine", outcome=outcome, detail=detail, **given)
    OperatorAction.objects.create(action="cancel", run_id="hid-next", outcome="done", **given)


def test_nothing_of_a_run_names_hidden_relatives(related: None, ada: Client, limited: None) -> None:
    actions = OperatorAction.objects.filter(run_id="mine").values_list("pk", flat=True)
    paths = [url("change", "mine") + part for part in ("", *(f"?part={each}" for each in PART_NAMES))]
    paths += [url(each, "mine") for each in ("live", "export", "edit_input", "send")]
    paths += [url("act", "mine", each) for each in ("cancel", "pause", "restart")]
    paths += [url("changelist") + "?columns=parent&children=1", url("running")]
    paths += [log_url(), *(log_url("change", pk) for pk in actions)]
    for path in paths:
        status, text = answered(ada, path)
        assert status == 200, path
        assert "hid-" not in text, path
    assert "hid-" not in text_of(ada.get(url("compare", "mine")), 404)
    other = url("compare", "mine") + "?with="
    hidden, none = (_without_tokens(answered(ada, other + each)[1], each) for each in ("hid-next", "hid-none"))
    assert hidden == none


def test_a_message_goes_to_no_hidden_run_and_it_is_as_one_that_does_not_exist(
    related: None, ada: Client, limited: None
) -> None:
    QueueMessage.objects.create(id="stray", run_id="mine", queue="q", body="7", sent_at=timezone.now(), order=1)
    address, said = url("message_act", "mine", "stray", "move"), []
    for each in ("hid-next", "hid-none"):
        status, text = answered(ada, address, {"to": each, "token": "x"})
        assert status == 422
        said.append(_without_tokens(text, each))
    assert said[0] == said[1]
    assert QueueMessage.objects.get().run_id == "mine"


def test_the_children_of_a_hidden_run_are_not_counted(related: None, ada: Client, limited: None) -> None:
    assert "durable-children" not in text_of(ada.get(url("change", "mine")))
    assert "are cancelled with it" not in text_of(ada.get(url("act", "mine", "cancel")))


def test_a_line_tells_no_place_and_no_hidden_holder(stage: Stage, ada: Client, limited: None) -> None:
    for run_id in ("hid-1", "mine"):
        stage.start(flows.nap, id=run_id)
    given = {"limit": "gpu", "key": "", "location": "", "kind": "step", "since": stage.now}
    for place, run_id in enumerate(("hid-1", "mine")):
        Slot.objects.create(run_id=run_id, is_held=not place, place=place, **given)
    admission = Admission(is_granted=False, limit="gpu", place=70, held=30, at_once=40)
    Run.objects.filter(pk="mine").update(summary=waiting(Park(None, doing=[in_line(admission)])), wake_at=None)
    for path in (url("change", "mine"), url("changelist"), url("export", "mine"), url("act", "mine", "pause")):
        status, text = answered(ada, path)
        assert status == 200
        assert "hid-1" not in text
        assert "70 in line" not in text
        assert "in line for" in text.lower(), path
    with override_settings(DURABLE={}):
        assert "hid-1" in text_of(ada.get(url("change", "mine")))


def parents_alone(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A rule that parts families."""
    return runs.exclude(workflow="tests.bill")


# A parent that has failed names the failed child in its error, which is a record of its own.
@pytest.mark.parametrize(("is_broken", "is_settled"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("parent", [flows.billing, flows.stopping])
def test_a_parent_names_hidden_children_in_its_own_records_alone(
    stage: Stage, ada: Client, parent: Any, is_broken: bool, is_settled: bool
) -> None:
    flows.SWITCH["broken"] = is_broken
    stage.start(parent, 4, id="boss")
    for _ in range(3 * is_settled):
        for run in Run.objects.filter(wake_at__isnull=False):
            stage.settle(run.pk)
    children = Run.objects.filter(workflow="tests.bill").values_list("pk", flat=True)
    assert len(children) == 4 or parent is flows.stopping
    records = {"timeline", "history", "events", "payloads"}
    paths = [f"{url('change', 'boss')}?part={part}" for part in PART_NAMES if part not in records]
    paths += [url("act", "boss", verb) for verb in ("cancel", "pause", "recover")]
    paths += [url("changelist") + "?children=1&columns=what", url("causes")]
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.parents_alone"}):
        for path in paths:
            text = text_of(ada.get(path))
            assert not any(each in text for each in children), path
            assert not re.search(r"\d (open )?child|of 4 |children have failed|are under way", text), path


# -- causes


@pytest.fixture
def failures(stage: Stage) -> str:
    """Two visible and three hidden runs that have failed for the same cause; its fingerprint."""
    flows.SWITCH["broken"] = True
    for run_id in ("hid-1", "mine-1", "hid-2", "mine-2", "hid-3"):
        stage.start(flows.switched, id=run_id)
    Run.objects.filter(id__startswith="hid").update(queue="hid-queue", worker="hid-worker")
    Failure.objects.filter(pk__in=["hid-1", "hid-2", "hid-3"]).update(queue="hid-queue", worker="hid-worker")
    Cause.objects.update(first_seen_at=timezone.now() - timedelta(days=40))
    return Cause.objects.get().fingerprint


def test_a_cause_has_the_visible_runs_alone(failures: str, ada: Client, limited: None) -> None:
    pages = (url("causes"), url("cause", failures), url("change", "mine-1"), url("changelist") + f"?cause={failures}")
    for path in pages:
        text = text_of(ada.get(path))
        assert "hid-" not in text, path
        assert not re.search(r">\s*[35]\+?( failed| runs?|<)", text), path
        assert "40 d" not in text, path
    assert "2 failed runs" in text_of(ada.get(url("cause", failures)))
    with override_settings(DURABLE={}):
        assert "5 failed runs" in text_of(ada.get(url("cause", failures)))


def test_no_verb_on_all_runs_of_a_cause_is_offered(failures: str, ada: Client, limited: None) -> None:
    for path in (url("causes"), url("cause", failures)):
        text = text_of(ada.get(path))
        assert url("bulk") not in text, path
        assert "mute/" not in text, path
    Run.objects.filter(pk="mine-2").delete()
    assert url("act", "mine-1", "recover") in text_of(ada.get(url("causes")))


def test_a_cause_of_hidden_runs_is_none(failures: str, ada: Client, limited: None) -> None:
    Run.objects.filter(id__startswith="mine").delete()
    assert failures not in text_of(ada.get(url("causes")))
    hidden, none = (answered(ada, url("cause", each)) for each in (failures, "f" * 16))
    assert hidden[0] == none[0] == 404
    assert _without_tokens(hidden[1], failures) == _without_tokens(none[1], "f" * 16)
    assert "GatewayTimeout" not in text_of(ada.get(url("changelist") + f"?cause={failures}"))


# -- workflows


def test_a_workflow_has_the_numbers_of_visible_runs(failures: str, ada: Client, limited: None) -> None:
    path = url("workflow", "tests.switched")
    text = text_of(ada.get(path))
    assert "<strong>2</strong>" in text
    assert not re.search(r"<strong[^>]*>[35]</strong>", text)
    assert "hid-" not in text
    assert "durable-chart" not in text
    with override_settings(DURABLE={}):
        assert "<strong>5</strong>" in text_of(ada.get(path))


def test_a_workflow_without_code_here_and_with_hidden_runs_alone_is_none(
    stage: Stage, ada: Client, limited: None
) -> None:
    stage.start(flows.quick, id="hid-1")
    Run.objects.update(workflow="gone.secret")
    Hold.objects.create(kind="workflow", name="gone.secret", held_at=timezone.now())
    hidden, none = (answered(ada, url("workflow", each)) for each in ("gone.secret", "gone.nobody"))
    assert hidden[0] == none[0] == 404
    assert _without_tokens(hidden[1], "gone.secret") == _without_tokens(none[1], "gone.nobody")


def test_a_start_is_of_a_run_that_its_user_would_see(stage: Stage, ada: Client, limited: None) -> None:
    stage.start(flows.quick, id="hid-1")
    path = url("workflow_start", "tests.quick")
    given = {"arguments": "{}", "reason": "why", "token": str(uuid4())}
    texts = [text_of(ada.post(path, {**given, "run_id": each}), 409) for each in ("hid-1", "hid-2", "")]
    assert all("you would not see the run" in each for each in texts)
    assert "hid-1" not in texts[0].replace('value="hid-1"', "")
    assert Run.objects.count() == 1
    assert ada.post(path, {**given, "run_id": "mine-7"})["Location"] == url("change", "mine-7")
    assert Run.objects.get(pk="mine-7").workflow == "tests.quick"


def test_the_key_of_a_hidden_run_names_no_run(stage: Stage, ada: Client, limited: None) -> None:
    flows.nap.using(id="hid-1", key="order-7").start()
    given = {"arguments": "{}", "reason": "why", "token": str(uuid4()), "run_id": "mine-1", "key": "order-7"}
    response = ada.post(url("workflow_start", "tests.nap"), given)
    assert response.status_code in (409, 422)
    assert "hid-" not in response.content.decode()
    assert Run.objects.count() == 1


# -- bulks


def _posted(ada: Client, verb: str, *ids: str, **given: str) -> Any:
    return ada.post(url("bulk"), {"verb": verb, "id": ids, "confirmed": "1", "count": "9", "reason": "why", **given})


def test_a_bulk_acts_on_visible_runs_alone(failures: str, ada: Client, limited: None) -> None:
    text = text_of(ada.get(url("bulk") + "?verb=recover&id=mine-1&id=hid-1&id=mine-gone"))
    assert "hid-" not in text
    assert "mine-gone" not in text
    response = _posted(ada, "recover", "mine-1", "hid-1", "mine-gone", token=str(uuid4()))
    assert response.status_code == 302
    states = dict(Run.objects.values_list("pk", "state"))
    assert {name for name, state in states.items() if state != "failed"} == {"mine-1"}
    shown = text_of(ada.get(response["Location"]))
    assert "hid-" not in shown
    assert "mine-gone" not in shown


def test_a_bulk_is_of_chosen_runs(failures: str, ada: Client, limited: None) -> None:
    before = list(Run.objects.order_by("pk").values())
    for more in ({"all": "on", "filter": "?state=failed"}, {"children_of": "hid-1"}, {"bulk": "b"}):
        response = _posted(ada, "recover", token=str(uuid4()), **more)
        assert response.status_code == 302
        assert response["Location"].startswith(url("changelist"))
        assert list(Run.objects.order_by("pk").values()) == before


def test_a_bulk_is_shown_to_its_own_user_while_all_its_runs_are_visible(
    failures: str, ada: Client, make_user: Any, limited: None
) -> None:
    own = _posted(ada, "recover", "mine-1", "mine-2", token=str(uuid4()))["Location"]
    assert ada.get(own).status_code == 200
    with acting_as(Actor("admin", user=make_user(*EVERY, name="bob"))):
        other = bulk.apply("recover", ["mine-1"]).bulk_id
    assert ada.get(url("bulk_result", other)).status_code == 404
    assert ada.get(url("bulk_live", other)).status_code == 404
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.first_run"}):
        assert ada.get(own).status_code == 404


def first_run(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A rule that has become narrower."""
    return runs.filter(id="mine-1")


def test_the_run_of_an_own_bulk_can_be_paused_and_of_another_not(
    failures: str, ada: Client, make_user: Any, limited: None
) -> None:
    own = _posted(ada, "recover", "mine-1", "mine-2", token=str(uuid4()), first="1", stop_after="1")["Location"]
    [mine] = Run.objects.filter(workflow=BULK).values_list("pk", flat=True)
    assert own == url("bulk_result", mine)
    with acting_as(Actor("admin", user=make_user(*EVERY, name="bob"))):
        other = bulk.apply("recover", ["hid-1"], canary=bulk.Canary(first=1)).run_id
    assert other is not None
    assert ada.post(url("act", mine, "pause"), {"reason": "why", "token": str(uuid4())}).status_code == 302
    assert ada.post(url("act", other, "pause"), {"reason": "why", "token": str(uuid4())}).status_code == 404
    assert dict(Run.objects.filter(workflow=BULK).values_list("pk", "state")) == {mine: "paused", other: "pending"}
    assert ada.get(url("change", other)).status_code == 404


def test_a_token_that_names_a_hidden_bulk_leads_to_a_bulk_of_its_own(
    failures: str, ada: Client, make_user: Any, limited: None
) -> None:
    with acting_as(Actor("admin", user=make_user(*EVERY, name="bob"))):
        other = bulk.apply("recover", ["hid-1"]).bulk_id
    response = _posted(ada, "recover", "mine-1", token=other)
    assert response.status_code == 302
    assert other not in response["Location"]
    assert ada.get(response["Location"]).status_code == 200


# -- the list, the log, views


def test_the_list_counts_visible_runs(stage: Stage, ada: Client, limited: None) -> None:
    for run_id in ("mine-1", "hid-1", "hid-2"):
        stage.start(flows.quick, id=run_id)
    text = text_of(ada.get(url("changelist")))
    assert "1 run" in text
    assert "mine-1" in text
    assert "hid-" not in text
    assert "hid-1" not in text_of(ada.get(url("changelist") + "?q=hid-")).replace('value="hid-"', "")


def test_shared_views_are_not_shown_and_not_made(ada: Client, limited: None) -> None:
    view = SavedView.objects.create(
        name="of bob", query="q=hid-1", owner_key="0", owner_label="bob", is_shared=True, created_at=timezone.now()
    )
    assert "of bob" not in text_of(ada.get(url("changelist")))
    for pk in (view.pk, view.pk + 1):
        assert ada.post(url("delete_view", pk)).status_code == 404
    ada.post(url("save_view"), {"name": "for all", "query": "state=failed", "shared": "on"})
    assert list(SavedView.objects.values_list("name", flat=True)) == ["of bob"]
    ada.post(url("save_view"), {"name": "for me", "query": "state=failed"})
    assert "for me" in text_of(ada.get(url("changelist")))


# -- the rule itself


def test_the_function_is_called_once_for_a_request(
    stage: Stage, ada: Client, limited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.start(flows.quick, id="mine")
    asked: list[str] = []

    def counting(request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
        asked.append(str(request.user))
        return runs.filter(id__startswith="mine")

    monkeypatch.setattr(f"{__name__}.own_runs", counting)
    for path in (url("changelist"), url("change", "mine"), url("act", "mine", "restart")):
        assert ada.get(path).status_code == 200
        assert asked == ["ada"], path
        asked.clear()


@pytest.mark.parametrize(("settings", "error"), [(FAILING, LookupError), (EMPTY, TypeError)])
def test_an_error_in_the_function_is_an_error(
    stage: Stage, ada: Client, settings: dict[str, str], error: type[Exception]
) -> None:
    stage.start(flows.quick, id="mine")
    for path in (url("changelist"), url("running"), log_url()):
        with override_settings(DURABLE=settings), pytest.raises(error):
            ada.get(path)


def no_runs(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A user without rights: Django knows without a statement that there are none."""
    return runs.none()


def test_a_user_who_sees_no_run_has_empty_pages(failures: str, ada: Client) -> None:
    site = {"{cause}": failures, "{view}": "1"}
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.no_runs"}):
        found = {
            name: answered(ada, path_of(f"admin:durable_run_{name}", PAGES[name], site))
            for name in sorted(access.LIMITED - {"save_view", "delete_view"})
        }
        found["log"] = answered(ada, log_url())
    statuses = {name: status for name, (status, _) in found.items()}
    assert {name for name, status in statuses.items() if status == 200} >= {"changelist", "running", "causes", "log"}
    assert statuses["cause"] == statuses["change"] == 404
    assert not [name for name, (_, text) in found.items() if "mine-" in text or "hid-" in text]


# -- what is left out, and that nothing is forgotten


def _names() -> set[str]:
    return {str(each.name).removeprefix("durable_run_") for each in RunAdmin(Run, site).get_urls()}  # type: ignore[union-attr]


def test_every_other_page_is_refused_and_says_why(stage: Stage, ada: Client, limited: None) -> None:
    refused = _names() - access.LIMITED
    assert _names() >= access.LIMITED
    assert refused
    for name in sorted(refused):
        path = path_of(f"admin:durable_run_{name}", PAGES[name], {"{cause}": "0" * 16, "{view}": "1"})
        for data in (None, {"reason": "why", **PAGES[name].data}):
            status, text = answered(ada, path, data)
            assert status == 403, (name, status)
            assert "ADMIN_RUNS" in text, name


def test_no_page_links_to_a_refused_one(stage: Stage, ada: Client, limited: None) -> None:
    stage.start(flows.approve, id="mine")
    Run.objects.filter(pk="mine").update(worker="host:1:a")
    refused = [_pattern(name) for name in sorted(_names() - access.LIMITED)]
    paths = [reverse("admin:index"), reverse("admin:app_list", args=["durable"]), url("changelist"), url("running")]
    paths += [f"{url('change', 'mine')}?part={part}" for part in PART_NAMES]
    paths += [url("send", "mine"), url("act", "mine", "pause"), log_url()]
    for path in paths:
        links = re.findall(r'(?:href|action|data-durable-live|data-durable-known)="([^"?#]+)', text_of(ada.get(path)))
        assert [each for each in links if any(one.fullmatch(each) for one in refused)] == [], path


def _pattern(name: str) -> re.Pattern[str]:
    args = ["1" if each == "{view}" else "x" for each in PAGES[name].keys]
    path = reverse(f"admin:durable_run_{name}", args=args)
    return re.compile(re.escape(path).replace("/x", "/[^/]+"))


def test_without_the_setting_every_page_is_there(stage: Stage, ada: Client) -> None:
    stage.start(flows.quick, id="mine")
    for name in ("overview", "causes", "queues", "limits", "schedules", "workers", "workflows"):
        assert ada.get(url(name)).status_code == 200
    assert all(access.is_offered(each) for each in _names())


def test_a_replay_check_of_operations_is_left_alone(stage: Stage) -> None:
    """Code acts on all runs: the rule is the admin's."""
    with override_settings(DURABLE=RULE):
        stage.start(flows.quick, id="hid")
        assert operations.restart("hid", as_id="hid-2").is_new


# -- every module takes the runs from `access`

#: The modules of refused pages, and what they may call without a limit.
OF_ALL: Final = {"limits_page", "overview", "queues_page"}
#: Calls that read one run which the page has found within the rule, by module.
OF_ONE_RUN: Final = {
    "run_parts": {"_payloads"},
    "payload_page": {"_find"},
    "workflows_page": {"_builds", "show_all"},  # of all runs, where all are visible; a refused page
    "access": {"find_run"},  # the run of a bulk that the user may see
    "bulk_page": {"_own_id", "_is_started", "_state_of", "_wanted"},  # of an id, for a yes or no; of refused selections
}


def _limitable() -> set[str]:
    """The names of the functions of the read side that take `within`."""
    found: set[str] = set()
    root = Path(inspect.getfile(durable)).parent / "inspection"
    for path in root.glob("[!_]*.py"):
        module = import_module(f"durable.inspection.{path.stem}")
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                found |= {name} if "within" in inspect.signature(value).parameters else set()
    return found


def _unlimited(source: str, limitable: set[str], *, allowed: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Calls in a module's text that read runs of everybody."""
    wrong: list[str] = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name in allowed:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "Run.objects":
                wrong.append(f"{function.name}: Run.objects")
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in limitable:
                continue
            if node.func.id == "activities_of_runs" and not any(each.arg == "with_usual" for each in node.keywords):
                continue  # of runs that the caller has
            given = [*map(ast.unparse, node.args), *(f"{each.arg}={ast.unparse(each.value)}" for each in node.keywords)]
            if not any("within" in each for each in given):
                wrong.append(f"{function.name}: {node.func.id}")
    return wrong


def test_no_module_of_a_limited_page_reads_runs_of_everybody() -> None:
    limitable = _limitable()
    assert {"list_runs", "count_children", "explain_fully", "list_activities", "written"} <= limitable
    root = Path(inspect.getfile(durable)).parent / "admin"
    found = {
        path.stem: _unlimited(path.read_text(), limitable, allowed=OF_ONE_RUN.get(path.stem, set()))
        for path in sorted(root.glob("*.py"))
        if path.stem not in OF_ALL
    }
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_a_read_of_everybody_is_found() -> None:
    assert _unlimited("def f():\n    return Run.objects.all()", set()) == ["f: Run.objects"]
    assert _unlimited("def f():\n    return list_runs(wanted)", {"list_runs"}) == ["f: list_runs"]
    assert _unlimited("def f():\n    return list_runs(wanted, within=within)", {"list_runs"}) == []
