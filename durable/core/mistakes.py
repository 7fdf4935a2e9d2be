"""The errors of a workflow's own code that are mistakes in that code, and the description of a mistake.

A mistake is no failure of the run: the code is wrong, like code that does not fit the history. So nothing is undone
because of one. What a step's function raises never counts: the failure of a step is recorded, and stays the step's
failure wherever the code raises it again.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection
from types import FrameType
from typing import Final

from durable.core.errors import (
    ContractError,
    CriticalError,
    ErrorInfo,
    RateUnitsError,
    RollbackError,
    UnknownLimitError,
)
from durable.core.results import failure_of
from durable.core.summary import Summary, SummaryKind

#: The classes of Python's own errors that are mistakes by default; `durable.conf` adds Django's.
MISTAKES: Final[tuple[type[Exception], ...]] = (
    NameError,
    AttributeError,
    TypeError,
    LookupError,
    ImportError,
    AssertionError,
    RecursionError,
    NotImplementedError,
)

#: The text of errors whose own text advises something else: Django's speaks of threads and sync_to_async.
_SAID_ANEW: Final = {
    "SynchronousOnlyOperation": (
        "SynchronousOnlyOperation: the code of an async workflow uses the database, which ctx.step(name, function) is for, "
        "with a plain function too; put it into a step"
    )
}
_PYTHON: Final = sysconfig.get_paths()["stdlib"] + os.sep


def is_mistake(error: Exception, mistakes: Collection[type[Exception]]) -> bool:
    """Return True if an error that left workflow code is of one of the classes `mistakes`, or durable's refusal of a
    call.

    CriticalError and RollbackError are raised to fail the run and never count, although subclasses may be of such a
    class too. With no classes there are no mistakes. A group of errors is a mistake if one of them is.
    """
    if isinstance(error, ExceptionGroup):  # from an asyncio.TaskGroup, for example
        return any(is_mistake(each, mistakes) for each in error.exceptions)
    if isinstance(error, UnknownLimitError | RateUnitsError):  # of this worker's code and settings
        return True
    if (
        not mistakes
        or failure_of(error) is not None
        or isinstance(error, ContractError | CriticalError | RollbackError)
    ):
        return False
    return isinstance(error, tuple(mistakes)) or _is_refusal(error)


def described(error: Exception) -> str:
    """Describe the mistake and where it arose."""
    info, place = ErrorInfo.of(error), _place(error)
    text = _SAID_ANEW.get(info.type) or str(info)
    return f"{text} ({place})" if place else text


def has_stopped(summary: str) -> bool:
    """Return True if a mistake in the code has stopped the run with this summary."""
    return Summary.load(summary).kind is SummaryKind.STOPPED_BY_MISTAKE


def _is_refusal(error: Exception) -> bool:
    """Return True if durable itself refused a call: an unknown option, a name that is too long."""
    frames = _frames(error)
    return isinstance(error, TypeError | ValueError) and bool(frames) and _is_durables(frames[-1][0])


def _place(error: Exception) -> str:
    """Return where the error arose, in the application's code or in what that called; "" if it arose in neither."""
    others = [each for each in reversed(_frames(error)) if not _is_durables(each[0])]
    for frame, line in sorted(others, key=lambda each: _distance(each[0])):
        return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}, line {line}"
    return ""


def _frames(error: Exception) -> list[tuple[FrameType, int]]:
    """Return the frames that the error has passed through with their lines, the one where it arose last."""
    found = []
    traceback = error.__traceback__
    while traceback is not None:
        found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _is_durables(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "durable"


def _distance(frame: FrameType) -> int:
    """0 for the application's code, 1 for an installed package's, 2 for Python's own."""
    path = frame.f_code.co_filename
    if "site-packages" in path:
        return 1
    return 2 if path.startswith(("<frozen ", _PYTHON)) else 0
