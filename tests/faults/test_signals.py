"""Signal handlers that raise, as they break into a pass in the main thread.

They are a user's own, and RQ's for a worker that is asked to stop for the second time.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from durable import AsyncContext, Context, workflow
from durable.core.records import EntryStatus
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.handles import Handle
from tests.faults.passing import claimed, pass_once, production_store

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


class Late(Exception):
    """Of a handler that has waited for long enough."""


_log: list[str] = []
_both = threading.Barrier(2)
_may_end = threading.Event()
_is_handled = threading.Event()
_on_signal: list[Callable[[], None]] = []


def handle_signal(_number: int, _frame: FrameType | None) -> None:
    """Act once: a signal that is repeated may come again after the pass has ended."""
    if not _is_handled.is_set():
        _is_handled.set()
        _on_signal[0]()


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handle_signal)
    for each in (_log, _on_signal):
        each.clear()
    _may_end.clear()
    _is_handled.clear()
    yield
    _may_end.set()
    for thread in threading.enumerate():
        if thread.name == "durable-branch":
            thread.join(120)
    signal.signal(signal.SIGUSR1, before)


def signal_main() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGUSR1)


def last(name: str) -> None:
    if _both.wait(120) == 0:
        while not _is_handled.is_set():  # a signal that comes just before the main thread waits does not wake it
            signal_main()
            _is_handled.wait(0.05)
    _may_end.wait(120)
    _log.append(name)


@workflow(name="faults.signalled_in_join")
def in_join(ctx: Context) -> str:
    try:
        ctx.join("both", {name: lambda c, name=name: c.step("last", last, name) for name in ("a", "b")})  # type: ignore[misc]
    except Late:
        _log.append("late")
    return "went on"


def test_what_a_handler_raises_into_a_join_comes_when_its_branches_have_ended() -> None:
    """They would go on beside the workflow, and write into a run that has completed."""

    def raise_late() -> None:
        _may_end.set()
        raise Late

    _on_signal.append(raise_late)
    handle = in_join.start()
    assert pass_once(handle).output == "went on"
    assert _log[-1] == "late"
    assert sorted(_log[:-1]) == ["a", "b"]


@workflow(name="faults.signalled_in_body")
def in_body(ctx: Context) -> None:
    ctx.step("before", lambda: 1)
    signal_main()


@workflow(name="faults.signalled_in_async_body")
async def in_async_body(ctx: AsyncContext) -> None:
    await ctx.step("before", lambda: 1)
    await ctx.step("signal", signal_main, max_retries=0)


@workflow(name="faults.signalled_in_step")
def in_step(ctx: Context) -> None:
    ctx.step("signal", signal_main, max_retries=0)


@pytest.mark.parametrize("program", [in_join, in_body, in_async_body, in_step])
def test_a_worker_that_is_signalled_twice_to_stop_fails_no_run(program: Callable[[], Handle]) -> None:
    """RQ answers the second signal with SystemExit, wherever the main thread is."""
    eviction = Eviction()

    def exit_now() -> None:
        eviction.request("shutdown")
        raise SystemExit

    _on_signal.append(exit_now)
    handle: Handle = program.start()  # type: ignore[attr-defined]  # a workflow
    with pytest.raises(SystemExit):
        execute_pass(claimed(handle), store=production_store(), eviction=eviction)
    assert handle.state == "running"
    assert handle.error is None
    assert not [entry for entry in handle.history() if entry.status in (EntryStatus.FAILED, EntryStatus.EXHAUSTED)]
