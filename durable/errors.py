"""The errors that a project may catch. Those that its code raises are in `durable` too: CriticalError, RollbackError,
RetryLater.

A project catches a middle class, or one of its children::

    DurableError
    ├── WorkflowError                 an operation failed: the run fails and is compensated, unless the code handles it
    │   ├── CriticalError
    │   │   └── DeadlockError         a wait that could never end
    │   ├── RollbackError
    │   ├── StepExhaustedError
    │   ├── StepTimeoutError
    │   │   └── HeartbeatTimeoutError
    │   ├── AttemptAbandonedError
    │   ├── RetryLater                raised in a step: the next attempt then; from `durable`
    │   ├── JoinError
    │   ├── RaceError
    │   ├── MessageTimeoutError
    │   ├── MessageBodyError          a received message is not of its type
    │   ├── LinkTimeoutError          nobody has answered a link in time
    │   ├── EventTimeoutError         an event was not published in time
    │   ├── PersonTimeoutError        nobody has answered a question in time
    │   ├── ChildFailedError
    │   ├── ChildCancelledError
    │   ├── MapError
    │   └── ChildTimeoutError
    ├── ContractError                 code broke a rule of durable: the run stops, and nothing is compensated
    │   ├── HistoryDivergedError
    │   ├── LinkAddressError          links have no address in this project
    │   ├── EntryInProgressError
    │   ├── RollbackCheckpointError
    │   ├── OpenTransactionError
    │   ├── OutsideStepError
    │   ├── InputChangedError
    │   ├── PayloadError
    │   └── MessageNotCompletedError
    ├── OperationError                a verb was refused: nothing was changed
    │   ├── RunNotFoundError
    │   ├── EntryNotFoundError
    │   ├── RunConflictError
    │   │   └── KeyConflictError
    │   ├── MessageConflictError
    │   ├── EventConflictError
    │   ├── MessageNotPendingError
    │   ├── MessageNotAcceptedError   the workflow declares its messages, and this is none of them
    │   ├── EndRefusedError           the on_end of the workflow failed, so the run has not ended
    │   ├── InvalidTransitionError
    │   │   └── StaleRunError
    │   ├── ReplayRefusedError
    │   ├── StalePlanError
    │   ├── UndiscoveredWorkflowError
    │   ├── UnknownLimitError
    │   ├── RateUnitsError            (a mistake of the code, as UnknownLimitError)
    │   ├── CarrierError              (a mistake of the code, as UnknownLimitError) what travels with a run
    │   ├── StartRefusedError
    │   ├── StaleLimitError
    │   ├── HoldError
    │   ├── RestoredDatabaseError
    │   ├── ScheduleError
    │   │   ├── StaleScheduleError
    │   │   └── ScheduleNotFoundError
    │   ├── NotAllowedError           this person may not answer the question
    │   ├── FormInvalidError          the form of the question refuses the answer
    │   ├── QuestionClosedError       the question is not open any more
    │   ├── BulkCountError
    │   ├── BulkNotStoppedError
    │   ├── BulkOrderError
    │   └── OperationDeniedError      also a PermissionDenied of Django
    ├── MessageRefusedError           the run has refused the message of `ask`
    ├── RunFailedError                the run whose result was requested has failed
    ├── RunCancelledError             ... or was cancelled
    ├── RunCrashedError               recorded on a run that killed its workers
    └── RunDeadlineError              recorded on a run that was not done in time
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable.core.errors import (
    AttemptAbandonedError,
    BulkCountError,
    BulkNotStoppedError,
    BulkOrderError,
    CarrierError,
    ChildCancelledError,
    ChildFailedError,
    ChildTimeoutError,
    ContractError,
    CriticalError,
    DeadlockError,
    DurableError,
    EndRefusedError,
    EntryInProgressError,
    EntryNotFoundError,
    EventConflictError,
    EventTimeoutError,
    FormInvalidError,
    HeartbeatTimeoutError,
    HistoryDivergedError,
    HoldError,
    InputChangedError,
    InvalidTransitionError,
    JoinError,
    KeyConflictError,
    LinkAddressError,
    LinkTimeoutError,
    MapError,
    MessageBodyError,
    MessageConflictError,
    MessageNotAcceptedError,
    MessageNotCompletedError,
    MessageNotPendingError,
    MessageRefusedError,
    MessageTimeoutError,
    NotAllowedError,
    OpenTransactionError,
    OperationError,
    OutsideStepError,
    PayloadError,
    PersonTimeoutError,
    QuestionClosedError,
    RaceError,
    RateUnitsError,
    ReplayRefusedError,
    RestoredDatabaseError,
    RollbackCheckpointError,
    RollbackError,
    RunCancelledError,
    RunConflictError,
    RunCrashedError,
    RunDeadlineError,
    RunFailedError,
    RunNotFoundError,
    ScheduleError,
    ScheduleNotFoundError,
    StaleLimitError,
    StalePlanError,
    StaleRunError,
    StaleScheduleError,
    StartRefusedError,
    StepExhaustedError,
    StepTimeoutError,
    UndiscoveredWorkflowError,
    UnknownLimitError,
    WorkflowError,
)
from durable.core.retries import RetryLater

if TYPE_CHECKING:
    from durable.operations.audit import OperationDeniedError

__all__ = [
    "AttemptAbandonedError",
    "BulkCountError",
    "BulkNotStoppedError",
    "BulkOrderError",
    "CarrierError",
    "ChildCancelledError",
    "ChildFailedError",
    "ChildTimeoutError",
    "ContractError",
    "CriticalError",
    "DeadlockError",
    "DurableError",
    "EndRefusedError",
    "EntryInProgressError",
    "EntryNotFoundError",
    "EventConflictError",
    "EventTimeoutError",
    "FormInvalidError",
    "HeartbeatTimeoutError",
    "HistoryDivergedError",
    "HoldError",
    "InputChangedError",
    "InvalidTransitionError",
    "JoinError",
    "KeyConflictError",
    "LinkAddressError",
    "LinkTimeoutError",
    "MapError",
    "MessageBodyError",
    "MessageConflictError",
    "MessageNotAcceptedError",
    "MessageNotCompletedError",
    "MessageNotPendingError",
    "MessageRefusedError",
    "MessageTimeoutError",
    "NotAllowedError",
    "OpenTransactionError",
    "OperationDeniedError",
    "OperationError",
    "OutsideStepError",
    "PayloadError",
    "PersonTimeoutError",
    "QuestionClosedError",
    "RaceError",
    "RateUnitsError",
    "ReplayRefusedError",
    "RestoredDatabaseError",
    "RetryLater",
    "RollbackCheckpointError",
    "RollbackError",
    "RunCancelledError",
    "RunConflictError",
    "RunCrashedError",
    "RunDeadlineError",
    "RunFailedError",
    "RunNotFoundError",
    "ScheduleError",
    "ScheduleNotFoundError",
    "StaleLimitError",
    "StalePlanError",
    "StaleRunError",
    "StaleScheduleError",
    "StartRefusedError",
    "StepExhaustedError",
    "StepTimeoutError",
    "UndiscoveredWorkflowError",
    "UnknownLimitError",
    "WorkflowError",
]


def __getattr__(name: str) -> Any:
    if name != "OperationDeniedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from durable.operations.audit import OperationDeniedError  # needs a configured Django, which no other error does

    return OperationDeniedError
