"""The read side: what the admin, REST and the command line show, defined once for all three.

Reads rows through the ORM and RQ's registry; changes nothing, and depends on no surface. Every list pages by key, every
count has a stated cap, and no query reads more as the tables grow. `payloads` alone decodes and redacts payloads; the
surfaces check who may see them. A surface that limits which runs a user sees passes a queryset as `within`.
"""

from __future__ import annotations

from durable.inspection.capped_counts import Count, capped_counts
from durable.inspection.clock import CLOCK_TOLERANCE, clock_difference
from durable.inspection.counts import count_by_state
from durable.inspection.entry_detail import EntryDetail, FailedAttempt, Field, entry_detail, inbox, newest_messages
from durable.inspection.explain import Explanation, awaited_queues, explain, explain_fully, open_entries
from durable.inspection.export import exported, written
from durable.inspection.failures import FailedRun, FailureGroup, failed_runs, failure_groups
from durable.inspection.findings import Finding, findings
from durable.inspection.payloads import jsonable, payload, pretty, redacted, shown_error, shown_traceback
from durable.inspection.pending_migrations import (
    how_to_migrate,
    how_to_set_isolation,
    missing_migrations,
    wrong_isolation,
    wrong_routines,
)
from durable.inspection.progress import Progress, progress_of
from durable.inspection.runs import (
    InvalidCursorError,
    RunFilter,
    RunPage,
    failed_attempts,
    list_runs,
    searched,
)
from durable.inspection.selection import Filtered
from durable.inspection.snapshots import OldSnapshot, old_snapshots
from durable.inspection.throughput import Bar, Throughput, last_day, last_hour
from durable.inspection.time_limit import StatementTimeoutError, reading
from durable.inspection.timeline import Lane, Shape, Timeline, timeline
from durable.inspection.tree import Node, TreePage, history_tree
from durable.inspection.verbs import possible_verbs
from durable.inspection.workers import HeldRun, QueueState, Workers, WorkerState, look_at_workers

__all__ = [
    "CLOCK_TOLERANCE",
    "Bar",
    "Count",
    "EntryDetail",
    "Explanation",
    "FailedAttempt",
    "FailedRun",
    "FailureGroup",
    "Field",
    "Filtered",
    "Finding",
    "HeldRun",
    "InvalidCursorError",
    "Lane",
    "Node",
    "OldSnapshot",
    "Progress",
    "QueueState",
    "RunFilter",
    "RunPage",
    "Shape",
    "StatementTimeoutError",
    "Throughput",
    "Timeline",
    "TreePage",
    "WorkerState",
    "Workers",
    "awaited_queues",
    "capped_counts",
    "clock_difference",
    "count_by_state",
    "entry_detail",
    "explain",
    "explain_fully",
    "exported",
    "failed_attempts",
    "failed_runs",
    "failure_groups",
    "findings",
    "history_tree",
    "how_to_migrate",
    "how_to_set_isolation",
    "inbox",
    "jsonable",
    "last_day",
    "last_hour",
    "list_runs",
    "look_at_workers",
    "missing_migrations",
    "newest_messages",
    "old_snapshots",
    "open_entries",
    "payload",
    "possible_verbs",
    "pretty",
    "progress_of",
    "reading",
    "redacted",
    "searched",
    "shown_error",
    "shown_traceback",
    "timeline",
    "written",
    "wrong_isolation",
    "wrong_routines",
]
