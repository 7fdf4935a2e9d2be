"""A pass of a workflow that the guard watches, and its refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable.testing import Harness, Pass
from tests.support.errors import error_of


def passed(h: Harness, workflow: Callable[..., Any], *args: Any) -> Pass:
    return h.run(h.start(workflow, *args))


def refused(found: Pass, kind: str = "OutsideStepError") -> str:
    """Check that the guard has refused it, and return the message."""
    error = error_of(found)
    assert error.type == kind, error
    return error.message
