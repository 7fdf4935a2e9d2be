"""Append a hint to the TypeError of a call with the wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["advised"]

P = ParamSpec("P")
R = TypeVar("R")


def advised(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Append `advice` to the TypeError of a call whose arguments do not fit; errors raised inside the function are
    unchanged.
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
                raise TypeError(f"{error}: {advice}") from None

        return call

    return decorate
