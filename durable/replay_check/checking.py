"""Check runs one by one, or in several processes, with nothing executed and nothing written.

Each process is a new interpreter with this process's settings: none is forked, because this one may have threads and
connections.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from django.db import Error

from durable import guard, runtime
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.names.recorded_names import Move, importing_nothing
from durable.core.names.recorded_names import in_force as moves_in_force
from durable.core.names.renames import Alias, Rename, in_force
from durable.core.records import RunRecord
from durable.renames.operations import (
    all_migrations,
    expected_moves,
    expected_renames,
    moves_of,
    pending_migrations,
    renames_of_migrations,
)
from durable.replay_check.findings import Verdict
from durable.replay_check.read_only import read_only, snapshot
from durable.replay_check.replaying import RecordedRun, replayed


@dataclass(frozen=True, slots=True)
class Facts:
    """The renames and moves of the project's migrations.

    Finding them takes a while, so they are shared by all runs of a check.
    """

    renames: Sequence[Rename | Alias]
    moves: Sequence[Move]

    @classmethod
    def of_database(cls) -> Facts:
        """Return the renames in the database and in migrations that are still to be applied."""
        pending = pending_migrations(conf.DATABASE)
        return cls(expected_renames(conf.DATABASE, pending), expected_moves(conf.DATABASE, pending))

    @classmethod
    def of_project(cls) -> Facts:
        """Return the renames in all migrations, applied or not: a file may be older than any of them."""
        migrations = all_migrations()
        return cls(renames_of_migrations(migrations), moves_of(migrations))


@contextmanager
def _checking(facts: Facts) -> Iterator[None]:
    """Within the block, code between operations can read databases but cause no other effect."""
    guard.watch_events()
    with guard.refusing_effects(), read_only(conf.DATABASE), in_force(facts.renames), moves_in_force(facts.moves):
        yield


def check_history(recorded: RecordedRun, facts: Facts | None = None, *, with_decision: bool = False) -> Verdict:
    """Replay a recorded run with this process's code; return the verdict.

    No step, rollback handler or child is started, nothing is sent, and nothing is written. Code between operations can
    read databases. Renames and moves in the project's migrations count: `facts`, None to find them. With
    `with_decision`, the verdict says what the code decides differently.
    """
    with _checking(facts or Facts.of_project()):
        return replayed(recorded, runtime.current(), with_decision=with_decision)


def check_stored(
    run_ids: Iterable[str], facts: Facts | None = None, *, with_decision: bool = False
) -> Iterator[Verdict | None]:
    """Yield the verdict on each run of the database; None for one that is gone.

    Each run is read and replayed in a read-only transaction of its own. Renames and moves in migrations that are still
    to be applied count as applied: `facts`, None to find them.
    """
    facts = facts or Facts.of_database()
    for run_id in run_ids:
        with _checking(facts):
            verdict = _stored(run_id, with_decision=with_decision)
        yield verdict


def check_recorded(
    runs: Iterable[RecordedRun], facts: Facts | None = None, *, with_decision: bool = False
) -> Iterator[Verdict | None]:
    """Yield the verdict on each recorded run.

    Renames and moves in the project's migrations count: `facts`, None to find them. No module is imported because a
    record names it: anybody may have written the file.
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
            return _unchecked(run, error)
        return _checked(RecordedRun(run=run, entries=history), with_decision=with_decision)


def _checked(recorded: RecordedRun, *, with_decision: bool = False) -> Verdict:
    """Return the verdict on a run; if the replay itself fails, a verdict that says so."""
    try:
        return replayed(recorded, runtime.current(), with_decision=with_decision)
    except Exception as error:  # noqa: BLE001  # a history that no release of durable has written
        return _unchecked(recorded.run, error)


def _unchecked(run: RunRecord, error: Exception) -> Verdict:
    return Verdict(run_id=run.id, workflow=run.workflow, state=str(run.state), unchecked=str(ErrorInfo.of(error)))


T = TypeVar("T")

_AT_ONCE: Final = 20  # runs given to a process at a time
_WAITING: Final = 3  # parts per process that are running or queued

#: Yields the verdicts on these runs, given by their ids or as they are recorded.
Check = Callable[..., Iterator[Verdict | None]]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The data that give a new process the same settings and workflows."""

    settings: str
    databases: dict[str, dict[str, Any]]
    durable: dict[str, Any]
    modules: tuple[str, ...]


def in_processes(check: Check, runs: Iterable[T], jobs: int, *, with_decision: bool) -> Iterator[Verdict | None]:
    """Yield the verdicts on the runs, in order, found by `jobs` processes. `check` is a function at the top level of a
    module.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, context, _set_up, (_surroundings(),))
    waiting: deque[Future[list[Verdict | None]]] = deque()
    parts = _parts(runs)
    try:
        while True:
            for part in islice(parts, jobs * _WAITING - len(waiting)):
                waiting.append(executor.submit(_checked_by_process, check, part, with_decision))
            if not waiting:
                return
            yield from waiting.popleft().result()
    except BaseException:  # interrupted: do not wait for running checks
        begun = set(multiprocessing.active_children()) - before
        executor.shutdown(wait=False, cancel_futures=True)
        for each in begun:
            each.terminate()
        for each in begun:
            each.join()
        raise
    finally:
        executor.shutdown()


def _checked_by_process(check: Check, part: Sequence[Any], with_decision: bool) -> list[Verdict | None]:
    return list(check(part, with_decision=with_decision))


def _parts(runs: Iterable[T]) -> Iterator[list[T]]:
    left = iter(runs)
    while part := list(islice(left, _AT_ONCE)):
        yield part


def _surroundings() -> _Surroundings:
    from django.conf import settings
    from django.db import connections

    from durable.core import registry

    return _Surroundings(
        os.environ.get("DJANGO_SETTINGS_MODULE", ""),
        {
            each: dict(connections.settings[each]) | {"NAME": connections[each].settings_dict["NAME"]}
            for each in connections
        },
        dict(getattr(settings, "DURABLE", {})),
        tuple(sorted({each.function.__module__ for each in registry.all()})),
    )


def _set_up(surroundings: _Surroundings) -> None:
    """Set up Django as in the process that started this one. At Ctrl-C, that one ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["DJANGO_SETTINGS_MODULE"] = surroundings.settings
    import django
    from django.conf import settings

    settings.DATABASES = surroundings.databases
    settings.DURABLE = surroundings.durable
    django.setup()
    for each in surroundings.modules:
        importlib.import_module(each)
