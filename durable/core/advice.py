"""Append a hint to the TypeError of a call with the wrong arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def advised(
    advice: str, others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Append `advice` to the TypeError of a call whose arguments do not fit; errors raised inside the function are
    unchanged.

    `others` are keywords of other projects, with those that do the same here.
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
    """Return a question for the first keyword that the function does not have and that resembles one it has, or ""."""
    known = inspect.signature(function).parameters
    for name in given:
        if name in known:
            continue
        if nearest := [others[name]] if name in others else difflib.get_close_matches(name, known, n=1):
            return f'; did you mean "{nearest[0]}"?'
    return ""
