"""The audit log in the admin: read-only, for users who may see runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from durable.admin import pages
from durable.admin.access import may
from durable.admin.url_keys import as_key
from durable.admin.visible_text import with_visible_text
from durable.conf import conf
from durable.inspection import StatementTimeoutError, reading
from durable.inspection.humanize import printable, sentence
from durable.models import OperatorAction
from durable.operations.audit import PERMISSIONS, Outcome
from durable.templatetags.durable_admin import moment

__all__ = ["OperatorActionAdmin"]

_CAP = 10_000  # rows that the list counts and pages through
_WINDOW = 100_000  # newest rows that are searched if no index serves the filter
_FILTERS = frozenset({"source__exact", "action", "outcome"})

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[OperatorAction]
    _Paginator = Paginator[OperatorAction]
else:  # at run time Django's classes take no parameters
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator


class CappedPaginator(_Paginator):
    """A paginator that counts only up to a cap, so that a long log stays fast."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most the cap."""
        rows: Any = self.object_list
        return int(rows[:_CAP].count())


class _WordFilter(admin.SimpleListFilter):
    """A filter with fixed choices: the log is not read to find them."""

    words: Sequence[str] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, word) for word in self.words]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class ActionFilter(_WordFilter):
    """Filter by verb."""

    title = "action"
    parameter_name = "action"
    words = tuple(PERMISSIONS)


class OutcomeFilter(_WordFilter):
    """Filter by outcome."""

    title = "outcome"
    parameter_name = "outcome"
    words = tuple(Outcome)


class OperatorActionAdmin(_ModelAdmin):
    """The actions of operators, the newest first."""

    list_display = ["when", "who", "source", "action", "run", "outcome", "reason"]
    fields = ["when", "who", "source", "action", "run", "reason", "outcome", "before", "after", "detail"]
    list_filter = ["source", ActionFilter, OutcomeFilter]
    search_fields = ["run_id__startswith"]
    search_help_text = (
        f"A run's id, or the beginning of one. Beginnings and filters look through the newest {_WINDOW:,} actions."
    )
    show_full_result_count = False
    paginator = CappedPaginator
    ordering = ["-created_at", "-id"]
    sortable_by = ()  # sorting by a column without an index would sort the whole log

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only the lookups that the list offers: any other would read the whole log."""
        return lookup in _FILTERS

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        """Return the log from durable's database."""
        found = super().get_queryset(request).using(conf.DATABASE)
        return _newest(found) if set(request.GET) & _FILTERS and "q" not in request.GET else found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OperatorAction], search_term: str
    ) -> tuple[QuerySet[OperatorAction], bool]:
        """Search by run id; if no run has this id, by the beginning of an id."""
        term = search_term.strip()
        if not term:
            return queryset, False
        exact = queryset.filter(run_id=term)
        # In an order that keeps the database on the index of runs.
        is_run = exact.order_by("created_at", "id").values_list("pk").first() is not None
        return (exact if is_run else _newest(queryset).filter(run_id__startswith=term)), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list under its own name: there is nothing to select."""
        try:
            with reading():
                response: Any = super().changelist_view(request, {"title": "Operator actions", **(extra_context or {})})
                if isinstance(response, TemplateResponse):
                    response.render()  # this reads the rows
                    response.content = with_visible_text(printable(response.rendered_content)).encode()
                return response
        except StatementTimeoutError as error:
            context = {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "title": "The database took too long",
                "why": sentence(error),
            }
            return TemplateResponse(request, "durable/admin/denied.html", context, status=503)

    @admin.display(description="when")
    def when(self, action: OperatorAction) -> str:
        """The time with its zone, and how long ago it was."""
        return moment(action.created_at, pages.now())

    @admin.display(description="run")
    def run(self, action: OperatorAction) -> str:
        """A link to the run's page, which says if the run was deleted."""
        if not action.run_id:
            return "—"
        address = reverse("admin:durable_run_change", args=[as_key(action.run_id)], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', address, action.run_id)

    @admin.display(description="who")
    def who(self, action: OperatorAction) -> str:
        """The actor, by the name at the time of the action."""
        return action.actor_label or "no user"

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


def _newest(actions: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
    """Limit the actions to those among the newest of the log."""
    newest = OperatorAction.objects.using(conf.DATABASE).order_by("-pk").values_list("pk", flat=True).first() or 0
    return actions.filter(pk__gt=newest - _WINDOW)
