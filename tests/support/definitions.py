"""Definitions of workflows for a registry, which needs neither their functions nor a context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.outcomes import WhenExhausted
from durable.core.registry import EndFunction, MessageTypes


def one(ctx: object) -> None: ...


def other(ctx: object) -> None: ...


@dataclass(eq=False)
class Definition:
    name: str
    function: Callable[..., Any] = one
    queue: str = "default"
    is_async: bool = field(default=False)
    mistakes: tuple[type[Exception] | str, ...] | None = None
    limits: WorkflowLimits | None = None
    messages: MessageTypes | None = None
    is_quiet: bool = False
    on_end: EndFunction | None = None
    on: str | None = None
    when_exhausted: WhenExhausted = "fail"
