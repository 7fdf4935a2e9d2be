"""Counts of long histories that this process remembers while their runs rest.

A history changes only by the worker that has the run's lease, whose claim raises the run's fence, and by operators
and migrations that rename an operation: these raise its `change_seq`. So what was counted of a run without a lease
holds until one of these numbers is another. To count 100,000 entries takes a tenth of a second, and a page that
refreshes itself asks every few seconds. A run that was deleted may have a successor with its id, which was created
later. A result is kept for a minute at most, in case somebody changes the rows by hand.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from durable.conf import conf
from durable.core.records import LONG_HISTORY
from durable.models import Run

_T = TypeVar("_T")

LONG: Final = LONG_HISTORY  # entries of a history whose counts are not remembered
_MOST: Final = 64  # results
_KEPT: Final = 60.0  # seconds

_results: OrderedDict[tuple[Any, ...], tuple[float, Any]] = OrderedDict()
_lock: Final = threading.Lock()


def remembered(run: Run, what: str, count: Callable[[], _T], entries: Callable[[_T], int]) -> _T:
    """Return what `count` returns, or has returned of the run in its present state; `what` names it.

    `entries` tells from a result how long the history is.
    """
    known: _T | None = recalled(run, what)
    if known is not None:
        return known
    found = count()
    if run.lease_expires_at is not None:
        return found
    key = _key(run, what)
    if entries(found) > LONG:
        with _lock:
            _results[key] = (time.monotonic() + _KEPT, found)
            _results.move_to_end(key)
            while len(_results) > _MOST:
                _results.popitem(last=False)
    return found


def recalled(run: Run, what: str) -> Any:
    """Return what is remembered of the run in its present state, None if nothing is."""
    if run.lease_expires_at is not None:
        return None
    with _lock:
        end, result = _results.get(_key(run, what), (0.0, None))
    return result if time.monotonic() < end else None


def _key(run: Run, what: str) -> tuple[Any, ...]:
    return (conf.DATABASE, run.id, run.created_at, what, run.state, run.fence, run.change_seq)
