"""The contract of a store: everything the engine and the verbs ask of the place where runs are kept.

Every method is atomic: it happens whole or not at all, and inside a transaction of the caller's it happens
if and when that transaction commits. A store decides nothing about workflows; it guards the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from durable.core.location import ANY_QUEUE, is_awaited, waiting_text
from durable.core.records import (
    ActionRecord,
    AttemptRecord,
    Batch,
    Committed,
    Entry,
    Message,
    OutgoingMessage,
    RunChange,
    RunRecord,
)

__all__ = ["ANY_QUEUE", "Claimed", "DuePoint", "Store", "is_awaited", "waiting_text"]

#: A point in the order of due runs: `wake_at` and id.
DuePoint = tuple[datetime, str]


class Claimed(list[RunRecord]):
    """Claimed runs, the longest due first. `passed_over` is how much else the database had to look at to find them:
    entries of the index of due runs whose runs were not to be had; 0 where a store does not know.
    """

    def __init__(self, runs: Iterable[RunRecord] = (), *, passed_over: int = 0) -> None:
        super().__init__(runs)
        self.passed_over = passed_over


class Store(Protocol):
    """Runs, their histories and their inboxes."""

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        """Insert the runs whose ids are free; for each, in order, the row that now has its id and whether it is new.

        Two processes that create one id at once both get the same row, one of them as new. One statement for
        all that are free, at most one more for the taken ones.
        """

    def get(self, run_id: str) -> RunRecord | None:
        """The run's row."""

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        """The rows of those of the runs that there are, by id; one query."""

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The states of those of the runs that there are; one query."""

    def history(self, run_id: str) -> list[Entry]:
        """The run's entries by ordinal; one query."""

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        """The failed attempts of the run's steps, oldest first."""

    def messages(self, run_id: str) -> list[Message]:
        """The run's messages in order, whatever their state."""

    def outline(self, run_id: str) -> tuple[list[Entry], list[Message]]:
        """`history` and `messages` without values: no outputs, arguments, errors, states, bodies and responses.

        What it costs depends on how many entries and messages there are, not on how large they are.
        """

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        """Put messages into inboxes; for each the stored message, or None where its run does not exist; and the
        queues (of workers) to ring for.

        A run's row is locked before its message gets its `order`, so that order is the order of commits. An
        idempotency id that the run has seen returns the message stored then. The run's `signal` is raised, and if it
        waits for this queue (`is_awaited`) it becomes due at the message's `sent_at`. Messages to a run that has ended
        are stored, and never received.
        """

    def message(self, message_id: str) -> Message | None:
        """One message, for whoever waits for its response."""

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        """The message that was sent to the run with this idempotency id."""

    def change(self, run_id: str, decide: Callable[[RunRecord, Callable[[], list[Entry]]], RunChange]) -> RunRecord:
        """Lock the run's row, let `decide` see it (and, if it calls the second argument, its entries), apply the
        change, its `action` for the audit log included, and return the row as it is then. What `decide` raises is
        raised, and nothing is changed. The run's `signal` is raised unless the change sets it.

        Raises RunNotFoundError.
        """

    def import_history(
        self, run_id: str, *, entries: Sequence[Entry], attempts: Sequence[AttemptRecord], messages: Sequence[Message]
    ) -> None:
        """Give a run that was just created, and that no worker can see yet, a history and an inbox.

        To be called in the transaction of its `create`. The messages are the run's own, as they are to be stored, and
        later ones get a higher `order`.
        """

    def log(self, actions: Sequence[ActionRecord]) -> None:
        """Append to the audit log."""

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        """Count the action in the newest row since then of the same actor, source, action and outcome.

        The row's `detail` says how many more there were (`rules.repeated`). False if there is no such row: log it.
        """

    # -- passes

    def claim(
        self,
        *,
        queues: Sequence[str],
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
    ) -> Claimed:
        """Take up to `limit` due runs of the queues, the longest due first, skipping rows that others are taking.

        With `since`, only runs at this point of their order or behind it.

        Due: `wake_at <= now`, not paused or ended, no live lease (`lease_expires_at` None or <= now). A claimed run has `fence` + 1, the
        lease, the worker, `started_at` if it had none, state `running` (`rolling_back` stays), and `crashes` + 1 if a lease ran out.
        """

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        """Take this run whether or not it is due; None if it is paused, ended, or held by a live lease.

        It is due from now on, so that another worker finds it if this one dies.
        """

    def load(self, run_id: str) -> list[Entry]:
        """The whole history, for a pass; one query. Like `history`, in any order."""

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, list[Entry]]:
        """By run, the histories of at most `most` entries and, outputs and arguments together, `size` bytes.

        Each as `load` gives it; on PostgreSQL one query for all. Whose history is longer is missing.
        """

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        """Pending messages in order: of the named queues (of all, if empty), sent strictly before `before`."""

    def commit(self, batch: Batch) -> Committed:
        """Write the batch if the run's fence is the batch's; on PostgreSQL one statement, one round trip, one commit.

        Rows are locked in the order of run ids, so that two runs which send to each other cannot deadlock.
        Deleted entries take their attempts along. Messages are received first, then returned. Raises LeaseLost, and writes nothing, if the fence has moved on.
        """

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> dict[str, str]:
        """Prolong the leases whose fences still hold: run id to pending request. Missing ids were lost, or handed back:
        a run without a lease gets none."""

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        """What operators have asked of those of the runs that are to be paused or cancelled: run id to request; one query."""

    def release(self, held: Sequence[tuple[str, int]], now: datetime) -> None:
        """Hand back runs that were claimed and not begun: no lease, due now, `pending` again if they were `running`.

        A crash that the claim counted stays counted.
        """

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        """The earliest `wake_at` later than `after`, and not later than `until`, of the queues' runs."""

    def due_queues(
        self, now: datetime, *, queues: Sequence[str] | None = None, since: datetime | None = None
    ) -> list[str]:
        """The queues that have a due run, an expired lease included.

        With `queues`, of these alone; with `since`, a run whose `wake_at` is not before it.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction on the store's database, for an atomic step: the ORM writes inside and the commit are one.

        What it raises it raises uncommitted, but for an error of the connection while it commits: then nobody knows.
        """
