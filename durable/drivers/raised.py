"""What a user's code may raise, and must not do to the worker: end it, its event loop, or the engine that describes errors.

Owns which exceptions of a step's function or of a body go on as they are (errors that can be described, the engine's
control flow, the worker's own end), and as what failure the others are told.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Final, TypeVar

from durable.core.effects import Body, Call
from durable.core.errors import ControlFlow, is_readable, kind_of
from durable.drivers.host import Host

__all__ = ["body_failure", "call_readably", "step_failure"]

T = TypeVar("T")

#: Not errors, but no signals to a worker or to a test either, wherever they are raised.
_UNWELCOME: Final = (SystemExit, GeneratorExit, asyncio.CancelledError)


def call_readably(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`; an error that cannot be looked at is raised as a RuntimeError that says so."""
    try:
        return function(*args)
    except BaseException as error:
        if is_readable(error):
            raise
        kind = kind_of(error)
    # outside of the handler, so that it is no error's context
    raise RuntimeError(f"{kind} was raised, an exception whose attributes cannot be read")


def step_failure(effect: Call, error: BaseException, host: Host) -> RuntimeError | None:
    """As what failure a step's attempt ends that raised `error`; None if that goes on as it is."""
    if _goes_on(error, host):
        return None
    if isinstance(error, SystemExit):
        return RuntimeError(f'step "{effect.name}" called sys.exit({error.code!r})')
    return RuntimeError(f'step "{effect.name}" raised {kind_of(error)}')


def body_failure(effect: Body, error: BaseException, host: Host) -> RuntimeError | None:
    """As what error of the workflow's a body ends that raised `error`; None if that goes on as it is."""
    if _goes_on(error, host):
        return None
    name = getattr(effect.function, "__qualname__", "the workflow's code")
    if isinstance(error, SystemExit):
        return RuntimeError(f"{name} called sys.exit({error.code!r}): raise an error to fail the run, or return")
    return RuntimeError(
        f"{name} raised {kind_of(error)}, which is no Exception: raise an error to fail the run, or return"
    )


def _goes_on(error: BaseException, host: Host) -> bool:
    kind = type(error)  # not isinstance, which asks the object too
    if issubclass(kind, Exception | ControlFlow):
        return True
    if issubclass(kind, SystemExit):
        return host.is_evicted()  # it is the worker that ends, told so twice
    if kind is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True  # of somebody's keyboard
    return host.sequential_branches and not issubclass(kind, _UNWELCOME)  # a test's own: pytest.fail(), for example
