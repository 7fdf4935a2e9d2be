"""The thread that waits for an event loop or for branches, also if it is interrupted at any instruction."""

from __future__ import annotations

import asyncio
import contextvars
import dis
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync
from django.utils import translation

from durable import signals
from durable.core.effects import Ask, Fork, Operation, Save
from durable.core.messages import PeekInbox, PeekRun
from durable.drivers import loop_threads, threads
from durable.drivers.host import Host
from durable.drivers.sync import SyncDriver
from durable.drivers.threads import LoopDelegate, ThreadDelegate
from durable.execution.passes import PassHost
from durable.testing import Harness
from tests.core.driving import threaded_pass


class Gathered:
    """Two branches whose saves wait behind the function of a third one: together, in this order."""

    def __init__(self) -> None:
        self.both_wait = threading.Event()

    async def first(self) -> str:
        return "first"

    async def second(self) -> str:
        asyncio.get_running_loop().call_soon(self.both_wait.set)  # after this branch has come to its save
        return "second"

    async def ship(self, ctx: Any) -> Any:
        return await ctx.join(
            "join",
            {
                "holding": lambda c: c.step("hold", self.both_wait.wait, 10),
                "first": lambda c: c.step("a", self.first, max_retries=0),
                "second": lambda c: c.step("b", self.second, max_retries=0),
            },
        )


def counted_saves(monkeypatch: pytest.MonkeyPatch, fails: int = -1) -> list[Save]:
    """The saves of passes; the one of that number fails before it has written anything."""
    saves: list[Save] = []
    save = PassHost.save

    def noting(host: PassHost, effect: Save) -> None:
        saves.append(effect)
        if len(saves) - 1 == fails:
            raise ValueError("not this one")
        save(host, effect)

    monkeypatch.setattr(PassHost, "save", noting)
    return saves


def test_branches_that_come_to_a_save_together_share_it(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = counted_saves(monkeypatch)
    run = h.start(Gathered().ship, id="run")
    threaded_pass(h, "run")
    assert run.output == {"holding": True, "first": "first", "second": "second"}
    # of both, of the one that held them up unless it has come in time to share theirs, of the join, of the run
    assert len(saves) in (3, 4)
    assert {each.status for each in run.history()} == {"completed"}


def test_a_plain_step_its_record_and_the_commit_are_one_hand_over(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call, submit = LoopDelegate.call_user_code, LoopDelegate.submit

    def noting_call(delegate: LoopDelegate, function: Any, *args: Any) -> Any:
        calls.append(function.__name__)
        return call(delegate, function, *args)

    def noting_save(delegate: LoopDelegate, function: Any, *args: Any) -> Any:
        calls.append(function.__name__)
        return submit(delegate, function, *args)

    monkeypatch.setattr(LoopDelegate, "call_user_code", noting_call)
    monkeypatch.setattr(LoopDelegate, "submit", noting_save)

    async def awaited() -> str:
        return "awaited"

    async def ship(ctx: Any) -> Any:
        return [await ctx.step("plain", str), await ctx.step("again", int), await ctx.step("lazy", lambda: awaited())]

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == ["", 0, "awaited"]
    assert calls == ["_call_and_go_on"] * 3 + ["begin"]  # the last for the record of what was awaited on the loop


def test_what_cancels_a_step_while_its_function_runs_waits_for_its_record(h: Harness) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        go_on.wait(60)
        return "done"

    async def ship(ctx: Any) -> Any:
        task = asyncio.ensure_future(ctx.step("work", work))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        go_on.set()
        await task

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    [step] = [each for each in run.history() if each.location == "work"]
    assert step.status == "completed"
    assert run.state == "failed"  # to cancel an operation is a mistake


def test_what_cancels_a_step_during_its_commit_waits_for_it(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    save = PassHost.save
    were_done: list[bool] = []

    def held(host: PassHost, effect: Save) -> None:
        began.set()
        go_on.wait(60)
        save(host, effect)

    async def work() -> str:
        return "done"

    async def ship(ctx: Any) -> Any:
        task = asyncio.ensure_future(ctx.step("work", work))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        were_done.append(task.done())
        go_on.set()
        await task

    monkeypatch.setattr(PassHost, "save", held)
    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert were_done == [False]
    assert [each.status for each in run.history() if each.location == "work"] == ["completed"]


number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


@pytest.mark.parametrize("replaced", [None, (loop_threads, "_can_be_lent_a_loop", False), (threads, "_executor", None)])
def test_a_plain_step_has_the_context_of_the_body_and_may_call_its_loop(
    h: Harness, monkeypatch: pytest.MonkeyPatch, replaced: tuple[Any, str, Any] | None
) -> None:
    """On a loop that is kept, on one that asgiref makes, and should asgiref keep its executor in another place."""
    if replaced is not None:
        module, name, answer = replaced
        monkeypatch.setattr(module, name, lambda: answer)
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    def look() -> list[Any]:
        found = [number.get(), translation.get_language()]
        async_to_sync(note)()
        return found

    async def ship(ctx: Any) -> Any:
        await note()
        number.set(7)
        with translation.override("de"):
            return await ctx.step("look", look)

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == [7, "de"]
    assert loops[0] is loops[1]


def test_a_save_that_fails_is_the_failure_of_one_branch(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_saves(monkeypatch, fails=0)
    run = h.start(Gathered().ship, id="run")
    threaded_pass(h, "run")
    statuses = {each.location: each.status for each in run.history()}
    assert statuses["join/first/a"] == "exhausted"
    assert statuses["join/second/b"] == "completed"


def test_receivers_are_called_where_they_may_use_the_orm(h: Harness) -> None:
    received: list[tuple[str, int]] = []
    names = {signal: name for name, signal in signals.BY_NAME.items()}

    def note(signal: Any, **_: Any) -> None:
        received.append((names[signal], threading.get_ident()))

    def broken() -> None:
        raise ValueError("broken")

    async def branch(ctx: Any) -> None:
        await ctx.try_step("a", broken, max_retries=0)

    async def ship(ctx: Any) -> None:
        await ctx.join("join", {"one": branch})
        await ctx.step("b", broken, max_retries=0)

    for each in signals.BY_NAME.values():
        each.connect(note)
    try:
        run = h.start(ship, id="run")
        threaded_pass(h, "run")
    finally:
        for each in signals.BY_NAME.values():
            each.disconnect(note)
    assert run.state == "failed"
    assert [name for name, _ in received].count("step_failed") == 2
    assert "run_failed" in [name for name, _ in received]
    assert {thread for _, thread in received} == {threading.get_ident()}


@pytest.mark.parametrize("is_kept", [True, False])
def test_everything_goes_to_the_thread_that_waits(h: Harness, monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    """Also should asgiref keep its executor in another place."""
    if not is_kept:
        monkeypatch.setattr(threads, "_executor", lambda: None)
    found_in: list[int] = []
    save = PassHost.save

    def noting(host: PassHost, effect: Save) -> None:
        found_in.append(threading.get_ident())
        save(host, effect)

    async def ship(ctx: Any) -> int:
        found: int = await ctx.step("a", threading.get_ident)
        await ctx.queue.send("news", 1)
        await ctx.queue.next("wait", names=["news"])
        return found

    monkeypatch.setattr(PassHost, "save", noting)
    run = h.start(ship, id="run")
    h.finish(run)
    assert run.output == threading.get_ident()
    assert len(found_in) >= 4
    assert set(found_in) == {threading.get_ident()}


# -- A thread that is interrupted at any instruction, as by an exception that a signal handler raises there


LIMIT = 60.0  # seconds until a thread counts as hanging

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

    def __init__(self, at: int, traced: Sequence[str] = TRACED) -> None:
        self.at = at
        self.traced = traced
        self.passed = 0
        self.where = ""

    def __enter__(self) -> None:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions only if a frame asks for it before
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if not any(each in frame.f_code.co_filename for each in self.traced) or is_starting(frame):
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

    traced: Sequence[str] = TRACED

    def __init__(self, at: int) -> None:
        super().__init__(daemon=True)
        self.interruption = Interruption(at, self.traced)
        self.ended: list[int] = []
        self.start()

    def run(self) -> None:
        driver = SyncDriver(cast(Host, DelegatingHost()))
        with threads.keep():
            with suppress(Interrupted), self.interruption:
                driver.drive(forking([]))
            driver.drive(forking(self.ended))


async def calling() -> list[int | None]:
    """Make two calls in the thread that waits for the loop; None for one that was interrupted."""
    delegate = LoopDelegate()
    found: list[int | None] = []
    for number in range(2):
        try:
            found.append(await delegate.call(lambda number=number: number))
        except (Interrupted, RuntimeError):
            found.append(None)
    return found


class OwnerOfALoop(Owner):
    """The thread that waits for a loop, interrupted in the first body; the second one is left alone."""

    traced = ("/durable/drivers/threads.py",)  # what asgiref does is not durable's

    def run(self) -> None:
        with loop_threads.keep():
            with suppress(Interrupted), self.interruption:
                loop_threads.run(calling)
            self.ended = [each for each in loop_threads.run(calling) if each is not None]


def interruptions(kind: type[Owner]) -> Iterator[Owner]:
    """One owner after the other, each interrupted a little later, until one has ended before."""
    at = 1
    while True:
        owner = kind(at)
        owner.join(LIMIT)
        yield owner
        if not owner.interruption.where:
            return
        at += 1


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tool traces this process")
@pytest.mark.parametrize(("kind", "least"), [(Owner, 50), (OwnerOfALoop, 20)], ids=["fork", "loop"])
def test_the_wait_of_others_ends_wherever_a_thread_is_interrupted(kind: type[Owner], least: int) -> None:
    count = 0
    for owner in interruptions(kind):
        assert not owner.is_alive(), f"hangs after an interruption at\n{owner.interruption.where}"
        assert len(owner.ended) == 2
        count += 1
    assert count > least
