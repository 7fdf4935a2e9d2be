"""New runs, made for those who may see them: what would not be there for its maker is not made."""

from __future__ import annotations

from collections.abc import Callable

from durable.api.problems import ProblemError
from durable.operations import Started
from durable.operations.audited import UnseenRunError

__all__ = ["made"]


def made(wanted: str | None, make: Callable[[], Started]) -> Started:
    """The run that `make` makes, with the id `wanted` if that is not None. To be called by an actor with `seen_by`.

    Raises a problem, and nothing is made, if the user would not see the run: of a run that is another user's nothing is
    told, not even that it is there.
    """
    try:
        return make()
    except UnseenRunError:
        what = "this run" if wanted is None else f'the run "{wanted}"'
        detail = f"You would not see {what}, so it is not made: name one that you may see, by another id."
        raise ProblemError("run-not-found", 404, detail) from None
