"""The operation that lets an attempt begin at its moment in a limit's rate, of a step or of a pass.

Must not compute a moment: a store does, under the lock of the limit's key (`Store.reserve`).
"""

from __future__ import annotations

from datetime import datetime

from durable.core.control_flow import Park
from durable.core.effects import CloseLimit, Operation, Reserve, ShortSleep
from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.ids import MAX_REASON
from durable.core.journal import Journal
from durable.core.rates import RateWant, Reservation
from durable.core.retry_later import RetryLater
from durable.core.summary import rated


def reserved(journal: Journal, location: str, want: RateWant, *, may_begin: bool = True) -> Operation:
    """Wait for the attempt's moment; return it. Raises Park if that is not soon.

    Without `may_begin`, the attempt takes something else before it begins, and asks again then.
    """
    try:
        answer: Reservation = yield Reserve(location, want, may_begin)
    except (UnknownLimitError, RateUnitsError) as error:  # a mistake, which another worker's code may not make
        journal.stop(error)
    if not answer.begins:
        raise Park(answer.at, doing=[rated(want.label, answer.before)])
    remaining = (answer.at - journal.environment.now()).total_seconds()
    if remaining > 0:
        yield ShortSleep(remaining)
    return answer.at


def closed(asked: RetryLater, retry_at: datetime | None, now: datetime) -> Operation:
    """Close the limit that an attempt has named, until the moment that it gave, or that of its next attempt."""
    until = asked.at(now) or retry_at
    if asked.closes is not None and until is not None and until > now:
        yield CloseLimit(asked.closes, until, str(asked)[:MAX_REASON])
