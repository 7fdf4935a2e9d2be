"""durable in the Django admin: an overview, lists, a run's page, and a confirmation page for each verb.

Closed by default: a user sees nothing without `durable.view_run` and no payload without `durable.view_payload`, and
each verb needs its own permission. Views read through `durable.inspection` and change through `durable.operations`,
with the request's user as the actor; they hold no logic of their own. No page has inline scripts or styles: the
Content-Security-Policy may forbid all but the site's own.
"""

from __future__ import annotations

from django.contrib import admin

from durable.admin.audit_log import OperatorActionAdmin
from durable.admin.run_admin import RunAdmin
from durable.models import OperatorAction, Run

__all__ = ["OperatorActionAdmin", "RunAdmin"]

admin.site.register(Run, RunAdmin)
admin.site.register(OperatorAction, OperatorActionAdmin)
# The index says what needs a person, above the apps. It extends the project's template; its own choice of one stays.
admin.site.index_template = admin.site.index_template or "durable/admin/index.html"
