"""New runs, made for whoever may see them: what would not be there for its maker is not made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from django.db import transaction
from rest_framework.request import Request

from durable import backend
from durable.api.access import is_limited, visible_runs
from durable.api.problems import ProblemError
from durable.conf import conf
from durable.core.errors import RunConflictError, RunNotFoundError
from durable.models import Run
from durable.operations.attribution import attributed

__all__ = ["made"]


class _UnseenError(Exception):
    """The run would not be there for the user."""


def made(request: Request, action: str, wanted: str | None, make: Callable[[], str]) -> tuple[str, bool]:
    """The id of the run that `make` makes, `wanted` if that is not None; and whether it is new.

    To be called as whoever acts, outside of any transaction but the key's. Raises a problem, and nothing is made, if the
    user would not see the run: of a run that is another user's nothing is told, not even that it is there.
    """
    try:
        with transaction.atomic(using=conf.DATABASE):
            is_new = wanted is None or not Run.objects.using(conf.DATABASE).filter(pk=wanted).exists()
            found = make()
            if is_limited() and not visible_runs(request).filter(pk=found).exists():
                raise _UnseenError
            return found, is_new
    except RunConflictError:
        if wanted is not None and is_limited() and not visible_runs(request).filter(pk=wanted).exists():
            raise _unseen(wanted) from None
        raise
    except _UnseenError:
        with suppress(RunNotFoundError), attributed(backend.current(), action, wanted or ""):
            raise RunNotFoundError(wanted or "") from None  # for the audit log
        raise _unseen(wanted) from None


def _unseen(wanted: str | None) -> ProblemError:
    what = "this run" if wanted is None else f'the run "{wanted}"'
    return ProblemError(
        "run-not-found", 404, f"You would not see {what}, so it is not made: name one that you may see, by another id."
    )
