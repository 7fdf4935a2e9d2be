"""The requesting user and that user's permissions: the actor behind a request."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from durable.operations.audit import Actor


def actor_of(request: HttpRequest) -> Actor:
    """Return the user as an actor for the audit log."""
    return Actor("admin", user=request.user)


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether the user has this permission of the app durable: being staff is not enough."""
    return request.user.is_active and actor_of(request).may(permission)


def demand(request: HttpRequest, permission: str) -> None:
    """Raise PermissionDenied unless the user has the permission."""
    if not may(request, permission):
        raise PermissionDenied(
            _("You may not see this: it needs the permission %(permission)s. Ask an administrator to grant it.")
            % {"permission": f"durable.{permission}"}
        )
