"""A fork whose own thread is interrupted at any instruction, as by an exception that a signal handler raises there."""

from __future__ import annotations

import dis
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, cast

import pytest

from durable.core.effects import Ask, Fork, Operation
from durable.core.messages import PeekInbox, PeekRun
from durable.drivers import threads
from durable.drivers.host import Host
from durable.drivers.sync import SyncDriver
from durable.drivers.threads import ThreadDelegate

LIMIT = 60.0  # seconds until a fork counts as hanging

# The instructions after which the interpreter calls signal handlers.
CHECKING = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"})
# Where they call them in this test: the drivers, and the Python code of the standard library that they might wait in.
TRACED = ("/durable/drivers/", "/threading.py", "/concurrent/futures/")


class Interrupted(Exception):
    """What the signal handler raises."""


class DelegatingHost:
    """The part of a host that forks need; branches delegate one query each."""

    sequential_branches = False
    max_threads = 2

    def __init__(self) -> None:
        self.delegate = ThreadDelegate()

    def ask(self, question: Ask) -> object:
        return self.delegate.call(threading.get_ident if isinstance(question, PeekInbox) else lambda: "running")

    def before_branches(self) -> None:
        """Nothing to check."""

    def branch_thread(self) -> AbstractContextManager[None]:
        return nullcontext()

    def branch_thread_ends(self) -> None:
        """Nothing to clean up."""


def branch(ended: list[int]) -> Operation:
    yield PeekInbox((), 1, None)
    yield PeekRun("other")
    ended.append(threading.get_ident())


def forking(ended: list[int]) -> Operation:
    yield Fork([branch(ended), branch(ended)], lambda: False)


@cache
def interruptible(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which the interpreter calls signal handlers."""
    instructions = list(dis.get_instructions(code))
    return frozenset(then.offset for done, then in pairwise(instructions) if done.opname in CHECKING)


def is_starting(frame: FrameType | None) -> bool:
    """Return True within `Thread.start`: a thread that an interruption keeps from starting begins no branch."""
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


class Interruption:
    """Raises in this thread, where the interpreter calls signal handlers for the `at`-th time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed = 0
        self.where = ""

    def __enter__(self) -> None:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions only if a frame asks for it before
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if not any(each in frame.f_code.co_filename for each in TRACED) or is_starting(frame):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in interruptible(frame.f_code):
            self.passed += 1
            if self.passed == self.at:
                self.where = "".join(traceback.format_stack(frame)[-4:])
                raise Interrupted
        return self._trace


class Owner(threading.Thread):
    """The thread of a pass, interrupted in its first fork; the second one is left alone."""

    def __init__(self, at: int) -> None:
        super().__init__(daemon=True)
        self.interruption = Interruption(at)
        self.ended: list[int] = []
        self.start()

    def run(self) -> None:
        driver = SyncDriver(cast(Host, DelegatingHost()))
        with threads.keep():
            with suppress(Interrupted), self.interruption:
                driver.drive(forking([]))
            driver.drive(forking(self.ended))


def interruptions() -> Iterator[Owner]:
    """One owner after the other, each interrupted a little later, until one has forked before."""
    at = 1
    while True:
        owner = Owner(at)
        owner.join(LIMIT)
        yield owner
        if not owner.interruption.where:
            return
        at += 1


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tool traces this process")
def test_a_fork_ends_wherever_its_thread_is_interrupted() -> None:
    count = 0
    for owner in interruptions():
        assert not owner.is_alive(), f"hangs after an interruption at\n{owner.interruption.where}"
        assert len(owner.ended) == 2
        count += 1
    assert count > 50
