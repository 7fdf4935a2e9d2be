"""The names that `durable.inspection` offers, loaded at the first use of one of them: a worker uses none.

No name may be that of a module of the package: Python would give the module. Such a function is imported from its
module.
"""

from __future__ import annotations

from durable.inspection.activities import (
    ActivityPage,
    RunningStack,
    RunningStep,
    activities_of,
    activities_of_runs,
    hung_steps,
    list_activities,
    read_stack,
)
from durable.inspection.allowed_verbs import possible_verbs
from durable.inspection.builds import BuildSeen
from durable.inspection.capped_counts import Count, count_capped
from durable.inspection.causes import CauseSpread, CauseSummary, find_cause, list_causes, spread_of
from durable.inspection.clock_skew import CLOCK_TOLERANCE, clock_difference
from durable.inspection.counts import count_by_state
from durable.inspection.entry_detail import EntryDetail, FailedAttempt, Field, inbox, newest_messages, read_entry_detail
from durable.inspection.events import Event, EventKey, EventPage, list_events
from durable.inspection.explain_states import Explanation, awaited_queues, explain, explain_fully, open_entries
from durable.inspection.export import exported, written
from durable.inspection.failures import FailedRun, failed_runs
from durable.inspection.findings import Finding, collect_findings, how_it_failed
from durable.inspection.holds import count_held_starts, find_hold, held_workflows, paused_of, paused_queues
from durable.inspection.keys import key_data, key_note, key_of
from durable.inspection.limits import limits_data, limits_note, limits_of, work_words
from durable.inspection.names import NameList, find_names
from durable.inspection.operator_marks import Mark
from durable.inspection.payloads import jsonable, payload, pretty, redacted, redacted_error, redacted_traceback
from durable.inspection.pending_migrations import (
    OLDEST_POSTGRES,
    cached_tables,
    how_to_let_reads_through,
    how_to_migrate,
    how_to_set_isolation,
    missing_migrations,
    too_old_server,
    wrong_isolation,
    wrong_routines,
)
from durable.inspection.progress import Progress, progress_of
from durable.inspection.queues import QueueSummary, list_queues
from durable.inspection.ranks import rank_data, rank_note, rank_of, rank_words, share_words
from durable.inspection.runs import (
    InvalidCursorError,
    RunCriteria,
    RunOrder,
    RunPage,
    count_runs,
    failed_attempts,
    list_and_count,
    list_runs,
    parse_search,
)
from durable.inspection.selection import Chosen, Filtered
from durable.inspection.snapshots import OldSnapshot, old_snapshots
from durable.inspection.step_durations import StepDurations, usual_durations, workflow_durations
from durable.inspection.throughput import Bar, Throughput, TimeMark, last_day, last_hour, last_hour_and_day, marks_of
from durable.inspection.time_axis import Piece, TimeAxis
from durable.inspection.time_limit import StatementTimeoutError, reading
from durable.inspection.timeline import Row, Span, Timeline, build_timeline
from durable.inspection.tree import TreeNode, TreePage, history_tree
from durable.inspection.undone import is_diverging, is_undone, state_word, stuck_step
from durable.inspection.workers import (
    HeldRun,
    QueueState,
    Workers,
    WorkerState,
    deaths_of,
    find_worker,
    worker_overview,
)

__all__ = [
    "CLOCK_TOLERANCE",
    "OLDEST_POSTGRES",
    "ActivityPage",
    "Bar",
    "BuildSeen",
    "CauseSpread",
    "CauseSummary",
    "Chosen",
    "Count",
    "EntryDetail",
    "Event",
    "EventKey",
    "EventPage",
    "Explanation",
    "FailedAttempt",
    "FailedRun",
    "Field",
    "Filtered",
    "Finding",
    "HeldRun",
    "InvalidCursorError",
    "Mark",
    "NameList",
    "OldSnapshot",
    "Piece",
    "Progress",
    "QueueState",
    "QueueSummary",
    "Row",
    "RunCriteria",
    "RunOrder",
    "RunPage",
    "RunningStack",
    "RunningStep",
    "Span",
    "StatementTimeoutError",
    "StepDurations",
    "Throughput",
    "TimeAxis",
    "TimeMark",
    "Timeline",
    "TreeNode",
    "TreePage",
    "WorkerState",
    "Workers",
    "activities_of",
    "activities_of_runs",
    "awaited_queues",
    "build_timeline",
    "cached_tables",
    "clock_difference",
    "collect_findings",
    "count_by_state",
    "count_capped",
    "count_held_starts",
    "count_runs",
    "deaths_of",
    "explain",
    "explain_fully",
    "exported",
    "failed_attempts",
    "failed_runs",
    "find_cause",
    "find_hold",
    "find_names",
    "find_worker",
    "held_workflows",
    "history_tree",
    "how_it_failed",
    "how_to_let_reads_through",
    "how_to_migrate",
    "how_to_set_isolation",
    "hung_steps",
    "inbox",
    "is_diverging",
    "is_undone",
    "jsonable",
    "key_data",
    "key_note",
    "key_of",
    "last_day",
    "last_hour",
    "last_hour_and_day",
    "limits_data",
    "limits_note",
    "limits_of",
    "list_activities",
    "list_and_count",
    "list_causes",
    "list_events",
    "list_queues",
    "list_runs",
    "marks_of",
    "missing_migrations",
    "newest_messages",
    "old_snapshots",
    "open_entries",
    "parse_search",
    "paused_of",
    "paused_queues",
    "payload",
    "possible_verbs",
    "pretty",
    "progress_of",
    "rank_data",
    "rank_note",
    "rank_of",
    "rank_words",
    "read_entry_detail",
    "read_stack",
    "reading",
    "redacted",
    "redacted_error",
    "redacted_traceback",
    "share_words",
    "spread_of",
    "state_word",
    "stuck_step",
    "too_old_server",
    "usual_durations",
    "work_words",
    "worker_overview",
    "workflow_durations",
    "written",
    "wrong_isolation",
    "wrong_routines",
]
