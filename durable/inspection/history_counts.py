"""Counts of long histories: remembered by a process, and stored until their runs change.

To count 100,000 entries takes a tenth of a second and more, which is too long for a page, and a page that refreshes
itself asks every few seconds. The worker that ends a pass of a run with more than `LONG_HISTORY` entries notes it
(`durable.worker.executor`). The process of the sweep counts what is noted once the run has rested for `REST`: what
`COUNTED` names. All else that a page has to look for in a long history, the process of the page remembers.

A history changes only by the worker that has the run's lease, whose claim raises the run's fence, and by operators and
migrations that rename an operation: these raise its `change_seq`. So what was counted of a run without a lease holds
until one of these numbers is another. Another run that has got its id was created later. Rows that somebody has changed
by hand show after a minute, and in what is stored after the next pass of the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from django.utils.module_loading import import_string

from durable.conf import conf
from durable.core.records import LONG_HISTORY
from durable.models import HistoryCount, Run
from durable.models.rows import dump_json, load_json

logger = logging.getLogger("durable.inspection")

_T = TypeVar("_T")

LONG: Final = LONG_HISTORY  # entries of a history that is counted each time
_MOST: Final = 64  # results
_KEPT: Final = 60.0  # seconds

_results: OrderedDict[tuple[Any, ...], tuple[float, Any]] = OrderedDict()
_lock: Final = threading.Lock()


def remembered(run: Run, what: str, count: Callable[[], _T], entries: Callable[[_T], int] | None = None) -> _T:
    """Return what `count` returns, or has returned of the run in its present state; `what` names it.

    `entries` tells from a result how long the history is; None for one that is known to be long.
    """
    known: _T | None = _of_process(run, what)
    if known is not None:
        return known
    kept: _T | None = stored(run, what) if what in COUNTED else None
    found = count() if kept is None else kept
    if run.lease_expires_at is None and (entries is None or entries(found) > LONG):
        key = _key(run, what)
        with _lock:
            _results[key] = (time.monotonic() + _KEPT, found)
            _results.move_to_end(key)
            while len(_results) > _MOST:
                _results.popitem(last=False)
    return found


def recalled(run: Run, what: str) -> Any:
    """Return what is remembered or stored of the run in its present state, None if nothing is. No statement."""
    known = _of_process(run, what)
    return stored(run, what) if known is None and what in COUNTED else known


def _of_process(run: Run, what: str) -> Any:
    if run.lease_expires_at is not None:
        return None
    with _lock:
        end, result = _results.get(_key(run, what), (0.0, None))
    return result if time.monotonic() < end else None


def _key(run: Run, what: str) -> tuple[Any, ...]:
    return (conf.DATABASE, run.id, what, _state_of(run))


#: How long a run must have rested: one that goes on every few seconds would be counted again and again.
REST: Final = timedelta(seconds=15)
_SECONDS: Final = 2.0  # of one turn in which runs are counted
_AT_ONCE: Final = 20  # notes that are read at a time
_FORMAT: Final = 2  # of the counts

#: What counts a run's history, by the name of its part of the counts. Its results are JSON.
Counters = Mapping[str, Callable[[Run], Any]]
COUNTED: Final = {
    "progress": "durable.inspection.progress.count_progress",
    "places": "durable.inspection.places.count_places",
    "events": "durable.inspection.events.count_events",
}


def stored(run: Run, what: str) -> Any:
    """Return this part of the stored counts of the run, None if there are none of its present state. No statement.

    Runs that were read `with_side_rows` have them.
    """
    row: HistoryCount | None = run._state.fields_cache.get("history_count")
    if row is None or row.counted_as != _state_of(run):
        return None
    counts = load_json(row.counts)
    return counts.get(what) if counts["format"] == _FORMAT else None


def count_long_histories(now: datetime) -> None:
    """Count the histories that workers have noted as long, and whose runs rest; for a moment only."""
    count_noted(now, {what: import_string(path) for what, path in COUNTED.items()})


def count_noted(now: datetime, counters: Counters) -> None:
    """Count the histories of noted runs that rest, the longest-resting first, for a moment only.

    Any number of processes may do so at once. The counts of a run that has changed meanwhile are of no use and do no
    harm.
    """
    rows = HistoryCount.objects.using(conf.DATABASE)
    until = time.monotonic() + _SECONDS
    while noted := list(rows.filter(noted_at__lte=now - REST).order_by("noted_at").only("noted_at")[:_AT_ONCE]):
        for row in noted:
            if time.monotonic() >= until:
                return
            _count(row.run_id, row.noted_at, now, counters)


def _count(run_id: str, noted_at: datetime | None, now: datetime, counters: Counters) -> None:
    row = HistoryCount.objects.using(conf.DATABASE).filter(run=run_id, noted_at=noted_at)
    run = Run.objects.using(conf.DATABASE).filter(pk=run_id).defer("input", "output").first()
    if run is None:
        row.delete()
    elif run.lease_expires_at is not None:  # its worker notes it again, unless it dies
        row.update(noted_at=now)
    else:
        try:
            counts = {"format": _FORMAT, **{what: count(run) for what, count in counters.items()}}
        except Exception:  # one history that cannot be counted must not keep the others from it
            logger.exception("the long history of run %s cannot be counted", run_id, extra={"run_id": run_id})
            row.update(noted_at=None)
        else:
            row.update(noted_at=None, counted_as=_state_of(run), counts=dump_json(counts))


def _state_of(run: Run) -> str:
    return f"{run.state} {run.fence} {run.change_seq} {run.created_at.isoformat()}"
