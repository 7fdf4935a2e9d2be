"""Who may do what, and which runs are there for whom.

Closed by default: whoever is not signed in, or lacks the permission of what he asks for, gets nothing, whatever the
host's defaults for other interfaces are. `DURABLE["API_RUNS"]`, a function of the request and a queryset of runs, limits
the runs that a user sees: the others are not there for him, in any answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model
from django.utils.module_loading import import_string
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from durable import runtime
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.models import Run
from durable.models.querysets import RunQuerySet
from durable.operations.audit import Actor, OperationDeniedError, acting_as
from durable.operations.audited import audited

__all__ = [
    "Permitted",
    "actor_of",
    "admit",
    "existing",
    "is_limited",
    "is_signed_in",
    "is_still_permitted",
    "may",
    "owner_of",
    "seen_by",
    "visible_run",
    "visible_runs",
]


class Permitted(BasePermission):
    """Somebody is signed in and has the permissions that the view's method needs (`permissions_of`)."""

    message = "This needs a permission that you do not have."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether the method may be called; of the views that change something, each verb decides by itself."""
        if not is_signed_in(request):
            return False
        missing = [each for each in view.permissions_of(request.method) if not may(request, each)]
        if missing:
            names = " and ".join(f"durable.{each}" for each in missing)
            self.message = f"This needs the permission {names}; ask whoever gives permissions to users and groups."
        return not missing


def is_signed_in(request: Request) -> bool:
    """Whether there is a user behind the request, and an active one."""
    user = request.user
    return user is not None and not isinstance(user, AnonymousUser) and bool(user.is_authenticated and user.is_active)


def actor_of(request: Request) -> Actor:
    """The user as the one who acts."""
    return Actor("api", user=request.user)


def owner_of(request: Request) -> str:
    """The user by key, for what each user has a share of."""
    user = request.user
    return f"{user.pk}" if user.pk is not None else f"{user}"


def is_still_permitted(request: Request) -> bool:
    """Whether the user is still there, active, and may view runs, as the database says now; the request's user is it from now on."""
    user = request.user
    if isinstance(user, Model):
        found = user.__class__._base_manager.filter(pk=user.pk).first()
        if found is None:
            return False
        request.user = found
    return is_signed_in(request) and may(request, "view_run")


def may(request: Request, permission: str) -> bool:
    """Whether the user has one of durable's permissions."""
    return actor_of(request).may(permission)


def is_limited() -> bool:
    """Whether a user may see some runs only."""
    return conf.API_RUNS is not None


def visible_runs(request: Request) -> RunQuerySet:
    """The runs that are there for this user."""
    runs: RunQuerySet = Run.objects.using(conf.DATABASE)
    if conf.API_RUNS is not None:
        runs = import_string(conf.API_RUNS)(request, runs)
    return runs


def visible_run(request: Request, run_id: str) -> Run:
    """The run with this id, without its payloads. Raises RunNotFoundError, also if it is not there for this user."""
    run = visible_runs(request).filter(pk=run_id).defer("input", "output").first()
    if run is None:
        raise RunNotFoundError(run_id)
    return run


def existing(request: Request, ids: Iterable[str | None]) -> frozenset[str]:
    """Those of the ids whose runs are there for this user; one query, none where nothing is limited."""
    wanted = {each for each in ids if each is not None}
    if not wanted or not is_limited():
        return frozenset(wanted)
    return frozenset(visible_runs(request).filter(pk__in=wanted).values_list("pk", flat=True))


def seen_by(request: Request) -> Callable[[str], bool] | None:
    """Whether the run with an id is there for the user, for `acting_as(sees=)`; None where nothing is limited."""
    if not is_limited():
        return None
    return lambda run_id: visible_runs(request).filter(pk=run_id).exists()


def admit(request: Request, action: str, run_id: str, *, needs: str = "") -> Run | None:
    """The run that is to be acted on, None without an id. `needs` is a permission beside that of the action.

    Raises OperationDeniedError if the user may not do this at all, and RunNotFoundError if the run is not there for
    the user; either is written to the audit log.
    """
    actor = actor_of(request)
    with acting_as(actor), audited(runtime.current(), action, run_id):
        if needs and not actor.may(needs):
            raise OperationDeniedError(action, needs, actor.name)
        return visible_run(request, run_id) if run_id else None
