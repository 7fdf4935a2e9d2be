"""Create runs through REST. If `API_RUNS` would hide the new run from the user, nothing is created."""

from __future__ import annotations

from collections.abc import Callable

from durable.api.problems import ProblemError
from durable.operations import Started
from durable.operations.audit import UnseenRunError


def made(wanted: str | None, make: Callable[[], Started]) -> Started:
    """Return the run that `make` creates, with the id `wanted` if that is not None.

    Call this as an actor with `seen_by`.

    Raises a problem, and creates nothing, if the user would not see the run. If another user's run has the id, the
    answer does not disclose that the run exists.
    """
    try:
        return make()
    except UnseenRunError as error:
        if error.key:
            detail = f'An open run that you may not see has the key "{error.key}", so none is started: use another key.'
            raise ProblemError("run-not-found", 404, detail) from None
        what = "this run" if wanted is None else f'the run "{wanted}"'
        detail = f"You would not see {what}, so it is not made: name one that you may see, by another id."
        raise ProblemError("run-not-found", 404, detail) from None
