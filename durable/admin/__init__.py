"""durable in the Django admin: an overview, lists, a run's page, and each verb as a page that asks before it does.

Closed by default: a user sees nothing without `durable.view_run`, no payload without `durable.view_payload`, and each verb
asks for its own permission. Views read through `durable.inspection` and change through `durable.operations`, as the actor
behind the request; they hold no logic of their own. Nothing here is inline in a page: the Content-Security-Policy
may forbid every script and style but the site's own.
"""

from __future__ import annotations

from django.contrib import admin

from durable.admin.audit_log import OperatorActionAdmin
from durable.admin.run_admin import RunAdmin
from durable.models import OperatorAction, Run

__all__ = ["OperatorActionAdmin", "RunAdmin"]

admin.site.register(Run, RunAdmin)
admin.site.register(OperatorAction, OperatorActionAdmin)
