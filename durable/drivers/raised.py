"""Errors of user code, kept from ending the worker or its event loop and from breaking descriptions.

Owns which exceptions of a step's function or of a body are passed on unchanged (errors that can be described, the
engine's control flow, the worker's own end), and as which failure the others are reported.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Final, TypeVar

from durable.core.control_flow import ControlFlow
from durable.core.effects import Body, Call
from durable.core.tracebacks import is_readable, kind_of
from durable.drivers.host import Host

T = TypeVar("T")

#: Not errors, but not meant for a worker or a test either, wherever they are raised.
_UNWELCOME: Final = (SystemExit, GeneratorExit, asyncio.CancelledError)


def call_readably(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`; replace an error that cannot be read by a RuntimeError that says so."""
    try:
        return function(*args)
    except BaseException as error:
        if is_readable(error):
            raise
        kind = kind_of(error)
    # outside the handler, so that it does not become the error's context
    raise RuntimeError(f"{kind} was raised, an exception whose attributes cannot be read")


def step_failure(effect: Call, error: BaseException, host: Host) -> RuntimeError | None:
    """Return the failure of a step's attempt that raised `error`; None if `error` is passed on unchanged."""
    if _goes_on(error, host):
        return None
    if isinstance(error, SystemExit):
        return RuntimeError(f'step "{effect.name}" called sys.exit({error.code!r})')
    return RuntimeError(f'step "{effect.name}" raised {kind_of(error)}')


def body_failure(effect: Body, error: BaseException, host: Host) -> RuntimeError | None:
    """Return the workflow's error for a body that raised `error`; None if `error` is passed on unchanged."""
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
        return host.is_evicted()  # the worker itself ends, after a second signal
    if kind is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True  # Ctrl+C in a terminal
    if issubclass(kind, BaseExceptionGroup):  # of a TaskGroup, in one of whose tasks an operation has ended the pass
        assert isinstance(error, BaseExceptionGroup)
        if error.subgroup(ControlFlow) is not None:
            return False
    return host.sequential_branches and not issubclass(kind, _UNWELCOME)  # a test's own: pytest.fail(), for example
