"""The stack of a running step: where its function is at this moment, as text, from the user's code on.

Read from another thread while the step runs, so the frames may have moved on by the time they are formatted. Must not
touch the frames' variables: a stack names files, lines and functions only.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from itertools import dropwhile
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, Final

from durable.core.current import is_running, timed_step
from durable.drivers import calls

MAX_STACK: Final = 20_000  # characters
_MAX_FRAMES: Final = 100  # the innermost ones

_DURABLE: Final = Path(__file__).parents[1]
#: What is between a driver and the function that the user has written: of a task, durable calls it in a step of its
#: own.
_ENGINE: Final = tuple(f"{_DURABLE / each}{os.sep}" for each in ("core", "drivers", "execution", "tasks"))


def stack_of(step: timed_step) -> str:
    """Return the stack of the step, the outermost frame of user code first; "" if the step has ended."""
    frames = _frames(step)
    if not is_running(step):  # the frames may be those of what the thread does next
        return ""
    if not frames:
        return f"The step awaits an object of type {type(step.awaitable).__name__}, which has no frames."
    shown = _of_user(frames)[-_MAX_FRAMES:]
    if not shown:
        return f"The step calls {_name_of(step.call.function)}, which has no Python frames at this moment."
    lines = traceback.StackSummary.extract(iter(shown), lookup_lines=True).format()
    if not is_running(step):
        return ""
    return _shortened("".join(lines))


def _of_user(frames: Sequence[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return the frames of the step's function and of what it calls, durable's own functions too."""
    files = [frame.f_code.co_filename for frame, _ in frames]
    called = max((place for place, file in enumerate(files) if file == calls.__file__), default=-1) + 1
    return list(dropwhile(lambda each: each[0].f_code.co_filename.startswith(_ENGINE), frames[called:]))


def _name_of(function: Any) -> str:
    """Return the name of a step's function, or of its type, without running code of the user's."""
    while type(function) is partial:
        function = function.func
    named = (FunctionType, BuiltinFunctionType, MethodType, type)
    own = function if type(function) in named else type(function)
    return ".".join(filter(None, [own.__module__, own.__qualname__]))  # a method of a built-in type has no module


def _frames(step: timed_step) -> list[tuple[FrameType, int]]:
    """Return the frames and their lines, the outermost first."""
    if step.awaitable is not None:
        frames, is_executing = _frames_of(step.awaitable)
        if not is_executing:
            return frames
    frame = sys._current_frames().get(step.thread)
    return [] if frame is None else list(traceback.walk_stack(frame))[::-1]


def _frames_of(awaitable: Any) -> tuple[list[tuple[FrameType, int]], bool]:
    """Return the frames of a coroutine and of what it awaits, and whether it executes at this moment."""
    frames: list[tuple[FrameType, int]] = []
    awaited = awaitable.get_coro() if isinstance(awaitable, asyncio.Task) else awaitable
    while awaited is not None:
        if type(awaited).__name__ == "coroutine_wrapper":  # it does not tell what it wraps
            awaited = next(iter(gc.get_referents(awaited)), None)
        if getattr(awaited, "cr_running", False):
            return [], True
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames, False


def _shortened(text: str) -> str:
    """Return the end of the text, where it waits, if it is too long."""
    return text if len(text) <= MAX_STACK else f"...\n{text[-MAX_STACK:]}"
