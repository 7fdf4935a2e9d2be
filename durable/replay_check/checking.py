"""Check runs one by one, of the database or of a file, with nothing executed and nothing written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from django.db import Error

from durable import guard, runtime
from durable.conf import conf
from durable.core.aliases import Alias
from durable.core.errors import ErrorInfo
from durable.core.moved_names import Move
from durable.core.moved_names import in_force as moves_in_force
from durable.core.renames import Rename, in_force
from durable.renames.classes_pending import every_move, expected_moves
from durable.renames.pending import every_rename, expected_renames
from durable.replay_check.findings import Verdict
from durable.replay_check.read_only import read_only, snapshot
from durable.replay_check.replaying import RecordedRun, replayed

__all__ = ["check_history", "check_recorded", "check_stored"]


@contextmanager
def _checking(renames: Sequence[Rename | Alias], moves: Sequence[Move]) -> Iterator[None]:
    """Within the block, code between operations can read databases, and cause no other effect."""
    guard.watch_events()
    with guard.refusing_effects(), read_only(conf.DATABASE), in_force(renames), moves_in_force(moves):
        yield


def check_history(recorded: RecordedRun, *, with_decision: bool = False) -> Verdict:
    """Replay a recorded run with the code at hand; return what that has come to.

    No step, no rollback handler and no child is started, nothing is sent, and nothing is written. Code between operations
    can read databases. What migrations of the project rename or move fits under both names. With `with_decision`, the verdict says what the code decides otherwise.
    """
    with _checking(every_rename(), every_move()):
        return replayed(recorded, runtime.current(), with_decision=with_decision)


def check_stored(run_ids: Iterable[str], *, with_decision: bool = False) -> Iterator[Verdict | None]:
    """Yield the verdict on each run of the database; None for one that is gone.

    Each run is read and replayed in a read-only transaction of its own. What migrations rename or move that are still to be
    applied is taken for renamed or moved.
    """
    renames, moves = expected_renames(conf.DATABASE), expected_moves(conf.DATABASE)
    for run_id in run_ids:
        with _checking(renames, moves):
            verdict = _stored(run_id, with_decision=with_decision)
        yield verdict


def check_recorded(runs: Iterable[RecordedRun], *, with_decision: bool = False) -> Iterator[Verdict | None]:
    """Yield the verdict on each recorded run. What migrations of the project rename or move fits under both names."""
    renames, moves = every_rename(), every_move()
    for each in runs:
        with _checking(renames, moves):
            verdict = _checked(each, with_decision=with_decision)
        yield verdict


def _stored(run_id: str, *, with_decision: bool) -> Verdict | None:
    at = runtime.current()
    with snapshot(conf.DATABASE):
        run = at.store.get(run_id)
        if run is None:
            return None
        try:
            history = at.store.load(run_id)
        except Error:
            raise
        except Exception as error:  # noqa: BLE001  # a row that cannot be read as one
            return Verdict(
                run_id=run_id, workflow=run.workflow, state=str(run.state), unchecked=str(ErrorInfo.of(error))
            )
        return _checked(RecordedRun(run=run, entries=history), with_decision=with_decision)


def _checked(recorded: RecordedRun, *, with_decision: bool = False) -> Verdict:
    """Return the verdict on a run; one that says so where the replay itself has failed."""
    run = recorded.run
    try:
        return replayed(recorded, runtime.current(), with_decision=with_decision)
    except Exception as error:  # noqa: BLE001  # a history that no release of durable has written
        return Verdict(run_id=run.id, workflow=run.workflow, state=str(run.state), unchecked=str(ErrorInfo.of(error)))
