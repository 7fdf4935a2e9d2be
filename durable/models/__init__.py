"""The tables: runs, their histories, inboxes and failures, running steps, workers and the audit log.

The models own columns, constraints and indexes. They must not decide anything about workflows, and surfaces write them
only through `durable.operations`.
"""

from durable.models.causes import Cause, CauseBuild, Failure
from durable.models.children import Cascade, Child, ChildGroup, ChildReader, GroupTally, Turn
from durable.models.history import Attempt, Entry, EntryMetadata, HistoryCount, RunStatus, StepSave
from durable.models.inbox import (
    Event,
    EventKey,
    EventWait,
    IdempotencyKey,
    KeyedSend,
    Link,
    Question,
    QueueMessage,
    RunKey,
)
from durable.models.limits import Limit, LimitKey, RateKey, RateLimit, Reservation, Slot, SlotNote
from durable.models.operators import (
    AlertState,
    LogLine,
    OperatorAction,
    RetentionProgress,
    Rollup,
    RollupProgress,
    SavedView,
)
from durable.models.renames import MovedName, RenamedName, RenamedStep
from durable.models.run import Run
from durable.models.schedules import Schedule, Tick
from durable.models.starts import HeldStart, Hold, Lane, RunLimit, RunRank, RunSubject, RunTag, Share, WorkflowEnd
from durable.models.workers import Activity, Build, DatabaseMark, WorkerProcess

__all__ = [
    "Activity",
    "AlertState",
    "Attempt",
    "Build",
    "Cascade",
    "Cause",
    "CauseBuild",
    "Child",
    "ChildGroup",
    "ChildReader",
    "DatabaseMark",
    "Entry",
    "EntryMetadata",
    "Event",
    "EventKey",
    "EventWait",
    "Failure",
    "GroupTally",
    "HeldStart",
    "HistoryCount",
    "Hold",
    "IdempotencyKey",
    "KeyedSend",
    "Lane",
    "Limit",
    "LimitKey",
    "Link",
    "LogLine",
    "MovedName",
    "OperatorAction",
    "Question",
    "QueueMessage",
    "RateKey",
    "RateLimit",
    "RenamedName",
    "RenamedStep",
    "Reservation",
    "RetentionProgress",
    "Rollup",
    "RollupProgress",
    "Run",
    "RunKey",
    "RunLimit",
    "RunRank",
    "RunStatus",
    "RunSubject",
    "RunTag",
    "SavedView",
    "Schedule",
    "Share",
    "Slot",
    "SlotNote",
    "StepSave",
    "Tick",
    "Turn",
    "WorkerProcess",
    "WorkflowEnd",
]
