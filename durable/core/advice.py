"""What Python says of a call that does not fit a signature, with what to write instead. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["advised"]

P = ParamSpec("P")
R = TypeVar("R")


def advised(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have the TypeError of a call whose arguments do not fit end with `advice`; those of the function's own are let pass."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                frames = error.__traceback__
                if frames is not None and frames.tb_next is not None:  # raised inside of the function
                    raise
                raise TypeError(f"{error}: {advice}") from None

        return call

    return decorate
