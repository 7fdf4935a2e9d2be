"""Reading runs: their record, their history, and waiting for their result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from durable import runtime
from durable.core.duration import Duration
from durable.core.errors import RunCancelledError, RunFailedError, RunNotFoundError
from durable.core.location import awaited_queues
from durable.core.mistakes import has_stopped
from durable.core.places import Place
from durable.core.records import ENDED, RunRecord, RunState
from durable.operations.common import Waiting, await_for, wait_for, waiting
from durable.operations.history import HistoryEntry, decode_entry
from durable.operations.run_info import RunInfo
from durable.operations.state_text import describe_state

_MOST_LEFT: Final = 1_000  # children that are counted


def record(run_id: str) -> RunRecord:
    """Return the run's record. Raises RunNotFoundError."""
    found = runtime.current().store.get(_checked(run_id))
    if found is None:
        raise RunNotFoundError(run_id)
    return found


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
    """Return the id of the run whose code started this one, as a child or in a step; None if there is none."""
    return record(run_id).parent_id


def passed_on_to(run_id: str) -> str | None:
    """Return the id of the run that has got what was sent to this one's key and what it has not received, or None."""
    return runtime.current().store.followed_by(_checked(run_id))


def children(run_id: str, state: str | None, group: str | None) -> list[str]:
    """Return the ids of the run's children in the order of their starts, in this state, of this group."""
    if state is not None:
        RunState(state)  # raises ValueError for an unknown one
    found = runtime.current().store.children_of(_checked(run_id), state, group)
    if not found:
        record(run_id)
    return found


def child_counts(run_id: str, group: str | None) -> dict[str, int]:
    """Return how many children of the run, of this group, are in each state, in the order of `RunState`."""
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
    """Return what the run does, waits for, or how it ended, in one line. One query more for a run that has ended."""
    return info(run_id).summary


def info(run_id: str) -> RunInfo:
    """Return a RunInfo of the run: one query, one more for a run that has ended. Raises RunNotFoundError."""
    run = record(run_id)
    return _infos({run.id: run})[run.id]


def infos(run_ids: Iterable[str]) -> dict[str, RunInfo]:
    """Return a RunInfo for each of the runs that exists, by id, in the order of `run_ids`.

    One query, and one more if some of them have ended.
    """
    wanted = [_checked(each) for each in run_ids]
    found = runtime.current().store.get_many(wanted) if wanted else {}
    return _infos({each: found[each] for each in wanted if each in found})


def _infos(runs: Mapping[str, RunRecord]) -> dict[str, RunInfo]:
    ended = [run.id for run in runs.values() if run.state in ENDED]
    left = runtime.current().store.children_left(ended, _MOST_LEFT) if ended else {}
    return {each: RunInfo.of(run, summary=_with_left(run, left.get(run.id, 0))) for each, run in runs.items()}


def _with_left(run: RunRecord, left: int) -> str:
    """Return the run's summary, and how many of its children the workers have still to cancel."""
    parts = [str(run.summary)] if run.summary else []
    if left:
        number = f"more than {_MOST_LEFT:,}" if left > _MOST_LEFT else f"{left:,}"
        is_one = left == 1 <= _MOST_LEFT
        parts.append(f"{number} of its children {'is' if is_one else 'are'} left to be cancelled")
    return "; ".join(parts)


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
    """Do what `result` does, from an event loop."""
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
