"""Counts of long histories: remembered by a process, and stored until their runs change.

Counting 100,000 entries takes a tenth of a second and more. That is too long for a page that refreshes itself every few
seconds. A worker that ends a pass of a run with more than `LONG_HISTORY` entries notes the run
(`durable.worker.executor`). Once a noted run has rested for `REST`, the process of the sweep stores the counts that
`COUNTED` names. A page's process remembers everything else that it had to search for in a long history.

A history changes only by a worker, whose claim raises the run's fence, and by operators and migrations that rename an
operation, which raise its `change_seq`. So counts of a run without a lease are valid until one of these numbers
changes. Another run with the same id has another creation time. Changes made by hand show after a minute; in stored
counts, after the run's next pass.
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
from durable.models.rows import dump_json

logger = logging.getLogger("durable.inspection")

_T = TypeVar("_T")

LONG: Final = LONG_HISTORY  # the most entries of a history that is counted anew each time
_MOST: Final = 64  # results
_KEPT: Final = 60.0  # seconds

_results: OrderedDict[tuple[Any, ...], tuple[float, Any]] = OrderedDict()
_lock: Final = threading.Lock()


def remembered(run: Run, what: str, count: Callable[[], _T], entries: Callable[[_T], int] | None = None) -> _T:
    """Return the result of `count`, remembered for the run's present state; `what` names the result.

    `entries` returns the history's length from a result; None for a history that is known to be long.
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
    """Return the remembered or stored result for the run's present state, or None. No statement."""
    known = _of_process(run, what)
    return stored(run, what) if known is None and what in COUNTED else known


def _of_process(run: Run, what: str) -> Any:
    if run.lease_expires_at is not None:
        return None
    with _lock:
        end, result = _results.get(_key(run, what), (0.0, None))
    return result if time.monotonic() < end else None


def _key(run: Run, what: str) -> tuple[Any, ...]:
    return (conf.DATABASE, run.id, what, HistoryCount.state_of(run))


#: How long a run must rest before it is counted: one that continues every few seconds would be counted repeatedly.
REST: Final = timedelta(seconds=15)
_SECONDS: Final = 2.0  # seconds of one turn of counting
_AT_ONCE: Final = 20  # notes to read at a time

#: The functions that count a run's history, by the name of the result, which is JSON.
Counters = Mapping[str, Callable[[Run], Any]]
COUNTED: Final = {
    "progress": "durable.inspection.progress.count_progress",
    "places": "durable.inspection.places.count_places",
    "events": "durable.inspection.events.count_events",
    "landmarks": "durable.inspection.landmarks.count_landmarks",
}


def stored(run: Run, what: str) -> Any:
    """Return the stored result of this name for the run's present state, or None. No statement.

    Needs a run that was read `with_side_rows`.
    """
    row: HistoryCount | None = run._state.fields_cache.get("history_count")
    return None if row is None else row.counts_of(run).get(what)


def count_long_histories(now: datetime) -> None:
    """Count the noted long histories of resting runs, for a limited time."""
    count_noted(now, {what: import_string(path) for what, path in COUNTED.items()})


def count_noted(now: datetime, counters: Counters) -> None:
    """Count the histories of noted resting runs, the longest-resting first, for a limited time.

    Any number of processes may do so at once. Counts of a run that has changed meanwhile are useless but harmless.
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
    elif run.lease_expires_at is not None:  # the run's worker notes it again, unless it dies
        row.update(noted_at=now)
    else:
        try:
            counts = {"format": HistoryCount.FORMAT, **{what: count(run) for what, count in counters.items()}}
        except Exception:  # one history that cannot be counted must not block the others
            logger.exception("the long history of run %s cannot be counted", run_id, extra={"run_id": run_id})
            row.update(noted_at=None)
        else:
            row.update(noted_at=None, counted_as=HistoryCount.state_of(run), counts=dump_json(counts))
