"""Queries of runs: a snapshot, the history, what it has published, its children, a comparison of two histories, and a
wait for the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from durable import runtime
from durable.conf import conf
from durable.core.duration import Duration
from durable.core.errors import ErrorInfo, RunCancelledError, RunFailedError, RunNotFoundError
from durable.core.location import MAX_NAME, awaited_queues, value_name
from durable.core.mistakes import has_stopped
from durable.core.outcomes import HeldStep, held_steps
from durable.core.places import Place, with_values
from durable.core.records import ENDED, LINK_INTERNAL, EntryKind, EntryRecord, EntryStatus, RunRecord, RunState, Status
from durable.core.summary import is_held
from durable.operations.common import Waiting, await_for, describe_state, run_sync, wait_for, waiting
from durable.runtime import Runtime

if TYPE_CHECKING:
    from durable.models import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as it was when it was read. The object does not change; read the run again for newer values.

    - `state`: pending, running, sleeping, paused, rolling_back, completed, failed or cancelled. `has_ended`: one of the
      last three.
    - `summary`: what the run does or waits for, in one line; "" if there is nothing to say. The numbers of a line are
      those of the moment at which the run began to wait. Of a run that has ended it says how many of its children the
      workers have still to cancel.
    - `error`: why the run failed, or is being rolled back; None otherwise. `is_mistake`: a mistake in the workflow's
      code has stopped the run, so nothing was undone, and recover() continues the run after the code is fixed.
    - `wake_at`: when the run continues by itself; None if it does not, and while a worker has it.
    - `waiting_for`: the message queues that the run waits for, [] for any; None if it waits for no message.
    - `created_at`, `started_at`, `finished_at`: aware times; the last two are None until they happen.
    - `status`: what the run's author lets it say: `text`, `done`, `of`, `eta` and `at`; None if it has said nothing.
    - `held`: the steps that wait for a person; `handle.settle` settles them. Empty while a worker has the run.
    - `parent_id`: the run whose step started it. `replay_of_id`: the run that it repeats. None if there is none.
    """

    id: str
    workflow: str
    queue: str
    state: str
    summary: str
    error: ErrorInfo | None
    wake_at: datetime | None
    waiting_for: list[str] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    parent_id: str | None
    replay_of_id: str | None
    is_mistake: bool = False
    held: tuple[HeldStep, ...] = ()
    status: Status | None = None
    _output: str | None = field(repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether the run is in a final state."""
        return self.state in ENDED

    @property
    def output(self) -> Any:
        """The value that the workflow returned; None before. Decoded at each access. Raises PayloadError."""
        return runtime.current().decode(self._output, Place(self.id, "output"))

    @classmethod
    def of(
        cls,
        row: Run | RunRecord,
        *,
        summary: str | None = None,
        held: tuple[HeldStep, ...] = (),
        status: Status | None = None,
    ) -> Self:
        """Return the snapshot of a row that was already read, a `durable.models.Run`; no query.

        `summary` replaces the row's text, which lacks the number of children still to be cancelled; None keeps it.
        `held` are the steps that wait for a person, and `status` is what the run says, which the row lacks too.
        """
        return cls(
            id=row.id,
            workflow=row.workflow,
            queue=row.queue,
            state=str(row.state),
            summary=str(row.summary) if summary is None else summary,
            error=row.error,
            wake_at=None if row.lease_expires_at is not None else row.wake_at,
            waiting_for=awaited_queues(row.state, row.waiting_for),
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            parent_id=row.parent_id,
            replay_of_id=row.replay_of_id,
            is_mistake=has_stopped(row.summary),
            held=held,
            status=status,
            _output=row.output,
        )


Decode = Callable[[str | None, Place], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The record of one operation, decoded for reading.

    `data` depends on the kind: a step has "output" and "args", and "summary" if its call has one; a loop "iteration",
    "state" and "output"; a sleep "state" and "deadline"; a message "names", "deadline" and "received", of which a
    refused message has "refused", the reason; a join and a race "branches", a race also "winner"; a send "queue", "to"
    and "body"; a published value "output"; a version check "resolved" and "latest"; a removed entry "original"; a link
    "verify" and "expires_at". `error` is the error of the last failed attempt. Times are aware.
    """

    location: str
    kind: str
    status: str
    attempts: int
    data: dict[str, Any]
    error: ErrorInfo | None
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    completed_at: datetime | None
    rollback_completed_at: datetime | None
    rollback_error: ErrorInfo | None


def decode_entry(run_id: str, entry: EntryRecord, decode: Decode) -> HistoryEntry:
    arguments, output, data = with_values(run_id, entry, decode)
    if entry.kind == EntryKind.STEP:
        data["args"] = arguments
    if entry.kind == EntryKind.SEND:
        data["body"] = arguments
    if entry.kind in _WITH_OUTPUT:
        data["output"] = output
    if entry.kind == EntryKind.LINK:
        data = {name: value for name, value in data.items() if name not in LINK_INTERNAL}
    if entry.kind in (EntryKind.JOIN, EntryKind.RACE):
        data["branches"] = {name: _with_error(each) for name, each in data.get("branches", {}).items()}
    return HistoryEntry(
        location=entry.location,
        kind=str(entry.kind),
        status=str(entry.status),
        attempts=entry.attempts,
        data=data,
        error=entry.error,
        created_at=entry.created_at,
        last_attempt_at=entry.last_attempt_at,
        next_attempt_at=entry.next_attempt_at,
        completed_at=entry.completed_at,
        rollback_completed_at=entry.rollback_completed_at,
        rollback_error=entry.rollback_error,
    )


_WITH_OUTPUT: Final = frozenset({EntryKind.STEP, EntryKind.LOOP, EntryKind.CHILD, EntryKind.MAP, EntryKind.PUBLISH})


def _with_error(branch: dict[str, Any]) -> dict[str, Any]:
    return {**branch, "error": ErrorInfo(*branch["error"])} if "error" in branch else branch


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDifference:
    """A place at which two runs differ. A side is None if its run has nothing there.

    `differs` names the differences: "place" if only one run has it, else "status", "attempts", "error" (its type or
    message), "output" and "given by hand" (the output of one of them).
    """

    location: str
    left: HistoryEntry | None
    right: HistoryEntry | None
    differs: tuple[str, ...]


def differences(left: Iterable[HistoryEntry], right: Iterable[HistoryEntry]) -> list[HistoryDifference]:
    """Return the places at which two histories differ, in the order of the left one; then those only in the right
    one.
    """
    sides = [{each.location: each for each in side} for side in (left, right)]
    found = []
    for location in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(location) for side in sides)
        differs = _differs(one, other)
        if differs:
            found.append(HistoryDifference(location=location, left=one, right=other, differs=differs))
    return found


def _differs(left: HistoryEntry | None, right: HistoryEntry | None) -> tuple[str, ...]:
    if left is None or right is None:
        return ("place",)
    one, other = _compared(left), _compared(right)
    return tuple(name for name in one if one[name] != other[name])


def _compared(entry: HistoryEntry) -> dict[str, Any]:
    error = entry.error if entry.status != EntryStatus.COMPLETED else None
    return {
        "status": entry.status,
        "attempts": entry.attempts,
        "error": None if error is None else (error.type, error.message),
        "output": entry.data.get("output"),
        "given by hand": "given" in entry.data,
    }


_MOST_LEFT: Final = 1_000  # children that are counted


def record(run_id: str) -> RunRecord:
    """Return the run's record. Raises RunNotFoundError."""
    found = runtime.current().store.get(_checked(run_id))
    if found is None:
        raise RunNotFoundError(run_id, tick=tick_without_run(run_id))
    return found


def tick_without_run(run_id: str) -> str:
    """Return why the tick whose run would have this id has started none; "" if there is no such tick."""
    name, at, moment = run_id.rpartition("@")
    if not at or runtime.current().schedules == set():  # a harness without schedules may have no database
        return ""
    from durable.models import Tick

    with suppress(ValueError):  # the text is not a moment
        when = datetime.fromisoformat(moment)
        ticks = Tick.objects.using(conf.DATABASE).filter(schedule__name=name).exclude(outcome=Tick.Outcome.STARTED)
        ticks = ticks.select_related("schedule")
        if when.tzinfo is not None and (tick := ticks.filter(moment=when).order_by("-number").first()) is not None:
            return ": ".join(filter(None, (tick.outcome, tick.why_now)))
    return ""


def _checked(run_id: str) -> str:
    if not isinstance(run_id, str):
        raise TypeError(f"a run's id is text, not {run_id!r}: write get_run(str(...))")
    return run_id


def output(run_id: str) -> Any:
    """Return what the workflow returned; None before the run has completed."""
    return _output_of(record(run_id))


def waiting_for(run_id: str) -> list[str] | None:
    """Return the message queues that the run waits for, [] for any; None if it waits for no message."""
    run = record(run_id)
    return awaited_queues(run.state, run.waiting_for)


def parent(run_id: str) -> str | None:
    """Return the id of the run whose code started this one, as a child or in a step; or None."""
    return record(run_id).parent_id


def passed_on_to(run_id: str) -> str | None:
    """Return the id of the run that has taken over this run's unreceived messages, or None."""
    return runtime.current().store.followed_by(_checked(run_id))


def children(run_id: str, state: str | None, group: str | None) -> list[str]:
    """Return the ids of the run's children in this state and group, in the order of their starts."""
    if state is not None:
        RunState(state)  # raises ValueError for an unknown one
    found = runtime.current().store.children_of(_checked(run_id), state, group)
    if not found:
        record(run_id)
    return found


def child_counts(run_id: str, group: str | None) -> dict[str, int]:
    """Count the children of the run, or of this group, in each state, in the order of `RunState`."""
    found = runtime.current().store.count_children(_checked(run_id), group)
    if not found:
        record(run_id)
    return {each.value: found[each] for each in RunState if each in found}


def tags(run_id: str) -> dict[str, str]:
    """Return the run's tags, by name, as they are stored. Raises RunNotFoundError."""
    found = runtime.current().store.tags([_checked(run_id)])
    if not found:
        record(run_id)
    return found.get(run_id, {})


def summary(run_id: str) -> str:
    """Return in one line what the run does, waits for, or how it ended. One more query for a run that has ended."""
    return info(run_id).summary


def info(run_id: str) -> RunInfo:
    """Return a RunInfo of the run. One query, and one more for a run that has ended or waits for a person.

    Raises RunNotFoundError.
    """
    found = infos([run_id])
    return found[run_id] if found else RunInfo.of(record(run_id))  # which raises RunNotFoundError


def infos(run_ids: Iterable[str]) -> dict[str, RunInfo]:
    """Return a RunInfo for each of the runs that exists, by id, in the order of `run_ids`.

    One query, one more if some of them have ended, and one for each that waits for a person.
    """
    wanted = [_checked(each) for each in run_ids]
    store = runtime.current().store
    found = store.get_shown(wanted) if wanted else {}
    runs = {each: found[each] for each in wanted if each in found}
    ended = [run.id for run, _ in runs.values() if run.state in ENDED]
    left = store.children_left(ended, _MOST_LEFT) if ended else {}
    return {
        each: RunInfo.of(
            run,
            summary=_with_left(run, left.get(run.id, 0)),
            held=held_steps(store.held_steps(run.id)) if _may_be_held(run) else (),
            status=status,
        )
        for each, (run, status) in runs.items()
    }


def _may_be_held(run: RunRecord) -> bool:
    """Return True if a step of the run may wait for a person, as far as the run's row says.

    The summary of a run that is paused or rolling back says something else.
    """
    return run.state in (RunState.PAUSED, RunState.ROLLING_BACK) or (run.state not in ENDED and is_held(run.summary))


def _with_left(run: RunRecord, left: int) -> str:
    """Return the run's summary, and how many of its children are still to be cancelled."""
    parts = [str(run.summary)] if run.summary else []
    if left:
        number = f"more than {_MOST_LEFT:,}" if left > _MOST_LEFT else f"{left:,}"
        is_one = left == 1 <= _MOST_LEFT
        parts.append(f"{number} of its children {'is' if is_one else 'are'} left to be cancelled")
    return "; ".join(parts)


def values(run_id: str) -> dict[str, Any]:
    """Return the newest published value of each name, in the order of the names' first values.

    Two queries; raises RunNotFoundError.
    """
    at = runtime.current()
    entries = at.store.published(_checked(run_id))
    if not entries:
        record(run_id)
    return {value_name(each.location): _decoded(at, run_id, each) for each in entries}


def view(run_id: str, name: str, wait: Duration | None) -> Any:
    """Return the newest published value of this name, None if there is none. With `wait`, wait for one.

    Raises RunNotFoundError; and TimeoutError if there is none after `wait`, or the run has ended without one.
    """
    if wait is None:
        return next(iter(_view(run_id, name)), None)
    return wait_for(_waiting_for_value(run_id, name, wait))[0]


async def aview(run_id: str, name: str, wait: Duration | None) -> Any:
    """`view`, from an event loop."""
    if wait is None:
        return await run_sync(view, run_id, name, None)
    return (await await_for(_waiting_for_value(run_id, name, wait)))[0]


def _view(run_id: str, name: str) -> list[Any]:
    """Return the newest value of this name, in a list; [] if there is none."""
    at = runtime.current()
    entries = at.store.published(_checked(run_id), name) if 0 < len(name) <= MAX_NAME else []
    if not entries:
        record(run_id)
    return [_decoded(at, run_id, each) for each in entries]


def _decoded(at: Runtime, run_id: str, entry: EntryRecord) -> Any:
    return at.decode(entry.output, Place(run_id, "output", entry.location))


def _waiting_for_value(run_id: str, name: str, wait: Duration) -> Waiting[list[Any]]:
    def look() -> list[Any] | None:
        has_ended = record(run_id).state in ENDED  # before its values: it may publish one and end
        found = _view(run_id, name)
        if not found and has_ended:
            raise TimeoutError(f'run "{run_id}" has ended and has not published "{name}"')
        return found or None

    problem = f'run "{run_id}" has not published "{name}"'
    return waiting(look, wait, problem, lambda: describe_state(record(run_id), runtime.current().now()))


def status(run_id: str) -> Status | None:
    """Return the run's status, None if it has set none. Raises RunNotFoundError."""
    return info(run_id).status


def history(run_id: str) -> list[HistoryEntry]:
    """Return the records of the run's operations, in the order in which they began. Raises RunNotFoundError."""
    at = runtime.current()
    entries = at.store.history(run_id)
    if not entries:
        record(run_id)
    return [decode_entry(run_id, entry, at.decode) for entry in entries]


def result(run_id: str, timeout: Duration | None) -> Any:
    """Wait until the run has ended, and return its output. Raises RunFailedError, RunCancelledError, TimeoutError."""
    return _result_of(wait_for(_waiting_for_end(run_id, timeout)))


async def aresult(run_id: str, timeout: Duration | None) -> Any:  # noqa: ASYNC109  # the twin of result()
    """`result`, from an event loop."""
    return _result_of(await await_for(_waiting_for_end(run_id, timeout)))


def _waiting_for_end(run_id: str, timeout: Duration | None) -> Waiting[RunRecord]:
    at = runtime.current()
    return waiting(
        lambda: _ended(run_id),
        timeout,
        f'run "{run_id}" has not ended',
        lambda: describe_state(record(run_id), at.now()),
    )


def _result_of(run: RunRecord) -> Any:
    check_not_lost(run)
    return _output_of(run)


def _output_of(run: RunRecord) -> Any:
    return runtime.current().decode(run.output, Place(run.id, "output"))


def check_not_lost(run: RunRecord) -> None:
    """Raise RunFailedError or RunCancelledError if the run has ended without a result."""
    if run.state == RunState.FAILED:
        assert run.error is not None
        raise RunFailedError(run.id, run.error, is_mistake=has_stopped(run.summary))
    if run.state == RunState.CANCELLED:
        raise RunCancelledError(run.id, run.request_reason)


def _ended(run_id: str) -> RunRecord | None:
    run = record(run_id)
    return run if run.state in ENDED else None
