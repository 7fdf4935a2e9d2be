"""The journal of one pass: the run's history as a tree, and the changes that are not committed yet.

Owns every entry while a pass runs; must not access a store. Branches share it across threads, and
change entries by `update`, under `lock`. `take_batch` copies and clears the changes in one go, and `restore_batch`
brings them back if the commit failed. An entry's `data` is replaced, never changed in place, so that a shallow copy is
a snapshot.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol

from durable.core.causes import failure_by, held_failure
from durable.core.children.entries import dropped_with, open_group
from durable.core.clock import bounded
from durable.core.compatibility import is_readable
from durable.core.control_flow import PassAborted
from durable.core.errors import RunDeadlineError
from durable.core.limits.rates import RATE
from durable.core.limits.slot_records import LIMIT, SlotChange
from durable.core.location import escape, is_awaited, value_name
from durable.core.message_claims import MessageClaims
from durable.core.names.renames import names_of
from durable.core.new_runs import key_of
from durable.core.outcomes import WhenExhausted, is_unsettled
from durable.core.records import (
    ENDED,
    Batch,
    Cause,
    Changes,
    ChildrenDropped,
    ChildStart,
    EntryKind,
    EntryRecord,
    EntryStatus,
    EventsDropped,
    FailureRecord,
    GroupChange,
    HeldOver,
    MessageReceived,
    MessagesReturned,
    ReservationDropped,
    RunPatch,
    RunRecord,
    RunState,
    SavedDetails,
    SavesForgotten,
    TagChange,
    Uncommitted,
)
from durable.core.registry import MessageTypes
from durable.core.tags import newest_pruned, with_pruned
from durable.core.time_limits import RunLimits
from durable.core.transitions import progressed
from durable.core.witnesses import Witnesses

MOST_RAISED: Final = 16  # errors of steps that a pass keeps for the log


@dataclass(frozen=True, slots=True)
class Event:
    """An event to be sent out after its commit: `name` is that of a signal, `details` are the signal's arguments.

    `exception` and `cause` are for the log: what has ended the run, if it was raised in this pass, and the cause of the
    failure that the commit has recorded.
    """

    name: str
    details: dict[str, Any]
    exception: Exception | None = None
    cause: Cause | None = None


class Environment(Protocol):
    """The surroundings of a pass: clock, codec and settings."""

    worker: str
    #: The name of the worker's code; "" for none.
    build: str
    short_sleep: float
    #: In seconds, 0 for none: the timeout of a step's attempt that has none of its own.
    step_timeout: float
    #: In seconds: how long people have to answer a question that has no timeout of its own.
    ask_timeout: float
    #: How many attempts of a step may end with `RetryLater(counts=False)` without using up one.
    max_uncounted_retries: int
    #: The classes of errors of workflow code that are mistakes in it, see `durable.core.mistakes`.
    mistakes: tuple[type[Exception], ...]

    def now(self) -> datetime:
        """Return the current time, aware."""

    def worked(self) -> float:
        """Return for how many seconds the pass has worked, whatever happened to the clock."""

    def encode(
        self,
        value: Any,
        what: str,
        field: str,
        where: str,
        of_run: str | None = None,
        *,
        is_collected: bool = False,
    ) -> str:
        """Encode `value` as codec text for its place in `of_run`, by default the run itself (`Place`).

        Raises PayloadError. `is_collected`: the value consists of values that were each within the size limit, so the
        limit is not applied again.
        """

    def decode(self, text: str | None, field: str, where: str) -> Any:
        """Decode codec text recorded at this place of the run; None for None. Raises PayloadError."""

    def adopt(self, text: str, run_id: str, where: str) -> str:
        """Re-encode the output of another run as codec text for a place of this run.

        Raises PayloadError.
        """

    def stored_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags, values by name, in their stored form."""

    def messages_of(self, workflow: str) -> MessageTypes | None:
        """Return the messages that a workflow declares; None if it declares none, or this process does not know it."""

    def new_link(self) -> dict[str, str]:
        """Return the data of a new link of the run: its "id", and what its token is derived from."""

    def know_link(self, data: Mapping[str, Any]) -> str | None:
        """Return the token of a link with this data, and hide it in what is recorded from now on.

        Return None if it cannot be derived: the data is another run's, or incomplete, or the key is gone.
        """

    def resolve(self, name: str) -> Callable[..., Any]:
        """Return the function or class of a recorded name (`durable.core.names.recorded_names`).

        Raises whatever the import raises.
        """

    def is_evicted(self) -> bool:
        """Return True if the pass has to end: the worker stops or the lease is lost."""

    def on_save(self, saved: SavedDetails) -> None:
        """Write a step's saved details at once, if no lease manager does."""

    def on_status(self, slot: Any, *, in_step: bool) -> None:
        """Let the lease manager know of a new status in the slot. If there is none, write that of a step at once."""

    def on_chunk(self, location: str, attempt: int, number: int, chunk: Any) -> None:
        """Send a chunk that an attempt emits to the readers of its stream. Raises PayloadError."""

    def on_stream_end(self, location: str, attempt: int) -> None:
        """Tell the readers of a step's stream that its outcome is committed."""

    def is_asked(self) -> bool:
        """Return True if an operator is known to have requested a pause or a cancel; does not query the database."""

    def eviction_reason(self) -> str:
        """Return why the pass has to end, or what an operator has requested; "" for neither."""

    def is_in_transaction(self) -> bool:
        """Return True if the calling code has a transaction open that could roll back a commit made now."""

    def new_id(self) -> str:
        """Return a fresh id for a message."""

    def emit(self, event: Event) -> None:
        """Send out an event."""


class Node:
    """A node of the history: an entry, a scope, or both (a branch or an iteration has no entry of its own)."""

    __slots__ = ("children", "entry", "location", "unvisited")

    def __init__(self, location: str) -> None:
        self.location = location
        self.entry: EntryRecord | None = None
        self.children: dict[str, Node] | None = None
        self.unvisited = 0  # recorded children that this pass has not reached

    def child(self, segment: str) -> Node | None:
        return self.children.get(segment) if self.children else None

    def began(self) -> int:
        """Return the ordinal of the first record at or below this node."""
        return min((each.entry.ordinal for each in (self, *self.walk()) if each.entry is not None), default=0)

    def walk(self) -> Iterator[Node]:
        for node in (self.children or {}).values():
            yield node
            yield from node.walk()


#: The states in which a run waits for no event.
_OVER: Final = frozenset({*ENDED, RunState.ROLLING_BACK})
#: The changes that concern only the entries of the same commit.
_BESIDE_ENTRIES: Final = frozenset({SavedDetails, SavesForgotten, TagChange})


@dataclass(slots=True)
class _Pending:
    """What the next commit writes."""

    entries: dict[str, EntryRecord] = field(default_factory=dict)
    deleted: dict[str, None] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    released_slots: list[str] = field(default_factory=list)
    held: EntryRecord | None = None  # the newest step that these entries hold

    def __bool__(self) -> bool:
        return bool(self.entries or self.deleted or self.changes or self.released_slots)

    def split(self, location: str) -> _Pending:
        """Split off the entry at `location`, with the release of its slots and the deletion of its saved details."""
        taken = _Pending({location: self.entries.pop(location)})
        kept: list[str] = []
        for each in self.released_slots:
            (taken.released_slots if each == location else kept).append(each)
        self.released_slots = kept
        forgotten = SavesForgotten(location)
        if forgotten in self.changes.get(SavesForgotten, ()):
            taken.changes[SavesForgotten] = [forgotten]
            others = [each for each in self.changes.pop(SavesForgotten) if each != forgotten]
            self.changes |= {SavesForgotten: others} if others else {}
        return taken


class Journal:
    """The history of `run` during one pass, and the changes to it."""

    def __init__(
        self,
        run: RunRecord,
        entries: Iterable[EntryRecord],
        environment: Environment,
        limits: RunLimits | None = None,
        saved: Mapping[str, SavedDetails] | None = None,
    ) -> None:
        self.run = run
        #: The renamed operations of the workflow, None for none.
        self.names = names_of(run.workflow)
        #: By location, what earlier attempts have saved.
        self.saved: Mapping[str, SavedDetails] = saved or {}
        #: None for a run without a deadline or a work limit.
        self.limits = limits
        self.environment = environment
        self.lock = threading.RLock()
        self.root = Node("")
        #: An error of the code after which code must not continue, even if it catches the error.
        self.poison: Exception | None = None
        #: Why what travels with the run is not in force in this pass: nothing of its code may be called.
        self.not_restored: Exception | None = None
        #: What ends the run, if it was raised in this pass: for the log. Of a step, what its function has raised.
        self.exception: Exception | None = None
        #: The cause of the newest failure that was taken for a commit.
        self.cause: Cause | None = None
        self._raised: dict[str, Exception] = {}  # the newest exception, by step
        #: A commit was not answered: the state of the history is unknown, so this pass may not continue.
        self.is_lost = False
        self.request = run.pending_request
        #: After a crash, an attempt is committed before it runs, until one attempt has ended well.
        self.commit_before_attempt = run.crashes > 0
        self.claims = MessageClaims()
        #: The next commit is the progress that ends a series of crashes.
        self._ends_crashes = run.crashes > 0
        self._started: dict[str, ChildStart] = {}  # the children of this pass, by id
        #: Where this pass has taken slots of limits, or a place in a line, and no commit has given them up.
        self.slots_at: set[str] = set()
        #: The run may hold slots that are kept only while a worker executes it: those of its workflow, and those that a
        #: dead worker had taken for a step and not recorded.
        self.has_running_slots = False
        #: The run holds slots of its workflow's limits.
        self.has_own_slots = False
        self._may_have_lost_slots = run.crashes > 0
        #: Steps in the history have had slots. The end of this pass gives up any that are left.
        self._has_limited_steps = False
        self._held_at: set[str] = set()  # the steps that are held, or were when they were last looked at
        #: What the workflow says of steps whose attempts are used up.
        self.when_exhausted: WhenExhausted = "fail"
        #: By location, how to ask about attempts that this pass has begun: `durable.core.once.Question`.
        self.questions: dict[str, Any] = {}
        #: The tags of the run as this pass has set them; None before it has asked for them.
        self.tags: dict[str, str] | None = None
        #: The status that this pass has set (`durable.core.saves.StatusSlot`), None before it sets one.
        self.status: Any = None
        self._pending = _Pending()
        #: How many times all marked changes have been taken to be committed.
        self.taken = 0
        #: The moment of the schedule's tick that has started the run, as ISO 8601, from the input; None for other runs.
        self.scheduled_for: str | None = None
        #: By queue, the waits for events that this pass has come to and that have got none.
        self.awaited_events: dict[str, str] = {}
        #: The history has waits for events that have got none.
        self.has_awaited_events = False
        #: The newest published value of each name.
        self.values: dict[str, EntryRecord] = {}
        #: Entries of a newer release of durable, which this one cannot read.
        self.unreadable: list[EntryRecord] = []
        #: Locations of entries that, because of a rename, belong to one operation.
        self.doubled: list[tuple[str, str]] = []
        self._load(entries)

    def _load(self, entries: Iterable[EntryRecord]) -> None:
        """Place the entries of the history, and note what they say of the pass."""
        newest = last = -1
        newest_entry: EntryRecord | None = None
        for entry in entries:
            if not is_readable(entry):
                self.unreadable.append(entry)
            node = self._place(entry.location)
            if node.entry is not None:  # two entries with names that a rename has made one
                self.doubled.append((node.entry.location, entry.location))
            if node.location == entry.location:
                node.location = entry.location  # one text instead of two equal ones
            node.entry = entry
            if LIMIT in entry.data:
                self._has_limited_steps = True
            if entry.status == EntryStatus.HELD:
                self._held_at.add(entry.location)
            if entry.kind == EntryKind.LINK:
                self.environment.know_link(entry.data)
            if entry.kind == EntryKind.PUBLISH:
                self._note_newest(entry)
            if entry.kind == EntryKind.MESSAGE and "event" in entry.data and entry.status != EntryStatus.COMPLETED:
                self.has_awaited_events = True
            newest = max(newest, entry.ordinal, entry.finished_ordinal or 0)
            if entry.ordinal > last:
                last, newest_entry = entry.ordinal, entry
            if entry.kind in (EntryKind.LOOP, EntryKind.RACE):
                newest = max(newest, newest_pruned(entry.data))
        self._counter = itertools.count(newest + 1)
        self._witnesses = Witnesses(newest_entry)

    def _place(self, location: str) -> Node:
        node = self.root
        for segment in location.split("/"):
            children = node.children
            if children is None:
                children = node.children = {}
            key = segment if self.names is None else self.names.segment(node.location, segment)
            child = children.get(key)
            if child is None:
                child = children[key] = Node(f"{node.location}/{segment}" if node.location else segment)
                node.unvisited += 1
            node = child
        return node

    def eviction_reason(self) -> str:
        """Return why the pass has to end, or what an operator has requested, for the run's code; "" for neither.

        A lost lease or a stop of the worker comes before a request, which the next pass reads.
        """
        return self.environment.eviction_reason() or self.request

    def excess(self) -> RunDeadlineError | None:
        """Return the error of a run that is past its deadline or its work limit, None within them."""
        if self.limits is None:
            return None
        return self.limits.excess(self.environment.now(), self.limits.worked + self.environment.worked())

    def wake_at(self, wanted: datetime | None) -> datetime | None:
        """Return when a run that wants to wait until `wanted` is due: at its deadline at the latest, unless it is
        rolling back.
        """
        if self.limits is not None and self.run.state != RunState.ROLLING_BACK:
            wanted = self.limits.wake_at(wanted)
        return None if wanted is None else bounded(wanted)

    def stop(self, error: Exception) -> NoReturn:
        """Raise an error that stops the run even if code catches it."""
        if self.poison is None:
            self.poison = error
        raise error

    # -- entries

    def entries(self) -> Iterator[EntryRecord]:
        return (node.entry for node in self.root.walk() if node.entry is not None)

    def has_more_entries_than(self, number: int) -> bool:
        """Return whether the history has more than `number` entries. Visits at most that many."""
        return next(itertools.islice(self.entries(), number, None), None) is not None

    def next_ordinal(self) -> int:
        """Return the next number of the run's one counter."""
        return next(self._counter)

    def reserve(self, count: int) -> int:
        """Reserve `count` numbers of the run's counter and return the first. They stay reserved if an entry follows
        them.
        """
        with self.lock:
            first = next(self._counter)
            self._counter = itertools.count(first + max(count, 1))
            return first

    def create(self, scope: Node, segment: str, node: Node, kind: EntryKind, **columns: Any) -> EntryRecord:
        """Create an entry at `node`, the child `segment` of `scope`; it is not marked."""
        with self.lock:
            entry = EntryRecord(
                location=node.location,
                kind=kind,
                ordinal=self.next_ordinal(),
                created_at=self.environment.now(),
                **columns,
            )
            node.entry = entry
            self._witnesses.note_new(entry.location)
            self.attach(scope, segment, node)
            return entry

    def attach(self, scope: Node, segment: str, node: Node) -> Node:
        """Put a node that is new in this pass below `scope`."""
        if scope.children is None:
            scope.children = {}
        key = segment if self.names is None else self.names.segment(scope.location, segment)
        return scope.children.setdefault(key, node)

    def note_raised(self, location: str, error: Exception) -> None:
        """Keep the exception that ended the last attempt of a step, for the log if the run fails because of it.

        The workflow gets an error that is the same on replay, and lacks this exception. Only the newest few are kept:
        they hold frames.
        """
        self._raised[location] = error
        if len(self._raised) > MOST_RAISED:
            del self._raised[next(iter(self._raised))]

    def note_end(self, error: Exception, origins: Sequence[str]) -> None:
        """Note the exception that ends the run, for the log: the error, or what the first of the failed steps
        raised.
        """
        found = [self._raised[each] for each in origins if each in self._raised]
        self.exception = found[0] if found else error

    def update(self, entry: EntryRecord, **columns: Any) -> None:
        """Change columns of `entry`; the next commit writes it."""
        with self.lock:
            for name, value in columns.items():
                setattr(entry, name, value)
            self._pending.entries[entry.location] = entry
            self._pending.deleted.pop(entry.location, None)

    def finish(self, entry: EntryRecord, **columns: Any) -> None:
        """Complete `entry` now."""
        with self.lock:
            if entry.finished_ordinal is None:
                entry.finished_ordinal = self.next_ordinal()
            entry.completed_at = self.environment.now()
            self.update(entry, status=EntryStatus.COMPLETED, error=None, next_attempt_at=None, **columns)

    def prune(self, parent: Node, segment: str) -> None:
        """Delete all entries below the child `segment`, except completed steps whose rollback handler has not run,
        attempts of which nobody knows whether they were done, and the newest value of each name.

        The entry of `parent` keeps which tags they have set.
        """
        node = parent.child(segment)
        if node is None or parent.children is None:
            return
        pruned: list[EntryRecord] = []
        with self.lock:
            for each in list(node.walk()):
                entry = each.entry
                if entry is None or entry.is_compensable or is_unsettled(entry):
                    continue
                if entry.kind == EntryKind.PUBLISH and self.values.get(value_name(entry.location)) is entry:
                    continue
                each.entry = None
                pruned.append(entry)
                self._pending.entries.pop(entry.location, None)
                self._pending.deleted[entry.location] = None
                self._witnesses.forget_new(entry.location)
            if not any(each.entry is not None for each in node.walk()):
                del parent.children[segment]
            if parent.entry is not None and (data := with_pruned(parent.entry.data, pruned)) is not None:
                self.update(parent.entry, data=data)

    def note_value(self, entry: EntryRecord) -> None:
        """Note a value that was just published. The one that it replaces goes, if all around that one is pruned."""
        with self.lock:
            before = self.values.get(value_name(entry.location))
            self._note_newest(entry)
            if before is None or not self._is_left_over(before.location):
                return
            node = self._find(before.location)
            if node is not None:
                node.entry = None
            self._pending.entries.pop(before.location, None)
            self._pending.deleted[before.location] = None

    def _note_newest(self, entry: EntryRecord) -> None:
        name = value_name(entry.location)
        if name not in self.values or self.values[name].ordinal < entry.ordinal:
            self.values[name] = entry

    def _is_left_over(self, location: str) -> bool:
        """Whether the location is in an iteration that its loop has pruned."""
        segments = location.split("/")
        for place, segment in enumerate(segments):
            loop = self.entry_at("/".join(segments[:place])) if segment[:1] == "~" else None
            if loop is not None and loop.data.get("pruned", 0) > int(segment[1:]):
                return True
        return False

    # -- other changes of a commit

    def note_held(self, entry: EntryRecord) -> None:
        """Let the next commit list the run among those that need a person, because of this entry."""
        self._held_at.add(entry.location)
        self._pending.held = entry

    def add(self, change: Any) -> None:
        with self.lock:
            self._pending.changes.setdefault(type(change), []).append(change)

    def give_back(self, wait: EntryRecord) -> None:
        """Let the next commit return the messages of `wait` to the inbox, because no code acted on them."""
        with self.lock:
            self.claims.give_back([each["id"] for each in wait.data["received"]])
            self.add(MessagesReturned(wait.location))

    def start_child(self, start: ChildStart) -> ChildStart | None:
        """Let the next commit start a child and return None; or return another start of this pass that prevents it.

        That is the start of another operation under the same id, or one that has the same key and is about to be
        committed. A store takes a second start under the same parent for a repeated commit.
        """
        with self.lock:
            starts: list[ChildStart] = self._pending.changes.get(ChildStart, [])
            pending = (each for each in starts if key_of(each) is not None)
            if (rival := next((each for each in pending if key_of(each) == key_of(start)), None)) is not None:
                return rival
            first = self._started.setdefault(start.run.id, start)
            if first.child.location != start.child.location:
                return first
            self.add(start)
            return None

    def withdraw_starts(self) -> None:
        """Start none of the uncommitted children: the run ends now, and its end would not cancel them."""
        with self.lock:
            for start in self._pending.changes.pop(ChildStart, ()):
                entry = self.entry_at(start.child.location)
                assert entry is not None, "a start and its entry are marked together"
                self.update(entry, data={name: value for name, value in entry.data.items() if name != "child"})
                del self._started[start.run.id]
            gone: set[str] = set()  # groups that are not created either
            for change in self._pending.changes.pop(GroupChange, ()):
                if change.starts and not change.renewed:
                    gone |= set() if change.new is None else {change.id}
                    # the entry was not pruned
                    if (entry := self.entry_at(change.starts[0].child.location)) is not None:
                        self.update(entry, data={**entry.data, "created": change.created - len(change.starts)})
                elif change.id not in gone:  # it starts nothing, or replaces children that have ended
                    self.add(change)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Let the next commit set these tags of the run."""
        with self.lock:
            self.tags = {**(self.tags or {}), **tags}
            self.add(TagChange(self.run.created_at, dict(tags)))

    @property
    def has_tags_to_set(self) -> bool:
        return TagChange in self._pending.changes

    def release_slots(self, location: str) -> None:
        """Let the next commit give up the slots that this operation holds, or its places in lines."""
        with self.lock:
            self._pending.released_slots.append(location)

    def release_step_slots(self) -> None:
        """Let the next commit give up the slots, places in line and reservations of all steps: none will continue."""
        with self.lock:
            for entry in self.entries():
                if LIMIT in entry.data and entry.status != EntryStatus.COMPLETED:
                    self._pending.released_slots.append(entry.location)
                self._drop_reservation(entry)

    def drop_slots(self, parent: Node, segment: str) -> None:
        """Let the next commit give up the slots and reservations of all operations below the child `segment`, which is
        to be pruned.
        """
        node = parent.child(segment)
        with self.lock:
            for each in [] if node is None else node.walk():
                if each.entry is not None and LIMIT in each.entry.data:
                    self._pending.released_slots.append(each.location)
                if each.entry is not None:
                    self._drop_reservation(each.entry)

    def _drop_reservation(self, entry: EntryRecord) -> None:
        if RATE in entry.data and entry.status != EntryStatus.COMPLETED:
            self.add(ReservationDropped(entry.location))

    def drop_children(self, parent: Node, segment: str) -> None:
        """Let the next commit cancel the children that were started below `segment`, which is to be pruned."""
        node = parent.child(segment)
        with self.lock:
            for each in [] if node is None else node.walk():
                if each.entry is not None:
                    for child in dropped_with(each.entry):
                        self.add(ChildrenDropped(child))
                    if (group := open_group(each.entry)) is not None:
                        self.add(GroupChange(id=group, is_read=True, is_dropped=True))

    # -- commits

    def note_safe(self) -> None:
        """Note that an attempt has ended well after a crash: the run is no longer suspected of causing it."""
        self.commit_before_attempt = False
        self.run.crashes = 0

    def take_batch(
        self,
        run: RunPatch | None,
        park_change_seq: int | None,
        *,
        only: str | None = None,
        awaited_children: Sequence[str] = (),
        awaited_slots: Sequence[str] = (),
        awaited_groups: Sequence[str] = (),
    ) -> Batch | None:
        """Take the marked changes as a batch to commit; None if there are none.

        With `only`, take just the entry at that location, the release of its slots and the deletion of its saved
        details.
        """
        with self.lock:
            self.check_not_lost()
            pending = self._pending if only is None else self._pending.split(only)
            if not pending and run is None:
                return None
            if only is None:
                self._pending = _Pending()
                self.taken += 1
            if self._ends_crashes:
                run = {**progressed(self.run), **(run or {})}
                self._ends_crashes = False
            if run is not None and self.has_awaited_events:
                self._drop_events(pending, run, is_parked=park_change_seq is not None)
            self.slots_at.difference_update(pending.released_slots)
            now = self.environment.now()
            failure = None if run is None else failure_by(self.run, run, self.entry_at, now, self.environment.build)
            if self._held_at and (run is None or run.get("state") not in ENDED):
                failure = self._failure_of_held(pending, now)
            self.cause = None if failure is None else failure.cause
            return Batch(
                run_id=self.run.id,
                fence=self.run.fence,
                now=now,
                entries=[entry.copied() for entry in pending.entries.values()],
                deleted=list(pending.deleted),
                changes=pending.changes,
                awaited_children=awaited_children,
                awaited_groups=awaited_groups,
                run=run,
                park_change_seq=park_change_seq,
                parent_id=self.run.parent_id if run is not None and run.get("state") in ENDED else None,
                worked=None if run is None else self._worked(),
                slots=self._slots_changed(run, pending.released_slots, awaited_slots),
                witnesses=self._witnesses.current,
                failure=failure,
                status=None if self.status is None or only is not None else self.status.take(self.run.fence),
            )

    def _drop_events(self, pending: _Pending, run: RunPatch, *, is_parked: bool) -> None:
        """End the waits for events that the run does not wait for any more: all at its end, or those of lost races."""
        if run.get("state") in _OVER:
            pending.changes[EventsDropped] = [EventsDropped()]
        elif is_parked:
            awaited = run.get("waiting_for", "")
            gone = [each for each in self.awaited_events if not is_awaited(awaited, escape(each))]
            if gone:
                dropped = EventsDropped(tuple(map(self.awaited_events.pop, gone)))
                pending.changes.setdefault(EventsDropped, []).append(dropped)

    def _failure_of_held(self, pending: _Pending, now: datetime) -> FailureRecord | None:
        """Return the failure to record because of a step that is held, None if none is new.

        If no step is held any more, the commit says so.
        """
        if pending.held is not None and pending.held.status == EntryStatus.HELD:
            pending.changes.pop(HeldOver, None)  # of an earlier commit that did not happen
            return held_failure(self.run, pending.held, now, self.environment.build)
        found = map(self.entry_at, self._held_at)
        self._held_at = {each.location for each in found if each is not None and each.status == EntryStatus.HELD}
        if not self._held_at:
            pending.changes[HeldOver] = [HeldOver()]
        return None

    def _worked(self) -> float | None:
        """Return the seconds of work to record at the end of a pass; None for a run without a work limit."""
        if self.limits is None or self.limits.work_limit is None:
            return None
        return self.limits.worked + self.environment.worked()

    def _slots_changed(
        self, run: RunPatch | None, released: Sequence[str], awaited: Sequence[str]
    ) -> SlotChange | None:
        """Return the changes to the run's slots by this commit; None if there are none.

        The end of a run gives up all its slots, which the store then passes on.
        """
        is_over = run is not None and "lease_expires_at" in run
        is_handed_over = run is not None and run.get("state") == RunState.PENDING
        may_hold = self.has_running_slots or self._has_limited_steps
        is_left = is_over and (self._may_have_lost_slots or (may_hold and not is_handed_over))
        has_ended = bool(self.slots_at) and run is not None and run.get("state") in ENDED
        if not (released or awaited or is_left or has_ended):
            return None
        return SlotChange(released=released, awaited=awaited, is_left=is_left)

    def uncommitted(self, begun: EntryRecord, recorded: Collection[str]) -> Uncommitted | None:
        """Return the records to commit together with the running step `begun`, so that a replay finds that step again.

        None if a commit with messages or with earlier entries is under way; try again when it has ended. `recorded` are
        the committed locations. Called from another thread.
        """
        with self.lock:
            pending = self._pending
            if not pending.changes.keys() <= _BESIDE_ENTRIES:
                return None
            entries = [each.copied() for at, each in pending.entries.items() if at != begun.location]
            known = {*recorded, *pending.entries}
            for each in list(self.entries()):
                is_before = each.ordinal < begun.ordinal and each.location not in known
                if is_before and (each.kind != EntryKind.STEP or each.status != EntryStatus.RUNNING):
                    return None
            tags = {name: value for each in pending.changes.get(TagChange, ()) for name, value in each.tags.items()}
            return Uncommitted(entries, list(pending.deleted), TagChange(self.run.created_at, tags) if tags else None)

    def has_only_entries(self) -> bool:
        """Return True if the next commit writes entries and nothing else: an ordinary one, of most steps."""
        with self.lock:
            pending = self._pending
            is_more = pending.deleted or pending.changes or pending.released_slots or pending.held or self._held_at
            return bool(pending.entries) and not (is_more or self._ends_crashes or self.status)

    def check_not_lost(self) -> None:
        """Raise PassAborted if a commit was not answered."""
        if self.is_lost:
            raise PassAborted("an earlier commit of this pass was not answered")

    def generation_due(self) -> int:
        """Return the value that `taken` will have once all changes marked now have been taken."""
        with self.lock:
            return self.taken + bool(self._pending)

    def discard(self) -> None:
        """Drop the uncommitted changes. The journal cannot be used for further operations afterwards."""
        with self.lock:
            self._pending = _Pending()

    def mark_committed(self, batch: Batch) -> None:
        with self.lock:
            self._witnesses.note_committed(batch)
        if received := batch.of(MessageReceived):
            self.claims.committed([each.message_id for each in received])

    def restore_batch(self, batch: Batch, without: str | None = None) -> None:
        """Bring back the changes of a batch, except the entry at `without`. The batch's commit certainly did not
        happen.
        """
        with self.lock:
            if batch.status is not None and self.status is not None:
                self.status.put_back(batch.status)
            later, self._pending = self._pending, _Pending()
            for taken in batch.entries:
                node = self._find(taken.location)
                if node is not None and node.entry is not None and taken.location != without:
                    self._pending.entries[taken.location] = node.entry
            self._pending.entries.update(later.entries)
            self._pending.deleted = dict.fromkeys([*batch.deleted, *later.deleted])
            for location in self._pending.entries:
                self._pending.deleted.pop(location, None)
            self._pending.changes = {
                kind: [*batch.of(kind), *later.changes.get(kind, ())] for kind in {**batch.changes, **later.changes}
            }
            kept = (each for each in self._pending.entries.values() if each.status == EntryStatus.HELD)
            self._pending.held = later.held or (None if batch.failure is None else next(kept, None))
            released = batch.slots.released if batch.slots is not None else ()
            self._pending.released_slots = [*released, *later.released_slots]
            self.slots_at.update(released)
            self._ends_crashes |= batch.run is not None  # the batch patched the row only for this

    def saved_at(self, location: str) -> SavedDetails | None:
        """Return the details saved by earlier attempts of the step at this location; None if there are none."""
        found = self.saved.get(location)
        if found is not None or self.names is None:
            return found
        oldest = self.names.canonical(location)
        return next((each for at, each in self.saved.items() if self.names.canonical(at) == oldest), None)

    def entry_at(self, location: str) -> EntryRecord | None:
        node = self._find(location)
        return None if node is None else node.entry

    def _find(self, location: str) -> Node | None:
        node: Node | None = self.root
        for segment in location.split("/") if self.names is None else self.names.segments(location):
            node = node.child(segment) if node is not None else None
        return node
