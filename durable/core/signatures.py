"""Check whether a function can be called with given arguments, without calling it.

Asked before each attempt of a step, so the answer for plain functions is a comparison of numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

_VARARGS: Final = inspect.CO_VARARGS


def check_call(what: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise TypeError if `function` cannot take `args`, by position. `what` names the caller, for the message.

    The signature is the function's own: a decorator that passes on all arguments may also add some. Functions without a
    signature, such as many builtins, are accepted.
    """
    if _surely_fits(function, len(args)):
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        given = f"{len(args)} argument{'' if len(args) == 1 else 's'}"
        raise TypeError(f"{what} cannot call {name}{signature} with {given}: {error}") from None


def _surely_fits(function: Callable[..., Any], count: int) -> bool:
    """Return True if the number of arguments certainly fits, without building a signature, which takes long."""
    if isinstance(function, FunctionType):
        return _fits(function, count)
    if isinstance(function, MethodType):
        return _surely_fits(function.__func__, count + 1)
    if isinstance(function, partial) and not function.keywords:
        return _surely_fits(function.func, count + len(function.args))
    return False


def _fits(function: FunctionType, count: int) -> bool:
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    if count < required or (count > code.co_argcount and not code.co_flags & _VARARGS):
        return False
    return code.co_kwonlyargcount == 0 or len(function.__kwdefaults__ or ()) >= code.co_kwonlyargcount
