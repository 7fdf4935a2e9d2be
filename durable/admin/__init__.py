"""durable in the Django admin: an overview, lists, a run's page, and a confirmation page for each verb.

Closed by default: a user sees nothing without `durable.view_run` and no payload without `durable.view_payload`, and
each verb needs its own permission. Views read through `durable.inspection` and change through `durable.operations`,
with the request's user as the actor; they hold no logic of their own. No page has inline scripts or styles: the
Content-Security-Policy may forbid all but the site's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.module_loading import import_string

from durable.admin.registered import RegisteredActions, RegisteredRuns
from durable.models import OperatorAction, Run

if TYPE_CHECKING:
    from durable.admin.audit_log import OperatorActionAdmin
    from durable.admin.run_admin import RunAdmin

__all__ = ["OperatorActionAdmin", "RunAdmin"]

admin.site.register(Run, RegisteredRuns)
admin.site.register(OperatorAction, RegisteredActions)
# The index says what needs a person, above the apps. It extends the project's template; its own choice of one stays.
admin.site.index_template = admin.site.index_template or "durable/admin/index.html"


def __getattr__(name: str) -> Any:
    """Import a class with pages at its first use: a project may derive from it."""
    for each in (RegisteredRuns, RegisteredActions):
        if each.path.endswith(f".{name}"):
            return import_string(each.path)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
