"""Streams of steps over REST, and in a view of a project: who may read, how many at once, and after a cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client, RequestFactory, override_settings
from rest_framework.authtoken.models import Token

from durable.admin import run_page
from durable.api import broadcaster
from durable.api import stream as views
from durable.core.records import StepChunk
from durable.handles import Handle
from durable.notifier import chunks
from durable.streams import hub, reading
from tests.api import workflows
from tests.api.serving import asgi_server
from tests.api.streaming import parsed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]
SSE = {"Accept": "text/event-stream"}


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (hub, chunks):
        monkeypatch.setattr(module, "_IDLE", 0.05)
    monkeypatch.setattr(hub, "_LOOK_EVERY", 0.2)
    yield
    eventually(lambda: not {"durable-stream-readers", "durable-chunks"} & {each.name for each in threading.enumerate()})


@pytest.fixture
def run() -> Handle:
    return workflows.loop.using(id="a").start(1)


def emit(run: Handle, *numbers: int, attempt: int = 1) -> None:
    for number in numbers:
        chunk = StepChunk(
            run_id=run.id,
            queue="default",
            location="write",
            fence=1,
            attempt=attempt,
            number=number,
            text=json.dumps(f"word {number} 🙂\n"),
        )
        chunks.send(chunk)
    chunks.flush(60)


def client_of(*permissions: str) -> Client:
    user = User.objects.create_user(f"reader{User.objects.count()}")
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def client() -> Client:
    return client_of("view_run", "view_payload")


def test_a_poll_has_what_is_new_until_the_last_event(run: Handle, client: Client) -> None:
    emit(run, 1, 2)
    first = client.get("/api/runs/a/stream/write").json()
    assert [(each["event"], each["value"], each["attempt"]) for each in first["chunks"]] == [
        ("chunk", "word 1 🙂\n", 1),
        ("chunk", "word 2 🙂\n", 1),
    ]
    assert first["has_ended"] is False
    emit(run, 1, attempt=2)
    second = client.get("/api/runs/a/stream/write", {"after": first["chunks"][-1]["id"]}).json()
    assert [each["event"] for each in second["chunks"]] == ["restart", "chunk"]
    run.cancel()
    last = client.get("/api/runs/a/stream/write", {"after": second["chunks"][-1]["id"]}).json()
    assert [each["event"] for each in last["chunks"]] == ["failed"]
    assert last["has_ended"] is True
    over = client.get("/api/runs/a/stream/write", {"after": last["chunks"][-1]["id"]})
    assert over.status_code == 204


def test_a_poll_waits_for_the_next_chunk(run: Handle, client: Client) -> None:
    defaults: dict[str, Any] = client.defaults
    defaults["wsgi.multithread"] = True
    assert client.get("/api/runs/a/stream/write").json() == {"chunks": [], "has_ended": False}
    timer = threading.Timer(0.3, lambda: emit(run, 1))
    timer.start()
    found = client.get("/api/runs/a/stream/write", {"wait": 30}).json()["chunks"]
    timer.join()
    assert [each["value"] for each in found] == ["word 1 🙂\n"]


@pytest.mark.parametrize(
    ("permissions", "status"),
    [((), 403), (("view_run",), 403), (("view_payload",), 403), (("view_run", "view_payload"), 200)],
)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_reading_needs_the_permission_of_payloads(
    run: Handle, permissions: tuple[str, ...], status: int, accept: str
) -> None:
    answer = client_of(*permissions).get("/api/runs/a/stream/write", headers={"Accept": accept})
    assert answer.status_code == status
    assert Client().get("/api/runs/a/stream/write").status_code in (401, 403)


def test_a_run_that_the_user_may_not_see_has_no_stream(run: Handle, client: Client) -> None:
    emit(run, 1)
    for path in ("/api/runs/none/stream/write", "/api/runs/a%00/stream/write"):
        assert client.get(path).status_code == 404
    with override_settings(DURABLE={**settings.DURABLE, "API_RUNS": "tests.streams.test_serving.none_of"}):
        assert client.get("/api/runs/a/stream/write").status_code == 404


def none_of(_request: Any, runs: Any) -> Any:
    return runs.none()


@pytest.fixture
def token() -> str:
    return str(Token.objects.create(user=User.objects.create_superuser("root", password=None)).key)


@contextmanager
def served(token: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Token {token}", **SSE}
    with asgi_server() as address, httpx.Client(base_url=f"{address}/api", headers=headers, timeout=60) as client:
        yield client


@contextmanager
def opened(client: httpx.Client, after: str = "") -> Iterator[Iterator[tuple[str, Any, str]]]:
    headers = {"Last-Event-ID": after} if after else {}
    with client.stream("GET", "/runs/a/stream/write", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"

        def events() -> Iterator[tuple[str, Any, str]]:
            text = ""
            for part in answer.iter_text():
                text += part
                whole, _, text = text.rpartition("\n\n")
                yield from parsed(whole)

        yield events()


@pytest.mark.slow
def test_an_open_connection_gets_each_chunk_and_goes_on_behind_it(
    run: Handle, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    with served(token) as client:
        with opened(client) as events:
            emit(run, 1)
            name, data, last = next(events)
            assert (name, data) == ("chunk", {"value": "word 1 🙂\n", "attempt": 1})
        emit(run, 2)
        with opened(client, last) as events:
            assert next(events)[1]["value"] == "word 2 🙂\n"
            run.cancel()
            name, data, last = next(events)
            assert name == "failed"
            assert list(events) == []
        assert client.get("/runs/a/stream/write", headers={"Last-Event-ID": last}).status_code == 204
    eventually(lambda: views._slots.streams == 0)


@pytest.mark.slow
def test_a_process_and_a_user_have_a_bounded_number_of_streams(
    run: Handle, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(views, "MOST_OF_ONE", 2)
    emit(run, 1)
    with served(token) as client, opened(client) as first, opened(client) as second:
        assert next(first)[0] == next(second)[0] == "chunk"
        refused = client.get("/runs/a/stream/write")
        assert (refused.status_code, refused.json()["code"]) == (503, "too-many-streams")
        assert refused.headers["Retry-After"] == "60"
        run.cancel()
        assert [name for name, _, _ in [*first, *second]] == ["failed", "failed"]
    eventually(lambda: views._slots.streams == 0)


@pytest.mark.slow
def test_a_user_who_loses_the_permission_loses_the_stream(
    run: Handle, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "RIGHTS", 0.0)
    with served(token) as client, opened(client) as events:
        emit(run, 1)
        assert next(events)[0] == "chunk"
        User.objects.update(is_active=False)
        emit(run, 2, 3)
        assert len(list(events)) <= 1  # the chunk that it was asked behind


_hidden: list[str] = []


def none_of_hidden(_request: Any, runs: Any) -> Any:
    return runs.exclude(pk__in=_hidden)


@pytest.mark.slow
def test_a_user_from_whom_the_run_is_hidden_loses_the_stream(
    run: Handle, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "RIGHTS", 0.0)
    rule = {**settings.DURABLE, "API_RUNS": "tests.streams.test_serving.none_of_hidden"}
    with override_settings(DURABLE=rule), served(token) as client, opened(client) as events:
        emit(run, 1)
        assert next(events)[0] == "chunk"
        monkeypatch.setattr(f"{__name__}._hidden", [run.id])
        emit(run, 2, 3)
        assert len(list(events)) <= 1  # the chunk that it was asked behind


def test_a_view_of_a_project_answers_with_a_stream(run: Handle) -> None:
    emit(run, 1)
    answer = reading.response(RequestFactory().get("/"), "a", "write")
    [(name, data, last)] = parsed(answer.content.decode())  # type: ignore[attr-defined]
    assert (name, data["value"]) == ("chunk", "word 1 🙂\n")
    assert answer["Content-Encoding"] == "identity"
    run.cancel()
    again = reading.response(RequestFactory().get("/", headers={"Last-Event-ID": last}), "a", "write")
    [(name, _, last)] = parsed(again.content.decode())  # type: ignore[attr-defined]
    assert (name, last) == ("failed", "end")
    over = reading.response(RequestFactory().get("/", headers={"Last-Event-ID": "end"}), "a", "write")
    assert over.status_code == 204


def test_values_that_json_does_not_have_are_text() -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    value = {"at": datetime(2026, 1, 2, tzinfo=UTC), "sum": Decimal("1.50"), "who": {1, 2}, "raw": b"\0"}
    [(_, data, _)] = parsed(reading.Chunk(event="chunk", value=value).encoded().decode())
    assert data["value"] == {"at": "2026-01-02T00:00:00Z", "sum": "1.50", "who": "{1, 2}", "raw": "b'\\x00'"}


def masked(_workflow: str, field: str, value: Any) -> Any:
    return "…" if field == "chunk:write" else value


def test_the_redaction_hook_is_asked_for_each_chunk(run: Handle, client: Client) -> None:
    emit(run, 1)
    with override_settings(DURABLE={**settings.DURABLE, "REDACT": "tests.streams.test_serving.masked"}):
        found = client.get("/api/runs/a/stream/write").json()["chunks"]
    assert [each["value"] for each in found] == ["…"]


# -- the run's page in the admin


def hide_words(workflow: str, field: str, value: Any) -> Any:
    return "hidden" if field.startswith("chunk:") else value


@pytest.fixture
def operator() -> Client:
    client = client_of("view_run", "view_payload")
    User.objects.update(is_staff=True)
    return client


def chunks_of(answer: Any) -> list[tuple[str, dict[str, Any], str]]:
    return [each for each in parsed(answer.content.decode()) if each[0]]


def of_page(client: Client, **asked: Any) -> Any:
    return client.get("/admin/durable/run/a/stream/", {"at": "write", **asked})


def test_the_page_of_a_run_gets_what_is_new(run: Handle, operator: Client) -> None:
    emit(run, 1, 2)
    answer = of_page(operator)
    assert answer["Content-Type"] == "text/event-stream"
    found = chunks_of(answer)
    assert [(name, data["value"]) for name, data, _ in found] == [
        ("chunk", "word 1 🙂\n"),
        ("chunk", "word 2 🙂\n"),
    ]
    last = found[-1][2]
    assert chunks_of(of_page(operator, after=last)) == []
    emit(run, 3)
    behind = operator.get(
        "/admin/durable/run/a/stream/", {"at": "write", "after": "x"}, headers={"Last-Event-ID": last}
    )
    assert [data["value"] for _, data, _ in chunks_of(behind)] == ["word 3 🙂\n"]
    run.cancel()
    end = chunks_of(of_page(operator, after=last))[-1]
    assert (end[0], end[2]) == ("failed", "end")
    assert of_page(operator, after="end").status_code == 204


def test_of_many_chunks_the_page_gets_the_newest(
    run: Handle, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "_MOST_CHUNKS", 3)
    monkeypatch.setattr(run_page, "_MOST_OF_CHUNK", 6)
    emit(run, *range(1, 9))
    found = chunks_of(of_page(operator))
    assert [(name, data["value"]) for name, data, _ in found] == [
        ("restart", ""),
        *(("chunk", f"word {number}") for number in (6, 7, 8)),
    ]


@override_settings(DURABLE={"REDACT": f"{__name__}.hide_words"})
def test_the_page_of_a_run_shows_what_the_hook_lets_through(run: Handle, operator: Client) -> None:
    emit(run, 1)
    assert b"word" not in of_page(operator).content
    assert b"hidden" in of_page(operator).content


@pytest.mark.parametrize("permissions", [("view_run",), ("view_payload",), ()])
def test_the_page_of_a_run_needs_both_permissions(run: Handle, permissions: tuple[str, ...]) -> None:
    emit(run, 1)
    client = client_of(*permissions)
    User.objects.update(is_staff=True)
    answer = of_page(client)
    assert answer.status_code == 403
    assert b"word 1" not in answer.content


def test_without_redis_the_page_asks_once(run: Handle, operator: Client) -> None:
    with override_settings(DURABLE={"REDIS": False}):
        assert of_page(operator).status_code == 204
        assert chunks.emitting("default", [chunks.Stream("a", "write")]) == []


def test_redis_says_which_streams_have_chunks(run: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(run, 1)
    streams = [chunks.Stream("a", "write"), chunks.Stream("a", "read")]
    assert chunks.emitting("default", streams) == streams[:1]
    assert chunks.emitting("nobody", streams) == []
    assert chunks.emitting("default", []) == []
