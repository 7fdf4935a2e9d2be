"""What Django's admin registers for durable: admins whose pages are imported with the URLs of the site.

A worker, a task or a shell of a project has the admin installed and shows no page, so it should not import what the
pages need. `RunAdmin` and `OperatorActionAdmin` are behind these.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:  # at run time Django's class takes no parameters
    _ModelAdmin = admin.ModelAdmin


class _Registered(_ModelAdmin):
    """Asks the admin with the pages for whatever Django's site and index ask of a model's admin."""

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
