"""A real client, over loopback, against live servers with a real worker: what a program does with the interface."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.db.models import QuerySet
from django.test import RequestFactory, override_settings
from rest_framework.authtoken.models import Token
from rest_framework.request import Request

from durable import get_run
from durable.api import broadcaster
from durable.api.broadcaster import EventBuilder
from durable.api.long_poll import wait_for
from durable.models import QueueMessage, Run
from tests.api import workflows
from tests.api.serving import asgi_server
from tests.api.streaming import parsed
from tests.e2e.workers import Workers
from tests.faults.passing import pass_once
from tests.support.locks import sessions
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def token(transactional_db: None) -> str:
    """The token of a user with all permissions."""
    user = User.objects.create_superuser("root", password=None)
    return str(Token.objects.create(user=user).key)


@pytest.fixture
def worker(child_environment: dict[str, str], tmp_path: Path) -> Iterator[None]:
    with Workers(1, child_environment, tmp_path / "workers.log", settings="tests.api.settings"):
        yield


def client_of(address: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=f"{address}/api", headers={"Authorization": f"Token {token}"}, timeout=60)


def result_of(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """As the guide says: ask until it has ended."""
    for _ in range(10):
        result: dict[str, Any] = client.get(f"/runs/{run_id}/result", params={"wait": 10}).json()
        if result["has_ended"]:
            return result
    raise AssertionError(f"run {run_id} does not end: {client.get(f'/runs/{run_id}').json()}")


@pytest.mark.usefixtures("worker")
def test_a_program_starts_asks_lists_pages_and_retries(live_server: Any, token: str) -> None:
    with client_of(live_server.url, token) as client:
        starts_and_retries(client)
        asks_and_sends(client)
        lists_and_pages(client)
        recovers_and_replays(client)


def starts_and_retries(client: httpx.Client) -> None:
    body = {"workflow": "tests.api.add", "args": [20, 22]}
    headers = {"Idempotency-Key": "first"}
    answers = [client.post("/runs", json=body, headers=headers) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    location = answers[0].headers["Location"]
    result = result_of(client, answers[0].json()["id"])
    assert (result["state"], result["output"]) == ("completed", 42)
    assert client.get(location.removeprefix("/api"), params={"expand": "output"}).json()["output"] == 42
    clash = client.post("/runs", json={**body, "args": [1]}, headers=headers)
    assert (clash.status_code, clash.json()["code"]) == (422, "idempotency-key-reused")


def test_of_many_equal_requests_at_once_one_is_done(live_server: Any, token: str) -> None:
    """With a key of its own: one run, one answer. Without a key, but with an id: one run."""
    pass_once(workflows.loop.using(id="a").start(1))
    requests: list[tuple[str, dict[str, Any], str | None]] = [
        ("/runs", {"workflow": "tests.api.add", "args": [1]}, "start"),
        ("/runs", {"workflow": "tests.api.add", "args": [1], "id": "named"}, None),
        ("/runs/a/messages", {"queue": "q", "body": 1}, "send"),
        ("/runs/a/messages", {"queue": "q", "body": 1, "id": "named"}, None),
        ("/runs/a/restart", {}, "restart"),
        ("/runs/a/restart", {"id": "again"}, None),
        ("/runs/a/replay", {"location": "step 0", "id": "replayed"}, None),
    ]
    for path, body, key in requests:
        answers = at_once(live_server.url, token, path, body, key)
        assert {answer.status_code for answer in answers} <= {200, 201}, [answer.text for answer in answers]
        assert len({answer.text for answer in answers}) == 1
        if key is None:  # one of them has made it, and is the only one whose answer says so
            assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert Run.objects.count() == 1 + 5
    assert QueueMessage.objects.filter(run="a").count() == 2


def at_once(address: str, token: str, path: str, body: dict[str, Any], key: str | None) -> list[httpx.Response]:
    """Six of the same request, begun together."""
    ready = threading.Barrier(6)

    def send() -> httpx.Response:
        with client_of(address, token) as client:
            ready.wait(120)
            return client.post(path, json=body, headers={"Idempotency-Key": key} if key else {})

    with ThreadPoolExecutor(6) as pool:
        return [future.result() for future in [pool.submit(send) for _ in range(6)]]


def asks_and_sends(client: httpx.Client) -> None:
    client.post("/runs", json={"workflow": "tests.api.ask", "id": "asked"}).raise_for_status()
    answer = client.post("/runs/asked/ask", params={"wait": 30}, json={"queue": "question", "body": "why"})
    assert (answer.status_code, answer.json()["response"]) == (200, {"answer": "why"}), answer.text
    client.post("/runs/asked/messages", json={"queue": "end", "body": "done"}).raise_for_status()
    assert result_of(client, "asked")["output"] == "done"


def lists_and_pages(client: httpx.Client) -> None:
    ids = {client.post("/runs", json={"workflow": "tests.api.add", "args": [n]}).json()["id"] for n in range(5)}
    assert len(ids) == 5
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query: dict[str, str | int] = {
            "workflow": "tests.api.add",
            "limit": 2,
            **({"cursor": cursor} if cursor else {}),
        }
        page = client.get("/runs", params=query).json()
        seen += [each["id"] for each in page["results"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 6
    assert ids <= set(seen)


def recovers_and_replays(client: httpx.Client) -> None:
    run_id = client.post("/runs", json={"workflow": "tests.api.fail"}).json()["id"]
    assert result_of(client, run_id)["error"]["type"] == "StepExhaustedError"
    seen = client.get(f"/runs/{run_id}").json()
    assert "recover" in seen["actions"]
    retried = client.post(f"/runs/{run_id}/recover", json={"revision": seen["revision"], "reason": "once more"})
    assert retried.status_code == 200
    assert result_of(client, run_id)["state"] == "failed"
    stale = client.post(f"/runs/{run_id}/recover", json={"revision": seen["revision"]})
    assert (stale.status_code, stale.json()["code"]) == (409, "run-moved-on")
    plan = client.get(f"/runs/{run_id}/replay-plan", params={"location": "break"}).json()
    replayed = client.post(f"/runs/{run_id}/replay", json={"location": "break", "plan_hash": plan["hash"]})
    assert replayed.status_code == 201
    assert result_of(client, replayed.json()["id"])["state"] == "failed"
    log = client.get("/operator-actions", params={"run": run_id}).json()["results"]
    assert [(each["action"], each["outcome"]) for each in log] == [
        ("replay", "done"),
        ("recover", "stale"),
        ("recover", "done"),
        ("start", "done"),
    ]


@contextmanager
def stream(client: httpx.Client, run_id: str, last: str = "") -> Iterator[Iterator[tuple[str, dict[str, Any], str]]]:
    """The events of an open connection, as they come."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    with client.stream("GET", f"/runs/{run_id}/events", headers=headers) as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream")
        yield (event for text in blocks(answer) for event in parsed(text))


def blocks(answer: httpx.Response) -> Iterator[str]:
    lines: list[str] = []
    for line in answer.iter_lines():
        lines.append(line)
        if not line:
            yield "\n".join(lines)
            lines = []


def until(events: Iterator[tuple[str, dict[str, Any], str]], found: Callable[[str, dict[str, Any]], bool]) -> list[Any]:
    """The events up to the first that is it."""
    taken = []
    for event in events:
        taken.append(event)
        if found(event[0], event[1]):
            return taken
    raise AssertionError(f"the stream ended before: {taken}")


@pytest.mark.usefixtures("worker")
def test_a_stream_goes_on_where_it_was_cut_off_and_ends_with_its_run(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)  # as is advised for ASGI
    with asgi_server() as address, client_of(address, token) as client:
        client.post("/runs", json={"workflow": "tests.api.ask", "id": "a"}).raise_for_status()
        with stream(client, "a") as events:
            taken = until(events, lambda name, data: name == "run" and data["waiting_for"] == ["question"])
        last = next(event_id for _, _, event_id in reversed(taken) if event_id)
        client.post("/runs/a/messages", json={"queue": "question", "body": 1}).raise_for_status()
        client.post("/runs/a/messages", json={"queue": "end", "body": 2}).raise_for_status()
        with stream(client, "a", last) as events:
            rest = list(events)
        assert rest[-1][:2] == ("end", {"id": "a", "state": "completed"})
        entries = {data["location"]: data["status"] for name, data, _ in taken + rest if name == "entry"}
        assert entries == {"question": "completed", "think": "completed", "end": "completed"}
        answer = client.get("/runs/a/events", headers={"Accept": "text/event-stream", "Last-Event-ID": rest[-1][2]})
        assert answer.status_code == 204


def test_many_streams_hold_one_connection_and_one_thread(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "BEAT", 0.0)
    workflows.loop.using(id="a").start(1)
    before = sessions()
    with asgi_server() as address, client_of(address, token) as client:
        opened = [stream(client, "a") for _ in range(12)]
        streams = [each.__enter__() for each in opened]
        try:
            for events in streams:
                assert next(events)[0] == "run"
            assert broadcaster.streams.streams == 12
            assert sum(thread.name.startswith("durable-streams") for thread in threading.enumerate()) == 1
            eventually(lambda: len(sessions() - before) <= 1)  # those that were closed end in a moment
            monkeypatch.setattr(broadcaster, "MOST", 12)
            refused = client.get("/runs/a/events", headers={"Accept": "text/event-stream"})
            assert (refused.status_code, refused.json()["code"]) == (503, "too-many-streams")
            assert refused.headers["Retry-After"] == "60"
            get_run("a").cancel()
            for events in streams:
                assert [name for name, _, _ in events] == ["run", "end"]
        finally:
            for each in opened:
                each.__exit__(None, None, None)
    assert broadcaster.streams.streams == 0


def test_events_come_at_once_where_the_project_compresses_its_answers(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A middleware that compresses a stream keeps its events until they fill a block."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "BEAT", 0.0)
    workflows.loop.using(id="a").start(1)
    compressing = override_settings(MIDDLEWARE=["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE])
    with compressing, asgi_server() as address, client_of(address, token) as client:
        assert client.get("/runs", params={"limit": 1}).headers["Content-Encoding"] == "gzip"
        with stream(client, "a") as events:
            assert next(events)[0] == "run"
            get_run("a").cancel()
            assert [name for name, _, _ in events] == ["run", "end"]


class TestPlaces:
    """Of streams: how many there are, whose they are, and that each is given back."""

    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
        monkeypatch.setattr(broadcaster, "BEAT", 0.0)
        monkeypatch.setattr(broadcaster, "_LONGEST_PAUSE", 0.1)
        workflows.loop.using(id="a").start(1)
        with asgi_server() as self.address:
            yield
        # a request that was cancelled in its thread may be kept by its own traceback until it is collected
        eventually(lambda: gc.collect() >= 0 and broadcaster.streams.streams == 0)

    def test_never_more_are_open_than_there_are(self, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many ask for one at once."""
        monkeypatch.setattr(broadcaster, "MOST", 3)
        ready, asked = threading.Barrier(12), threading.Barrier(12)

        def ask() -> int:
            with client_of(self.address, token) as client:
                ready.wait(60)
                with client.stream("GET", "/runs/a/events", headers={"Accept": "text/event-stream"}) as answer:
                    asked.wait(60)  # open until all have been answered
                    return answer.status_code

        with ThreadPoolExecutor(12) as pool:
            statuses = [future.result() for future in [pool.submit(ask) for _ in range(12)]]
        assert sorted(statuses) == [200] * 3 + [503] * 9

    def test_one_user_leaves_places_for_the_others(self, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broadcaster, "MOST_OF_ONE", 2)
        other = str(Token.objects.create(user=User.objects.create_superuser("other", password=None)).key)
        with client_of(self.address, token) as client, client_of(self.address, other) as another:
            with stream(client, "a") as one, stream(client, "a") as two:
                assert (next(one)[0], next(two)[0]) == ("run", "run")
                refused = client.get("/runs/a/events", headers={"Accept": "text/event-stream"})
                assert (refused.status_code, refused.json()["code"]) == (503, "too-many-streams")
                with stream(another, "a") as three:
                    assert next(three)[0] == "run"
            eventually(lambda: broadcaster.streams.streams == 0)
            with stream(client, "a") as again:
                assert next(again)[0] == "run"

    def test_a_reader_that_is_gone_before_it_begins_keeps_no_place(
        self, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcaster, "MOST_OF_ONE", 1)
        monkeypatch.setattr(broadcaster, "BEGINS_WITHIN", 0.0)
        address = urlsplit(self.address)
        for _ in range(5):
            with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
                connection.sendall(
                    "GET /api/runs/a/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
                    f"Authorization: Token {token}\r\n\r\n".encode()
                )

        def opens() -> bool:
            with client.stream("GET", "/runs/a/events", headers={"Accept": "text/event-stream"}) as answer:
                return answer.status_code == 200

        with client_of(self.address, token) as client:
            eventually(opens)

    def test_what_is_refused_or_over_keeps_no_place(self, token: str) -> None:
        with client_of(self.address, token) as client:
            headers = {"Accept": "text/event-stream"}
            assert client.get("/runs/nobody/events", headers=headers).status_code == 404
            assert client.get("/runs/a/events", headers={**headers, "Last-Event-ID": "x"}).status_code == 400
            get_run("a").cancel()
            with stream(client, "a") as events:
                last = [event_id for _, _, event_id in events][-1]
            assert client.get("/runs/a/events", headers={**headers, "Last-Event-ID": last}).status_code == 204
        eventually(lambda: broadcaster.streams.streams == 0)

    @pytest.mark.parametrize("loss", ["the account is closed", "the permission is taken", "the account is gone"])
    def test_a_reader_that_may_no_longer_see_runs_is_cut_off(self, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
        monkeypatch.setattr(broadcaster, "RIGHTS", 0.0)
        user = User.objects.create_user("reader")
        user.user_permissions.add(Permission.objects.get(codename="view_run", content_type__app_label="durable"))
        with client_of(self.address, str(Token.objects.create(user=user).key)) as client, stream(client, "a") as events:
            assert next(events)[0] == "run"
            if loss == "the account is closed":
                User.objects.filter(pk=user.pk).update(is_active=False)
            elif loss == "the permission is taken":
                user.user_permissions.clear()
            else:
                user.delete()
            assert list(events) == []  # it ends, and has no event for the end of the run

    def test_a_reader_that_may_no_longer_see_payloads_gets_no_more_of_them(
        self, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcaster, "RIGHTS", 0.0)
        is_taken, asked_again = threading.Event(), threading.Event()
        check_rights = EventBuilder.check_rights

        def check(builder: EventBuilder) -> None:
            was_taken = is_taken.is_set()
            check_rights(builder)
            if was_taken:
                asked_again.set()

        monkeypatch.setattr(EventBuilder, "check_rights", check)
        workflows.fail.using(id="f").start()
        user = User.objects.create_user("reader")
        of_runs = Permission.objects.filter(content_type__app_label="durable")
        user.user_permissions.set(of_runs.filter(codename__in=("view_run", "view_payload")))
        with client_of(self.address, str(Token.objects.create(user=user).key)) as client, stream(client, "f") as events:
            assert next(events)[0] == "run"
            user.user_permissions.set(of_runs.filter(codename="view_run"))
            is_taken.set()
            assert asked_again.wait(60)
            pass_once(get_run("f"))
            received = list(events)
        [entry] = [data for name, data, _ in received if name == "entry" and data["status"] != "running"]
        assert (entry["error"]["message"], entry["error"]["traceback"]) == ("broken", None)
        assert received[-1][0] == "end"


def test_a_quiet_stream_gives_signs_of_life_and_ends_in_time(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "BEAT", 0.0)
    monkeypatch.setattr(broadcaster, "LONGEST", 0.3)
    workflows.loop.using(id="a").start(1)
    with asgi_server() as address, client_of(address, token) as client:
        answer = client.get("/runs/a/events", headers={"Accept": "text/event-stream"})
    lines = answer.text.splitlines()
    assert lines[0] == "retry: 1000"
    assert ": nothing new" in lines
    assert [name for name, _, _ in parsed(answer.text)] == ["run"]


def every_run(_request: Any, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A rule that allows all, and has to be asked for each run."""
    return runs.exclude(id="hidden")


def test_a_stream_of_a_child_tells_a_limited_user_of_its_parent(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the streams reads what the first event needs, so that the event loop waits for no database."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(broadcaster, "LONGEST", 0.3)
    for run in ("parent", "child"):
        workflows.loop.using(id=run, tags={"tenant": "acme"}).start(1)
    Run.objects.filter(pk="child").update(parent="parent")
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.every_run"}):
        with asgi_server() as address, client_of(address, token) as client:
            answer = client.get("/runs/child/events", headers={"Accept": "text/event-stream"})
        received: list[Any] = list(parsed(answer.text))
    [(name, run, _)] = received
    assert (name, run["parent"], run["tags"]) == ("run", "parent", {"tenant": "acme"})


def test_a_waiting_request_gives_its_connection_back_between_two_looks() -> None:
    held: list[bool] = []

    def look() -> bool | None:
        held.append(connection.connection is not None)
        sessions()
        return held.count(False) > 1 or None

    request = Request(RequestFactory().get("/"))
    request.user = User(username="ada")
    with override_settings(DURABLE={"API_MAX_WAITING": 1}):
        assert wait_for(request, look, 20) is True
