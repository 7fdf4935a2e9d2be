"""Event loops that are kept from one call to the next: what a call leaves never reaches the next one."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from django.utils import translation

from durable.drivers import loop_threads
from durable.testing import Harness
from tests.support.waiting import eventually

Left = Callable[[asyncio.AbstractEventLoop], Any]


@pytest.fixture
def kept() -> Iterator[None]:
    with loop_threads.keep():
        yield


async def running() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def living() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "durable-loop"}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Interrupted(Exception):
    """What a signal handler raises in the thread that waits."""


def test_a_signal_that_another_thread_gets_is_handled_while_a_loop_works(kept: None, handled: threading.Event) -> None:
    async def work() -> bool:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return await asyncio.to_thread(handled.wait, 30)

    assert loop_threads.run(work)


# -- how long a loop lives


def test_a_kept_loop_runs_the_next_call_and_is_closed_at_the_end() -> None:
    before = living()
    with loop_threads.keep():
        loops = {loop_threads.run(running) for _ in range(3)}
        assert len(living() - before) == 1
    (loop,) = loops
    assert loop.is_closed()
    assert living() <= before


def test_without_a_block_each_call_has_a_loop_of_its_own() -> None:
    first, second = loop_threads.run(running), loop_threads.run(running)
    assert first is not second
    assert first.is_closed()
    assert second.is_closed()


def test_calls_at_the_same_time_have_loops_of_their_own(kept: None) -> None:
    both = threading.Barrier(2)
    found: list[Any] = []

    async def meet() -> asyncio.AbstractEventLoop:
        both.wait(60)
        return asyncio.get_running_loop()

    threads = [threading.Thread(target=lambda: found.append(loop_threads.run(meet))) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(set(found)) == 2


@pytest.mark.parametrize("leaves", [False, True], ids=["nothing", "a timer"])
def test_many_calls_leave_no_thread_and_no_descriptor(kept: None, leaves: bool) -> None:
    async def call() -> None:
        if leaves:
            asyncio.get_running_loop().call_later(3600, print)

    loop_threads.run(call)
    threads, files = set(threading.enumerate()), descriptors()
    for _ in range(200 if leaves else 3_000):
        loop_threads.run(call)
    # threads that other tests have left may end meanwhile; a loop with a timer is not kept, so the last one may be new
    assert len({*threading.enumerate()} - threads) <= leaves
    assert descriptors() <= files


def test_passes_of_a_harness_share_a_loop_that_ends_with_it() -> None:
    before = living()
    loops: list[Any] = []

    async def ship(ctx: Any) -> None:
        loops.append(asyncio.get_running_loop())
        await ctx.sleep("rest", 60)

    with Harness() as h:
        h.finish(h.start(ship, id="run"))
    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert loops[0].is_closed()
    assert living() <= before


def test_an_async_step_of_a_plain_workflow_runs_on_a_kept_loop() -> None:
    loops: list[Any] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    def ship(ctx: Any) -> None:
        ctx.step("a", note)
        ctx.step("b", note)

    with Harness() as h:
        h.finish(h.start(ship, id="run"))
    assert loops[0] is loops[1]


# -- what a call leaves


def test_a_task_that_is_left_has_ended_before_the_call_returns(kept: None) -> None:
    log: list[Any] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            log.append(await sync_to_async(threading.get_ident)())

    async def leave() -> asyncio.AbstractEventLoop:
        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        log.append(task)
        return asyncio.get_running_loop()

    async def others() -> set[Any]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    loop = loop_threads.run(leave)
    assert log[0].cancelled()
    assert log[1] == threading.get_ident()
    assert loop_threads.run(running) is loop
    assert loop_threads.run(others) == set()


def test_a_task_that_fails_when_it_is_cancelled_is_reported(kept: None, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("not so fast")

    async def leave() -> int:
        tasks.append(asyncio.create_task(fail()))
        await asyncio.sleep(0)
        return 1

    tasks: list[Any] = []
    assert loop_threads.run(leave) == 1
    assert "not so fast" in caplog.text
    assert loop_threads.run(leave) == 1


async def generate() -> AsyncIterator[int]:
    yield 1
    yield 2


held: list[Any] = []


async def leaves_a_timer(loop: Any) -> None:
    loop.call_later(3600, held.append, "the timer")


async def leaves_a_callback(loop: Any) -> None:
    def again() -> None:
        loop.call_soon(again)

    again()


async def leaves_a_reader(loop: Any) -> None:
    ours, theirs = socket.socketpair()
    held.extend((ours, theirs))
    loop.add_reader(ours, print)


async def leaves_a_generator(loop: Any) -> None:
    left = generate()
    held.append(left)
    await anext(left)


async def leaves_a_thread(loop: Any) -> None:
    await asyncio.to_thread(int)


async def leaves_an_exception_handler(loop: Any) -> None:
    loop.set_exception_handler(lambda *_: None)


async def leaves_a_task_factory(loop: Any) -> None:
    loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))


async def leaves_the_debug_mode(loop: Any) -> None:
    loop.set_debug(not loop.get_debug())


async def leaves_another_clock(loop: Any) -> None:
    monotonic = loop.time
    loop.time = lambda: monotonic() + 1


LEAVING = (
    leaves_a_timer,
    leaves_a_callback,
    leaves_a_reader,
    leaves_a_generator,
    leaves_a_thread,
    leaves_an_exception_handler,
    leaves_a_task_factory,
    leaves_the_debug_mode,
    leaves_another_clock,
)


@pytest.fixture
def _let_go() -> Iterator[None]:
    yield
    for each in held:
        if isinstance(each, socket.socket):
            each.close()
    held.clear()


@pytest.mark.usefixtures("_let_go")
@pytest.mark.parametrize("leave", LEAVING, ids=lambda each: each.__name__)
def test_a_loop_on_which_something_is_left_is_not_used_again(kept: None, leave: Left) -> None:
    async def call() -> asyncio.AbstractEventLoop:
        await leave(asyncio.get_running_loop())
        return asyncio.get_running_loop()

    before = loop_threads.run(running)
    loop = loop_threads.run(call)
    assert loop is before
    assert loop.is_closed()
    assert loop_threads.run(running) is not loop


def test_a_timer_that_was_called_off_is_not_left(kept: None) -> None:
    async def call() -> asyncio.AbstractEventLoop:
        async with asyncio.timeout(3600):
            await asyncio.sleep(0)
        return asyncio.get_running_loop()

    assert loop_threads.run(call) is loop_threads.run(call)


def test_a_generator_is_closed_and_a_thread_has_ended_before_the_call_returns(kept: None) -> None:
    log: list[str] = []
    may_end = threading.Event()

    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("generator")

    def work() -> None:
        may_end.wait(60)
        log.append("thread")

    async def call() -> None:
        held.append(generate())
        await anext(held[-1])
        asyncio.get_running_loop().run_in_executor(None, work)
        asyncio.get_running_loop().call_soon(may_end.set)

    loop_threads.run(call)
    assert sorted(log) == ["generator", "thread"]
    held.clear()


# -- what breaks a loop


async def exits() -> None:
    raise SystemExit(3)


async def sleeps() -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("way", ["stop", "exit"])
def test_a_task_that_breaks_the_loop_is_an_error_of_the_call(kept: None, way: str) -> None:
    async def call() -> None:
        if way == "stop":
            asyncio.get_running_loop().stop()
        else:
            held.append(asyncio.create_task(exits()))
        await sleeps()

    loop = loop_threads.run(running)
    with pytest.raises(RuntimeError if way == "stop" else SystemExit):
        loop_threads.run(call)
    held.clear()
    assert loop_threads.run(running) is not loop


def test_an_error_in_a_callback_is_reported_and_breaks_nothing(kept: None, caplog: pytest.LogCaptureFixture) -> None:
    async def call() -> int:
        task = asyncio.create_task(asyncio.sleep(0))
        task.add_done_callback(lambda _: 1 / 0)
        await task
        return 1

    assert loop_threads.run(call) == 1
    assert "ZeroDivisionError" in caplog.text
    assert loop_threads.run(call) == 1


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_what_a_call_raises_is_raised_and_the_loop_is_kept(kept: None, error: BaseException) -> None:
    async def call() -> None:
        raise error

    loop = loop_threads.run(running)
    with pytest.raises(type(error)):
        loop_threads.run(call)
    assert loop_threads.run(running) is loop


def test_a_call_whose_caller_is_interrupted_is_cancelled(kept: None) -> None:
    began, ended, interrupted = threading.Event(), threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    async def call() -> None:
        began.set()
        try:
            await sleeps()
        finally:
            ended.set()

    def watch() -> None:
        began.wait(60)
        while not interrupted.wait(0.05):  # one that comes just before the wait does not end it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(Interrupted):
            loop_threads.run(call)
    finally:
        watching.join()
        signal.signal(signal.SIGUSR1, before)
    assert ended.wait(60)
    assert not loop_threads.run(running).is_closed()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own_and_leaves_its_parents_alone(kept: None) -> None:
    loop = loop_threads.run(running)
    if (child := os.fork()) == 0:
        ended = 1
        try:
            with loop_threads.keep():
                ended = int(loop_threads.run(running) is loop)
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    assert loop_threads.run(running) is loop


# -- where code runs, and in which context


number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


def test_the_callers_context_goes_there_and_comes_back(kept: None) -> None:
    async def call() -> tuple[int, str | None]:
        found = number.get(), translation.get_language()
        number.set(2)
        return found

    def use() -> None:
        number.set(1)
        with translation.override("de"):
            assert loop_threads.run(call) == (1, "de")
        assert number.get() == 2

    contextvars.copy_context().run(use)
    assert number.get() == 0


@pytest.mark.parametrize("inherits", [True, False])
def test_synchronous_code_of_each_task_goes_to_the_thread_that_waits(kept: None, inherits: bool) -> None:
    async def call() -> int:
        context = None if inherits else contextvars.Context()
        task = asyncio.create_task(sync_to_async(threading.get_ident)(), context=context)
        return await task

    assert loop_threads.run(call) == threading.get_ident()
    assert loop_threads.run(call) == threading.get_ident()


def test_code_in_another_thread_with_the_same_context_does_not_wait_for_itself(kept: None) -> None:
    async def call() -> asyncio.AbstractEventLoop:
        return await asyncio.to_thread(async_to_sync(running))

    assert loop_threads.run(call) is not loop_threads.run(running)


def test_a_call_within_a_call_runs_on_the_same_loop(kept: None) -> None:
    async def call() -> bool:
        inner = await sync_to_async(loop_threads.run)(running)
        return inner is asyncio.get_running_loop()

    assert loop_threads.run(call)


def test_after_a_call_the_thread_has_no_loop(kept: None) -> None:
    async def call() -> asyncio.AbstractEventLoop:
        await sync_to_async(int)()
        return asyncio.get_running_loop()

    loop = loop_threads.run(call)
    assert getattr(SyncToAsync.threadlocal, "main_event_loop", None) is not loop
    assert async_to_sync(running)() is not loop


async def test_beside_a_running_loop_calls_run_on_that(kept: None) -> None:
    assert await sync_to_async(loop_threads.run)(running) is asyncio.get_running_loop()


# -- other surroundings


class OtherLoop(asyncio.SelectorEventLoop):
    """A loop of another class, as uvloop's."""


def test_a_loop_of_another_class_is_used_once(kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", OtherLoop)
    first, second = loop_threads.run(running), loop_threads.run(running)
    assert type(first) is type(second) is OtherLoop
    assert first is not second
    assert first.is_closed()
    assert second.is_closed()


def test_without_asgirefs_name_each_call_has_a_loop_of_its_own(kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "SyncToAsync", object())
    assert loop_threads.run(running) is not loop_threads.run(running)


# -- what does not end


async def swallows(may_end: threading.Event) -> None:
    while not may_end.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("is_thread", [False, True], ids=["task", "thread"])
def test_what_goes_on_when_it_is_cancelled_is_left_behind(
    kept: None, is_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    may_end, began = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        may_end.wait(120)

    async def call() -> asyncio.AbstractEventLoop:
        if is_thread:
            asyncio.get_running_loop().run_in_executor(None, work)
            began.wait(60)
        else:
            held.append(asyncio.create_task(swallows(may_end)))
            await asyncio.sleep(0)
        return asyncio.get_running_loop()

    try:
        loop = loop_threads.run(call)  # would not return before `may_end`
        (left,) = loop_threads.left_behind()
        assert left.what == ("a thread or an asynchronous generator" if is_thread else "the task swallows")
        assert "goes on after it was cancelled" in caplog.text
        assert loop_threads.run(running) is not loop
    finally:
        may_end.set()
        held.clear()
    eventually(lambda: loop_threads.left_behind() == [])
    eventually(loop.is_closed)


@pytest.mark.slow
def test_cleaning_up_after_the_wait_is_not_cancelled_again(kept: None) -> None:
    may_end, log = threading.Event(), []

    async def clean() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.to_thread(may_end.wait, 120)
            log.append("clean")

    async def call() -> None:
        held.append(asyncio.create_task(clean()))
        await asyncio.sleep(0)

    loop_threads.run(call)
    assert log == []
    may_end.set()
    held.clear()
    eventually(lambda: log == ["clean"])
