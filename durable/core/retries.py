"""The decision after a failed attempt: whether and when to try again, and what its function asked for.

Pure functions of the options, the attempts so far and the error, which may be a group (as of an `asyncio.TaskGroup`). A
delay is drawn once: the caller records the moment, and a replay reads the record.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from durable.core import clock
from durable.core.errors import CriticalError, ErrorInfo, PayloadError, RollbackError
from durable.core.options import StepPolicy
from durable.core.records import RunRecord
from durable.core.retry_later import RetryLater
from durable.core.words import traceback_of

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
        delay = _dice(failed).uniform(least, most)
    try:
        return failed.began_at + timedelta(seconds=delay)
    except OverflowError:
        return failed.began_at + timedelta(days=365)


def _dice(failed: FailedAttempt) -> random.Random:
    """Return random numbers seeded by run, location and attempt: they differ between runs, and are the same after a
    crash.
    """
    seed = f"{failed.run.seed or failed.run.id}/{failed.location}/{failed.purpose}/{failed.attempts}"
    return random.Random(seed)  # noqa: S311  # not for secrets


def _counted(error: ErrorInfo, most: int) -> ErrorInfo:
    advice = (
        f'this attempt counts: {most:,} earlier ones of the step did not, and DURABLE["MAX_UNCOUNTED_RETRIES"] allows no '
        "more; raise RetryLater with a longer delay, or let it count"
    )
    return ErrorInfo(error.type, f"{error.message}; {advice}", error.traceback)
