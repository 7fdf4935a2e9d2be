"""Bad input of every kind is answered with a 4xx that says what to do."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client, override_settings

from durable.api import requests
from durable.models import Run
from tests.api.conftest import Api, problem
from tests.api.workflows import loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

START = {"workflow": "tests.api.add", "args": [1]}
DEEP: Any = json.loads("[" * 150 + "]" * 150)  # deeper than the codec takes


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed-body"),
        (b"\xff", 400, "malformed-body"),
        (b'{"workflow": NaN}', 400, "malformed-body"),
        (b'{"workflow": "x", "args": [-Infinity]}', 400, "malformed-body"),
        (b'{"workflow": "tests.api.add", "args": [-1e400]}', 400, "malformed-body"),
        (b"[" * 100_000, 400, "malformed-body"),
        (b'{"workflow": "tests.api.add", "args": [' + b"9" * 5000 + b"]}", 400, "malformed-body"),
        (b'{"workflow": "tests.api.add", "args": [' + b"[" * 200 + b"]" * 200 + b"]}", 422, "payload-refused"),
        (b"[]", 400, "invalid-request"),
        (b'"text"', 400, "invalid-request"),
        (b"null", 400, "invalid-request"),
        (b"", 400, "invalid-request"),
    ],
)
def test_bodies(api: Api, body: bytes, status: int, code: str) -> None:
    problem(api.post("/runs", body), status, code)
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({}, "workflow"),
        ({"workflow": 1}, "workflow"),
        ({"workflow": None}, "workflow"),
        ({"workflow": ""}, "workflow"),
        ({"workflow": "x" * 201}, "workflow"),
        ({**START, "args": {}}, "args"),
        ({**START, "args": "ab"}, "args"),
        ({**START, "kwargs": []}, "kwargs"),
        ({**START, "id": 5}, "id"),
        ({**START, "id": ""}, "id"),
        ({**START, "id": "x" * 201}, "id"),
        ({**START, "id": "a/b"}, "id"),
        ({**START, "id": "\u202e"}, "id"),
        ({**START, "queue": "nobody serves this"}, "queue"),
        ({**START, "delay": "soon"}, "delay"),
        ({**START, "delay": -1}, "delay"),
        ({**START, "delay": True}, "delay"),
        ({**START, "delay": 1e300}, "delay"),
        ({**START, "delay": 3e11}, "delay"),
        ({**START, "delay": "9999999 days"}, "delay"),
        ({**START, "on_conflict": "ignore"}, "on_conflict"),
        ({**START, "reason": 5}, "reason"),
        ({**START, "reason": "x" * 10_001}, "reason"),
        ({**START, "arg": [1]}, "arg"),
    ],
)
def test_forms(api: Api, body: dict[str, Any], at: str) -> None:
    document = problem(api.post("/runs", body), 400, "invalid-request")
    assert [each["at"] for each in document["errors"]] == [at]
    assert all(each["detail"] for each in document["errors"])
    assert not Run.objects.exists()


@pytest.mark.parametrize("run_id", ["a/b", "a\nb", "a\x00b", "\u202e", "é" * 201])
def test_addresses_of_what_cannot_be_a_run(api: Api, run_id: str) -> None:
    assert api.get(f"/runs/{quote(run_id, safe='')}").status_code == 404
    assert api.post(f"/runs/{quote(run_id, safe='')}/pause").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"queue": ""}),
        ("messages", {"queue": "x" * 129}),
        ("messages", {"body": 1}),
        ("messages", {"queue": "q", "id": ""}),
        ("messages", {"queue": "q", "to": "b"}),
        ("restart", {"id": "a/b"}),
        ("restart", {"id": "a\nb"}),
        ("replay", {"location": "step 0", "id": "a/b"}),
        ("replay", {}),
        ("replay", {"location": 5}),
        ("replay", {"location": "step 0", "in_place": "yes"}),
        ("replay", {"location": "step 0", "in_place": True, "id": "b"}),
        ("wake", {"end_sleeps": 1}),
        ("move", {}),
        ("move", {"queue": 1}),
        ("move", {"queue": "hihg"}),
        ("pause", {"force": True}),
        ("cancel", {"rollback": None}),
        ("cancel", []),
        ("ask?wait=31", {"queue": "q"}),
        ("ask?wait=-1", {"queue": "q"}),
        ("ask?wait=long", {"queue": "q"}),
        ("ask?wait=nan", {"queue": "q"}),
    ],
)
def test_forms_of_actions(api: Api, path: str, body: Any) -> None:
    pass_once(loop.using(id="a").start(1))
    problem(api.post(f"/runs/a/{path}", body), 400, "invalid-request")
    assert Run.objects.get().state == "sleeping"
    assert Run.objects.get().message_count == 0


@pytest.mark.parametrize(
    "path",
    [
        "/runs?limit=0",
        "/runs?limit=1000",
        "/runs?limit=ten",
        "/runs?state=lost",
        "/runs?status=failed",
        "/runs?created_from=yesterday",
        "/runs?created_from=2026-01-01T00:00:00",
        "/runs?created_from=2026-01-01",
        "/runs?created_from=0001-01-01T00:00:00%2B14:00",
        "/runs?created_until=9999-12-31T23:59:59-14:00",
        "/runs?workflow=a&workflow=b",
        "/runs?queue=%00",
        "/runs/a?expand=everything",
        "/runs/a?expand=",
        "/runs/a/entries?payloads=1",
        "/runs/a/tree?start=-1",
        "/runs/a/timeline?after=x",
        "/runs/a/children?state=odd",
        "/runs/a/children?colour=red",
        "/runs/a/timeline?opened=x",
        "/runs/a/result?wait=inf",
        "/runs/a/replay-plan",
        "/operator-actions?run=",
    ],
)
def test_addresses(api: Api, path: str) -> None:
    pass_once(loop.using(id="a").start(1))
    problem(api.get(path), 400, "invalid-request")


def forged(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


CURSORS = [
    "x",
    "é",
    "!!!!",
    forged(None),
    forged({}),
    forged([]),
    forged(["2026-01-01", "a"]),
    forged(["2026-01-01T00:00:00", "a"]),
    forged([None, "a"]),
    forged(["never", 1]),
    forged(["2026-01-01T00:00:00", 1]),
    forged([[["a"]]]),
    forged([1, 2, 3]),
    forged([2**70]),
    forged([True]),
    base64.urlsafe_b64encode(b"[" * 800).decode(),
    forged(["0001-01-01T00:00:00+23:59", "x"]),
    forged(["9999-12-31T23:59:59-23:59", "x"]),
    forged(["0001-01-01T00:00:00+23:59", 1]),
    forged(["9999-12-31T23:59:59-23:59", 1]),
]


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("path", ["/runs", "/runs/a/entries", "/runs/a/messages", "/operator-actions"])
def test_forged_cursors(api: Api, path: str, cursor: str) -> None:
    pass_once(loop.using(id="a").start(1))
    problem(api.get(f"{path}?cursor={quote(cursor)}"), 400, "invalid-cursor")


@pytest.mark.parametrize(
    "token", ["x", "1-2", "1-2-3-4-5-x", "-1-2-3-4-5-6", "1-2-3-4-5-²", f"{2**70}-1-1-1-1-1", "1" * 500]
)
def test_forged_event_ids(api: Api, token: str) -> None:
    pass_once(loop.using(id="a").start(1))
    problem(api.get("/runs/a/events", **{"Last-Event-ID": token.encode().decode("latin-1")}), 400, "invalid-cursor")


@pytest.mark.parametrize("depth", [*range(280, 320), *range(600, 1000, 20), *range(930, 960)])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_deep_body_is_refused_however_deep_it_is(api: Api, depth: int, key: str | None) -> None:
    """Between the depth that a codec takes and the one that no parser takes."""
    body = b'{"workflow": "tests.api.add", "args": [' + b"[" * depth + b"]" * depth + b"]}"
    answer = api.post("/runs", body, key=key)
    assert (answer.status_code, answer.json()["code"]) in {(400, "malformed-body"), (422, "payload-refused")}


def test_of_many_faults_some_are_reported(api: Api) -> None:
    names = {f"name {number} {'x' * 2000}": 1 for number in range(500)}
    answer = api.post("/runs", {**START, **names})
    document = problem(answer, 400, "invalid-request")
    assert len(document["errors"]) == 20
    assert len(answer.content) < 50_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runs", {**START, "delay": "9" * 500_000}),
        ("/runs", {**START, "on_conflict": "x" * 500_000}),
        ("/runs", {**START, "x" * 500_000: 1}),
        ("/runs", {**START, "id": "\n" * 500_000}),
        ("/runs", {"workflow": "x" * 500_000}),
        ("/runs", {**START, "kwargs": {"x" * 500_000: 1}}),
        ("/runs", {**START, "args": [{"x" * 500_000: [[]] * 50_000 + [DEEP]}]}),
        ("/runs/a/replay", {"location": "x" * 1000}),
        ("/runs/a/messages", {"queue": "q", "id": "x" * 500_000}),
        ("/runs/a/messages", {"queue": "q", "body": {"x" * 500_000: DEEP}}),
    ],
)
def test_a_long_text_is_not_answered_with_itself(api: Api, path: str, body: dict[str, Any]) -> None:
    pass_once(loop.using(id="a").start(1))
    answer = api.post(path, body)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 10_000, answer.content[:300]


def test_long_arguments_are_not_looked_at_one_by_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the codec does, which knows how much it may record."""
    from rest_framework import serializers

    def looks(*_: Any) -> None:
        raise AssertionError("a value within the arguments was validated by itself")

    monkeypatch.setattr(serializers.JSONField, "to_internal_value", looks)
    monkeypatch.setattr(serializers.ListField, "run_child_validation", looks)
    monkeypatch.setattr(serializers.DictField, "run_child_validation", looks)
    refused = api.post("/runs", {**START, "args": [[0] * 600_000]})
    problem(refused, 422, "payload-refused")
    refused = api.post("/runs", {**START, "args": [], "kwargs": {"one": [0] * 600_000}})
    problem(refused, 422, "payload-refused")


def test_an_address_with_a_line_break_is_answered_as_json(api: Api) -> None:
    for path in ("/a%0Ab", "/%0A", "/runs/a/entries/b%0Ac", "/runs%0A", "/x%0D%0A"):
        problem(api.get(path), 404, "not-found")


def test_a_huge_body_is_refused_before_it_is_parsed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "read_given", None)
    with override_settings(DURABLE={"MAX_PAYLOAD_BYTES": 1000}):
        document = problem(api.post("/runs", {**START, "args": ["x" * 2_000_000]}), 413, "body-too-large")
    assert "send a reference" in document["detail"]
    assert not Run.objects.exists()


def test_a_body_past_djangos_own_limit_is_read_nevertheless(api: Api) -> None:
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100):
        assert api.post("/runs", {**START, "args": ["x" * 1000]}).status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
def test_bodies_of_other_types(api: Api, kind: str) -> None:
    answer = api.client.post("/api/runs", data="workflow=x", content_type=kind)
    problem(answer, 415, "unsupported-media-type")


def test_whatever_is_accepted_the_answer_is_json(api: Api) -> None:
    for accept in ("text/html", "application/xml", "*/*", "nonsense", ""):
        answer = api.get("/runs", Accept=accept)
        assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["a\x00b", "ada\x00"])
def test_credentials_that_no_database_can_look_up_are_refused(client: Client, name: str) -> None:
    credentials = base64.b64encode(f"{name}:b".encode()).decode()
    classes = {"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
    with override_settings(REST_FRAMEWORK=classes):
        answer = client.get("/api/runs", headers={"Authorization": f"Basic {credentials}"})
    assert answer.status_code == 401
    assert answer["Content-Type"].startswith("application/problem+json")
