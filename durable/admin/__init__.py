"""durable in the Django admin: an overview, lists, a run's page, and a confirmation page for each verb.

Closed by default: a user sees nothing without `durable.view_run` and no payload without `durable.view_payload`, and
each verb needs its own permission. Views read through `durable.inspection` and change through `durable.operations`,
with the request's user as the actor; they hold no logic of their own. No page has inline scripts or styles: the
Content-Security-Policy may forbid all but the site's own.

What is registered here has its pages imported with the URLs of the site: a worker, a task or a shell of a project has
the admin installed and shows no page, so it should not import what the pages need.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver
from django.utils.module_loading import import_string

from durable.models import OperatorAction, Run

if TYPE_CHECKING:
    from durable.admin.audit_log import OperatorActionAdmin
    from durable.admin.run_admin import RunAdmin
    from durable.admin.runs_mixin import RunsMixin

    _ModelAdmin = admin.ModelAdmin[Any]
else:  # at run time Django's class takes no parameters
    _ModelAdmin = admin.ModelAdmin

__all__ = ["OperatorActionAdmin", "RunAdmin", "RunsMixin"]


class _Registered(_ModelAdmin):
    """Answers Django's site and index for a model by asking the admin that has the pages."""

    path: ClassVar[str]

    @cached_property
    def pages(self) -> admin.ModelAdmin[Any]:
        """The admin that has the pages."""
        found: admin.ModelAdmin[Any] = import_string(self.path)(self.model, self.admin_site)
        return found

    def get_urls(self) -> list[URLPattern | URLResolver]:  # type: ignore[override]  # Django's own may be either
        return list(self.pages.get_urls())

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return self.pages.get_queryset(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.pages.has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.pages.has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.pages.has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.pages.has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.pages.has_delete_permission(request, obj)


class RegisteredRuns(_Registered):
    """The admin of runs."""

    path = "durable.admin.run_admin.RunAdmin"


class RegisteredActions(_Registered):
    """The admin of the audit log."""

    path = "durable.admin.audit_log.OperatorActionAdmin"


admin.site.register(Run, RegisteredRuns)
admin.site.register(OperatorAction, RegisteredActions)
# The index shows above the apps what needs a person. It extends the project's template; if the project has chosen
# another one, that stays.
admin.site.index_template = admin.site.index_template or "durable/admin/index.html"


def __getattr__(name: str) -> Any:
    """Import a class at its first use: a project may derive from it."""
    for path in (RegisteredRuns.path, RegisteredActions.path, "durable.admin.runs_mixin.RunsMixin"):
        if path.endswith(f".{name}"):
            return import_string(path)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
