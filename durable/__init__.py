"""Durable workflows for Django: ordinary functions that survive crashes, deploys, long sleeps and lost messages.

Here is what the code of workflows uses. Errors to catch are in `durable.errors`; what operators' code uses is in
`durable.operations`. The names are loaded at their first use: importing `durable` does not need a configured Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable.context import AsyncChild, AsyncContext, Child, Context
    from durable.core.current import current_step
    from durable.core.errors import (
        CriticalError,
        ErrorInfo,
        RollbackError,
    )
    from durable.core.limits.workflow_limits import Limit
    from durable.core.messages import ANY
    from durable.core.options import RollbackContext, StepOptions
    from durable.core.outcomes import Found, NotDone, Unknown
    from durable.core.results import (
        AsyncQueueMessage,
        BlockFailure,
        BlockResult,
        Break,
        Continue,
        MapChild,
        MapResult,
        Markdown,
        QueueMessage,
        RaceResult,
        StepFailure,
        StepResult,
    )
    from durable.core.retries import RetryLater
    from durable.definitions import Input, Workflow, step, workflow
    from durable.handles import Handle, aget_run, aruns_info, get_run, runs_info
    from durable.models import Schedule
    from durable.operations.events import apublish as apublish
    from durable.operations.events import event as event
    from durable.operations.events import publish as publish
    from durable.schedules import cron, every

__version__ = "0.1.0"

_MODULES = {
    "durable.context": ("AsyncChild", "AsyncContext", "Child", "Context"),
    "durable.core.errors": (
        "CriticalError",
        "ErrorInfo",
        "RollbackError",
    ),
    "durable.core.options": ("RollbackContext", "StepOptions"),
    "durable.core.outcomes": ("Found", "NotDone", "Unknown"),
    "durable.core.retries": ("RetryLater",),
    "durable.core.results": (
        "AsyncQueueMessage",
        "BlockFailure",
        "BlockResult",
        "Break",
        "Continue",
        "MapChild",
        "MapResult",
        "Markdown",
        "QueueMessage",
        "RaceResult",
        "StepFailure",
        "StepResult",
    ),
    "durable.core.messages": ("ANY",),
    "durable.core.limits.workflow_limits": ("Limit",),
    "durable.core.current": ("current_step",),
    "durable.handles": ("Handle", "aget_run", "aruns_info", "get_run", "runs_info"),
    "durable.definitions": ("Input", "Workflow", "step", "workflow"),
    "durable.schedules": ("cron", "every"),
    "durable.models": ("Schedule",),
    "durable.operations.events": ("apublish", "event", "publish"),  # found here, but not listed
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_OPERATORS = ("Actor", "HeldStep", "HistoryDifference", "HistoryEntry", "ReplayPlan", "RunInfo", "acting_as")

__all__ = [
    "ANY",
    "AsyncChild",
    "AsyncContext",
    "AsyncQueueMessage",
    "BlockFailure",
    "BlockResult",
    "Break",
    "Child",
    "Context",
    "Continue",
    "CriticalError",
    "ErrorInfo",
    "Found",
    "Handle",
    "Input",
    "Limit",
    "MapChild",
    "MapResult",
    "Markdown",
    "NotDone",
    "QueueMessage",
    "RaceResult",
    "RetryLater",
    "RollbackContext",
    "RollbackError",
    "Schedule",
    "StepFailure",
    "StepOptions",
    "StepResult",
    "Unknown",
    "Workflow",
    "aget_run",
    "aruns_info",
    "cron",
    "current_step",
    "every",
    "get_run",
    "runs_info",
    "step",
    "workflow",
]


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name) or _former_home(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def _former_home(name: str) -> str | None:
    """Return where a name is that was here in earlier checkouts. It is found here, but not listed."""
    if name in _OPERATORS:
        return "durable.operations"
    is_error = name.endswith("Error") and name in import_module("durable.errors").__all__
    return "durable.errors" if is_error else None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
