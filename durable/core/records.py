"""The records the engine works on: runs, entries, messages, and the batch that one commit writes.

Plain data, without behaviour that needs a store. User payloads are codec text here; the engine never
looks into them. All times are aware datetimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from durable.core.errors import ErrorInfo

__all__ = [
    "ENDED",
    "ActionRecord",
    "AttemptRecord",
    "Batch",
    "Committed",
    "Entry",
    "EntryKind",
    "EntryStatus",
    "Message",
    "MessageState",
    "OutgoingMessage",
    "Request",
    "RunChange",
    "RunPatch",
    "RunRecord",
    "RunState",
]


class EntryKind(StrEnum):
    """What an entry records."""

    STEP = "step"
    LOOP = "loop"
    SLEEP = "sleep"
    MESSAGE = "message"
    SEND = "send"
    JOIN = "join"
    RACE = "race"
    REMOVED = "removed"
    VERSION_CHECK = "version_check"
    ROLLBACK_CHECKPOINT = "rollback_checkpoint"
    COMPENSATE = "compensate"


class EntryStatus(StrEnum):
    """How far an entry is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


class RunState(StrEnum):
    """How far a run is."""

    PENDING = "pending"
    RUNNING = "running"
    SLEEPING = "sleeping"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A run in one of these states never moves again by itself.
ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class MessageState(StrEnum):
    """How far a message is."""

    PENDING = "pending"
    RECEIVED = "received"
    COMPLETED = "completed"


class Request(StrEnum):
    """What an operator asked of a run that a worker is passing; honoured at its next operation."""

    NONE = ""
    PAUSE = "pause"
    CANCEL = "cancel"
    CANCEL_ROLLBACK = "cancel_rollback"


@dataclass(slots=True)
class Entry:
    """One operation's record, with its metadata.

    `ordinal` is the order of creation within the run and `finished_ordinal` that of completion, drawn from one
    counter. `output` and `arguments` are codec text; `data` is the engine's own, JSON-native; values of the
    user's inside it (a branch's output, a message's body) are codec text too.
    """

    location: str
    kind: str
    ordinal: int
    created_at: datetime
    status: str = EntryStatus.PENDING
    attempts: int = 0
    output: str | None = None
    arguments: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    error: ErrorInfo | None = None
    last_attempt_at: datetime | None = None
    next_attempt_at: datetime | None = None
    completed_at: datetime | None = None
    finished_ordinal: int | None = None
    rollback_completed_at: datetime | None = None
    rollback_error: ErrorInfo | None = None

    def copied(self) -> Entry:
        """A copy of its own; `data` is the same, and replaced by whoever changes it. A fifth of what copy() takes."""
        return Entry(
            self.location,
            self.kind,
            self.ordinal,
            self.created_at,
            self.status,
            self.attempts,
            self.output,
            self.arguments,
            self.data,
            self.error,
            self.last_attempt_at,
            self.next_attempt_at,
            self.completed_at,
            self.finished_ordinal,
            self.rollback_completed_at,
            self.rollback_error,
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A failed attempt of a step."""

    location: str
    number: int
    worker: str
    started_at: datetime
    finished_at: datetime
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a run's inbox. `body` and `response` are codec text; `order` is that of the senders' commits."""

    id: str
    run_id: str
    queue: str
    body: str
    sent_at: datetime
    order: int
    state: str = MessageState.PENDING
    received_by: str = ""  # the location of the wait that received it
    response: str | None = None
    idempotency_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be put into the inbox of the run `to`. With an `idempotency_id` that the run has seen: nothing."""

    id: str
    to: str
    queue: str
    body: str
    sent_at: datetime
    idempotency_id: str | None = None


class RunPatch(TypedDict, total=False):
    """Columns of the run's row that a commit or a verb sets."""

    state: str
    output: str | None
    error: ErrorInfo | None
    origins: list[str]
    wake_at: datetime | None
    waiting_for: str
    summary: str
    worker: str
    lease_expires_at: datetime | None
    crashes: int
    signal: int
    request: str
    request_reason: str
    outcome: str
    diverged_at: datetime | None
    generations: dict[str, int]
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """A run's row.

    - `wake_at`: due from this moment on; None: not by itself. `waiting_for`: "" no message, "*" any queue, else
      the escaped queue names as "/a/b/".
    - `fence`: raised by each claim; only the holder of the newest may write. `lease_expires_at`: None when no
      worker holds it.
    - `signal`: raised by every send and verb from outside, so that a pass which parks learns that it was called
      meanwhile. `messages`: how many were ever sent, and so the order of the newest.
    - `request`: see `Request`. `outcome`: the state in which a rollback will end, "" when none is under way.
    - `origins`: the locations of the failures that made the run fail, for recover.
    - `generations`: for steps that were compensated and run again, how often; part of their idempotency keys.
    - `diverged_at`: since when the code at hand does not fit or has a mistake, within the grace period; of a failed run,
      that a mistake in the code has stopped it.
    - `seed`, `began_at`: of a run that goes on with another's history, the id and the moment that its deterministic draws
      and times start from; "" and None: its own.
    """

    id: str
    workflow: str
    queue: str
    input: str
    created_at: datetime
    state: str = RunState.PENDING
    output: str | None = None
    error: ErrorInfo | None = None
    origins: list[str] = field(default_factory=list)
    wake_at: datetime | None = None
    waiting_for: str = ""
    summary: str = ""
    fence: int = 0
    lease_expires_at: datetime | None = None
    worker: str = ""
    crashes: int = 0
    signal: int = 0
    messages: int = 0
    request: str = Request.NONE
    request_reason: str = ""
    outcome: str = ""
    diverged_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    generations: dict[str, int] = field(default_factory=dict)
    parent_id: str | None = None
    replay_of_id: str | None = None
    seed: str = ""
    began_at: datetime | None = None


@dataclass(slots=True, kw_only=True)  # not frozen: made for each commit, and a frozen one takes three times as long
class Batch:
    """What one commit of a pass writes: all of it, or, where the fence has moved on, nothing.

    `run` patches the run's row. `park_signal` is the `signal` that the pass knew when it decided to park: if the
    row's is another by now, the run is due again at once instead (`wake_at = now`, unless the run has ended). What a
    run sends to itself does not raise its `signal`: it is due if it parks for a message that it sent itself, in this
    batch or before.
    """

    run_id: str
    fence: int
    now: datetime
    entries: Sequence[Entry] = ()
    deleted: Sequence[str] = ()
    attempts: Sequence[AttemptRecord] = ()
    received: Sequence[tuple[str, str]] = ()  # message id, location of the wait
    completed: Sequence[tuple[str, str | None]] = ()  # message id, response
    returned: Sequence[str] = ()  # waits whose messages go back into the inbox, those of this batch included
    sends: Sequence[OutgoingMessage] = ()
    run: RunPatch | None = None
    park_signal: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit learned: the operator's pending request, and the queues to ring for: those of the runs that the
    sends made due, and the run's own if it may not park."""

    request: str = Request.NONE
    ring: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One action of an operator, as the audit log keeps it.

    `actor_id` is the user's key, None where the database that holds the log does not know the user; `actor_label` names
    whoever it was in any case. `before` and `after` are states of the run, "" where there was none.
    """

    action: str
    run_id: str
    source: str
    outcome: str
    created_at: datetime
    actor_id: Any = None
    actor_label: str = ""
    reason: str = ""
    before: str = ""
    after: str = ""
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class RunChange:
    """What a verb from outside does to a run, decided under the run's lock.

    `entries` are written as given (with their metadata), `deleted` locations go, and `unreceive` lists the waits whose
    messages return to the inbox as pending; `retracted` messages go altogether. `raise_fence` takes the run away from a
    worker that may still hold it. `action` is logged if, and only if, the change happens.
    """

    run: RunPatch
    entries: Sequence[Entry] = ()
    deleted: Sequence[str] = ()
    unreceive: Sequence[str] = ()
    retracted: Sequence[str] = ()
    raise_fence: bool = False
    action: ActionRecord | None = None
