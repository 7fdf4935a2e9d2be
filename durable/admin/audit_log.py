"""The audit log in the admin: read-only, for users who may see runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.dateparse import parse_date
from django.utils.functional import lazy
from django.utils.html import format_html
from django.utils.text import format_lazy
from django.utils.timezone import make_aware
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.access import ReadOnly
from durable.admin.moments import moment, viewers_zone
from durable.admin.text import url_maker, with_visible_text
from durable.core.clock import to_utc
from durable.core.numbers import read_whole
from durable.core.records import ActionOutcome
from durable.inspection.actions import WINDOW_OF_VISIBLE, ActionCriteria, detail_without_runs, search_actions
from durable.inspection.bulks import bulks_among
from durable.inspection.humanize import printable, shortened, thousands
from durable.inspection.pagination import on_visible
from durable.inspection.reading import UnreadableError, from_replica, read_alias, reading
from durable.inspection.wording import outcome_in_words, source_in_words, title_of, told, verb_in_words, verb_title
from durable.models import OperatorAction
from durable.operations.audit import PERMISSIONS, SOURCES

_CAP = 10_000  # rows that the list counts and pages through
_WINDOW = 100_000  # newest rows that are searched if no index serves the filter
_MOST_OF_A_DETAIL = 200  # characters
_SUBJECTS = {
    "schedule": _("schedule"),
    "queue": _("queue"),
    "workflow": _("workflow"),
    "limit": _("limit"),
    "cause": _("cause"),
    "database": _("database"),
}
_FILTERS = frozenset({"source__exact", "action", "outcome", "person", "reason", "since", "until", "bulk"})

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


class _Filter(admin.SimpleListFilter):
    """A filter of the page's own form.

    `OperatorActionAdmin.get_queryset` applies it: the choices do not come from the log.
    """

    kind = "text"
    words: Sequence[str] = ()
    in_words: Callable[[str], str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, self.in_words(word)) for word in self.words] or [("", "")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.words and self.value() else queryset


def _filter(
    name: str, title: Any, *, kind: str = "text", words: Sequence[str] = (), in_words: Callable[[str], str] = str
) -> type[_Filter]:
    """Return the class of a filter: a choice of these words, or else a field for text or a date."""
    parts = {"title": title, "parameter_name": name, "kind": kind, "words": words, "in_words": staticmethod(in_words)}
    return type(f"{name.partition('_')[0].capitalize()}Filter", (_Filter,), parts)


class OperatorActionAdmin(ReadOnly, _ModelAdmin):
    """The actions of operators, the newest first. A bulk is one row, unless the filter asks for its runs or one of
    them.
    """

    change_list_template = "durable/admin/audit_log.html"
    list_display = ["when", "who", "source", "verb", "run", "came_to", "reason"]
    list_filter = [
        _filter("person", _("who")),
        _filter("reason", _("reason")),
        _filter("since", pgettext_lazy("day", "from"), kind="date"),
        _filter("until", pgettext_lazy("day", "to"), kind="date"),
        _filter("bulk", _("bulk")),
        _filter("source__exact", _("source"), words=SOURCES, in_words=source_in_words),
        _filter("action", _("action"), words=tuple(PERMISSIONS), in_words=verb_in_words),
        _filter("outcome", _("outcome"), words=tuple(ActionOutcome), in_words=outcome_in_words),
    ]
    search_fields = ["run_id__startswith"]
    search_help_text = format_lazy(
        _("A run's id, or the beginning of one. Beginnings and filters look through the newest {number} actions."),
        number=lazy(lambda: thousands(_window()), str)(),
    )
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they would count the whole log
    paginator = CappedPaginator
    ordering = ["-created_at", "-id"]
    sortable_by = ()  # sorting by a column without an index would sort the whole log

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only the lookups that the list offers: any other would read the whole log."""
        return lookup in _FILTERS

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        """Return the log from durable's database, limited by the page's own filters."""
        given = request.GET
        if given.get("q", "").strip():
            return _seen(request, super().get_queryset(request).using(read_alias()))
        found = search_actions(_criteria(given), window=_window()).order_by(*self.ordering)
        return _seen(request, _newest(found)) if access.is_limited() else found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> OperatorAction | None:
        """Return the action, even a row of a bulk's run: only the list omits these."""
        number = read_whole(object_id)
        if number is None:
            return None
        return _seen(request, OperatorAction.objects.using(read_alias()).filter(pk=number)).first()

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

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, which knows which of its rows are bulks."""
        changelist: Any = super().get_changelist_instance(request)
        bulks = bulks_among(each.run_id for each in changelist.result_list if each.run_id and not each.bulk_id)
        for each in changelist.result_list:
            each.is_bulk = each.run_id in bulks
        return changelist

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list under its own name: there is nothing to select."""
        try:
            with from_replica(), reading(), viewers_zone(request):
                titled = {"title": gettext("Audit log"), **(extra_context or {})}
                response: Any = super().changelist_view(request, titled)
                if isinstance(response, TemplateResponse):
                    response.context_data = {**(response.context_data or {}), **self._shown(response)}
                    response.render()  # this reads the rows
                    response.content = with_visible_text(printable(response.rendered_content)).encode()
                return response
        except UnreadableError as error:
            return self._too_long(request, error)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one action."""
        if request.method == "POST" or not self.has_view_permission(request):
            raise PermissionDenied
        try:
            with reading(), viewers_zone(request):
                action = self.get_object(request, object_id)
                if action is None:
                    why = gettext("There is no such action. The audit log may have been pruned since.")
                    return self._refused(request, gettext("Not found"), why, status=404)
                content = render_to_string("durable/admin/audit_action.html", self._about(request, action), request)
        except UnreadableError as error:
            return self._too_long(request, error)
        return HttpResponse(with_visible_text(printable(content)))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the action, which never changes."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(self._url("change", object_id))

    def _about(self, request: HttpRequest, action: OperatorAction) -> dict[str, Any]:
        verb, is_bulk = verb_title(action.action), action.run_id and not action.bulk_id
        if access.is_limited():
            action.detail = detail_without_runs(action)
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("%(verb)s, by %(who)s") % {"verb": verb, "who": self.who(action)},
            "now": pages.now(),
            "action": action,
            "verb": verb,
            "run": self._linked(action, is_bulk=bool(is_bulk and bulks_among([action.run_id]))),
            "log_url": self._url("changelist"),
            "of_run_url": f"{self._url('changelist')}?{urlencode({'q': action.run_id})}" if action.run_id else "",
            "bulk_url": self._page_of("bulk_result", action.bulk_id)
            if action.bulk_id and (not access.is_limited() or action.actor_id == request.user.pk)
            else "",
        }

    def _url(self, name: str, *args: str) -> str:
        return reverse(f"admin:durable_operatoraction_{name}", args=args, current_app=self.admin_site.name)

    def _page_of(self, name: str, key: str) -> str:
        return url_maker(name, self.admin_site.name)(key)

    def _too_long(self, request: HttpRequest, error: UnreadableError) -> HttpResponse:
        return self._refused(request, title_of(error), told(error), status=503)

    def _refused(self, request: HttpRequest, title: str, why: str, *, status: int) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "why": why}
        return TemplateResponse(request, "durable/admin/denied.html", context, status=status)

    def _shown(self, response: TemplateResponse) -> dict[str, Any]:
        """Return the page's data in addition to Django's; {} for Django's own error page."""
        changelist: Any = (response.context_data or {}).get("cl")
        if changelist is None:
            return {}
        fields = [_field(each) for each in changelist.filter_specs if isinstance(each, _Filter)]
        chips = [
            (
                each["title"],
                dict(each["choices"]).get(each["value"], each["value"]),
                changelist.get_query_string(remove=[each["name"]]),
            )
            for each in fields
            if each["value"]
        ]
        rows = [
            (each, moment(each.created_at, pages.now()), self.run(each), changelist.url_for_result(each))
            for each in changelist.result_list
        ]
        kept = [(each["name"], each["value"]) for each in fields if each["value"]]
        return {"now": pages.now(), "fields": fields, "chips": chips, "rows": rows, "kept": kept}

    @admin.display(description=_("when"))
    def when(self, action: OperatorAction) -> str:
        """The time with its zone, and how long ago it was."""
        return moment(action.created_at, pages.now())

    @admin.display(description=_("run"))
    def run(self, action: OperatorAction) -> str:
        """A link to the run's page (which says if the run was deleted), or to the bulk's."""
        return self._linked(action, is_bulk=getattr(action, "is_bulk", False))

    def _linked(self, action: OperatorAction, *, is_bulk: bool) -> str:
        if not action.run_id:
            return self._subject(action)
        if is_bulk:
            what = action.detail.removesuffix(", by this run")
            shown = gettext("bulk: %(what)s") % {"what": what} if what else gettext("bulk")
            return format_html('<a href="{}">{}</a>', self._page_of("bulk_result", action.run_id), shown)
        return format_html('<a href="{}">{}</a>', self._page_of("change", action.run_id), action.run_id)

    def _subject(self, action: OperatorAction) -> str:
        """The subject of an action that is not about a run: a schedule, a queue, a workflow, a limit or a cause."""
        kind, name = action.subject_kind, action.subject
        if not name or kind not in _SUBJECTS or action.outcome != ActionOutcome.DONE:
            return shortened(action.detail, _MOST_OF_A_DETAIL) or "—"
        return format_html('{} <a href="{}"><bdi>{}</bdi></a>', _SUBJECTS[kind], self._page_of(kind, name), name)

    @admin.display(description=_("who"))
    def who(self, action: OperatorAction) -> str:
        """The actor, by the name at the time of the action."""
        return action.actor_label or gettext("no user")

    @admin.display(description=_("action"))
    def verb(self, action: OperatorAction) -> str:
        """The verb in words."""
        return verb_in_words(action.action)

    @admin.display(description=_("outcome"))
    def came_to(self, action: OperatorAction) -> str:
        """The outcome in words."""
        return outcome_in_words(action.outcome)


def _field(wanted: _Filter) -> dict[str, Any]:
    """Return a field of the filter's form; one without choices is for text or a date."""
    return {
        "name": str(wanted.parameter_name),
        "title": str(wanted.title),
        "value": wanted.value() or "",
        "kind": wanted.kind,
        "choices": [(word, str(shown)) for word, shown in wanted.lookup_choices if word],
    }


def _criteria(given: QueryDict) -> ActionCriteria:
    bulk = given.get("bulk", "").strip()
    return ActionCriteria(
        bulk_id=bulk,
        person=given.get("person", "").strip(),
        source=given.get("source__exact", ""),
        action=given.get("action", ""),
        outcome=given.get("outcome", ""),
        reason=given.get("reason", "").strip(),
        since=_day(given.get("since", "")),
        until=_day(given.get("until", ""), days_later=1),
        is_grouped=not bulk and not given.get("outcome") and not access.is_limited(),
    )


def _day(text: str, *, days_later: int = 0) -> datetime | None:
    """Return the beginning of a day, or of a day after it, in the current time zone; None for an invalid text."""
    try:
        day = parse_date(text.strip())
        if day is None:
            return None
        return to_utc(make_aware(datetime.combine(day + timedelta(days=days_later), time.min)))
    except (ValueError, OverflowError):
        return None


def _seen(request: HttpRequest, actions: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
    """Limit the actions to those on visible runs; no limit if all runs are visible."""
    within = access.within(request)
    return actions if within is None else on_visible(actions, within)


def _newest(actions: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
    """Limit the actions to the newest of the log."""
    newest = OperatorAction.objects.using(read_alias()).order_by("-pk").values_list("pk", flat=True).first() or 0
    return actions.filter(pk__gt=newest - _window())


def _window() -> int:
    return WINDOW_OF_VISIBLE if access.is_limited() else _WINDOW
