"""Steps: one entry of a run's history with its attempts, and the running steps, each with its stack."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable.admin import access, pages
from durable.admin.events_page import url_of_wait
from durable.admin.pages import AdminPages
from durable.admin.payload_page import view_of
from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.inspection.activities import ActivityPage, activities_of, list_activities, read_stack, saved_by
from durable.inspection.entry_detail import EntryDetail, read_entry_detail
from durable.inspection.landmarks import at_ordinals
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.payloads import pretty, redacted_error, redacted_traceback
from durable.inspection.wording import command, display_location, kind_in_words, told
from durable.models import Entry, Run
from durable.operations.audit import PERMISSIONS
from durable.operations.verbs import possible_verbs

_NEAR = 100  # ordinals to search first for the entries before and after


def show_entry(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the entry at the location `at`."""
    run = pages.find(request, key)
    location = request.GET.get("at", "")
    with_payloads = access.may(request, "view_payload")
    detail = read_entry_detail(run, location, with_payloads=with_payloads)
    is_running = run.lease_expires_at is not None and read_stack(run, location, pages.now()) is not None
    running_url = f"{admin.url('running_step', run.id)}?{urlencode({'at': location})}" if is_running else ""
    if detail is None and running_url:  # its first attempt
        return HttpResponseRedirect(running_url)
    if detail is None:
        raise Http404(
            _('The run has no entry "%(place)s": a loop, a race or a replay may have pruned it.') % {"place": location}
        )
    metadata = detail.entry.metadata
    previous, following = _neighbours(run, detail.entry.ordinal)
    context = {
        "title": display_location(location),
        "subtitle": _("%(kind)s of run %(run)s") % {"kind": kind_in_words(detail.entry.kind), "run": run.id},
        "run": run,
        "run_url": admin.url("change", run.id),
        "running_url": running_url,
        "events_url": url_of_wait(admin, detail.entry),
        "detail": detail,
        "entry": detail.entry,
        "metadata": metadata,
        "fields": [
            view_of(admin, run.id, field.title, field.value, {"of": field.name, "at": location})
            for field in detail.fields
        ],
        "error": redacted_error(run.workflow, metadata.error),
        "traceback": redacted_traceback(run.workflow, metadata.error) if with_payloads else "",
        "rollback_error": redacted_error(run.workflow, metadata.rollback_error),
        "rollback_traceback": redacted_traceback(run.workflow, metadata.rollback_error) if with_payloads else "",
        "goes_on": run.state not in (*ENDED, RunState.PAUSED),
        "recover_url": admin.url("act", run.id, "recover") if _is_recoverable(request, run, detail) else "",
        "previous": previous,
        "next": following,
        "step_url": admin.url("step", run.id),
        "replay_url": admin.url("replay", run.id),
        "replay_command": command("replay", run.id, location),
    }
    return admin.page(request, "step", context)


def _is_recoverable(request: HttpRequest, run: Run, detail: EntryDetail) -> bool:
    """Whether the entry has failed, and the user may recover the run."""
    has_failed = detail.status in ("failed", "exhausted", "held") or detail.entry.metadata.rollback_error is not None
    return has_failed and "recover" in possible_verbs(run) and access.may(request, PERMISSIONS["recover"])


def _neighbours(run: Run, ordinal: int) -> tuple[str, str]:
    """Return the locations of the entries that began before and after; "" for none.

    No index has the order of a history, so a statement reads all ordinals unless they were counted ahead
    (`durable.inspection.landmarks`). One is enough if both are near, as usual.
    """
    entries = Entry.objects.using(conf.DATABASE).filter(run=run)
    near = at_ordinals(run, ordinal - _NEAR, ordinal + _NEAR).exclude(ordinal=ordinal)
    found = list(near.values_list("ordinal", "location"))
    before = [location for at, location in found if at < ordinal]
    after = [location for at, location in found if at > ordinal]
    if not before and ordinal > _NEAR:
        before = list(entries.filter(ordinal__lt=ordinal).order_by("-ordinal").values_list("location", flat=True)[:1])
    if not after:
        after = list(entries.filter(ordinal__gt=ordinal).order_by("ordinal").values_list("location", flat=True)[:1])
    return "".join(before[-1:]), "".join(after[:1])


def show_running(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list; for a page that refreshes itself, only its table."""
    now, problem = pages.now(), ""
    try:
        page = list_activities(now, cursor=request.GET.get("after"), within=access.within(request))
    except InvalidCursorError as error:
        page, problem = ActivityPage(steps=()), told(error)
    seen = [(step.key, step.is_hung, step.stack_taken_at, step.abandon_asked_at) for step in page.steps]
    etag = pages.etag_of(now, *seen, request.GET.urlencode())
    is_live = "live" in request.GET
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    query = request.GET.copy()
    query["live"] = "1"
    context = {
        "title": _("Running now"),
        "problem": problem,
        "steps": page.steps,
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("after"),
        "live_query": f"?{query.urlencode()}",
        "etag": etag,
        "copies": [command("running")],
    }
    if is_live:
        return pages.tagged(admin.page(request, "_running", context), etag)
    return admin.page(request, "running", context)


def show_running_step(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the step running at the location `at`; for a page that refreshes itself, only the part that changes."""
    run, now, location = pages.find(request, key), pages.now(), request.GET.get("at", "")
    at = f"?{urlencode({'at': location})}"
    step = next((each for each in activities_of(run, now, access.within(request)) if each.location == location), None)
    is_live = "live" in request.GET
    if step is None and not is_live:
        return HttpResponseRedirect(admin.url("change", run.id))
    may_see = access.may(request, "view_payload")
    saved = saved_by(run, [location]) if may_see and step is not None else {}
    seen = () if step is None else (step.key, step.is_hung, step.stack_asked_at, step.stack_taken_at)
    etag = pages.etag_of(now, *seen, None if step is None else step.abandon_asked_at, saved)
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    stack = read_stack(run, location, now) if may_see else None
    context: dict[str, Any] = {
        "title": display_location(location),
        "place": "durable_run_running",
        "run": run,
        "run_url": admin.url("change", run.id),
        "step": step,
        "stack": stack,
        "saved": pretty(saved[location]) if location in saved else "",
        "step_url": f"{admin.url('step', run.id)}{at}",
        "abandon_url": f"{admin.url('act', run.id, 'abandon')}{at}",
        "cancel_url": f"{admin.url('act', run.id, 'cancel')}?interrupt=on",
        "stack_url": f"{admin.url('act', run.id, 'take_stack')}{at}",
        "live_query": f"{at}&live=1",
        "etag": etag,
        "copies": [command("stack", run.id, location=location), command("abandon", run.id, location=location)],
    }
    return pages.tagged(admin.page(request, "_running_step" if is_live else "running_step", context), etag)
