"""The tables: runs, their histories, their inboxes, their failures, what runs now, workers and the audit log.

The models own columns, constraints and indexes. They must not decide anything about workflows, and surfaces write them
only through `durable.operations`.
"""

from durable.models.activities import Activity
from durable.models.alerts import AlertState
from durable.models.audit import OperatorAction
from durable.models.causes import Cause, CauseBuild, Failure
from durable.models.children import Cascade, Child, ChildReader
from durable.models.groups import ChildGroup, GroupTally, Turn
from durable.models.history import Attempt, Entry, EntryMetadata
from durable.models.history_counts import HistoryCount
from durable.models.holds import HeldStart, Hold
from durable.models.idempotency import IdempotencyKey
from durable.models.inbox import QueueMessage
from durable.models.keys import KeyedSend, RunKey
from durable.models.limits import RunLimit
from durable.models.log_lines import LogLine
from durable.models.moved_names import MovedName
from durable.models.ranks import Lane, RunRank, Share
from durable.models.rates import RateKey, RateLimit, Reservation
from durable.models.renames import RenamedName, RenamedStep
from durable.models.rollups import Rollup, RollupProgress
from durable.models.run import Run
from durable.models.saved_views import SavedView
from durable.models.saves import StepSave
from durable.models.schedules import Schedule, Tick
from durable.models.slots import Limit, LimitKey, Slot, SlotNote
from durable.models.tags import RunTag
from durable.models.workers import Build, WorkerProcess

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
    "Entry",
    "EntryMetadata",
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
    "LogLine",
    "MovedName",
    "OperatorAction",
    "QueueMessage",
    "RateKey",
    "RateLimit",
    "RenamedName",
    "RenamedStep",
    "Reservation",
    "Rollup",
    "RollupProgress",
    "Run",
    "RunKey",
    "RunLimit",
    "RunRank",
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
]
