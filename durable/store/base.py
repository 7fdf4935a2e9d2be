"""The contract of a store: everything that the engine and the verbs need to keep runs.

Every method is atomic: it takes effect whole or not at all. Inside a transaction of the caller's, it takes effect if
and when that transaction commits. A store must not decide anything about workflows; it guards the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from durable.core.limits.ranks import Ranking
from durable.core.limits.slot_records import Admission, SlotRow, SlotWant
from durable.core.new_runs import Subject
from durable.core.records import (
    ActionRecord,
    Activity,
    AskedOfActivity,
    AttemptRecord,
    AwaitedEvent,
    Batch,
    ChildRecord,
    Committed,
    EntryRecord,
    EventRecord,
    FailureRecord,
    Hold,
    HoldKind,
    KeyedSend,
    KeyRecord,
    LinkRecord,
    Message,
    OutgoingMessage,
    QuestionRecord,
    QuestionsSought,
    RunChange,
    RunRecord,
    SavedDetails,
    Status,
    StatusRecord,
    TagChange,
)
from durable.core.time_limits import History, RunLimits
from durable.store.rules.child_rules import ChildStore
from durable.store.rules.rates import RateStore

if TYPE_CHECKING:
    from durable.store.postgres.sending import PostgresCommits
    from durable.store.tables.surveys import RowSurveyor

#: A point in the order of due runs: `wake_at` and id.
DuePoint = tuple[datetime, str]


class ChildRefused(Exception):
    """A commit starts a child that cannot be started. Nothing was written; the next pass finds the reason."""

    def __init__(self, run_id: str, problem: str) -> None:
        self.run_id = run_id
        super().__init__(problem)


class ChildIdTaken(ChildRefused):
    """Another run has the id of the child."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f'the id "{run_id}" of a child is taken by another run')


class ChildKeyTaken(ChildRefused):
    """Another open run has the key of the child."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f'the key of the child "{run_id}" is taken by another run')


class MessagesLeft(Exception):
    """A commit would complete a run with a key that has not received all that `start_or_send` has sent to it.

    Nothing was written.
    """


class Claimed(list[RunRecord]):
    """Claimed runs in the order of rank.

    `passed_over` counts index entries of due runs that were searched and could not be claimed; 0 if the store does not
    know. `is_paused`: the queue is paused, so nothing was searched; False if the store does not know. In a queue with
    ranks, `left` is the first point that the search has not reached of the runs without a rank, and `left_ranked` of
    the others; None otherwise, and if the store does not know.
    """

    def __init__(
        self,
        runs: Iterable[RunRecord] = (),
        *,
        passed_over: int = 0,
        is_paused: bool = False,
        left: DuePoint | None = None,
        left_ranked: datetime | None = None,
    ) -> None:
        super().__init__(runs)
        self.passed_over = passed_over
        self.is_paused = is_paused
        self.left = left
        self.left_ranked = left_ranked


class Renewed(NamedTuple):
    """The outcome of a renewal of leases.

    `kept`: the pending request of each run whose lease was extended, by id. `busy`: the ids of runs whose fence and
    lease still hold, but whose leases were not extended because another transaction has locked their rows. A run in
    neither was lost or released.
    """

    kept: dict[str, str]
    busy: frozenset[str] = frozenset()


class Released(NamedTuple):
    """The outcome of a release of runs.

    `busy`: the ids of runs that are still held because another transaction has locked their rows. `queues` are the
    current queues of the released runs: an operator may have moved a run since it was claimed.
    """

    busy: frozenset[str]
    queues: frozenset[str]


class Store(RateStore, ChildStore, Protocol):
    """Runs, their histories and their inboxes; and the rates of limits, and the groups of children, by rules alike."""

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        """Insert the runs whose ids are free. For each run, in order, return the row that now has its id, and whether
        it is new.

        If two processes create one id at once, both get the same row, one of them as new. One statement for all free
        ids, and at most one more for the taken ones.

        A pending run of a workflow whose new starts are held is created and paused at once
        (`transitions.paused_at_once`), with a summary that names the hold. SQLite needs one more statement, to read the
        holds after the insert.

        The limits of a `NewRun` are stored with it. Its fence is 1, so that its first pass loads them.
        """

    # -- keys

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        """Insert the run with this key if its id is free and no open run of its workflow has the key.

        Return the row and whether it is new; otherwise the row that has the id, or else the one that has the key. On
        PostgreSQL one statement inserts both, and waits for a run with the key that is ending in another transaction.
        """

    def key_holder(self, workflow: str, key: str, *, lock: bool = False) -> RunRecord | None:
        """Return the open run that has the key, or None.

        With `lock`, its row stays locked until the transaction ends, so that it cannot end, begin or lose the key.
        """

    def free_key(self, run_id: str, *, for_good: bool) -> None:
        """Take the key from this open run, whose row is locked. Unless `for_good`, a recovery after its end asks for it
        again.
        """

    def move(self, run: RunRecord, *, now: datetime, wake_at: datetime, input: str | None) -> RunRecord:
        """Merge a start under its key into this run, and return the changed row.

        The run has not begun and the caller has locked its row (`transitions.moved`).
        """

    def keys(self, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        """Return the keys of the runs that were started with one, by run; one query."""

    def note_keyed_sends(self, sends: Sequence[KeyedSend]) -> None:
        """Record what `start_or_send` has sent, in the transaction of the sends. A message that is already recorded
        gets this row.

        From then on `commit` refuses to complete a run that has a key and has not received all of them.
        """

    def keyed_sends(self, run_id: str) -> list[KeyedSend]:
        """Return what `start_or_send` has sent to the run and no wait has received yet, in order; one query."""

    def note_follower(self, run_id: str, before: str) -> None:
        """Record that this run has taken over the messages that `before`, the earlier run with its key, did not
        receive.
        """

    def followed_by(self, run_id: str) -> str | None:
        """Return the newest run that has taken over this run's unreceived messages; None if there is none."""

    # -- functions to call at ends

    def declare_ends(self, workflows: Sequence[str], gone: Sequence[str] = ()) -> None:
        """Record that these workflows have an `on_end`, and that those `gone` have none.

        Where the database itself cancels a child of such a workflow, it leaves the end to a worker.
        """

    def calls_at_end(self, workflow: str) -> bool:
        """Return whether the workflow is recorded as one with an `on_end`; one query."""
        ...

    # -- ranks

    def rankings(self, run_ids: Sequence[str]) -> dict[str, Ranking]:
        """Return the rankings of the runs that were started with one, by run; one query."""

    # -- tags

    def tags(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        """Return the stored tags of the runs, by run and name, without runs that have none; one query.

        With `at_start`, the tags given when the runs were started.
        """

    # -- subjects

    def subjects(self, run_ids: Sequence[str]) -> dict[str, list[Subject]]:
        """Return what the runs are about, by run, without runs that are about nothing; one query."""

    def to_cancel(self, model: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the open runs that are cancelled when one of these instances is deleted, by its key, oldest
        first; instances without such runs are left out. One query.

        `model` is the label of the concrete model, `keys` are primary keys as text.
        """

    # -- reading

    def get(self, run_id: str) -> RunRecord | None:
        """Return the run's row, or None."""

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Return the rows of those runs that exist, by id; one query."""

    def get_shown(self, run_ids: Sequence[str]) -> dict[str, tuple[RunRecord, Status | None]]:
        """Return the rows of those runs that exist, each with the run's status, by id; one query."""

    def statuses(self, run_ids: Sequence[str]) -> dict[str, Status]:
        """Return the statuses of those runs that have set one, by id; one query."""

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those runs that exist, by id; one query."""

    def history(self, run_id: str) -> list[EntryRecord]:
        """Return the run's entries by ordinal; one query."""

    def published(self, run_id: str, name: str = "") -> list[EntryRecord]:
        """Return the entry of the newest published value of each name, in the order of their first, or of this name.

        Two queries; one for a name, and where there are none.
        """
        ...

    def held_steps(self, run_id: str) -> list[EntryRecord]:
        """Return the run's steps that wait for a person; one query."""

    def held_among(self, run_ids: Sequence[str]) -> set[str]:
        """Return those of these runs that are open and have a step that waits for a person; one query."""
        ...

    def limits(self, run_id: str) -> RunLimits | None:
        """Return the run's limits; None if it was started without any."""

    def put_in_doubt(self, since: datetime, most: int) -> int:
        """Mark up to `most` open runs as in doubt since then, and return how many; 0 when all are.

        Each counts as having a history from then on, so that its first pass loads the mark too. One transaction.
        """

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        """Return the failed attempts of the run's steps, oldest first."""

    def failure(self, run_id: str) -> FailureRecord | None:
        """Return the run's newest failure, open or closed; None if it has none."""

    def messages(self, run_id: str) -> list[Message]:
        """Return the run's messages in order, in any state."""

    def surveyor(self, run_id: str) -> RowSurveyor | None:
        """Return the surveyor of this run's history; None if the store has whole histories at hand."""
        ...

    def outline(self, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
        """Return `history` and `messages` without outputs, arguments, errors, states, bodies and responses.

        The cost depends on the number of entries and messages, not on their size.
        """

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        """Put messages into inboxes.

        Return the stored message for each, or None if its run does not exist; and the (workers') queues to notify.

        A run's row is locked before its message gets its `order`, so that the order is the order of commits. For an
        idempotency id that the run has seen, the message stored then is returned. Each new message raises the run's
        `change_seq` by 1. If the run waits for this queue (`is_awaited`), it becomes due at the message's `sent_at`.
        Messages to a run that has ended are stored and never received.
        """

    def message(self, message_id: str) -> Message | None:
        """Return one message, for a caller that waits for its response."""

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        """Return the message that was sent to the run with this idempotency id, or None."""

    def change(
        self,
        run_id: str,
        decide: Callable[[RunRecord, Callable[[], list[EntryRecord]]], RunChange],
        *,
        wait: bool = True,
    ) -> RunRecord:
        """Lock the run's row, call `decide` with it, apply the change, and return the changed row.

        The second argument of `decide` is a function that returns the run's entries. The change includes its `action`
        for the audit log. If `decide` raises, the error is raised and nothing is changed. The run's `change_seq` is
        raised unless the change sets it. A change from "failed" to another state closes the run's failure. A change
        that lets an ended run continue renews its limits and gives its key back. A run that is moved to another queue
        gets a rank there. A change that ends the run calls the `on_end` of its workflow, in the same transaction, and
        raises EndRefusedError if that fails. Raises RunNotFoundError, and KeyConflictError if another open run has that
        key. Without `wait`, raises `RowsLocked` if another transaction has locked the row.
        """

    def import_history(
        self,
        run_id: str,
        *,
        entries: Sequence[EntryRecord],
        attempts: Sequence[AttemptRecord],
        messages: Sequence[Message],
        tags: TagChange | None = None,
    ) -> None:
        """Give a history and an inbox to a run that was just created and that no worker can see yet.

        Must be called in the transaction of its `create`. The messages are stored as given; later ones get a higher
        `order`.
        """

    # -- holds

    def held(self, kind: HoldKind, name: str) -> Hold | None:
        """Return the hold of this queue or workflow; None if there is none."""

    def hold(self, hold: Hold) -> bool:
        """Pause a queue, or hold the new starts of a workflow. Return False if it is held already."""

    def lift(self, kind: HoldKind, name: str) -> bool:
        """End a hold. Return False if there is none. Waits for open transactions with starts that have met the hold."""

    def release_starts(self, now: datetime, most: int) -> list[RunRecord]:
        """Resume up to `most` runs that were started under a hold that has ended; return them.

        A run is due at once, or at the time that its start asked for. Runs that an operator has resumed, cancelled or
        paused meanwhile are neither changed nor counted. If fewer than `most` are returned, none are left except runs
        with locked rows, which the sweep resumes. Other processes may call this at the same time: each run is resumed
        once.
        """

    # -- children

    def children(self, run_ids: Sequence[str]) -> dict[str, ChildRecord]:
        """Return the child records of the runs that are children, by id; one query."""

    def children_of(self, parent_id: str, state: str | None, group: str | None) -> list[str]:
        """Return the ids of the run's children in this state and group, in the order of their starts.

        With None, children in all states, or of all groups and of none. One query.
        """

    def count_children(self, parent_id: str, group: str | None) -> dict[str, int]:
        """Count the run's children in each state, of this group or, with None, of all; one query."""

    def parents_among(self, run_ids: Sequence[str]) -> set[str]:
        """Return those runs that have started children, even if the children are deleted by now; two statements."""

    def note_reader(self, run_id: str, children: Sequence[str]) -> list[str]:
        """Keep these ended children of another run as long as this run, a replay of that one, may read them.

        Return those that exist. Must be called in the transaction that creates the run.
        """

    def readers_of(self, child_id: str) -> list[str]:
        """Return the open replays that may read this child, besides its parent."""

    def give_turns(self, after: str, now: datetime) -> tuple[str, frozenset[str]] | None:
        """Let children begin whose turn came while a transaction had locked their rows, in one group.

        It is the first group after `after` that has waiting children. Return that group, and the queues to notify; None
        if there is none.
        """

    def learn_names(self) -> None:
        """Read the renames of operations into this process (`durable.core.names.renames`)."""

    def learn_queues(self) -> None:
        """Read the renames of queues into this process, and no others; one statement."""

    def link(self, token_hash: str) -> LinkRecord | None:
        """Return the link whose token has this hash; None if there is none, or its run was deleted."""

    def links(self, run_id: str) -> list[LinkRecord]:
        """Return the links of a run, in the order in which they were opened."""

    def is_link_open(self, link: LinkRecord) -> bool:
        """Return whether the run's history has the entry of this link: a replay in place may have deleted it."""

    def use_link(self, link: LinkRecord, message_id: str, now: datetime) -> None:
        """Note that an answer has come by this link. The caller has locked the run's row."""

    # -- events

    def put_event(self, event: EventRecord) -> tuple[EventRecord, bool]:
        """Store an event, unless one of its name has its id. Return the stored one, and whether it is new.

        Locks the row of its name and key until the transaction ends, before it gets its number. Nothing is delivered.
        """

    def newest_event(self, name: str, key: str) -> int:
        """Return the number of the newest event of this name and key; 0 for none."""

    def event_wait(self, wait_id: str) -> AwaitedEvent | None:
        """Return the wait; None if it has got its event, was dropped, or never was in this database."""

    def due_event(self, wait: AwaitedEvent, before: datetime | None = None) -> EventRecord | None:
        """Return the event that this wait gets, of those published before `before`; None if there is none."""

    def deliver(
        self,
        event: EventRecord,
        most: int,
        message_of: Callable[[EventRecord, AwaitedEvent], OutgoingMessage],
        wait_id: str | None = None,
    ) -> tuple[int, frozenset[str]]:
        """Give an event to up to `most` waits that get it, or to this wait alone: delete them, and send the messages.

        A wait that has not got an earlier one that it gets, gets that one instead, so that none is passed over. Return
        how many waits have got one, and the queues to notify. Locks the runs, the youngest first, before it looks again
        which waits are left. Of many, runs that another transaction has locked are left for the next call; for few it
        waits a short time, and raises `RowsLocked`. Waits of ended runs are deleted. An event's row counts its
        deliveries.
        """

    def close_event(self, event: EventRecord) -> bool:
        """Note that all waits have got the event. Return False, and change nothing, if some have not."""

    def open_events(self, most: int) -> list[EventRecord]:
        """Return the oldest events that may not have reached all waits."""

    def forget_events(self, before: datetime, most: int) -> int:
        """Delete up to `most` events that were published before this moment and have reached all waits.

        Return how many. Keys without events and waits of ended runs are deleted too.
        """

    def question(self, question_id: str) -> QuestionRecord | None:
        """Return the question to people with this id; None if there is none, or its run was deleted."""

    def questions(self, run_ids: Sequence[str]) -> list[QuestionRecord]:
        """Return the questions of these runs, in the order in which they were asked; one statement."""

    def open_questions(self, sought: QuestionsSought, most: int) -> list[QuestionRecord]:
        """Return at most `most` open questions that a person may answer, the oldest first; one statement.

        Decided by `durable.core.question_rules.is_sought`. Runs of some may have ended or gone on: `awaited_questions`.
        """

    def awaited_questions(self, questions: Sequence[QuestionRecord]) -> set[str]:
        """Return the ids of those questions whose runs wait for the answer; one statement.

        The run may have ended, and a replay may have deleted the entry of a question.
        """

    def put_question(self, question: QuestionRecord) -> None:
        """Write what has become of a question. The caller has locked the run's row."""

    def due_questions(self, now: datetime, most: int) -> list[QuestionRecord]:
        """Return at most `most` open questions whose `next_at` has come, the earliest first."""

    def close_questions(self, now: datetime, most: int) -> int:
        """Close at most `most` questions of runs that have ended; return how many."""

    def log(self, actions: Sequence[ActionRecord]) -> None:
        """Append to the audit log."""

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        """Count the action in the newest row since `since` with the same actor, source, action and outcome.

        The row's `detail` says how many more there were (`row_rules.repeated`). Return False if there is no such row;
        the caller then logs the action.
        """

    # -- passes

    def claim(
        self,
        *,
        queue: str,
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
        since_ranked: datetime | None = None,
    ) -> Claimed:
        """Claim up to `limit` due runs of the queue, the longest due first. Skip rows that other workers are claiming.

        A run with a head start counts as due earlier by that time; a run of a share counts as due since its start tag
        (`durable.core.limits.ranks`), until a claim takes it. With `since`, claim runs without a rank only from this
        point of the order by `wake_at` on. With `since_ranked` too, which a store may ignore, claim other runs only if
        they became due or were started at this moment or later.

        Due means: `wake_at <= now`, not paused or ended, no live lease (`lease_expires_at` None or <= now). A claimed
        run has `fence` + 1, the lease, the worker, `started_at` if it had none, state `running` (`rolling_back` stays),
        and `crashes` + 1 if a lease expired. Runs of a paused queue are not claimed.
        """

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        """Claim this run whether it is due or not. Return None if it is paused, ended or leased, or its queue is
        paused.

        The run is due from now on, so that another worker finds it if this one dies.
        """

    def load(self, run_id: str) -> History:
        """Return the whole history and the limits, for a pass; on PostgreSQL one query.

        Like `history`, in any order.
        """

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, History]:
        """Return short histories by run: at most `most` entries, and `size` bytes of outputs and arguments together.

        Each is in the form that `load` returns; on PostgreSQL one query for all. Runs with a longer history are left
        out.
        """

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        """Return pending messages in order: of the named queues, sent strictly before `before`.

        Without names: of all queues but those of links.
        """

    def commit(self, batch: Batch) -> Committed:
        """Write the batch if the run's fence is the batch's; on PostgreSQL one statement, one round trip, one commit.

        Rows of runs are locked in one order, the youngest first, including a parent that the commit wakes. So two runs
        that send to each other cannot deadlock, nor can a parent that sends to an ending child. Deleting an entry
        deletes its attempts. Messages are received first, then returned. A status is written unless a later one is
        stored, which the lease manager has written. The batch's failure replaces an earlier one of the run. `worked`,
        `saved` and `forgotten` are written in the same commit, with statements of their own. Raises LeaseLost, and
        writes nothing, if the run has a newer fence; CommitsLost if a trace of the pass's earlier commits
        (`batch.witnesses`) is missing: the statement that compares the fence checks for them. Its children are started
        as `create` starts runs; one that was started before stays as it is. Raises ChildKeyTaken, and writes nothing,
        if another open run has a child's key; ChildIdTaken if a child's id is taken by a run that is not this run's
        child. For `batch.ended`, the `on_end` of its workflow is called in the same transaction; raises
        EndRefusedError, and writes nothing, if that fails. Changes of groups are written last, with statements of their
        own; the groups' tallies are locked first.
        """

    def sent_commits(self) -> PostgresCommits | None:
        """Return what sends commits on this thread's connection from another thread; None if there is no such way."""

    def acquire(self, run_id: str, fence: int, location: str, wants: Sequence[SlotWant], now: datetime) -> Admission:
        """Take slots of limits for an operation of a claimed run: all, or a place in the line of one that is full.

        Slots that the operation already holds, and its place in a line, are kept. `wants` are in the order of limits
        and keys. The rows of the keys are locked, after the row of the run. Raises LeaseLost if the run has a newer
        fence, and UnknownLimitError for a limit that has no row and no `at_once`.
        """

    def sweep_slots(self, now: datetime, most: int) -> tuple[frozenset[str], int]:
        """Do the noted work on slots, at most `most` of it: hand on the slots of ended runs, and wake runs.

        Return the queues to notify, and how much was done.
        """

    def give_up_idle_slots(self, now: datetime, most: int) -> list[RunRecord]:
        """Take back slots that sleeping runs have held for a minute although only a pass may hold them. Wake and return
        the runs.

        No commit leaves such a slot: it comes from an older version, or from edited rows. The sweep hands it on. Runs
        whose rows another transaction has locked are left for the next call.
        """

    def forget_limit_keys(self, before: datetime, most: int) -> int:
        """Delete rows of keys that nobody uses, at most so many of slots and of rates; return the larger number.

        A key of slots is used while a run holds one, or waits for one, of it or together with one of it. A key of a
        rate is used while an attempt waits for it, and has to be kept while its units or its closing are not over; its
        row goes if that ended, and a start was last refused, before `before`. Rows that another transaction has locked
        are left for the next call.
        """

    def set_limit(self, name: str, override: int | None) -> int | None:
        """Override a limit's number of slots, or with None return to that of its code.

        Return the earlier number; None, with nothing changed, if there is no such limit. The sweep hands on freed
        slots; runs that hold a slot keep it.
        """

    def at_once(self, limit: str) -> int | None:
        """Return the limit's number of slots for each key; None if it has no row."""

    def declare_limit(self, name: str, at_once: int) -> bool:
        """Write the number of slots in the code, below an operator's override. Return False if the row already has it.

        The sweep hands on freed slots.
        """

    def slots(self, run_ids: Sequence[str]) -> list[SlotRow]:
        """Return the slots that these runs hold and wait for."""

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> Renewed:
        """Extend the leases whose fences still hold; a run without a lease gets none. Does not wait for locked rows.

        So a row that a transaction keeps locked costs no other run its lease. No worker can claim such a run meanwhile.
        """

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the requests of those runs that operators want paused or cancelled, by id; one query."""

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str]
    ) -> tuple[dict[str, str], list[AskedOfActivity]]:
        """Record which steps run now. Return the requests of the runs `watched`, as `requests` does, and what operators
        have asked of their activities; on PostgreSQL one statement.

        An activity that is recorded again, with another attempt or fence, replaces the former one of its run and
        location. It is not written if the run's lease is no longer held under its fence, nor over that of a newer
        fence. Does not wait long for locks: raises `RowsLocked`, and records nothing, if an activity's row is locked.
        """

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        """Write the saved details of running steps: for each run and location the latest, by `SavedDetails.order`.

        They are not written for a run whose lease is no longer held under their fence. Does not wait long for locks:
        raises `RowsLocked`, and writes nothing, if one of the rows is locked.
        """

    def show(self, statuses: Sequence[StatusRecord]) -> None:
        """Write the statuses of runs, unless a later one is stored.

        They are not written for a run whose lease is no longer held under their fence. Does not wait long for locks:
        raises `RowsLocked`, and writes nothing, if one of the rows is locked.
        """

    def ask_activities(
        self, run: RunRecord, location: str, now: datetime, *, stack: bool = False, abandon: bool = False
    ) -> list[str]:
        """Ask the run's worker for the stacks of its activities, or to abandon them; return their locations.

        With a `location`, ask only about the activity there. Activities of another fence than the run's are ignored.
        """

    def answer_stack(self, asked: AskedOfActivity, stack: str, now: datetime) -> None:
        """Store the stack of an activity that is still recorded under that fence.

        Stores nothing if another transaction has locked its row.
        """

    def forget_activities(self) -> None:
        """Delete activities that are not current, because their workers have died or lost the run. At most a few
        hundred.

        Deletes none if another transaction has locked one.
        """

    def release(self, held: Sequence[tuple[str, int]], now: datetime, *, due_at: datetime | None = None) -> Released:
        """Release runs that were claimed but not begun: no lease, due now, `pending` again if they were `running`.

        With `due_at`, they are due only then. A crash that the claim counted stays counted.
        """

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        """Return the earliest `wake_at` of the queues' runs after `after`, up to `until`."""

    def due_queues(
        self, now: datetime, *, queues: Sequence[str] | None = None, since: datetime | None = None
    ) -> list[str]:
        """Return the queues that have a due run, including runs whose lease expired, but not paused queues.

        With `queues`, search only these. With `since`, search only runs whose `wake_at` is not before it.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction on the store's database, for an atomic step: ORM writes inside it and the commit are
        one.

        If it raises, nothing is committed; only after a connection error during the commit is that unknown.
        """


def inherited(store: Store, run_id: str, now: datetime) -> dict[str, Any]:
    """Return what a new run has of the run that it replaces, by column of `NewRun`.

    These are its limits, counted from now, its rank, the tags that its start gave, and what it is about.
    """
    limits = store.limits(run_id)
    return {
        "limits": None if limits is None else limits.renewed(now),
        "ranking": store.rankings([run_id]).get(run_id),
        "tags": store.tags([run_id], at_start=True).get(run_id),
        "subjects": store.subjects([run_id]).get(run_id, ()),
    }
