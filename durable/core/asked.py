"""What the function of a step or a rollback handler asks for with the error that it raises, also inside a group.

An `asyncio.TaskGroup` and others like it raise groups, whatever is raised in their tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from durable.core import clock
from durable.core.errors import CriticalError, ErrorInfo, PayloadError, RollbackError
from durable.core.retry_later import RetryLater
from durable.core.tracebacks import traceback_of

_GRAVEST_FIRST = (PayloadError, RollbackError, CriticalError, RetryLater)


def members_of(error: BaseException) -> Iterator[Exception]:
    """Yield the errors of a group and of the groups in it; an error that is no group is its only member."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from members_of(each)
    elif isinstance(error, Exception):
        yield error


def asked_by(error: Exception) -> Exception | None:
    """Return the gravest of the errors in `error` that ask for something; None if none does.

    Of several RetryLater it is the one with the longest wait.
    """
    members = list(members_of(error))
    for kind in _GRAVEST_FIRST:
        if found := [each for each in members if isinstance(each, kind)]:
            return max(found, key=_wait) if kind is RetryLater else found[0]
    return None


def described(error: Exception, *, within: Exception) -> ErrorInfo:
    """Describe `error`, with the traceback of the group that it was raised in, if it was."""
    info = ErrorInfo.of(error)
    return info if error is within else ErrorInfo(info.type, info.message, traceback_of(within))


def _wait(asked: Exception) -> float:
    assert isinstance(asked, RetryLater)
    now = clock.now()
    at = asked.at(now)
    return -1.0 if at is None else (at - now).total_seconds()
