"""One entry of a run's history: its arguments, its result, and each attempt."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable.admin import access, pages
from durable.admin.base import AdminPages
from durable.admin.payload_view import view_of
from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.inspection.actions import possible_verbs
from durable.inspection.activities import read_stack
from durable.inspection.entry_detail import EntryDetail, read_entry_detail
from durable.inspection.payloads import redacted_error, redacted_traceback
from durable.inspection.wording import command, display_location, kind_in_words
from durable.models import Entry, Run
from durable.operations.audit import PERMISSIONS

_NEAR = 100  # ordinals among which the entries before and after are looked for first


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
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
        "now": pages.now(),
        "run": run,
        "run_url": admin.url("change", run.id),
        "running_url": running_url,
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
    has_failed = detail.status in ("failed", "exhausted") or detail.entry.metadata.rollback_error is not None
    return has_failed and "recover" in possible_verbs(run) and access.may(request, PERMISSIONS["recover"])


def _neighbours(run: Run, ordinal: int) -> tuple[str, str]:
    """Return the locations of the entries that began before and after; "" for none.

    No index has the order of a history, so a statement reads all ordinals. One is enough where both are near, as
    mostly.
    """
    entries = Entry.objects.using(conf.DATABASE).filter(run=run)
    near = entries.filter(ordinal__range=(ordinal - _NEAR, ordinal + _NEAR)).exclude(ordinal=ordinal)
    found = list(near.order_by("ordinal").values_list("ordinal", "location"))
    before = [location for at, location in found if at < ordinal]
    after = [location for at, location in found if at > ordinal]
    if not before and ordinal > _NEAR:
        before = list(entries.filter(ordinal__lt=ordinal).order_by("-ordinal").values_list("location", flat=True)[:1])
    if not after:
        after = list(entries.filter(ordinal__gt=ordinal).order_by("ordinal").values_list("location", flat=True)[:1])
    return "".join(before[-1:]), "".join(after[:1])
