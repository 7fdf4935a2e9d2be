"""`RetryLater`: a step's function says when its next attempt may be made.

Owns the forms in which the moment may be given. `durable.core.retries` decides what becomes of it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from durable.core.clock import bounded
from durable.core.duration import Duration, check_moment, parse_remaining
from durable.core.errors import WorkflowError
from durable.core.limits.rates import rate_wanted
from durable.core.words import kind_of, message_of


class RetryLater(WorkflowError):  # what the function asks for, rather than what is wrong
    """Raised in a step's function or a rollback handler: this attempt has failed, and the next one is made at `when`.

    `when` is a duration (seconds, a timedelta, text such as "30 s"), an aware moment, or the text of an HTTP header
    Retry-After: whole seconds or a date. None, for a header that is missing, leaves the delay to the step's backoff. A
    time that has passed means at once. `reason` is for operators; without one, the error after `from` is it.

    With `limit`, the rate of this limit ("openai", or "openai/acme" for a key) is closed until then, for all runs:
    nothing begins before, and what begins then keeps the rate.

    With `counts=False` the attempt does not use up one of the step's attempts, at most
    `DURABLE["MAX_UNCOUNTED_RETRIES"]` times. `retry_if` is not called. Raises TypeError or ValueError for a `when` that
    cannot be read.
    """

    def __init__(
        self, when: Duration | datetime | None, reason: str = "", *, counts: bool = True, limit: str | None = None
    ) -> None:
        self.delay, self.moment = _read(when)
        self.reason = reason
        self.counts = counts
        self.closes = None if limit is None else rate_wanted(limit)
        super().__init__(when, reason)

    def at(self, now: datetime) -> datetime | None:
        """Return the time of the next attempt, not before `now`; None if the step's backoff decides."""
        if self.moment is not None:
            return max(self.moment, now)
        if self.delay is None:
            return None
        try:
            return now + self.delay
        except OverflowError:  # past the year 9999
            return now + timedelta(days=365)

    def __str__(self) -> str:
        text = f"the step asked for {'its next' if self.counts else 'an uncounted'} attempt {self._when()}"
        cause = self.__cause__
        reason = self.reason or (f"{kind_of(cause)}: {message_of(cause)}" if cause is not None else "")
        return f"{text}: {reason}" if reason else text

    def _when(self) -> str:
        if self.moment is not None:
            return f"at {self.moment.isoformat(sep=' ', timespec='seconds')}"
        return "after its backoff" if self.delay is None else f"{self.delay.total_seconds():g} s later"


def _read(when: Duration | datetime | None) -> tuple[timedelta | None, datetime | None]:
    """Return `when` as a delay or as a moment."""
    if when is None:
        return None, None
    if isinstance(when, datetime):
        return None, check_moment(when, "the moment of RetryLater")
    if isinstance(when, str):
        text = when.strip()
        if text.isascii() and text.isdigit():
            return parse_remaining(float(text), _WHAT), None  # float: int() refuses more than 4,300 digits
        if (moment := _http_date(text)) is not None:
            return None, moment
    return parse_remaining(when, _WHAT), None


_WHAT = "the delay of RetryLater"


def _http_date(text: str) -> datetime | None:
    """Return the moment of an HTTP date; None if the text is not one."""
    if "," not in text and ":" not in text:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return bounded(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
