"""The runs of the database to check, in order: only ids, so that any number of runs fits into memory.

Open runs: all, first one of each path through the code. Ended runs: a sample with a run for each sequence of kinds of
operations, so that rare paths are not hidden by frequent ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connections
from django.db.models import QuerySet

from durable.conf import conf
from durable.core.location import general_location
from durable.core.records import ENDED, RunState
from durable.inspection.counting import workflows_of_runs
from durable.models import Entry, Run
from durable.models.rows import unpack
from durable.replay_check.read_only import snapshot

_PAGE: Final = 500  # runs whose paths are read at a time
_ROWS: Final = 2_000  # entries that are fetched at a time
_NAMES: Final = 1_000  # names of workflows that one statement returns
_WIDTH: Final = 2_000  # the newest ended runs of a workflow and state, from which the sample is taken
_OPEN: Final = tuple(each for each in RunState if each not in ENDED)


def workflows_with_runs() -> Iterator[str]:
    """Yield the names of all workflows that have runs."""
    after = ""
    while names := workflows_of_runs(after, _NAMES):
        yield from names
        after = names[-1]


def open_runs(workflows: Collection[str]) -> tuple[int, Iterator[str]]:
    """Return how many runs are open, and their ids, first one of each workflow and path. Without `workflows`: of
    all.
    """
    found: dict[str, str] = {}
    with snapshot(conf.DATABASE):
        for state in _OPEN:
            runs = Run.objects.using(conf.DATABASE).filter(state=state.value).order_by("-created_at", "-id")
            if workflows:
                runs = runs.filter(workflow__in=workflows)
            found.update(runs.values_list("id", "workflow").iterator())
    return len(found), _one_of_each_first(found)


def _one_of_each_first(found: dict[str, str]) -> Iterator[str]:
    known: set[tuple[str, bytes]] = set()
    rest = []
    number = Counter(found.values())
    alone = [run_id for run_id, workflow in found.items() if number[workflow] == 1]
    yield from alone  # whatever their path is
    for page in _paged([run_id for run_id, workflow in found.items() if number[workflow] > 1]):
        paths = _paths(page)
        for run_id in page:
            key = (found[run_id], paths[run_id].path)
            if key in known:
                rest.append(run_id)
            else:
                known.add(key)
                yield run_id
    yield from rest


def sampled_runs(workflows: Collection[str], number: int) -> tuple[int, list[str]]:
    """Return of how many ended runs the sample is taken, and the ids of up to `number` of them.

    First one of each workflow, state and path, then one of each sequence of kinds, then the newest. Only the newest
    runs of each workflow and state are considered.
    """
    if not number:
        return 0, []
    found = [
        each for workflow in (workflows or workflows_with_runs()) for each in _ended(workflow, max(number, _WIDTH))
    ]
    found.sort(key=lambda each: (each.finished_at, each.run_id), reverse=True)
    paths: dict[str, _Path] = {}
    for page in _paged([each.run_id for each in found]):
        paths |= _paths(page)
    chosen: dict[str, None] = {}
    for strata in (
        lambda each: (each.workflow, each.state, paths[each.run_id].path),
        lambda each: (each.workflow, each.state, paths[each.run_id].kinds),
        lambda each: each.run_id,
    ):
        known = {strata(each) for each in found if each.run_id in chosen}
        for each in found:
            if len(chosen) == number:
                return len(found), list(chosen)
            if (stratum := strata(each)) not in known:
                known.add(stratum)
                chosen[each.run_id] = None
    return len(found), list(chosen)


def one_of_each_path(workflows: Collection[str]) -> Iterator[str]:
    """Yield the ids of one run of each workflow, state and path through the code: the newest one.

    Of ended runs, only the newest of each workflow and state are considered. Without `workflows`: of all.
    """
    for workflow in workflows or workflows_with_runs():
        for state in RunState:
            known: set[bytes] = set()
            for page in _paged(_newest(workflow, state)):
                paths = _paths(page)
                for run_id in page:
                    if paths[run_id].path not in known:
                        known.add(paths[run_id].path)
                        yield run_id


def _newest(workflow: str, state: RunState) -> list[str]:
    if state in ENDED:
        return [each.run_id for each in _ended(workflow, _WIDTH, [state])]
    with snapshot(conf.DATABASE):
        runs = Run.objects.using(conf.DATABASE).filter(workflow=workflow, state=state.value)
        return list(runs.order_by("-created_at", "-id").values_list("id", flat=True))


@dataclass(frozen=True, slots=True)
class _Ended:
    run_id: str
    workflow: str
    state: str
    finished_at: datetime


def _ended(workflow: str, width: int, states: Collection[RunState] = ENDED) -> Iterator[_Ended]:
    """Yield the newest ended runs of a workflow, of each state."""
    for state in sorted(states):
        runs = Run.objects.using(conf.DATABASE).ended_in(state.value).filter(workflow=workflow)
        with snapshot(conf.DATABASE):
            rows = list(runs.order_by("-finished_at", "-id").values_list("id", "finished_at")[:width])
        for run_id, finished_at in rows:
            if finished_at is not None:
                yield _Ended(run_id, workflow, state.value, finished_at)


@dataclass(frozen=True, slots=True)
class _Path:
    """The path of a run: `path` names each operation once, however often it was repeated; `kinds` has every one."""

    path: bytes
    kinds: bytes


_NOTHING: Final = _Path(b"", b"")


def _paths(run_ids: Sequence[str]) -> dict[str, _Path]:
    found = dict.fromkeys(run_ids, _NOTHING)
    entries = Entry.objects.using(conf.DATABASE).filter(run_id__in=run_ids).order_by("run_id", "ordinal")
    with snapshot(conf.DATABASE):
        now: str | None = None
        places: dict[str, None] = {}
        kinds = hashlib.blake2b(digest_size=16)
        for run_id, kind, location in _rows(entries, "run_id", "kind", "location"):
            if run_id != now:
                if now is not None:
                    found[unpack(now)] = _Path(_digest(places), kinds.digest())
                now, places, kinds = run_id, {}, hashlib.blake2b(digest_size=16)
            places[f"{kind} {general_location(location)}"] = None
            kinds.update(f"{kind}\n".encode())
        if now is not None:
            found[unpack(now)] = _Path(_digest(places), kinds.digest())
    return found


def _rows(entries: QuerySet[Entry], *columns: str) -> Iterator[tuple[str, ...]]:
    """Yield the values as the database has them: decoding each would take longer than reading it."""
    sql, parameters = entries.values_list(*columns).query.sql_with_params()
    with connections[conf.DATABASE].chunked_cursor() as cursor:
        cursor.execute(sql, parameters)
        while rows := cursor.fetchmany(_ROWS):
            yield from rows


def _digest(places: dict[str, None]) -> bytes:
    return hashlib.blake2b("\n".join(places).encode(errors="surrogatepass"), digest_size=16).digest()


def _paged(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(run_ids), _PAGE):
        yield run_ids[start : start + _PAGE]
