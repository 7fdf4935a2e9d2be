"""Check runs one by one, of the database or of a file, with nothing executed and nothing written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import Error

from durable import guard, runtime
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.recorded_names import Move, importing_nothing
from durable.core.recorded_names import in_force as moves_in_force
from durable.core.renames import Alias, Rename, in_force
from durable.renames.classes_pending import expected_moves, moves_of
from durable.renames.pending import expected_renames, renames_of_migrations
from durable.renames.project import all_migrations, pending_migrations
from durable.replay_check.findings import Verdict
from durable.replay_check.read_only import read_only, snapshot
from durable.replay_check.replaying import RecordedRun, replayed


@dataclass(frozen=True, slots=True)
class Facts:
    """The renames and moves of the project's migrations.

    It takes a while to find, and is the same for all runs of a check.
    """

    renames: Sequence[Rename | Alias]
    moves: Sequence[Move]

    @classmethod
    def of_database(cls) -> Facts:
        """Return what the database has, and what migrations say that are still to be applied."""
        pending = pending_migrations(conf.DATABASE)
        return cls(expected_renames(conf.DATABASE, pending), expected_moves(conf.DATABASE, pending))

    @classmethod
    def of_project(cls) -> Facts:
        """Return what all migrations say, applied or not: what is in a file may be older than any of them."""
        migrations = all_migrations()
        return cls(renames_of_migrations(migrations), moves_of(migrations))


@contextmanager
def _checking(facts: Facts) -> Iterator[None]:
    """Within the block, code between operations can read databases, and cause no other effect."""
    guard.watch_events()
    with guard.refusing_effects(), read_only(conf.DATABASE), in_force(facts.renames), moves_in_force(facts.moves):
        yield


def check_history(recorded: RecordedRun, facts: Facts | None = None, *, with_decision: bool = False) -> Verdict:
    """Replay a recorded run with the code at hand; return what that has come to.

    No step, no rollback handler and no child is started, nothing is sent, and nothing is written. Code between
    operations can read databases. What migrations of the project rename or move fits under both names: `facts` is that,
    None to find it. With `with_decision`, the verdict says what the code decides otherwise.
    """
    with _checking(facts or Facts.of_project()):
        return replayed(recorded, runtime.current(), with_decision=with_decision)


def check_stored(
    run_ids: Iterable[str], facts: Facts | None = None, *, with_decision: bool = False
) -> Iterator[Verdict | None]:
    """Yield the verdict on each run of the database; None for one that is gone.

    Each run is read and replayed in a read-only transaction of its own. What migrations rename or move that are still
    to be applied is taken for renamed or moved: `facts`, None to find it.
    """
    facts = facts or Facts.of_database()
    for run_id in run_ids:
        with _checking(facts):
            verdict = _stored(run_id, with_decision=with_decision)
        yield verdict


def check_recorded(
    runs: Iterable[RecordedRun], facts: Facts | None = None, *, with_decision: bool = False
) -> Iterator[Verdict | None]:
    """Yield the verdict on each recorded run. What migrations of the project rename or move fits under both names.

    No module is imported that a record names: anybody may have written the file. `facts` is that, None to find it.
    """
    facts = facts or Facts.of_project()
    for each in runs:
        with _checking(facts), importing_nothing():
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
