"""The causes of failed runs: a page of all, and one of each with its verbs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, gettext_lazy

from durable.admin import access, action_page, overview, pages
from durable.admin.forms import MuteForm, NoteForm
from durable.admin.pages import AdminPages
from durable.core.names.renames import names_of_workflow
from durable.inspection.causes import BARS, SPANS, find_cause, list_causes, spread_of
from durable.inspection.children import has_children
from durable.inspection.explanation import explain
from durable.inspection.queues import held_workflows
from durable.inspection.reading import reading
from durable.inspection.runs import RunCriteria, failed_attempts, list_runs
from durable.inspection.undone import is_undone
from durable.inspection.wording import command
from durable.operations.audit import acting_as
from durable.operations.causes import mute, note, unmute
from durable.operations.verbs import RUN_VERBS

SAMPLES: Final = 10  # runs on the page of a cause
CANARY: Final = {"first": 5, "stop_after": 3}  # runs that the page proposes to try first
MOST_NAMES: Final = 8  # workflows, queues and workers each that it names
MOST_PAUSES: Final = 2  # workflows whose open runs it offers to pause, and whose new starts to hold
#: By span of the chart: its title, its description for screen readers, and the format of times on its axis.
_SPANS: Final = {
    "day": (gettext_lazy("The last day"), gettext_lazy("Failures in the last day, by half hour"), "H:i"),
    "week": (gettext_lazy("The last week"), gettext_lazy("Failures in the last week"), "D H:i"),
    "month": (gettext_lazy("The last 30 days"), gettext_lazy("Failures in the last 30 days"), "j M"),
}
#: The operations on a cause, and the message after each.
_SAVED: Final = {
    "mute": gettext_lazy("It is muted."),
    "unmute": gettext_lazy("It is shown again."),
    "note": gettext_lazy("The note is saved."),
}


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the causes of failed runs, muted ones apart."""
    now = pages.now()
    site = admin.admin_site.name
    within = access.within(request)
    is_limited = within is not None
    may = partial(access.may, request)
    rows = overview.rows_of_causes(list_causes(now, muted=False, within=within), site, is_limited=is_limited)
    muted = list_causes(now, muted=True, within=within)
    context = {
        "title": overview.headline(rows) if rows else gettext("Causes of failed runs"),
        "rows": overview.permitted(rows, may),
        "muted": overview.permitted(overview.rows_of_causes(muted, site, is_limited=is_limited), may),
    }
    return admin.page(request, "causes", context)


def show(admin: AdminPages, request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Show one cause with its newest runs and its verbs."""
    return _page(admin, request, fingerprint)


def save(admin: AdminPages, request: HttpRequest, fingerprint: str, name: str) -> HttpResponse:
    """Mute the cause, unmute it, or save a note on it."""
    action_page.admit(request, name if name in _SAVED else "mute", "")
    if name not in _SAVED:
        raise Http404(action_page.no_verb(name, _SAVED))
    form = (NoteForm if name == "note" else MuteForm)(pages.posted(request))
    if not form.is_valid():
        with reading():
            return _page(admin, request, fingerprint, form, status=422 if form.is_bound else 200)
    try:
        with acting_as(access.actor_of(request), reason=form.cleaned_data.get("reason", "")):
            if name == "note":
                note(fingerprint, form.cleaned_data["note"])
            else:
                (mute if name == "mute" else unmute)(fingerprint)
    except ValueError as error:
        raise Http404(str(error)) from error
    messages.success(request, str(_SAVED[name]))
    return HttpResponseRedirect(admin.url("cause", fingerprint))


def _page(
    admin: AdminPages,
    request: HttpRequest,
    fingerprint: str,
    form: MuteForm | NoteForm | None = None,
    status: int = 200,
) -> HttpResponse:
    now = pages.now()
    within = access.within(request)
    is_limited = within is not None
    span = request.GET.get("span", "")
    span = span if span in SPANS else "day"
    width = SPANS[span]
    cause = find_cause(fingerprint, now, within, span=span)
    if cause is None:
        raise Http404(
            gettext('There is no cause "%(cause)s". A cause without runs is kept for a day.') % {"cause": fingerprint}
        )
    site = admin.admin_site.name
    runs = list_runs(RunCriteria(cause=fingerprint), limit=SAMPLES, within=within).runs
    attempts = failed_attempts(runs)
    spread, with_children = spread_of(fingerprint, within), has_children()
    query, is_many = overview.query_of(RunCriteria(cause=fingerprint)), cause.count.number > CANARY["first"]
    row = overview.rows_of_causes([cause], site, is_limited=is_limited)[0]
    context: dict[str, Any] = {
        "title": overview.title_of(cause),
        "form": form if isinstance(form, MuteForm) else MuteForm(),
        "note_form": form if isinstance(form, NoteForm) else NoteForm(initial={"note": cause.note}),
        "cause": cause,
        "row": row,
        "most": max(cause.bars),
        "hours": [now - BARS * width + each * (BARS * width) / 4 for each in range(4)],
        "span": span,
        "spans": [(name, words) for name, (words, _, _) in _SPANS.items()],
        "chart": _SPANS[span],
        "spread": spread,
        "workers": [(name.rpartition(":")[0] or name, name, number) for name, number in spread.workers[:MOST_NAMES]],
        "replay_url": "" if is_limited else overview.bulk_url("replay", query, site, CANARY if is_many else {}),
        "canary": CANARY["first"],
        "settle_url": overview.bulk_url("settle", query, site) if cause.held and not is_limited else "",
        "canary_url": overview.bulk_url("recover", query, site, CANARY)
        if is_many and row.verbs and not is_limited
        else "",
        "pauses": [
            overview.Verb(
                title=each.of_workflow % {"workflow": workflow},
                url=overview.bulk_url(
                    each.action, overview.query_of(RunCriteria(workflow=workflow), with_children=with_children), site
                ),
            )
            for workflow, _ in ([] if is_limited else spread.workflows[:MOST_PAUSES])
            for each in RUN_VERBS.values()
            if each.of_workflow
        ],
        "holds": [] if is_limited else _holds(admin, [workflow for workflow, _ in spread.workflows[:MOST_PAUSES]]),
        "rows": [(run, explain(run, now, within=within), attempts.get(run.id, 0)) for run in runs],
        "undone": sum(is_undone(run) for run in runs),
        "command": row.command or command("recover", cause=fingerprint),
        "opposite": "unmute" if cause.is_muted else "mute",
    }
    return admin.page(request, "cause", context, status=status)


def _holds(admin: AdminPages, workflows: Iterable[str]) -> list[overview.Verb]:
    """Return a verb for each workflow: hold its new starts, or release them if they are held."""
    held = held_workflows()
    verbs = []
    for workflow in workflows:
        is_held = any(name in held for name in names_of_workflow(workflow))
        title = gettext("Release new starts of %(workflow)s") if is_held else gettext("Hold new starts of %(workflow)s")
        url = admin.url("workflow_hold", workflow, "release" if is_held else "hold")
        verbs.append(overview.Verb(title=title % {"workflow": workflow}, url=url, needs="hold_workflow"))
    return verbs
