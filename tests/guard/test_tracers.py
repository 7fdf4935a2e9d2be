"""Packages that trace stand on the stack between a workflow and what they trace, and export by themselves."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from django.contrib.auth.models import Group

from durable import Context
from durable.testing import Harness, Pass

pytestmark = pytest.mark.django_db


def passed(h: Harness, workflow: Callable[..., Any]) -> Pass:
    return h.run(h.start(workflow))


def is_refused(found: Pass) -> bool:
    return found.state == "failed" and found.error is not None and found.error.type == "OutsideStepError"


def code_of(module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same code whose frames are those of an installed module."""
    code = function.__code__.replace(co_filename=f"/lib/site-packages/{module.replace('.', '/')}.py")
    return FunctionType(code, {"__name__": module, "__builtins__": __builtins__, "socket": socket})


def calls(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def connects(address: tuple[str, int]) -> None:
    socket.create_connection(address).close()


@pytest.mark.parametrize("module", ["sentry_sdk.integrations.django", "newrelic.api.function_trace", "ddtrace"])
def test_a_statement_that_is_traced_is_the_workflows(h: Harness, module: str) -> None:
    trace = code_of(module, calls)

    def counts(ctx: Context) -> int:
        return int(trace(Group.objects.count))

    assert is_refused(passed(h, counts))


def test_a_connection_that_is_traced_is_the_workflows(h: Harness) -> None:
    trace = code_of("opentelemetry.instrumentation.requests", calls)
    library = code_of("requests.sessions", connects)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert is_refused(passed(h, lambda ctx: trace(library, server.getsockname())))


def test_a_function_of_the_application_that_is_traced_is_the_workflows(h: Harness) -> None:
    trace = code_of("sentry_sdk.tracing_utils", calls)
    with socket.create_server(("127.0.0.1", 0)) as server:
        traced = functools.partial(trace, connects, server.getsockname())
        assert is_refused(passed(h, lambda ctx: traced()))


def test_what_is_exported_is_not(h: Harness) -> None:
    export = code_of("opentelemetry.sdk.trace.export", calls)
    library = code_of("requests.sessions", connects)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert passed(h, lambda ctx: export(library, server.getsockname())).state == "completed"
