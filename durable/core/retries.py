"""The decision after a failed attempt: whether and when to try again, and what its function asked for (`RetryLater`).

Pure functions of the options, the attempts so far and the error, which may be a group (as of an `asyncio.TaskGroup`). A
delay is drawn once: the caller records the moment, and a replay reads the record.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from durable.core import clock
from durable.core.clock import bounded
from durable.core.duration import Duration, check_moment, parse_remaining
from durable.core.errors import CriticalError, ErrorInfo, PayloadError, RollbackError, WorkflowError
from durable.core.limits.rates import rate_wanted
from durable.core.options import StepPolicy
from durable.core.records import RunRecord
from durable.core.words import kind_of, message_of, traceback_of


class RetryLater(WorkflowError):  # no name on Error: it is a request, not a fault
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


_GRAVEST_FIRST = (PayloadError, RollbackError, CriticalError, RetryLater)


def members_of(error: BaseException) -> Iterator[Exception]:
    """Yield the errors in a group and in its nested groups; a single error is its own only member."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from members_of(each)
    elif isinstance(error, Exception):
        yield error


def asked_by(error: Exception) -> Exception | None:
    """Return the gravest error in `error` that decides what happens next (CriticalError, RetryLater ...), or None.

    Of several RetryLater, the one with the longest wait counts.
    """
    members = list(members_of(error))
    for kind in _GRAVEST_FIRST:
        if found := [each for each in members if isinstance(each, kind)]:
            return max(found, key=_wait) if kind is RetryLater else found[0]
    return None


def described(error: Exception, *, within: Exception) -> ErrorInfo:
    """Describe `error`, with the traceback of the group in which it was raised, if any."""
    info = ErrorInfo.of(error)
    return info if error is within else ErrorInfo(info.type, info.message, traceback_of(within))


def _wait(asked: Exception) -> float:
    assert isinstance(asked, RetryLater)
    now = clock.now()
    at = asked.at(now)
    return -1.0 if at is None else (at - now).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """The `attempts`-th attempt (from 1) at `location`; `uncounted` of the earlier ones did not count.

    A backoff is counted from `began_at`. `purpose` distinguishes a rollback handler from its step.
    """

    run: RunRecord
    location: str
    purpose: str
    attempts: int
    uncounted: int
    began_at: datetime
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class Retry:
    """The decision: the next attempt at `at`, None for none. `uncounted` attempts have not counted so far.

    `error` is the attempt's error, with a note of the decision.
    """

    at: datetime | None
    uncounted: int
    error: ErrorInfo


def retry_of(
    failed: FailedAttempt, options: StepPolicy, cause: Exception | None, error: ErrorInfo, most_uncounted: int
) -> Retry:
    """Decide about an attempt that may be repeated. `cause` is its error, None if its worker died."""
    asked = cause if isinstance(cause, RetryLater) else None
    uncounted = failed.uncounted
    if asked is not None and not asked.counts:
        if uncounted < most_uncounted:
            uncounted += 1
        else:
            error = _counted(error, most_uncounted)
    counted = failed.attempts - uncounted
    if options.max_retries is not None and counted > options.max_retries:
        return Retry(None, uncounted, error)
    at = asked.at(failed.failed_at) if asked is not None else None
    return Retry(at or _backed_off(failed, options, max(1, counted)), uncounted, error)


def retry_delay(options: StepPolicy, attempt: int) -> float:
    """Return the seconds to wait after the `attempt`-th attempt (from 1) failed, without jitter."""
    base, limit = float(options.retry_backoff_base), float(options.retry_backoff_max)  # type: ignore[arg-type]
    if options.backoff == "constant":
        return min(limit, base)
    if options.backoff == "linear":
        return min(limit, base * attempt)
    return min(limit, base * 2.0 ** min(attempt, 1000))


def _backed_off(failed: FailedAttempt, options: StepPolicy, counted: int) -> datetime:
    delay = retry_delay(options, counted)
    if options.retry_jitter:
        limit = float(options.retry_backoff_max)  # type: ignore[arg-type]  # normalised
        least, most = delay * (1 - options.retry_jitter), min(limit, delay * (1 + options.retry_jitter))
        # seeded, so that the numbers differ between runs, and are the same after a crash
        seed = f"{failed.run.seed or failed.run.id}/{failed.location}/{failed.purpose}/{failed.attempts}"
        delay = random.Random(seed).uniform(least, most)  # noqa: S311  # not for secrets
    try:
        return failed.began_at + timedelta(seconds=delay)
    except OverflowError:
        return failed.began_at + timedelta(days=365)


def _counted(error: ErrorInfo, most: int) -> ErrorInfo:
    advice = (
        f'this attempt counts: {most:,} earlier ones of the step did not, and DURABLE["MAX_UNCOUNTED_RETRIES"] allows no '
        "more; raise RetryLater with a longer delay, or let it count"
    )
    return ErrorInfo(error.type, f"{error.message}; {advice}", error.traceback)
