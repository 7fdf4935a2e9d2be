"""The router of django-ninja, beside REST: the same addresses, permissions and answers, and a document that says so."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client, override_settings
from django.utils import timezone
from time_machine import TimeMachineFixture

import durable.listings
from durable import get_run
from durable.contrib import ninja
from durable.listings.listing import Listing
from durable.models import Limit, OperatorAction, Run, Schedule
from durable.models.run import RunQuerySet
from tests.api.addresses import READS, WRITES, Address, make_runs
from tests.contrib.ninja_urls import api
from tests.support.addresses import path_of

pytestmark = pytest.mark.django_db

#: What REST alone has: waiting and streams, single parts of a run, plans and bulks, and forms written by hand.
REST_ALONE: Final = {
    *(
        "get root",
        "get docs",
        "get schema",
        "get result",
        "get entry",
        "get events",
        "get chunks",
        "get timeline",
        "get tree",
    ),
    *("get message", "get stack", "get replay-plan", "get comparison", "get bulk", "get counts", "get workflows"),
    *("get workflow", "get workflow-stats", "get schedule", "get anywhere"),
    *("post ask", "post delete-message", "post move-message", "post note", "post stack", "post restart"),
    *("post replay", "post give-output", "post bulk-plan", "post bulks", "post schedules", "post backfill"),
    *("post edit-schedule", "post anywhere", "post publish", "get question", "post answer-question"),
    *("post comment-question", "post hand-over-question", "post claim-question", "post release-question"),
}


@pytest.fixture(autouse=True)
def site(db: None) -> Iterator[dict[str, str]]:
    OperatorAction.objects.create(
        source="api", action="pause", run_id="many", outcome="done", created_at=timezone.now(), detail="pause 1 run"
    )
    Limit.objects.create(name="carrier", at_once=4, override=2)
    Schedule.objects.create(name="nightly", workflow="tests.api.add", rule="30 2 * * *", origin="admin")
    with override_settings(ROOT_URLCONF="tests.contrib.ninja_urls"):
        yield make_runs()


def client_of(*permissions: str, name: str = "ada") -> Client:
    user = User.objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def post(client: Client, path: str, token: str = "") -> Any:
    """What is answered to a request without a body."""
    return client.generic("POST", path, headers={"Authorization": f"Bearer {token}"} if token else {})


def everybody(name: str = "ada") -> Client:
    return client_of(*_all(), name=name)


def _all() -> set[str]:
    return set(Permission.objects.filter(content_type__app_label="durable").values_list("codename", flat=True))


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = api.get_openapi_schema(path_prefix="/ninja/")
    return found


def operation(method: str, path: str) -> dict[str, Any] | None:
    """What the document says of the method at this address of the router; None if it has none."""
    for template, operations in document()["paths"].items():
        names = re.sub(r"\{\w+\}", "[^/]+", template)
        if re.fullmatch(names, path.partition("?")[0]) and method in operations:
            found: dict[str, Any] = operations[method]
            return found
    return None


EVERY: Final = [("get", name, each) for name, each in READS.items()] + [
    ("post", name, each) for name, each in WRITES.items()
]
CASES: Final = [each for each in EVERY if f"{each[0]} {each[1]}" not in REST_ALONE]


def ask(client: Client, prefix: str, method: str, name: str, address: Address, site: Mapping[str, str]) -> Any:
    path = path_of(f"durable_api:{name}", address, site).replace("/api/", prefix, 1)
    if method == "get":
        return client.get(path)
    return client.post(path, data=json.dumps(address.body or {}), content_type="application/json")


def test_the_router_has_each_address_of_rest_but_those_that_rest_alone_has(site: dict[str, str]) -> None:
    paths = {
        f"{method} {name}": path_of(f"durable_api:{name}", each, site).replace("/api/", "/ninja/durable/", 1)
        for method, name, each in EVERY
    }
    missing = {name for name, path in paths.items() if operation(name.split()[0], path) is None}
    assert missing == REST_ALONE
    assert len(paths) - len(missing) == sum(len(each) for each in document()["paths"].values())


def test_each_list_of_durable_is_in_the_router() -> None:
    modules = [
        import_module(each.name) for each in pkgutil.iter_modules(durable.listings.__path__, "durable.listings.")
    ]
    every = {id(each): each.name for module in modules for each in vars(module).values() if isinstance(each, Listing)}
    assert sorted(every.values()) == sorted(each.name for each in ninja.LISTINGS)


@pytest.mark.parametrize(("method", "name", "address"), CASES, ids=[f"{method} {name}" for method, name, _ in CASES])
def test_an_operation_needs_the_permissions_of_rest_and_answers_the_same(
    site: dict[str, str], time_machine: TimeMachineFixture, method: str, name: str, address: Address
) -> None:
    time_machine.move_to(timezone.now(), tick=False)  # sentences say how long ago something was
    assert ask(Client(), "/ninja/durable/", method, name, address, site).status_code in (401, 403)
    for permission in sorted(address.needs):
        client = client_of(*_all() - {permission}, name=f"without {permission}")
        refused = ask(client, "/ninja/durable/", method, name, address, site)
        assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json"), refused.content
        assert f"durable.{permission}" in refused.json()["detail"]
    client = client_of(*address.needs, name="with exactly these")
    answers = []
    for prefix in ("/api/", "/ninja/durable/"):
        with transaction.atomic():
            answers.append(ask(client, prefix, method, name, address, site))
            transaction.set_rollback(True)
    by_rest, by_ninja = answers
    assert by_ninja.status_code == by_rest.status_code, by_ninja.content
    assert _lasting(by_ninja.json()) == _lasting(by_rest.json())
    described = operation(method, path_of(f"durable_api:{name}", address, site).replace("/api/", "/ninja/durable/", 1))
    assert described is not None
    assert str(by_ninja.status_code) in {str(each) for each in described["responses"]}
    if by_ninja.status_code < 300:
        reference = described["responses"][by_ninja.status_code]["content"]["application/json"]["schema"]["$ref"]
        check(by_ninja.json(), reference)


#: Moments.
_PASSING: Final = r"\d{4}-\d\d-\d\dT[\d:.]+Z|nightly@\S+"


def _lasting(answer: Any) -> Any:
    """The answer without what differs from one request to the next: the ids of what is made, its times, its path."""
    if isinstance(answer, dict):
        kept = {
            name: _lasting(each) for name, each in answer.items() if name not in ("instance", "decided_at", "moment")
        }
        if "id" in kept and re.fullmatch(r"[0-9a-f]{8}-.*", str(kept["id"])):
            kept["id"] = "new"
        return kept
    if isinstance(answer, list):
        return [_lasting(each) for each in answer]
    if isinstance(answer, str):
        return re.sub(_PASSING, "then", answer)
    return "a number" if isinstance(answer, float) else answer


def check(answer: dict[str, Any], reference: str) -> None:
    """The answer has exactly the names that the document says."""
    schema = document()["components"]["schemas"][reference.rpartition("/")[2]]
    assert answer.keys() == schema["properties"].keys()
    results = schema["properties"].get("results", {}).get("items", {}).get("$ref")
    for each in answer.get("results", ()):
        check(each, results)


def test_a_run_is_started_once_for_its_id_with_the_options_of_a_start() -> None:
    client = everybody()
    body = {"workflow": "tests.api.add", "args": [1, 2], "id": "order-7", "delay": "1 hour", "tags": {"customer": 7}}
    statuses = [client.post("/ninja/durable/runs", body, "application/json").status_code for _ in range(2)]
    assert statuses == [201, 200]
    run = get_run("order-7")
    assert (run.tags, run.state) == ({"customer": "7"}, "pending")
    other = client.post("/ninja/durable/runs", {**body, "args": [3, 4]}, "application/json")
    assert (other.status_code, other.json()["code"]) == (409, "id-taken")
    assert OperatorAction.objects.filter(action="start", run_id="order-7", source="api", actor_label="ada").exists()


def test_the_reason_is_in_the_audit_log_and_a_stale_revision_is_refused() -> None:
    client = everybody()
    seen = client.get("/ninja/durable/runs/a").json()["revision"]
    path = "/ninja/durable/runs/a/pause"
    paused = client.post(path, {"reason": "the bank asks", "revision": seen}, "application/json")
    assert paused.json() == {"id": "a", "workflow": "tests.api.loop", "state": "paused"}
    assert OperatorAction.objects.get(action="pause", run_id="a", outcome="done").reason == "the bank asks"
    again = client.post("/ninja/durable/runs/a/cancel", {"revision": seen}, "application/json")
    assert (again.status_code, again.json()["code"]) == (409, "run-moved-on")


def test_a_verb_without_required_options_needs_no_body() -> None:
    client = everybody()
    assert post(client, "/ninja/durable/runs/a/pause").status_code == 200
    assert post(client, "/ninja/durable/runs/a/move").status_code == 422  # the queue is missing


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("runs/a/pause", {"resaon": "mistyped"}),
        ("runs/a/cancel", {"rollback": "yes"}),
        ("runs/a/move", {"queue": "nobody-serves-it"}),
        ("runs", {"workflow": "tests.api.add", "args": [1, 2], "id": "a/b"}),
        ("runs", {"workflow": "tests.api.add", "args": [1, 2], "deadline": "2027-01-01T00:00:00"}),
        ("runs", {"workflow": "tests.api.add", "args": [1, 2], "delay": True}),
        ("runs", {"workflow": "tests.api.add", "args": [1, 2], "delay": "soon"}),
        ("runs", {"workflow": "tests.api.add", "args": []}),
        ("runs", {"workflow": "tests.api.nothing"}),
        ("limits/carrier/set", {"at_once": -1}),
        ("limits/calls/close", {"until": "2100-01-01T00:00:00"}),
        ("schedules/nightly/override", {"rule": "every now and then"}),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(path: str, body: dict[str, Any]) -> None:
    before = list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq"))
    answer = everybody().post(f"/ninja/durable/{path}", body, "application/json")
    assert answer.status_code == 422, answer.content
    assert list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq")) == before


@pytest.mark.parametrize("number", ["1e400", "NaN"])
def test_a_number_that_json_lacks_or_no_float_holds_is_refused(number: str) -> None:
    body = f'{{"workflow": "tests.api.add", "args": [{number}, 1], "id": "new"}}'
    answer = everybody().post("/ninja/durable/runs", body, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed-body")
    assert number in answer.json()["detail"]
    assert not Run.objects.filter(pk="new").exists()


def test_filters_are_those_of_rest_and_unknown_names_are_refused() -> None:
    client = everybody()
    assert [each["id"] for each in client.get("/ninja/durable/runs?state=sleeping").json()["results"]] == ["a"]
    found = client.get("/ninja/durable/runs?state=sleeping&state=completed&limit=1").json()
    assert (len(found["results"]), found["next_cursor"] is None) == (1, False)
    rest = client.get(
        "/ninja/durable/runs", {"state": ["sleeping", "completed"], "cursor": found["next_cursor"]}
    ).json()
    assert {each["id"] for each in found["results"] + rest["results"]} == {"a", "s"}
    for query in (
        "?stat=sleeping",
        "?state=asleep",
        "?limit=0",
        "?tag=no-value",
        "?about=seven",
        "?created_after=2026-01-01",
    ):
        assert client.get(f"/ninja/durable/runs{query}").status_code == 422, query


def test_inputs_and_outputs_need_the_permission_to_see_payloads() -> None:
    path = "/ninja/durable/runs/s?expand=input&expand=output"
    assert client_of("view_run").get(path).status_code == 403
    assert client_of("view_run", "view_payload", name="grace").get(path).json()["output"] == 3


def only_s(request: Any, runs: RunQuerySet) -> RunQuerySet:
    """The rule of a project in which this user sees one run."""
    assert request.user.username == "ada"
    return runs.filter(pk="s")


def test_runs_that_the_project_hides_are_not_disclosed() -> None:
    client = everybody()
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.only_s"}):
        assert [each["id"] for each in client.get("/ninja/durable/runs").json()["results"]] == ["s"]
        hidden = post(client, "/ninja/durable/runs/a/pause")
        unknown = post(client, "/ninja/durable/runs/nobody/pause")
        assert (hidden.status_code, unknown.status_code) == (404, 404)
        assert hidden.json()["detail"].replace("a", "x") == unknown.json()["detail"].replace("nobody", "x").replace(
            "a", "x"
        )
        assert client.get("/ninja/durable/schedules").status_code == 403
    assert get_run("a").state == "sleeping"


def test_a_session_needs_the_token_against_forged_requests() -> None:
    everybody("grace")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="grace"))
    assert post(client, "/ninja/durable/runs/a/pause").status_code == 403
    assert get_run("a").state == "sleeping"


def test_the_actor_is_the_user_that_the_authentication_returns() -> None:
    everybody("grace")
    post(Client(), "/tokens/durable/runs/a/pause", "grace")
    assert OperatorAction.objects.get(action="pause", run_id="a", outcome="done").actor_label == "grace"
    nobody = post(Client(), "/tokens/durable/runs/a/resume", "nobody")
    assert (nobody.status_code, get_run("a").state) == (401, "paused")


def test_a_user_who_is_not_active_may_nothing() -> None:
    everybody("grace")
    User.objects.filter(username="grace").update(is_active=False)
    answer = Client().get("/tokens/durable/runs", headers={"Authorization": "Bearer grace"})
    assert (answer.status_code, answer.json()["code"]) == (401, "not-authenticated")
