"""Reading an exception as text. Its class may be a user's, whose methods may raise anything."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

MAX_MESSAGE = 10_000  # characters of an error's message that are kept
MAX_TRACEBACK = 50_000  # characters of its traceback that are kept

_HERE = Path(__file__).parent
_ENGINE = (str(_HERE) + os.sep, str(_HERE.parent / "drivers") + os.sep)

#: What reading an exception of a user's class may raise.
UNREADABLE = (Exception, SystemExit, GeneratorExit)


def kind_of(error: BaseException) -> str:
    """Return the name of the error's class, without running code of that class."""
    name: str = type.__getattribute__(type(error), "__name__")
    return name


def message_of(error: BaseException) -> str:
    """Return the error's text, at most `MAX_MESSAGE` characters. If it cannot be read, say so."""
    try:
        message = str(error)
    except UNREADABLE as broken:  # a user's __str__ may raise anything
        message = f"<the error's text could not be read: {kind_of(broken)}>"
    return _shortened(message, MAX_MESSAGE)


def traceback_of(error: BaseException) -> str:
    """Return the formatted traceback from the first frame of user code on, at most `MAX_TRACEBACK` characters."""
    try:
        frames = "".join(traceback.format_exception(type(error), error, _user_frames(error.__traceback__)))
    except UNREADABLE as broken:
        frames = f"<the traceback could not be read: {kind_of(broken)}>"
    return _shortened(frames, MAX_TRACEBACK)


def is_readable(error: BaseException) -> bool:
    """Return True if this error, and those it came from, can be described."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    try:
        while left:
            found = left.pop()
            if found is None or id(found) in seen:
                continue
            seen.add(id(found))
            _ = (found.__class__, found.__traceback__, found.__suppress_context__, getattr(found, "__notes__", None))
            left += [found.__cause__, found.__context__]
    except UNREADABLE:
        return False
    return True


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the first on that is not the engine's: the fault is nearly always in the user's code."""
    frame = frames
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_ENGINE):
        frame = frame.tb_next
    return frame or frames


def _shortened(text: str, limit: int) -> str:
    """Return `text` without its middle if it is longer than `limit`: both ends of a traceback say most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
