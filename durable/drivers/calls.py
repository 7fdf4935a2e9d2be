"""Calls of steps' functions, for both drivers: with their timeouts, and errors that can be described.

Owns what surrounds such a call in its thread or task. Must not decide what follows from its outcome: steps do.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from contextlib import ExitStack
from typing import Any

from durable.core.current import running_step, timed_step
from durable.core.effects import Call
from durable.core.errors import AttemptAbandonedError, HeartbeatTimeoutError, StepTimeoutError, WorkflowError
from durable.core.tracebacks import is_readable, kind_of
from durable.drivers import loop_threads
from durable.drivers.host import Host
from durable.drivers.raised import call_readably, step_failure
from durable.drivers.timeouts import HeartbeatTimer, InterruptibleTask, TimedOut, arose_from, call_with_timeout


def call_step(effect: Call, host: Host) -> Any:
    """Call a step's function in this thread; an async one on an event loop that nothing else uses meanwhile."""
    with host.calling(effect), host.calling_here(effect), running_step(effect.info):
        value = _called(effect, host)
        if inspect.isawaitable(value):
            value = loop_threads.run(within_timeout, effect, value, host)
        return value


def call_unawaited(effect: Call, host: Host) -> Any:
    """Call a step's function in this thread; return its value, awaitable or not.

    The caller is inside `host.calling`.
    """
    with host.calling_here(effect), running_step(effect.info):
        return _called(effect, host)


def _called(effect: Call, host: Host) -> Any:
    step = timed_step(effect)
    try:
        with step:
            return call_with_timeout(lambda: call_readably(effect.function, *effect.args), effect.timeout, step)
    except TimedOut:
        host.interrupted()
        raise _interrupted(effect, step) from None
    except BaseException as error:
        failure = step_failure(effect, error, host)
        if failure is None:
            raise
        raise failure from error


def call_atomically(effect: Call, host: Host) -> Any:
    """Make the call, its record and the commit one transaction."""
    value: Any = None
    with ExitStack() as until_committed:

        def call() -> None:
            nonlocal value
            until_committed.enter_context(running_step(effect.info))  # on_commit hooks run within the step
            value = call_step(effect, host)

        def record() -> None:
            assert effect.record is not None
            effect.record(value)

        host.save_atomically(effect, call, record)
    return value


async def within_timeout(effect: Call, awaitable: Awaitable[Any], host: Host) -> Any:
    """Await the awaitable of a step's function, and cancel it at the timeout. Raises StepTimeoutError."""
    step = timed_step(effect)
    try:
        async with asyncio.timeout(effect.timeout if effect.timeout > 0 else None) as limit:
            step.awaitable, step.interruptible = awaitable, InterruptibleTask(limit)
            with step, HeartbeatTimer(limit, step):
                return await _readably(effect, awaitable, host)
    except TimeoutError:
        if not limit.expired():
            raise
        raise _interrupted(effect, step) from None
    except Exception as error:
        if limit.expired() and arose_from(error, asyncio.CancelledError):
            raise _interrupted(effect, step) from error
        raise


def _interrupted(effect: Call, step: timed_step) -> WorkflowError:
    if step.abandoned_at is not None:
        return AttemptAbandonedError(effect.name)
    if step.has_no_sign:
        return HeartbeatTimeoutError(effect.name, effect.info.heartbeat)
    return StepTimeoutError(effect.name, effect.timeout)


async def _readably(effect: Call, awaitable: Awaitable[Any], host: Host) -> Any:
    try:
        return await awaitable
    except BaseException as error:
        task = asyncio.current_task()
        if type(error) is asyncio.CancelledError and task is not None and task.cancelling():
            raise  # this task itself is cancelled
        if not is_readable(error):
            kind, failure = kind_of(error), None
        else:
            failure = step_failure(effect, error, host)
            if failure is None:
                raise
            raise failure from error
    raise RuntimeError(f'step "{effect.name}" raised {kind}, whose attributes cannot be read')
