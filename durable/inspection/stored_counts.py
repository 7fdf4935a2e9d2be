"""Counts of long histories, stored until their runs change.

To count 100,000 entries takes a tenth of a second and more, which is too long for a page. The worker that ends a pass
of a run with more than `LONG_HISTORY` entries notes it (`durable.worker.long_histories`). The process of the sweep
counts what is noted once the run has rested for `REST`. Owns the table of these counts; what is counted, `progress` and
`places` say.

A history changes only by the worker that has the run's lease, whose claim raises the run's fence, and by operators and
migrations that rename an operation: these raise its `change_seq`. So stored counts hold while both are what they were,
and the run is the same. Another run that has got its id was created later. Rows that an operator has changed by hand
show in the counts after the next pass of the run. Without stored counts a page counts by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from durable.conf import conf
from durable.models import HistoryCount, Run
from durable.models.rows import dump_json, load_json

logger = logging.getLogger("durable.inspection")

#: How long a run must have rested: one that goes on every few seconds would be counted again and again.
REST: Final = timedelta(seconds=15)
_SECONDS: Final = 2.0  # of one turn in which runs are counted
_AT_ONCE: Final = 20  # notes that are read at a time
_FORMAT: Final = 1  # of the counts

#: What counts a run's history, by the name of its part of the counts. Its results are JSON.
Counters = Mapping[str, Callable[[Run], Any]]


def stored(run: Run, what: str) -> Any:
    """Return this part of the stored counts of the run, None if there are none of its present state. No statement.

    Runs that were read `with_side_rows` have them.
    """
    row: HistoryCount | None = run._state.fields_cache.get("history_count")
    if row is None or row.counted_as != _state_of(run):
        return None
    counts = load_json(row.counts)
    return counts.get(what) if counts["format"] == _FORMAT else None


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
