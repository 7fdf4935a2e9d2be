"""The audit log in the admin: to be read, by whoever may see runs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from durable.admin.access import may
from durable.conf import conf
from durable.models import OperatorAction

__all__ = ["OperatorActionAdmin"]

_CAP = 10_000  # rows that the list counts and pages through

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[OperatorAction]
    _Paginator = Paginator[OperatorAction]
else:  # at run time Django's classes take no parameters
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator


class CappedPaginator(_Paginator):
    """Counts no further than a cap, so that a long log is no slow one."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most the cap."""
        rows: Any = self.object_list
        return int(rows[:_CAP].count())


class OperatorActionAdmin(_ModelAdmin):
    """What operators did, the newest first."""

    list_display = ["created_at", "who", "source", "action", "run_id", "outcome", "reason"]
    list_filter = ["source", "action", "outcome"]
    search_fields = ["run_id__startswith"]
    search_help_text = "The beginning of a run's id"
    show_full_result_count = False
    paginator = CappedPaginator
    ordering = ["-created_at", "-id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        """The log, where durable keeps it."""
        return super().get_queryset(request).using(conf.DATABASE)

    @admin.display(description="who")
    def who(self, action: OperatorAction) -> str:
        """The actor, by the name it had."""
        return action.actor_label or "nobody"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, "view_run")

    def has_view_permission(self, request: HttpRequest, obj: OperatorAction | None = None) -> bool:
        return may(request, "view_run")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: OperatorAction | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: OperatorAction | None = None) -> bool:
        return False
