"""Durable workflows for Django: ordinary functions that survive crashes, deploys, long sleeps and lost messages.

The public names are loaded at their first use: importing `durable` does not need a configured Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable.context import AsyncChild, AsyncContext, Child, Context
    from durable.core.current import current_step
    from durable.core.errors import (
        AttemptAbandonedError,
        BulkCountError,
        BulkNotStoppedError,
        BulkOrderError,
        ChildCancelledError,
        ChildFailedError,
        ChildTimeoutError,
        ContractError,
        CriticalError,
        DeadlockError,
        DurableError,
        EntryInProgressError,
        EntryNotFoundError,
        ErrorInfo,
        HeartbeatTimeoutError,
        HistoryDivergedError,
        InputChangedError,
        InvalidTransitionError,
        JoinError,
        KeyConflictError,
        MapError,
        MessageConflictError,
        MessageNotCompletedError,
        MessageRefusedError,
        MessageTimeoutError,
        OpenTransactionError,
        OperationError,
        OutsideStepError,
        PayloadError,
        RaceError,
        RateUnitsError,
        ReplayRefusedError,
        RollbackCheckpointError,
        RollbackError,
        RunCancelledError,
        RunConflictError,
        RunCrashedError,
        RunDeadlineError,
        RunFailedError,
        RunNotFoundError,
        StaleLimitError,
        StalePlanError,
        StaleRunError,
        StartRefusedError,
        StepExhaustedError,
        StepTimeoutError,
        UndiscoveredWorkflowError,
        UnknownLimitError,
        WorkflowError,
    )
    from durable.core.map_results import MapChild, MapResult
    from durable.core.messages import ANY
    from durable.core.options import RollbackContext, StepOptions
    from durable.core.results import (
        AsyncQueueMessage,
        BlockFailure,
        BlockResult,
        Break,
        Continue,
        QueueMessage,
        RaceResult,
        StepFailure,
        StepResult,
    )
    from durable.core.retry_later import RetryLater
    from durable.core.workflow_limits import Limit
    from durable.definitions import Input, Workflow, step, workflow
    from durable.handles import Handle, aget_run, aruns_info, get_run, runs_info
    from durable.models import Schedule
    from durable.operations.audit import Actor, OperationDeniedError, acting_as
    from durable.operations.comparison import HistoryDifference
    from durable.operations.history import HistoryEntry
    from durable.operations.replay_plan import ReplayPlan
    from durable.operations.run_info import RunInfo
    from durable.schedules import cron, every

__version__ = "0.1.0"

_MODULES = {
    "durable.operations.audit": ("Actor", "OperationDeniedError", "acting_as"),
    "durable.context": ("AsyncChild", "AsyncContext", "Child", "Context"),
    "durable.core.errors": (
        "AttemptAbandonedError",
        "BulkCountError",
        "BulkNotStoppedError",
        "BulkOrderError",
        "ChildCancelledError",
        "ChildFailedError",
        "ChildTimeoutError",
        "ContractError",
        "CriticalError",
        "DeadlockError",
        "DurableError",
        "EntryInProgressError",
        "EntryNotFoundError",
        "ErrorInfo",
        "HeartbeatTimeoutError",
        "HistoryDivergedError",
        "InputChangedError",
        "InvalidTransitionError",
        "KeyConflictError",
        "JoinError",
        "MapError",
        "MessageConflictError",
        "MessageNotCompletedError",
        "MessageRefusedError",
        "MessageTimeoutError",
        "OpenTransactionError",
        "OperationError",
        "OutsideStepError",
        "PayloadError",
        "RaceError",
        "ReplayRefusedError",
        "RateUnitsError",
        "RollbackCheckpointError",
        "RollbackError",
        "RunCancelledError",
        "RunConflictError",
        "RunCrashedError",
        "RunDeadlineError",
        "RunFailedError",
        "RunNotFoundError",
        "StalePlanError",
        "StaleLimitError",
        "StaleRunError",
        "StartRefusedError",
        "StepExhaustedError",
        "StepTimeoutError",
        "UndiscoveredWorkflowError",
        "UnknownLimitError",
        "WorkflowError",
    ),
    "durable.core.options": ("RollbackContext", "StepOptions"),
    "durable.core.retry_later": ("RetryLater",),
    "durable.core.results": (
        "AsyncQueueMessage",
        "BlockFailure",
        "BlockResult",
        "Break",
        "Continue",
        "QueueMessage",
        "RaceResult",
        "StepFailure",
        "StepResult",
    ),
    "durable.core.map_results": ("MapChild", "MapResult"),
    "durable.core.messages": ("ANY",),
    "durable.core.workflow_limits": ("Limit",),
    "durable.core.current": ("current_step",),
    "durable.handles": ("Handle", "aget_run", "aruns_info", "get_run", "runs_info"),
    "durable.operations.comparison": ("HistoryDifference",),
    "durable.operations.history": ("HistoryEntry",),
    "durable.operations.replay_plan": ("ReplayPlan",),
    "durable.operations.run_info": ("RunInfo",),
    "durable.definitions": ("Input", "Workflow", "step", "workflow"),
    "durable.schedules": ("cron", "every"),
    "durable.models": ("Schedule",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ANY",
    "Actor",
    "AsyncChild",
    "AsyncContext",
    "AsyncQueueMessage",
    "AttemptAbandonedError",
    "BlockFailure",
    "BlockResult",
    "Break",
    "BulkCountError",
    "BulkNotStoppedError",
    "BulkOrderError",
    "Child",
    "ChildCancelledError",
    "ChildFailedError",
    "ChildTimeoutError",
    "Context",
    "Continue",
    "ContractError",
    "CriticalError",
    "DeadlockError",
    "DurableError",
    "EntryInProgressError",
    "EntryNotFoundError",
    "ErrorInfo",
    "Handle",
    "HeartbeatTimeoutError",
    "HistoryDifference",
    "HistoryDivergedError",
    "HistoryEntry",
    "Input",
    "InputChangedError",
    "InvalidTransitionError",
    "JoinError",
    "KeyConflictError",
    "Limit",
    "MapChild",
    "MapError",
    "MapResult",
    "MessageConflictError",
    "MessageNotCompletedError",
    "MessageRefusedError",
    "MessageTimeoutError",
    "OpenTransactionError",
    "OperationDeniedError",
    "OperationError",
    "OutsideStepError",
    "PayloadError",
    "QueueMessage",
    "RaceError",
    "RaceResult",
    "RateUnitsError",
    "ReplayPlan",
    "ReplayRefusedError",
    "RetryLater",
    "RollbackCheckpointError",
    "RollbackContext",
    "RollbackError",
    "RunCancelledError",
    "RunConflictError",
    "RunCrashedError",
    "RunDeadlineError",
    "RunFailedError",
    "RunInfo",
    "RunNotFoundError",
    "Schedule",
    "StaleLimitError",
    "StalePlanError",
    "StaleRunError",
    "StartRefusedError",
    "StepExhaustedError",
    "StepFailure",
    "StepOptions",
    "StepResult",
    "StepTimeoutError",
    "UndiscoveredWorkflowError",
    "UnknownLimitError",
    "Workflow",
    "WorkflowError",
    "acting_as",
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
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
