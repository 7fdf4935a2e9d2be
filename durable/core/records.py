"""The records that the engine works on: runs, entries, messages, and the batch that one commit writes.

Plain data, without behaviour that needs a store. User payloads are codec text here; the engine must not look into them.
All times are aware datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypedDict, TypeVar

from durable.core.errors import ErrorInfo
from durable.core.limits.slot_records import SlotChange


class EntryKind(StrEnum):
    """The operation that an entry records."""

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
    CHILD = "child"
    MAP = "map"
    TAG = "tag"
    LINK = "link"
    PUBLISH = "publish"


#: The members of the data of a link's entry that its token is derived from. They are neither shown nor exported.
LINK_SECRET: Final = ("nonce", "key")
#: Those that say nothing to people.
LINK_INTERNAL: Final = (*LINK_SECRET, "id", "run", "queue")


class EntryStatus(StrEnum):
    """The progress of an entry.

    Of a step: `unknown`, if nobody knows whether its last attempt was done, and it is asked; `held`, if the step waits
    for a person (`durable.core.outcomes`).
    """

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    UNKNOWN = "unknown"
    HELD = "held"


class RunState(StrEnum):
    """The progress of a run."""

    PENDING = "pending"
    RUNNING = "running"
    SLEEPING = "sleeping"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A run in one of these states does not continue by itself.
ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
#: A worker may have a run in one of these states; the run's lease says whether one has it.
WITH_WORKER: Final = (RunState.RUNNING, RunState.ROLLING_BACK)


#: The counts of a longer history are stored in advance, for the pages that show them.
LONG_HISTORY: Final = 5_000
#: Of a history with more entries than this, people are told: each pass loads all of it, and keeps it in memory.
TOO_LONG_HISTORY: Final = 50_000


class MessageState(StrEnum):
    """The progress of a message."""

    PENDING = "pending"
    RECEIVED = "received"
    COMPLETED = "completed"
    REFUSED = "refused"


class Request(StrEnum):
    """An operator's request of a run that a worker is executing. It takes effect at the next operation of the pass."""

    NONE = ""
    PAUSE = "pause"
    CANCEL = "cancel"
    CANCEL_ROLLBACK = "cancel_rollback"


class ActivityKind(StrEnum):
    """The function that an activity calls: a step's own, or the rollback handler of a step."""

    STEP = "step"
    ROLLBACK = "rollback"


#: The key in the rollback policy of a child or map: the parent's rollback has found nothing left to undo.
NOTHING: Final = "nothing"


@dataclass(slots=True)
class EntryRecord:
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

    @property
    def is_compensable(self) -> bool:
        """Whether a rollback has something to undo here.

        True for a completed step with a rollback handler that has not succeeded yet. Also true for the start of a
        child, or of the children of a map, that are compensated with their parent, unless this rollback has found
        nothing to undo (`NOTHING`).
        """
        if "rollback" not in self.data or self.rollback_completed_at is not None:
            return False
        if self.kind == EntryKind.CHILD:
            return self.data.get("child") is not None and NOTHING not in self.data["rollback"]
        if self.kind == EntryKind.MAP:
            return self.data.get("group") is not None and NOTHING not in self.data["rollback"]
        return self.kind == EntryKind.STEP and self.status == EntryStatus.COMPLETED

    def copied(self) -> EntryRecord:
        """Return a copy that shares `data`, which is never changed in place.

        Five times as fast as copy().
        """
        return EntryRecord(
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
    """A message in a run's inbox.

    `body` and `response` are codec text; `order` is the order of the senders' commits. The response of a message that
    is refused is the reason.
    """

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
    """A message to put into the inbox of the run `to`.

    With an `idempotency_id` that the run has seen, nothing is sent.
    """

    id: str
    to: str
    queue: str
    body: str
    sent_at: datetime
    idempotency_id: str | None = None


class RunPatch(TypedDict, total=False):
    """Columns of the run's row that a transition sets (`durable.core.transitions`)."""

    state: str
    output: str | None
    error: ErrorInfo | None
    origins: list[str]
    wake_at: datetime | None
    waiting_for: str
    summary: str
    fence: int
    worker: str
    lease_expires_at: datetime | None
    crashes: int
    change_seq: int
    message_count: int
    pending_request: str
    request_reason: str
    state_after_rollback: str
    diverged_at: datetime | None
    generations: dict[str, int]
    started_at: datetime | None
    finished_at: datetime | None


class MovedPatch(RunPatch, total=False):
    """Columns set when a later start is merged into a run that has not begun."""

    input: str


class RequeuedPatch(RunPatch, total=False):
    """Columns set by a move to another queue."""

    queue: str


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """A run's row. `durable.core.transitions` says when which column is set and reset.

    - `wake_at`: due from this time on; None: not by itself. `waiting_for`: "" no message, "*" any queue, else the
      escaped queue names as "/a/b/". A claim leaves it as it is, so that a running run has that of its last park.
    - `fence`: raised by each claim; only the worker with the newest may write. `lease_expires_at`: None when no worker
      has the lease.
    - `change_seq`: raised by every send and verb from outside, so that a pass which parks notices them.
      `message_count`: how many messages were ever sent to the run, and so the order of the newest.
    - `pending_request`: see `Request`. `state_after_rollback`: the state in which a rollback will end, "" when none is
      under way.
    - `origins`: the locations of the failures that made the run fail, for recover.
    - `generations`: for steps that were compensated and run again, how often; part of their idempotency keys. Also for
      starts of children with a rollback that a recovery has taken back.
    - `diverged_at`: since when the current code does not fit or has a mistake, within the grace period. For a failed
      run: a mistake in the code has stopped it.
    - `seed`, `began_at`: for a run that continues another's history, the id and the time that its deterministic draws
      and times start from. "" and None: its own.
    - `carried`: what travels with the run (`durable.carriers`), as JSON text by the carriers' names; None: nothing.
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
    change_seq: int = 0
    message_count: int = 0
    pending_request: str = Request.NONE
    request_reason: str = ""
    state_after_rollback: str = ""
    diverged_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    generations: dict[str, int] = field(default_factory=dict)
    parent_id: str | None = None
    replay_of_id: str | None = None
    seed: str = ""
    began_at: datetime | None = None
    carried: str | None = None


class _Leased(Protocol):
    """A run, as a record or a row."""

    @property
    def lease_expires_at(self) -> datetime | None: ...


def is_leased(run: _Leased, now: datetime) -> bool:
    """Return whether a worker has the run now."""
    return run.lease_expires_at is not None and run.lease_expires_at > now


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause that failures of one kind share; `durable.core.causes` finds it.

    `place` names the step that failed, "" for the workflow's own code; "~" stands for an iteration's number, and "
    (rollback)" follows it if the step's rollback handler failed. `error_type` is the name of the innermost error's
    class. `pattern` is that error's message, with "#" for what differs from one failure to the next.
    """

    place: str
    error_type: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """The newest failure of a run. `is_open`: the run is still failed because of it, or held.

    `is_held`: the run goes on, and a step of it waits for a person. `build` names the code of the worker on which it
    failed; "" if the project names none.
    """

    run_id: str
    cause: Cause
    workflow: str
    queue: str
    worker: str
    failed_at: datetime
    run_created_at: datetime
    is_open: bool = True
    build: str = ""
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """A link of a run, as the outside finds it by the hash of its token.

    `link_id` is that of the entry, which has other tokens too if one could not be derived any more. `generation` counts
    from 0 how often a link was opened at the `location`. `used_at` is when an answer came, as the message `message_id`,
    `closed_at` when the run stopped to wait without one.
    """

    token_hash: str
    run_id: str
    link_id: str
    location: str
    queue: str
    generation: int
    verify: str
    opened_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    closed_at: datetime | None = None
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event that was published: `id` is unique among the events of its `name`, `body` is codec text.

    `number` orders the events of one name and key as their transactions have committed; 0 before it is stored.
    `delivered` counts the waits that got it. `is_open`: there may be waits that have not got it yet.
    """

    id: str
    name: str
    key: str
    body: str
    published_at: datetime
    number: int = 0
    delivered: int = 0
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """A run's wait for an event; also a change of a commit: the wait exists from then on. Its `queue` gets the event.

    It gets the first event of this name and key with a number above `after`: one that was committed after the wait had
    begun. With `since`, an earlier one too that was published at that moment or later and has a number above `seen`,
    the last that the same operation has got.
    """

    id: str
    run_id: str
    location: str
    queue: str
    name: str
    key: str
    after: int
    since: datetime | None = None
    seen: int = 0

    def takes(self, event: EventRecord) -> bool:
        """Return whether the wait gets this event, if no earlier one."""
        if (event.name, event.key) != (self.name, self.key):
            return False
        is_recent = self.since is not None and event.published_at >= self.since and event.number > self.seen
        return is_recent or event.number > self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecord:
    """A question to people that the entry at `location` has asked.

    `assignee` is the key of whom it is for, "" for whoever has the `permission`. `barred` has the keys of those who may
    not answer, and `claimed` the key of whoever has taken it: both follow from `details`, for the query of an inbox
    (`durable.core.question_rules`). `details` is JSON: what the code says of it and what people have said so far.
    `next_at` is when the next mail or escalation is due. `closed_at` is when it stopped to accept answers, `outcome`
    why.
    """

    question_id: str
    run_id: str
    location: str
    queue: str
    form: str
    permission: str
    assignee: str
    about: str
    nonce: str
    asked_at: datetime
    expires_at: datetime | None = None
    next_at: datetime | None = None
    closed_at: datetime | None = None
    outcome: str = ""
    barred: str = ""
    claimed: str = ""
    details: str = "{}"


class QuestionsSought(NamedTuple):
    """Which open questions are sought: those that a person may answer now.

    The person is asked by one of these `keys`, of which `key` is their own. `permissions` are those that they have;
    None for any. `operates`: whether they may answer what is for nobody in particular. `after` is where the last page
    ended.
    """

    now: datetime
    key: str
    keys: tuple[str, ...]
    permissions: frozenset[str] | None
    operates: bool
    after: tuple[datetime, str] | None = None


class WhenParentEnds(StrEnum):
    """What happens to an open child when its parent ends. The values are stored."""

    CANCEL = "cancel"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRecord:
    """The record of the run `run_id` as a child of `parent_id`, started by the operation at `location`.

    `generation` counts from 0 how often the operation has started a new child. `position` orders the children of a
    parent. `group` is the location of the group that the child is one of, None for a child of its own. `member_of` is
    the id of that group while it counts the child.
    """

    run_id: str
    parent_id: str
    location: str
    position: int
    generation: int = 0
    when_parent_ends: str = WhenParentEnds.CANCEL
    group: str | None = None
    member_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """The key with which the run `run_id` was started: at most one open run of a workflow has it.

    `is_open`: the run has not ended, so it holds the key. `taken_at`: when it was started with the key. `moves` counts
    the starts that a debounce has merged into this one, the last of them at `moved_at`. `follows` is the run that had
    the key before and completed without receiving all its messages; this run has got the rest.
    """

    run_id: str
    workflow: str
    key: str
    taken_at: datetime
    is_open: bool = True
    moves: int = 0
    moved_at: datetime | None = None
    follows: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSend:
    """A message that `start_or_send` has sent to the run `run_id`, and the input with which it would have started one.

    `input` is None if it is that of the run itself. `was_first`: the run was started with this message in its inbox.
    """

    message_id: str
    run_id: str
    input: str | None = None
    was_first: bool = False


class ChildStart(NamedTuple):
    """A child to start: its new run, and its record as a child."""

    run: RunRecord
    child: ChildRecord


class OnFailure(StrEnum):
    """What a child's failure does to the other children of its group. The values are stored."""

    STOP = "stop"
    FINISH = "finish"


class WhenHeld(StrEnum):
    """What becomes of the place in `at_once` of a child with a held step. The values are stored."""

    KEEP = "keep"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group of children, as its parent has decided: `size` children, the first at `position`.

    At most `at_once` of them run at a time, None for all; with `when_held` "free", held ones do not count.
    `generation` counts how often the operation at `location` has made a group anew.
    """

    id: str
    parent_id: str
    location: str
    size: int
    position: int
    on_failure: str
    at_once: int | None = None
    generation: int = 0
    when_parent_ends: str = WhenParentEnds.CANCEL
    when_held: str = WhenHeld.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group of children, and the numbers of its children by state.

    `created` have been made so far. `waiting` wait for their turn, `running` have theirs and have not ended. `held` of
    these have given their places up, because a step of them waits for a person; 0 if the group's children keep them.
    `is_stopped`: a child has failed, so that no other begins. `is_over`: the parent has read the results, or has taken
    the operation back.
    """

    spec: GroupSpec
    created: int = 0
    waiting: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    is_stopped: bool = False
    is_over: bool = False
    is_dropped: bool = False
    held: int = 0

    @property
    def is_settled(self) -> bool:
        """True if the parent has nothing to wait for: all children have ended, or one has stopped the others.

        For a group that is over: no child is open any more.
        """
        if self.is_over:
            return self.waiting + self.running == 0
        has_ended = self.completed + self.failed + self.cancelled == self.created == self.spec.size
        return self.is_stopped or has_ended


@dataclass(frozen=True, slots=True)
class Member:
    """A child of a group: its position, and how its run has ended, if it has. `output` is codec text."""

    position: int
    run_id: str
    generation: int
    state: str
    output: str | None
    error: ErrorInfo | None
    reason: str
    pending_request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """The changes that a commit of the parent makes to one of its groups.

    `new` makes it. `starts` are the next children, up to the number `created`. `renewed` are children that some of the
    `starts` replace; these do not count as created. `taken_out` are children that leave the group before they are
    replaced; with `is_replacing`, the `starts` replace such children. `is_continued`: a recovery opens the group again.
    `is_read`: the parent no longer needs the group; with `is_dropped`, its open children are cancelled.
    """

    id: str
    new: GroupSpec | None = None
    starts: Sequence[ChildStart] = ()
    created: int = 0
    renewed: Sequence[str] = ()
    taken_out: Sequence[str] = ()
    is_replacing: bool = False
    is_continued: bool = False
    is_read: bool = False
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class TagChange:
    """Tags of a run that was created at `created_at`, by name, as they are stored; None takes one away."""

    created_at: datetime
    tags: Mapping[str, str | None]


class Witness(NamedTuple):
    """The trace of a pass's commit that the pass's next commit checks for (`durable.core.witnesses`).

    It is the entry at `location` with this `ordinal` (of a changed entry in this `version`, or with an output), or the
    `state` of the run.
    """

    location: str = ""
    ordinal: int = 0
    version: EntryRecord | None = None
    state: str | None = None
    has_output: bool = False


class MessageReceived(NamedTuple):
    """A change of a commit: the wait at `location` takes the message out of the inbox."""

    message_id: str
    location: str


class MessageCompleted(NamedTuple):
    """A change of a commit: the message is completed with this response, or refused with this reason."""

    message_id: str
    response: str | None
    is_refused: bool = False


class MessagesReturned(NamedTuple):
    """A change of a commit: the messages of the wait at `location` go back into the inbox.

    The wait may have received them by the same commit.
    """

    location: str


class ChildrenDropped(NamedTuple):
    """A change of a commit: the start of a child is taken back.

    The child of this id is cancelled, unless it is to go on after its parent's end. An id that ends with "/" is a
    place: all open children started below it are cancelled.
    """

    child: str


class SavesForgotten(NamedTuple):
    """A change of a commit: delete the saved details of the step at `location`, which has completed."""

    location: str


class ReservationDropped(NamedTuple):
    """A change of a commit: the step at `location` no longer waits for a moment in a limit's rate."""

    location: str


class HeldOver(NamedTuple):
    """A change of a commit: no step of the run is held any more."""


class DoubtOver(NamedTuple):
    """A change of a commit: what the run does next was certainly not done before (`durable.core.scope.Doubt`)."""


class LinkOpened(NamedTuple):
    """A change of a commit: the link at `location` has this token, of which the store keeps the hash.

    The answers of the link go to `queue`. `verify` names the function that checks them, "" for none.
    """

    token: str
    link_id: str
    location: str
    queue: str
    verify: str
    expires_at: datetime | None


class LinkClosed(NamedTuple):
    """A change of a commit: the link accepts no answer any more, unless it was used before."""

    link_id: str


class EventsDropped(NamedTuple):
    """A change of a commit: these waits for events get none any more; without ids, no wait of the run does."""

    ids: tuple[str, ...] = ()


class QuestionAsked(NamedTuple):
    """A change of a commit: people are asked the question at `location`, or the code says something else of it now.

    `spec` is what the code says (`durable.core.people.Asked`). The verdict goes to `queue`. The addresses by which
    people answer are derived from `nonce`.
    """

    question_id: str
    location: str
    queue: str
    nonce: str
    spec: dict[str, Any]
    expires_at: datetime | None


class QuestionClosed(NamedTuple):
    """A change of a commit: the question accepts no answer any more."""

    question_id: str


#: Changes by class, in their order within a class. Besides those above: AttemptRecord, AwaitedEvent, ChildStart,
#: GroupChange, OutgoingMessage, SavedDetails and TagChange.
Changes = dict[type, list[Any]]

C = TypeVar("C")


@dataclass(slots=True, kw_only=True)  # not frozen: made for each commit, and a frozen one takes three times as long
class Batch:
    """One commit of a pass: it writes all of this, or nothing if the run has a newer fence or one of the `witnesses` is
    missing: then the database has lost earlier commits of the pass.

    `run` patches the run's row. `park_change_seq` is the `change_seq` that the pass knew when it decided to park. If
    the row has another one by now, the run is due again at once instead (`wake_at = now`, unless the run has ended). A
    message of a run to itself does not raise its `change_seq`: the run is due if it parks for a message that it sent
    itself, in this batch or before. `failure` is given if, and only if, the batch makes the run failed or a step held.

    `awaited_children` and `awaited_groups` are those whose ends the run waits for: if one of the children has ended, a
    group is settled, or one is gone by now, the run is due again at once. `parent_id` is given if the batch ends a
    child. `slots` is given by a pass that has taken some. `worked` is how many seconds passes have worked on a run with
    a work limit. `ended` is given if the batch ends a run whose workflow has an `on_end`: the run as it is then.
    `status` is the run's new status, if it has one.
    """

    run_id: str
    fence: int
    now: datetime
    entries: Sequence[EntryRecord] = ()
    deleted: Sequence[str] = ()
    changes: Changes = field(default_factory=dict)
    run: RunPatch | None = None
    park_change_seq: int | None = None
    failure: FailureRecord | None = None
    awaited_children: Sequence[str] = ()
    awaited_groups: Sequence[str] = ()
    parent_id: str | None = None
    worked: float | None = None
    slots: SlotChange | None = None
    witnesses: tuple[Witness, ...] = ()
    ended: RunRecord | None = None
    status: StatusRecord | None = None

    def of(self, kind: type[C]) -> Sequence[C]:
        """Return the changes of this class, in order."""
        return self.changes.get(kind, ())


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer of a commit: the operator's pending request, and the queues to notify.

    The queues are those of runs that are now due: receivers of sends, new children, a parent that waited for this run's
    end, and the run itself if it may not park.
    """

    request: str = Request.NONE
    queues_to_notify: frozenset[str] = frozenset()


class HoldKind(StrEnum):
    """The kind of thing that an operator holds. The values are stored."""

    QUEUE = "queue"  # its runs are not claimed
    WORKFLOW = "workflow"  # its new runs wait, paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A paused queue, or a workflow whose new runs are held: since when, by whom and why."""

    kind: HoldKind
    name: str
    held_at: datetime
    held_by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An attempt of a step, or a call of a rollback handler, that runs now.

    `attempt` counts from 1, `timeout` is in seconds, 0 for none. `fence` is that of the worker's lease of the run.
    `summary` is the line of text that the step's call has for people.
    """

    run_id: str
    location: str
    attempt: int
    kind: str
    fence: int
    worker: str
    began_at: datetime
    timeout: float
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDetails:
    """The `number`-th save of an attempt at `location`. `details` is codec text.

    `generation` counts how often the step was begun again, by a replay or after a compensation; it does not use saves
    of earlier generations. Within a generation, the save with the highest fence, attempt and number counts.
    """

    run_id: str
    location: str
    generation: int
    fence: int
    attempt: int
    number: int
    details: str

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The sort key of saves: a later one has a higher value."""
        return (self.generation, self.fence, self.attempt, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a run, as its author has set it.

    `text` is what the run does. `done` of `of` is how far it is; None for not said. `eta` is when it is expected to be
    done. `at` is when the status was set. Times are aware.
    """

    text: str
    done: float | None = None
    of: float | None = None
    eta: datetime | None = None
    at: datetime

    @property
    def part(self) -> float | None:
        """How much is done, from 0 to 1; None if the status does not say of how much."""
        if self.done is None or self.of is None:
            return None
        return min(1.0, self.done / self.of) if self.of else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status of a run as it is stored: the `number`-th of the pass with this `fence`."""

    run_id: str
    fence: int
    number: int
    text: str
    done: float | None
    of: float | None
    eta: datetime | None
    at: datetime

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of the statuses of a run: a later one has a higher value."""
        return (self.fence, self.number)

    @property
    def status(self) -> Status:
        done, of = whole(self.done), whole(self.of)
        return Status(text=self.text, done=done, of=of, eta=self.eta, at=self.at)


def whole(number: float | None) -> float | None:
    """Return a whole number as an `int`; the database has floats only."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChunk:
    """The `number`-th chunk that an attempt at `location` emits, from 1 on. `text` is codec text.

    `text` is None for the end of the stream: the step's outcome is committed. Of two attempts the one with the higher
    fence, or else the higher attempt, is the newer one.
    """

    run_id: str
    queue: str
    location: str
    fence: int
    attempt: int
    number: int = 0
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfActivity:
    """What operators have asked of an activity: its stack, or to abandon it.

    The activity may have been replaced meanwhile: compare `attempt` and `fence`.
    """

    run_id: str
    location: str
    attempt: int
    fence: int
    stack: bool
    abandon: bool


class ActionOutcome(StrEnum):
    """The result of an action of an operator. Only the first one means that something was changed."""

    DONE = "done"
    DENIED = "denied"  # the actor lacks the permission
    REFUSED = "refused"  # the state of the run does not allow it
    STALE = "stale"  # the run is not in the state that the actor saw
    CONFLICT = "conflict"  # the id is taken
    MISSING = "missing"  # the run does not exist, or its history has no such location
    INVALID = "invalid"  # an argument is not valid


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One action of an operator, as a row of the audit log.

    `actor_id` is the user's key, None if the log's database does not know the user. `actor_key` is the key as questions
    to people have it ("user:7"), whatever database the user is in, "" for nobody. `actor_label` names the actor in any
    case. `before` and `after` are states of the run, "" where there was none. `bulk_id` is the id of the bulk that
    the action is a part of, "" if there is none. If the action is not about a run, `subject` names its subject and
    `subject_kind` the kind: a schedule, queue, workflow, limit, cause, or imported content. `number` counts the
    children that a replay has started again.
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
    bulk_id: str = ""
    subject_kind: str = ""
    subject: str = ""
    number: int = 0
    actor_key: str = ""


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """The uncommitted records of a pass: entries to write, locations to delete, and tags to set."""

    entries: Sequence[EntryRecord]
    deleted: Sequence[str]
    tags: TagChange | None = None


@dataclass(slots=True, kw_only=True)
class RunChange:
    """The changes that a verb from outside makes to a run, decided under the run's lock.

    `entries` are written as given (with their metadata), and `deleted` locations are deleted. `unreceive` lists the
    waits whose messages return to the inbox as pending. `retracted` messages are deleted. `dropped_children`, ids and
    places as in a batch, are cancelled, and so are all children of `dropped_groups`. `saved` are the details saved by
    attempts. `is_status_over`: the run loses its status. `is_held_over`: no step of the run is held any more. `action`
    is logged only if the change happens.
    """

    run: RunPatch
    entries: Sequence[EntryRecord] = ()
    deleted: Sequence[str] = ()
    unreceive: Sequence[str] = ()
    retracted: Sequence[str] = ()
    dropped_children: Sequence[str] = ()
    dropped_groups: Sequence[str] = ()
    saved: Sequence[SavedDetails] = ()
    tags: TagChange | None = None
    is_held_over: bool = False
    is_status_over: bool = False
    action: ActionRecord | None = None
