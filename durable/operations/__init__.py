"""The verbs: what code and users call on a run from outside a pass, to start it, steer it or read its result.

Each verb validates its arguments, changes the run in one atomic step of the store, and notifies workers. If the caller
has a transaction open, the verb takes effect when that transaction commits. The admin, REST, the command line and
handles call these functions. Nothing here runs workflow code.
"""

from __future__ import annotations

from durable.core.outcomes import HeldStep
from durable.core.transitions import ALLOWED
from durable.operations import lifecycle
from durable.operations.audit import Actor, acting_as
from durable.operations.lifecycle import *  # noqa: F403  # the verbs
from durable.operations.messages import Sent, aask, ask, delete_message, move_message, send, start_or_send
from durable.operations.queries import (
    HistoryDifference,
    HistoryEntry,
    RunInfo,
    aresult,
    aview,
    child_counts,
    children,
    history,
    info,
    infos,
    output,
    parent,
    passed_on_to,
    record,
    result,
    status,
    summary,
    tags,
    values,
    view,
    waiting_for,
)
from durable.operations.replay import give_output, plan_replay, replay
from durable.operations.replay_plan import ReplayPlan
from durable.operations.settle import held, settle
from durable.operations.start import Started, StartRequest, restart, start
from durable.operations.start_options import open_run

__all__ = [
    "ALLOWED",
    "Actor",
    "HeldStep",
    "HistoryDifference",
    "HistoryEntry",
    "ReplayPlan",
    "RunInfo",
    "Sent",
    "StartRequest",
    "Started",
    "aask",
    "acting_as",
    "aresult",
    "ask",
    "aview",
    "child_counts",
    "children",
    "delete_message",
    "give_output",
    "held",
    "history",
    "info",
    "infos",
    "move_message",
    "open_run",
    "output",
    "parent",
    "passed_on_to",
    "plan_replay",
    "record",
    "replay",
    "restart",
    "result",
    "send",
    "settle",
    "start",
    "start_or_send",
    "status",
    "summary",
    "tags",
    "values",
    "view",
    "waiting_for",
]
__all__ += lifecycle.__all__
