"""Steps that send requests, with each library that answers in place of a server."""

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
import requests
import responses
import respx
import urllib3
from pytest_httpx import HTTPXMock

from durable import AsyncContext, Context, Found, NotDone, current_step, workflow
from durable.testing import Harness

BANK = "https://bank.example"


def key() -> dict[str, str]:
    return {"Idempotency-Key": current_step().idempotency_key}


@workflow(name="dying.requests")
def with_requests(ctx: Context) -> None:
    ctx.step("keyless", lambda: requests.post(f"{BANK}/requests", json={"a": 1}, timeout=1).status_code)
    ctx.step("keyed", lambda: requests.post(f"{BANK}/requests", headers=key(), timeout=1).status_code)
    ctx.step(
        "another key",
        lambda: requests.post(f"{BANK}/requests", headers={"Idempotency-Key": uuid4().hex}, timeout=1).status_code,
    )
    ctx.step("read", lambda: requests.get(f"{BANK}/requests", timeout=1).status_code)
    ctx.step("put", lambda: requests.put(f"{BANK}/requests", timeout=1).status_code)


@responses.activate
def test_responses(durable_harness: Harness) -> None:
    for method in ("POST", "GET", "PUT"):
        responses.add(method, f"{BANK}/requests")
    assert durable_harness.finish(durable_harness.start(with_requests)).state == "completed"


@workflow(name="dying.respx")
def with_httpx(ctx: Context, name: str) -> None:
    ctx.step("keyless", lambda: httpx.post(f"{BANK}/{name}").status_code)
    ctx.step("key in the body", lambda: httpx.post(f"{BANK}/{name}", json={"own": key()}).status_code)


@respx.mock
def test_respx(durable_harness: Harness) -> None:
    respx.post(f"{BANK}/respx")
    assert durable_harness.finish(durable_harness.start(with_httpx, "respx")).state == "completed"


@workflow(name="dying.once")
def charging_once(ctx: Context) -> None:
    def charge() -> int:
        return httpx.post(f"{BANK}/once").status_code

    def find() -> Found[int] | NotDone:
        return Found(200) if httpx.get(f"{BANK}/once").json()["is_charged"] else NotDone()

    ctx.step("charge", charge, once=True, verify=find)


@respx.mock
def test_once(durable_harness: Harness) -> None:
    charged = respx.post(f"{BANK}/once")
    respx.get(f"{BANK}/once").mock(
        side_effect=lambda _: httpx.Response(200, json={"is_charged": charged.call_count > 0})
    )
    assert durable_harness.finish(durable_harness.start(charging_once)).state == "completed"


def test_pytest_httpx(durable_harness: Harness, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(is_reusable=True)
    assert durable_harness.finish(durable_harness.start(with_httpx, "pytest-httpx")).state == "completed"


def answer(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200)


async def send_by_async_client() -> int:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        return (await client.post(f"{BANK}/async")).status_code


@workflow(name="dying.async")
async def with_async_client(ctx: AsyncContext) -> None:
    await ctx.step("keyless", send_by_async_client)


async def test_mock_transport(durable_harness: Harness) -> None:
    run = await durable_harness.astart(with_async_client)
    assert (await durable_harness.afinish(run)).state == "completed"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@workflow(name="dying.real")
def to_a_server(ctx: Context, address: str) -> None:
    def by_urllib() -> int:
        with urllib.request.urlopen(f"{address}/urllib", data=b"a=1") as answer:
            return int(answer.status)

    ctx.step("urllib", by_urllib)
    ctx.step("urllib3", lambda: urllib3.PoolManager().request("POST", f"{address}/urllib3").status)
    ctx.step("requests", lambda: requests.post(f"{address}/requests", timeout=60).status_code)
    ctx.step("httpx", lambda: httpx.post(f"{address}/httpx").status_code)


def test_a_real_server(durable_harness: Harness, address: str) -> None:
    assert durable_harness.finish(durable_harness.start(to_a_server, address)).state == "completed"
