"""A body is read whatever server carries it and however its length is given; it is never taken for none."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import override_settings
from rest_framework.authtoken.models import Token

from durable import get_run
from durable.models import OperatorAction, Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.serving import asgi_server
from tests.api.workflows import loop
from tests.faults.passing import pass_once

STALE = b'{"revision": "0-stale", "rollback": true, "reason": "because"}'


class Chunked:
    """A client whose server names no length of a body, and, if it is a good one, marks its end."""

    def __init__(self, api: Api, *, marks_the_end: bool = True, says_chunked: bool = True) -> None:
        self.api = api
        self.extra: dict[str, Any] = {"wsgi.input_terminated": True} if marks_the_end else {}
        if says_chunked:
            self.extra["HTTP_TRANSFER_ENCODING"] = "chunked"

    def post(self, path: str, body: bytes, *, kind: str = "application/json", **headers: str) -> Any:
        """The answer to a body in chunks."""
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": f"/api{path}", "CONTENT_TYPE": kind, **self.extra}
        return self.api.client.request(**environ, **headers, **{"wsgi.input": io.BytesIO(body)})


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    pass_once(loop.using(id="a").start(1))
    return make_api(*ALL)


@pytest.mark.django_db
class TestUnderWsgi:
    @pytest.mark.parametrize("says_chunked", [True, False])
    def test_a_body_in_chunks_is_read(self, api: Api, says_chunked: bool) -> None:
        """Also one that a server takes out of HTTP/2, where nothing says that there is one."""
        chunked = Chunked(api, says_chunked=says_chunked)
        problem(chunked.post("/runs/a/cancel", STALE), 409, "run-moved-on")
        assert get_run("a").state == "sleeping"
        assert chunked.post("/runs/a/cancel", b'{"reason": "because"}').status_code == 200
        logged = OperatorAction.objects.filter(outcome="done").get()
        assert logged.reason == "because"

    def test_what_is_in_it_counts_like_any_body(self, api: Api) -> None:
        chunked = Chunked(api)
        problem(chunked.post("/runs/a/pause", b'{"nonsense": 1}'), 400, "invalid-request")
        problem(chunked.post("/runs/a/pause", b"{"), 400, "malformed-body")
        problem(chunked.post("/runs/a/pause", b"nonsense=1", kind="text/plain"), 415, "unsupported-media-type")
        with override_settings(DURABLE={"MAX_PAYLOAD_BYTES": 1000}):
            problem(chunked.post("/runs/a/pause", b'"' + b"x" * 100_000 + b'"'), 413, "body-too-large")
        assert get_run("a").state == "sleeping"

    def test_a_key_tells_bodies_in_chunks_apart(self, api: Api) -> None:
        chunked = Chunked(api)
        first = chunked.post("/runs/a/restart", b'{"id": "a1"}', HTTP_IDEMPOTENCY_KEY="k")
        assert (first.status_code, first.json()["id"]) == (201, "a1")
        again = chunked.post("/runs/a/restart", b'{"id": "a2"}', HTTP_IDEMPOTENCY_KEY="k")
        problem(again, 422, "idempotency-key-reused")

    def test_no_chunks_are_no_body(self, api: Api) -> None:
        assert Chunked(api).post("/runs/a/pause", b"", kind="").status_code == 200

    def test_a_server_that_does_not_mark_the_end_is_not_believed(self, api: Api) -> None:
        refused = problem(Chunked(api, marks_the_end=False).post("/runs/a/cancel", STALE), 411, "length-required")
        assert "Content-Length" in refused["detail"]
        assert get_run("a").state == "sleeping"

    def test_a_connection_that_breaks_off(self, api: Api) -> None:
        class Broken(io.BytesIO):
            """A stream that ends within a chunk."""

            def read(self, *_: Any) -> bytes:
                raise OSError("the chunk has no end")

        chunked = Chunked(api)
        environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/api/runs/a/cancel", **chunked.extra}
        answer = api.client.request(**environ, **{"wsgi.input": Broken()})
        problem(answer, 400, "malformed-body")

    def test_a_body_that_a_middleware_has_read_is_not_missed(self, api: Api) -> None:
        with override_settings(MIDDLEWARE=[*MIDDLEWARE, "tests.api.test_bodies.reads_the_body"]):
            problem(Chunked(api).post("/runs/a/cancel", STALE), 409, "run-moved-on")
            problem(api.post("/runs/a/cancel", STALE), 409, "run-moved-on")

    def test_a_form_that_a_middleware_has_read_is_no_empty_body(self, api: Api) -> None:
        with override_settings(MIDDLEWARE=[*MIDDLEWARE, "tests.api.test_bodies.reads_the_form"]):
            answer = api.client.post("/api/runs/a/cancel", {"revision": "0-stale"})  # multipart/form-data
        problem(answer, 415, "unsupported-media-type")
        assert get_run("a").state == "sleeping"


MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]


def reads_the_body(get_response: Any) -> Any:
    """A middleware of the host's that logs bodies."""

    def middleware(request: Any) -> Any:
        assert request.body is not None
        return get_response(request)

    return middleware


def reads_the_form(get_response: Any) -> Any:
    """A middleware of the host's that looks for a field of forms."""

    def middleware(request: Any) -> Any:
        assert request.POST is not None
        return get_response(request)

    return middleware


def in_pieces(body: bytes) -> Iterator[bytes]:
    """The body as a client sends it that does not know its length."""
    yield body[:10]
    yield body[10:]


@pytest.mark.e2e
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestOverASocket:
    @pytest.fixture
    def token(self) -> str:
        loop.using(id="a").start(1)
        return str(Token.objects.create(user=User.objects.create_superuser("root", password=None)).key)

    def test_under_asgi_it_is_read(self, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)  # as is advised for ASGI
        headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}
        with asgi_server() as address, httpx.Client(base_url=f"{address}/api", headers=headers, timeout=60) as client:
            refused = client.post("/runs/a/cancel", content=in_pieces(STALE))
            assert (refused.status_code, refused.json()["code"]) == (409, "run-moved-on")
            unknown = client.post("/runs/a/pause", content=in_pieces(b'{"nonsense": 1}'))
            assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid-request")
            assert Run.objects.get().state == "pending"
            assert client.post("/runs/a/pause", content=in_pieces(b'{"reason": "why"}')).status_code == 200
        assert OperatorAction.objects.get(outcome="done").reason == "why"

    def test_a_server_that_cannot_read_it_refuses_it(self, live_server: Any, token: str) -> None:
        """Django's own server for development leaves the chunks as they are."""
        address = urlsplit(live_server.url)
        lines = (
            "POST /api/runs/a/cancel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Token {token}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(lines.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(STALE), STALE))
            answer = connection.makefile("rb").readline()
        assert b" 411 " in answer
        assert Run.objects.get().state == "pending"


@pytest.mark.django_db
class TestOtherSites:
    """What a page of another site has a browser send with credentials that the browser adds by itself."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"HTTP_ORIGIN": "http://evil.example"},
            {"HTTP_ORIGIN": "null"},
            {"HTTP_SEC_FETCH_SITE": "cross-site"},
            {"HTTP_SEC_FETCH_SITE": "same-site", "HTTP_ORIGIN": "http://testserver"},
        ],
    )
    @pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"])
    def test_a_form_of_theirs_does_nothing(self, api: Api, headers: dict[str, Any], kind: str) -> None:
        for verb in ("cancel", "pause", "wake", "restart"):
            answer = api.client.generic("POST", f"/api/runs/a/{verb}", CONTENT_TYPE=kind, **headers)
            document = problem(answer, 415, "unsupported-media-type")
            assert "Content-Type: application/json" in document["detail"]
        assert list(Run.objects.values_list("id", "state")) == [("a", "sleeping")]

    def test_what_the_project_has_allowed_them_works(self, api: Api) -> None:
        """A browser asks before it sends JSON for another site."""
        answer = api.client.generic(
            "POST", "/api/runs/a/pause", CONTENT_TYPE="application/json", HTTP_ORIGIN="http://friend.example"
        )
        assert answer.status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"HTTP_ORIGIN": "http://testserver"},
            {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://behind-a-proxy"},
            {"HTTP_SEC_FETCH_SITE": "none"},
        ],
    )
    @pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded"])
    def test_programs_and_pages_of_the_same_site_need_no_type(
        self, api: Api, headers: dict[str, Any], kind: str
    ) -> None:
        answer = api.client.generic("POST", "/api/runs/a/pause", CONTENT_TYPE=kind, **headers)
        assert answer.status_code == 200
