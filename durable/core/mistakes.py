"""The errors of a workflow's own code that are mistakes in that code, and the description of a mistake.

A mistake does not fail the run: the code is wrong, as when it does not fit the history, so nothing is undone. An error
raised by a step's function never counts as a mistake, even where the code raises it again.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection
from types import FrameType
from typing import Final

from durable.core.errors import (
    CarrierError,
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

#: Replaces the text of errors whose own advice is wrong here: Django's recommends threads and sync_to_async.
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
    if isinstance(error, CarrierError | UnknownLimitError | RateUnitsError):  # from this worker's code and settings
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
    """Return True if durable itself refused a call, for example because of an unknown option or a long name."""
    frames = _frames(error)
    return isinstance(error, TypeError | ValueError) and bool(frames) and _is_durables(frames[-1][0])


def _place(error: Exception) -> str:
    """Return where the error arose, in the application's code or below it; "" if neither."""
    others = [each for each in reversed(_frames(error)) if not _is_durables(each[0])]
    for frame, line in sorted(others, key=lambda each: _distance(each[0])):
        return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}, line {line}"
    return ""


def _frames(error: Exception) -> list[tuple[FrameType, int]]:
    """Return the frames that the error passed through, with their lines; the innermost last."""
    found = []
    traceback = error.__traceback__
    while traceback is not None:
        found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _is_durables(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "durable"


def _distance(frame: FrameType) -> int:
    """Rank a frame: 0 for the application's code, 1 for an installed package, 2 for Python itself."""
    path = frame.f_code.co_filename
    if "site-packages" in path:
        return 1
    return 2 if path.startswith(("<frozen ", _PYTHON)) else 0
