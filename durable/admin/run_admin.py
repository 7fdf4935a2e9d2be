"""Runs in the admin: their URLs, and the access to them.

The modules beside this one define the content of the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import URLPattern, URLResolver, path
from django.utils.translation import gettext as _

from durable.admin import (
    access,
    action_page,
    bulk_page,
    causes_page,
    events_page,
    inbox_page,
    limits_page,
    list_page,
    messages_page,
    overview,
    pages,
    payload_page,
    queues_page,
    replay_page,
    run_page,
    schedules_page,
    settle_page,
    start_page,
    steps_page,
    verb_page,
    workflows_page,
)
from durable.admin.moments import viewers_zone
from durable.admin.pages import AdminPages
from durable.inspection.reading import UnreadableError, from_replica, reading
from durable.inspection.wording import title_of, told
from durable.models import Run
from durable.models.run import RunQuerySet
from durable.operations.catalogue import DATABASE, LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Run]
else:  # at run time Django's class takes no parameters
    _ModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponseBase]

#: The pages that may be read from a replica: those that show many runs.
LISTS: Final = frozenset(
    {
        *("changelist", "names", "overview", "causes", "cause", "running"),
        *("queues", "limits", "schedules", "workers", "workflows", "workflow", "events"),
    }
)


class RunAdmin(AdminPages, access.ReadOnly, _ModelAdmin):
    """Runs: visible with `view_run`, and changed only by verbs, each with its own permission."""

    search_fields = ()  # the list has its own search box; Django's autocomplete would read the whole table

    def get_queryset(self, request: HttpRequest) -> RunQuerySet:
        """Return the runs that the request may see, for Django's own views and a project's subclass."""
        return access.visible_runs(request)

    def get_urls(self) -> list[URLPattern | URLResolver]:  # type: ignore[override]  # Django's own may be either
        """Return the read-only pages, and one page for each verb, which applies the verb when it is posted."""
        reading: Sequence[tuple[str, View, str]] = [
            ("", list_page.show, "changelist"),
            ("names/<str:kind>/", list_page.show_names, "names"),
            ("overview/", overview.show, "overview"),
            ("causes/", causes_page.show_all, "causes"),
            ("causes/<str:fingerprint>/", causes_page.show, "cause"),
            ("running/", steps_page.show_running, "running"),
            ("events/", events_page.show_all, "events"),
            ("queues/", queues_page.show_queues, "queues"),
            ("queues/<str:key>/show/", queues_page.show_queue, "queue"),
            ("limits/", limits_page.show_all, "limits"),
            ("limits/<str:key>/show/", limits_page.show, "limit"),
            ("schedules/", schedules_page.show_all, "schedules"),
            ("schedules/<str:key>/show/", schedules_page.show, "schedule"),
            ("database/", queues_page.show_database, "databases"),
            ("database/<str:key>/show/", queues_page.show_database, "database"),
            ("workers/", queues_page.show_workers, "workers"),
            ("workflows/", workflows_page.show_all, "workflows"),
            ("workflows/<str:key>/show/", workflows_page.show, "workflow"),
            ("workers/<str:key>/show/", queues_page.show_worker, "worker"),
            ("bulk/<str:key>/", bulk_page.show_result, "bulk_result"),
            ("bulk/<str:key>/live/", bulk_page.live_result, "bulk_live"),
            ("<str:key>/compare/", replay_page.compare, "compare"),
            ("<str:key>/change/", run_page.show, "change"),
            ("<str:key>/", run_page.lead, "lead"),  # Django's admin redirects from there as well
            ("<str:key>/live/", run_page.live, "live"),
            ("<str:key>/stream/", run_page.stream, "stream"),
            ("<str:key>/step/", steps_page.show_entry, "step"),
            ("<str:key>/running/", steps_page.show_running_step, "running_step"),
            ("<str:key>/export/", run_page.export, "export"),
            ("<str:key>/payload/", payload_page.show, "payload"),
            ("<str:key>/raw/", payload_page.download, "raw"),
        ]
        changing: Sequence[tuple[str, View, str]] = [
            ("bulk/", bulk_page.show, "bulk"),
            ("inbox/", inbox_page.show_all, "inbox"),
            ("inbox/<str:key>/answer/", inbox_page.show, "question"),
            ("views/", list_page.add_view, "save_view"),
            ("views/<int:pk>/delete/", list_page.remove_view, "delete_view"),
            ("causes/<str:fingerprint>/<str:name>/", causes_page.save, "save_cause"),
            ("queues/<str:key>/hold/<str:name>/", verb_page.page_of(QUEUE), "queue_hold"),
            ("workflows/<str:key>/hold/<str:name>/", verb_page.page_of(WORKFLOW), "workflow_hold"),
            ("limits/<str:key>/act/<str:name>/", verb_page.page_of(LIMIT, RATE), "limit_act"),
            ("schedules/create/one/", schedules_page.create, "schedule_create"),
            ("schedules/<str:key>/act/<str:name>/", verb_page.page_of(SCHEDULE), "schedule_act"),
            ("database/<str:key>/act/<str:name>/", verb_page.page_of(DATABASE), "database_act"),
            ("workflows/<str:key>/start/one/", start_page.show, "workflow_start"),
            ("<str:key>/send/", messages_page.show_sending, "send"),
            ("<str:key>/message/<str:message_key>/<str:name>/", messages_page.show_verb, "message_act"),
            ("<str:key>/replay/", replay_page.show, "replay"),
            ("<str:key>/give-output/", replay_page.show_giving, "give_output"),
            ("<str:key>/edit-input/", start_page.show_again, "edit_input"),
            ("<str:key>/act/settle/", settle_page.show, "settle"),
            ("<str:key>/act/<str:name>/", action_page.show, "act"),
        ]
        return [  # "bulk/" before "<str:key>/", which would match it
            *(path(route, self._asking(view, name), name=f"durable_run_{name}") for route, view, name in changing),
            *(path(route, self._reading(view, name), name=f"durable_run_{name}") for route, view, name in reading),
        ]

    def _reading(self, view: View, name: str) -> View:
        """Wrap a view that a user with the permission to see runs may open."""

        def read(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            access.demand(request, "view_run")
            access.demand_offered(name)
            # a list that follows an act of the user's, which left a message, is to show it
            may_be_old = name in LISTS and not len(messages.get_messages(request))
            with from_replica(wanted=may_be_old), reading():
                return view(self, request, *args, **kwargs)

        return self._inside(view, read)

    def _asking(self, view: View, name: str) -> View:
        """Wrap a view that checks permissions itself: a denial has to be logged first."""

        def ask(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            access.demand_offered(name)
            return view(self, request, *args, **kwargs)

        return self._inside(view, ask)

    def _inside(self, view: View, inner: View) -> View:
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                return inner(request, *args, **kwargs)
            except PermissionDenied as denied:
                return self.page(request, "denied", {"title": _("Not allowed"), "why": str(denied)}, status=403)
            except Http404 as missing:
                return self.page(request, "denied", {"title": _("Not found"), "why": str(missing)}, status=404)
            except UnreadableError as error:
                return self.page(request, "denied", {"title": title_of(error), "why": told(error)}, status=503)

        guarded = self.admin_site.admin_view(answer)

        def come(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method == "POST" and not self.admin_site.has_permission(request):
                messages.warning(request, _("Your session has ended. Nothing was done: log in, and do it again."))
            with viewers_zone(request), pages.at_one_moment():
                return guarded(request, *args, **kwargs)

        return update_wrapper(come, view)
