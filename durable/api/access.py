"""Who may do what: permissions, the runs that a user may see, and rate limits.

Closed by default: a request without an authenticated user, or without the permission that it needs, gets nothing,
whatever the host's defaults for other interfaces are. `DURABLE["API_RUNS"]`, a function of the request and a queryset
of runs, limits the runs that a user sees: no answer discloses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle

from durable import runtime
from durable.core.errors import RunNotFoundError
from durable.inspection.run_rules import RunRule, existing_among, find_among
from durable.models import Run
from durable.models.run import RunQuerySet
from durable.operations.audit import Actor, OperationDeniedError, acting_as, audited

_RULE: Final = RunRule("API_RUNS")


class Permitted(BasePermission):
    """The user is authenticated and has the permissions that the view's method needs (`permissions_of`)."""

    message = "This needs a permission that you do not have."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the method may be called; views that make changes leave that to the verb."""
        if not is_signed_in(request):
            return False
        missing = [each for each in view.permissions_of(request.method) if not may(request, each)]
        if missing:
            names = " and ".join(f"durable.{each}" for each in missing)
            self.message = (
                f"This needs the permission {names}; ask an administrator to grant it to your user or to a group."
            )
        return not missing


def is_signed_in(request: Request) -> bool:
    """Return whether the request has an active user."""
    user = request.user
    return user is not None and not isinstance(user, AnonymousUser) and bool(user.is_authenticated and user.is_active)


def actor_of(request: Request) -> Actor:
    """Return the user as an actor."""
    return Actor("api", user=request.user)


def owner_of(request: Request) -> str:
    """Return the user's key, for limits that apply to each user."""
    user = request.user
    return f"{user.pk}" if user.pk is not None else f"{user}"


def is_still_permitted(request: Request) -> bool:
    """Return whether the user still exists, is active and may view runs; reloads the user from the database."""
    user = request.user
    if isinstance(user, Model):
        found = user.__class__._base_manager.filter(pk=user.pk).first()
        if found is None:
            return False
        request.user = found
    return is_signed_in(request) and may(request, "view_run")


def may(request: Request, permission: str) -> bool:
    """Return whether the user has this permission of the app durable."""
    return actor_of(request).may(permission)


def is_limited() -> bool:
    """Return whether users may see only some runs."""
    return _RULE.is_set


def visible_runs(request: Request) -> RunQuerySet:
    """Return the runs that this user may see."""
    return _RULE.runs(request)


def visible_run(request: Request, run_id: str) -> Run:
    """Return the run with this id, without its payloads.

    Raises RunNotFoundError, also if the user may not see the run.
    """
    run = find_among(visible_runs(request), run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    return run


def existing(request: Request, ids: Iterable[str | None]) -> frozenset[str]:
    """Return the ids whose runs the user may see; one query, none if visibility is not limited."""
    return existing_among(visible_runs(request) if is_limited() else None, ids)


def seen_by(request: Request) -> Callable[[str], bool] | None:
    """Return a function for `acting_as(sees=)`: whether the user may see a run id; None if all are visible."""
    if not is_limited():
        return None
    return lambda run_id: visible_runs(request).filter(pk=run_id).exists()


def admit(request: Request, action: str, run_id: str, *, needs: str = "") -> Run | None:
    """Return the run to act on, None without an id. `needs` is a permission in addition to that of the action.

    Raises OperationDeniedError if the user lacks a permission, and RunNotFoundError if the user may not see the run;
    either is written to the audit log.
    """
    actor = actor_of(request)
    with acting_as(actor), audited(runtime.current(), action, run_id):
        if needs and not actor.may(needs):
            raise OperationDeniedError(action, needs, actor.name)
        return visible_run(request, run_id) if run_id else None


READ = "durable-read"
WRITE = "durable-write"
STREAM = "durable-stream"


class Throttle(ScopedRateThrottle):
    """The rate limit of a view; its POST has a scope of its own. Rates come from the host's `DEFAULT_THROTTLE_RATES`.

    A scope without a rate is not throttled.
    """

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the request is within the rate of its scope."""
        self.scope = WRITE if request.method == "POST" else view.throttle_scope
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES
        rate = rates.get(self.scope)
        if rate is None:
            return True
        self.rate = rate
        self.num_requests, self.duration = self.parse_rate(rate)
        return super(ScopedRateThrottle, self).allow_request(request, view)
