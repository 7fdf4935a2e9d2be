"""Checks of calls: whether a function can take the arguments, and a hint if it cannot.

Asked before each attempt of a step, so the answer for plain functions is a comparison of numbers.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Final, ParamSpec, TypeVar

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


P = ParamSpec("P")
R = TypeVar("R")


def advised(
    advice: str, others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Append `advice` to the TypeError of a call whose arguments do not fit; errors raised inside the function are
    unchanged.

    `others` maps keywords of other projects to their counterparts here.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                frames = error.__traceback__
                if frames is not None and frames.tb_next is not None:  # raised inside the function
                    raise
                text = str(error)
                hint = (
                    "" if "Did you mean" in text else _nearest(function, kwargs, others)
                )  # Python 3.13 says it itself
                raise TypeError(f"{text}{hint}: {advice}") from None

        return call

    return decorate


def _nearest(function: Callable[..., object], given: Iterable[str], others: Mapping[str, str]) -> str:
    """Return a question that suggests a similar keyword for the first unknown one; "" if none is similar."""
    known = inspect.signature(function).parameters
    for name in given:
        if name in known:
            continue
        if nearest := [others[name]] if name in others else difflib.get_close_matches(name, known, n=1):
            return f'; did you mean "{nearest[0]}"?'
    return ""
