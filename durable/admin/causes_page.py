"""The causes of failed runs: a page of all, and one of each with its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from durable.admin import access, action_page, charts, pages
from durable.admin.base import AdminPages
from durable.admin.forms import MuteForm
from durable.inspection import CauseSummary, RunCriteria, explain, find_cause, list_causes, list_runs, reading
from durable.operations.audit import PERMISSIONS, acting_as
from durable.operations.causes import mute, unmute

__all__ = ["ShownCause", "mark", "show", "show_all", "shown"]

SAMPLES: Final = 10  # runs on the page of a cause
CANARY: Final = {"first": 5, "stop_after": 3}  # that the page proposes
_MARKS: Final = {"mute": mute, "unmute": unmute}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCause:
    """A cause, the drawing of its last day, and its addresses.

    `recover_url` leads to the confirmation of a recovery of all its runs, `canary_url` to that of one which tries a few
    of them first.
    """

    cause: CauseSummary
    columns: Sequence[charts.SparkColumn]
    url: str
    runs_url: str
    recover_url: str
    canary_url: str

    @property
    def total(self) -> int:
        """The number of drawn failures."""
        return sum(self.cause.bars)


def shown(causes: Sequence[CauseSummary], site: str = "admin") -> list[ShownCause]:
    """Return the causes as pages show them. `site` is the name of the admin site."""
    return [_shown(each, site) for each in causes]


def _shown(cause: CauseSummary, site: str) -> ShownCause:
    def url(name: str, *args: str) -> str:
        return reverse(f"admin:durable_run_{name}", args=args, current_app=site)

    query = f"?{urlencode({'cause': cause.fingerprint})}"
    retry = urlencode({"verb": "recover", "all": "on", "filter": query})
    return ShownCause(
        cause=cause,
        columns=charts.spark(cause.bars),
        url=url("cause", cause.fingerprint),
        runs_url=url("changelist") + query,
        recover_url=f"{url('bulk')}?{retry}",
        canary_url=f"{url('bulk')}?{retry}&{urlencode(CANARY)}",
    )


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the causes of failed runs, muted ones apart."""
    now = pages.now()
    site = admin.admin_site.name
    context = {
        "title": "Causes of failed runs",
        "now": now,
        "causes": shown(list_causes(now, muted=False), site),
        "muted": shown(list_causes(now, muted=True), site),
    }
    return admin.page(request, "causes", context)


def show(admin: AdminPages, request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Show one cause with its newest runs and its verbs."""
    return _page(admin, request, fingerprint, MuteForm())


def mark(admin: AdminPages, request: HttpRequest, fingerprint: str, name: str) -> HttpResponse:
    """Mute the cause or unmute it."""
    for permission in (PERMISSIONS["mute"], "view_run"):
        if not access.may(request, permission):
            if request.method == "POST":
                action_page.log_denied(request, "mute", permission, "")
            access.demand(request, permission)
    if name not in _MARKS:
        raise Http404(f"There is no verb {name!r}; there are {', '.join(_MARKS)}.")
    form = MuteForm(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        with reading():
            return _page(admin, request, fingerprint, form, status=422 if form.is_bound else 200)
    try:
        with acting_as(access.actor_of(request), reason=form.cleaned_data["reason"]):
            _MARKS[name](fingerprint)
    except ValueError as error:
        raise Http404(str(error)) from error
    messages.success(request, "It is muted." if name == "mute" else "It is shown again.")
    return HttpResponseRedirect(
        reverse("admin:durable_run_cause", args=[fingerprint], current_app=admin.admin_site.name)
    )


def _page(admin: AdminPages, request: HttpRequest, fingerprint: str, form: MuteForm, status: int = 200) -> HttpResponse:
    now = pages.now()
    cause = find_cause(fingerprint, now)
    if cause is None:
        raise Http404(f'There is no cause "{fingerprint}". A cause without runs is kept for a day.')
    runs = list_runs(RunCriteria(cause=fingerprint), limit=SAMPLES).runs
    context: dict[str, Any] = {
        "title": f"{cause.place or 'Code of the workflow itself'} · {cause.error_type}",
        "now": now,
        "form": form,
        "each": _shown(cause, admin.admin_site.name),
        "rows": [(run, explain(run, now)) for run in runs],
        "mark": "unmute" if cause.is_muted else "mute",
    }
    return admin.page(request, "cause", context, status=status)
