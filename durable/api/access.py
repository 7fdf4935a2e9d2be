"""Permissions of views, and rate limits.

Closed by default: a request without an authenticated user, or without the permission that it needs, gets nothing,
whatever the host's defaults for other interfaces are. Which runs a user sees is in `durable.listings.access`.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle

from durable.listings.access import is_signed_in, may


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


def is_still_permitted(request: Request) -> bool:
    """Return whether the user still exists, is active and may view runs; reloads the user from the database."""
    user = request.user
    if isinstance(user, Model):
        found = user.__class__._base_manager.filter(pk=user.pk).first()
        if found is None:
            return False
        request.user = found
    return is_signed_in(request) and may(request, "view_run")


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
