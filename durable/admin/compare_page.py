"""Two runs side by side, place by place."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from durable.admin import access, pages, sight
from durable.admin.base import AdminPages
from durable.admin.url_keys import as_key
from durable.inspection.comparison import compare_runs
from durable.inspection.payloads import pretty
from durable.inspection.wording import command, display_location
from durable.models import Run

_CUT = 1_000  # characters of an output


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show a page of the places of this run and of the run in `with`; without one, of the run that it repeats."""
    run = pages.find(request, key)
    other_id = request.GET.get("with", "").strip() or "".join(sight.existing(request, [run.replay_of_id]))
    if not other_id:
        raise Http404(_('Run "%(run)s" repeats no other run: name the other one.') % {"run": run.id})
    other: Run = pages.find(request, as_key(other_id))
    start = request.GET.get("start", "")
    with_payloads = access.may(request, "view_payload")
    found = compare_runs(
        other, run, with_payloads=with_payloads, start=int(start) if start.isdecimal() and len(start) < 10 else 0
    )
    context = {
        "title": _("Compare run %(run)s") % {"run": run.id},
        "run": run,
        "other": other,
        "found": found,
        "rows": [
            (
                display_location(each.location),
                each,
                [
                    (side, pretty(side.output, _CUT) if with_payloads and side is not None else "")
                    for side in (each.left, each.right)
                ],
            )
            for each in found.rows
        ],
        "inputs": [] if found.inputs is None else [pretty(each) for each in found.inputs],
        "differing": sum(bool(each.differs) for each in found.rows),
        "run_url": admin.url("change", run.id),
        "other_url": admin.url("change", other.id),
        "command": command("compare", other.id, run.id),
    }
    return admin.page(request, "compare", context)
