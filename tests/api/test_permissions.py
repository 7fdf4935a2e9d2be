"""Nothing answers without permission, whatever the host has set for other interfaces."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from django.test import Client, override_settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings

from durable import get_run
from durable.models import Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import add, loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

READS = [
    "/runs",
    "/causes",
    "/counts",
    "/runs/a",
    "/runs/a/entries",
    "/runs/a/entries/rest",
    "/runs/a/timeline",
    "/runs/a/children",
    "/runs/a/tree",
    "/runs/a/events",
    "/runs/a/messages",
    "/workflows",
    "/workflows/tests.api.add",
    "/workflows/tests.api.add/stats",
    "/queues",
    "/workers",
    "/operator-actions",
    "/nowhere",
]
PAYLOADS = ["/runs/a/result", "/runs/a?expand=input", "/runs/a?expand=output", "/runs/a/entries?payloads=true"]
WRITES: list[tuple[str, dict[str, Any]]] = [
    ("/runs", {"workflow": "tests.api.add", "args": [1]}),
    ("/runs/a/restart", {}),
    ("/runs/a/messages", {"queue": "q"}),
    ("/runs/a/wake", {}),
    ("/runs/a/pause", {}),
    ("/runs/a/cancel", {}),
    ("/bulks", {"verb": "pause", "ids": ["a"]}),
    ("/runs/a/replay", {"location": "step 0"}),
]


@pytest.fixture(autouse=True)
def run(db: None) -> Run:
    pass_once(loop.using(id="a").start(1))
    return Run.objects.get()


@pytest.mark.parametrize("path", PAYLOADS)
def test_payloads_need_a_permission_of_their_own(make_api: MakeApi, path: str) -> None:
    document = problem(make_api(*(each for each in ALL if each != "view_payload")).get(path), 403, "permission-denied")
    assert "durable.view_payload" in document["detail"]
    assert make_api("view_run", "view_payload").get(path).status_code == 200


def test_being_staff_allows_nothing() -> None:
    staff = User.objects.create_user("staff", is_staff=True)
    problem(Api(staff).get("/runs"), 403, "permission-denied")


def test_a_user_who_left_may_do_nothing(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    assert api.user is not None
    api.user.is_active = False
    api.user.save()
    assert api.get("/runs").status_code in (401, 403)


def test_nothing_of_a_payload_is_shown_without_the_permission(make_api: MakeApi) -> None:
    pass_once(add.using(id="s").start("tell", "tale"))
    get_run("a").send("q", "telltale")
    viewer = make_api("view_run", "replay_run")
    paths = [path.replace("/a", "/s", 1) if path.startswith("/runs/a") else path for path in READS]
    for path in [*READS, *paths, "/runs/s/entries/add", "/runs/s/replay-plan?location=add"]:
        assert "tale" not in viewer.get(path).content.decode(), path
    [message] = viewer.get("/runs/a/messages").json()["results"]
    assert (message["queue"], message["body"], message["response"]) == ("q", None, None)


def test_a_session_needs_the_csrf_token(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    assert api.user is not None
    api.client = Client(enforce_csrf_checks=True)
    api.client.force_login(api.user)
    assert api.post("/runs/a/pause").status_code in (401, 403)
    token = Token.objects.create(user=api.user)
    bare = Client(enforce_csrf_checks=True)
    answer = bare.post(
        "/api/runs/a/pause", content_type="application/json", headers={"Authorization": f"Token {token.key}"}
    )
    assert answer.status_code == 200


HOSTS: list[dict[str, Any]] = [
    {"DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"]},
    {"DEFAULT_AUTHENTICATION_CLASSES": []},
    {"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    {"EXCEPTION_HANDLER": "tests.api.test_permissions.hosts_handler"},
    {
        "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
        "PAGE_SIZE": 1,
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
        "DEFAULT_PARSER_CLASSES": [],
        "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
        "DEFAULT_FILTER_BACKENDS": ["rest_framework.filters.SearchFilter"],
        "DATETIME_FORMAT": "%d",
        "COERCE_DECIMAL_TO_STRING": False,
        "STRICT_JSON": False,
        "UNICODE_JSON": True,
        "TEST_REQUEST_DEFAULT_FORMAT": "multipart",
    },
]


def hosts_handler(exc: Exception, context: Any) -> None:
    raise AssertionError("the host's handler was asked")


@pytest.mark.parametrize("settings", HOSTS)
def test_the_hosts_settings_open_nothing(settings: dict[str, Any], make_api: MakeApi) -> None:
    with override_settings(REST_FRAMEWORK=settings):
        assert api_settings.user_settings == settings
        for path in [*READS, *PAYLOADS]:
            document = json.loads(Api(None).get(path).content)
            assert document["code"] == "not-authenticated", path
            assert document["status"] in (401, 403)
        for path, body in WRITES:
            assert Api(None).post(path, body).status_code in (401, 403)
        if "DEFAULT_AUTHENTICATION_CLASSES" not in settings:
            first = make_api("view_run").get("/runs").json()["results"][0]
            assert first["created_at"].endswith("Z")
            assert len(first["created_at"]) > 20


class Teapot(BaseAuthentication):
    """An authentication of the host's that has an error of its own."""

    def authenticate(self, request: Any) -> None:
        raise TeapotError


class TeapotError(APIException):
    """What it raises."""

    status_code = 418
    default_detail = "Short and stout."


def test_what_the_hosts_authentication_raises_is_a_problem_too() -> None:
    with override_settings(REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.Teapot"]}):
        assert problem(Api(None).get("/runs"), 418, "refused")["detail"] == "Short and stout."
        problem(Api(None).post("/runs/a/pause"), 418, "refused")


def test_without_its_extra_the_interface_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import durable.api

    monkeypatch.setitem(sys.modules, "drf_spectacular", None)
    with pytest.raises(ImproperlyConfigured, match=r'install "durable-django\[api\]"'):
        importlib.reload(durable.api)


@pytest.mark.parametrize("kind", ["", "application/json", "application/x-www-form-urlencoded"])
def test_an_action_needs_no_body(make_api: MakeApi, kind: str) -> None:
    """As `curl -X POST` and `curl -d ''` send it."""
    answer = make_api(*ALL).client.generic("POST", "/api/runs/a/pause", data=b"", content_type=kind)
    assert answer.status_code == 200, answer.content


def test_the_interface_changes_nothing_for_the_host() -> None:
    from django.conf import settings

    assert api_settings.EXCEPTION_HANDLER.__module__ == "rest_framework.views"
    assert "rest_framework" not in settings.INSTALLED_APPS


def test_no_view_stands_in_a_transaction_of_the_request() -> None:
    from durable.api.urls import urlpatterns

    for each in urlpatterns:  # other tests add databases of their own, perhaps after these were loaded
        assert DEFAULT_DB_ALIAS in each.callback._non_atomic_requests, each.name


def test_the_headers_of_a_stream_alone_are_not_to_be_had(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    assert api.client.head("/api/runs/a").status_code == 200
    assert api.client.head("/api/runs/a/events").status_code == 405


def test_throttles_count_by_scope(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"durable-write": "1/hour"}}):
        assert api.post("/runs/a/pause").status_code == 200
        refused = api.post("/runs/a/resume")
        problem(refused, 429, "throttled")
        assert int(refused["Retry-After"]) > 3000
        assert api.get("/runs").status_code == 200
    assert api.post("/runs/a/resume").status_code == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods(make_api: MakeApi, method: str) -> None:
    answer = make_api(*ALL).client.generic(method, "/api/runs")
    problem(answer, 405, "method-not-allowed")
    assert Api(None).client.generic(method, "/api/runs").status_code == 401
