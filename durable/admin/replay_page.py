"""Replays from a step, with a preview; giving a step its output by hand; and comparing two runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable import operations
from durable.admin import access, action_page, pages
from durable.admin.forms import GiveOutputForm, ReplayRunForm
from durable.admin.pages import AdminPages
from durable.admin.text import as_key, location_query
from durable.conf import conf
from durable.core.errors import EntryNotFoundError
from durable.core.ids import new_id
from durable.core.numbers import read_whole
from durable.core.records import EntryKind
from durable.inspection.comparison import compare_runs
from durable.inspection.humanize import thousands
from durable.inspection.payloads import pretty
from durable.inspection.reading import reading
from durable.inspection.wording import command, display_location, told
from durable.models import Entry, Run
from durable.operations.replay_plan import ReplayPlan, StartsAgain


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the preview, or replay."""
    return _show(admin, request, key, is_given=False)


def show_giving(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the preview of a replay from a step whose output is given by hand, or replay."""
    action_page.admit(request, "give_output", unquote(key))
    return _show(admin, request, key, is_given=True)


def _show(admin: AdminPages, request: HttpRequest, key: str, *, is_given: bool) -> HttpResponse:
    action_page.admit(request, "replay", unquote(key))
    run = pages.find(request, key)
    location = request.GET.get("at", "")
    plan = _plan(run, location, is_given=is_given)
    kind = GiveOutputForm if is_given else ReplayRunForm
    form = kind(pages.posted(request), initial={"plan_hash": plan.hash, "token": new_id()})
    tried = action_page.attempt(form, partial(_replay, request, run, location))
    if tried.is_done:
        messages.success(request, _("It runs again from there; this is the run that does."))
        return HttpResponseRedirect(admin.url("change", tried.result))
    if tried.problem:
        run, plan = pages.find(request, key), _plan(run, location, is_given=is_given)
        form = kind({**request.POST.dict(), "plan_hash": plan.hash})
    context = {
        **action_page.asking_context(admin, request, run),
        "title": (
            _("Give an output in run %(run)s from %(place)s") if is_given else _("Replay run %(run)s from %(place)s")
        )
        % {"run": run.id, "place": display_location(location)},
        "is_given": is_given,
        "place": display_location(location),
        "boundary": display_location(plan.boundary),
        "give_url": f"{admin.url('give_output', run.id)}{location_query(location)}",
        "may_give": access.may(request, "give_output") and _is_step(run, location),
        "form": form,
        "problem": tried.problem,
        "plan": plan,
        "parts": list(_parts(plan)),
        "location": location,
        "command": command(
            "replay", run.id, location, **({"output_of_step": "JSON", "reason": "WHY"} if is_given else {})
        ),
    }
    return admin.page(request, "replay", context, status=tried.status)


def _is_step(run: Run, location: str) -> bool:
    """Return whether a step is recorded at the location: only a step's output can be given by hand."""
    steps = Entry.objects.using(conf.DATABASE).filter(kind=EntryKind.STEP.value)
    return steps.filter(run=run.id, location=location).exists()


def _plan(run: Run, location: str, *, is_given: bool) -> ReplayPlan:
    try:
        with reading():
            return operations.plan_replay(run.id, location, with_output=is_given)
    except EntryNotFoundError as error:
        raise Http404(told(error)) from error


def _replay(request: HttpRequest, run: Run, location: str, given: dict[str, Any]) -> str:
    in_place = given["in_place"]
    how: dict[str, Any] = {
        "in_place": in_place,
        "plan_hash": given["plan_hash"],
        "as_id": None if in_place else given["token"],
    }
    with action_page.acting_on_runs(request, given["reason"]):
        if "output" in given:
            return operations.give_output(run.id, location, given["output"], **how).id
        return operations.replay(run.id, location, **how).id


def _parts(plan: ReplayPlan) -> list[tuple[str, str, list[str], int]]:
    """Return the parts of the preview: a CSS class, a title, locations, and how many more there are."""
    returned = [(each.queue, each.wait) for each in plan.messages]
    counts = plan.counts
    parts: list[tuple[str, str, Sequence[Any], int]] = [
        ("grave", _("Children that are started again"), plan.starts, counts.starts),
        ("again", _("Steps that run again"), plan.reruns, counts.reruns),
        ("again", _("Messages that are sent again"), plan.resends, counts.resends),
        ("back", _("Messages that return to the queue"), returned, counts.messages),
        ("grave", _("Children that a replay in place cancels"), plan.children, counts.children),
        ("grave", _("Done, with a rollback handler that is not run"), plan.not_compensated, counts.not_compensated),
        ("gone", _("Records that a new run does not get"), plan.removed, counts.removed),
        ("stays", _("Branches beside it that stay"), plan.siblings, counts.siblings),
        ("stays", _("Records that stay"), plan.kept, counts.kept),
    ]
    return [
        (look, title, [_named(each) for each in found], number - len(found))
        for look, title, found, number in parts
        if number
    ]


def _named(what: str | tuple[str, str] | StartsAgain) -> str:
    """Return the text for a location, for one with its children, or for a queue and the wait that received its
    message.
    """
    if isinstance(what, str):
        return display_location(what)
    if isinstance(what, StartsAgain):
        told = {"place": display_location(what.location), "number": thousands(what.number), "workflow": what.workflow}
        return _("%(place)s: %(number)s of %(workflow)s") % told
    queue, wait = what
    return _("%(queue)s (received by %(place)s)") % {"queue": queue, "place": display_location(wait)}


_CUT = 1_000  # characters of an output


def compare(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Compare this run with the run in `with`, or else with the run that it repeats; show a page of places."""
    run = pages.find(request, key)
    other_id = request.GET.get("with", "").strip() or "".join(access.existing(request, [run.replay_of_id]))
    if not other_id:
        raise Http404(_('Run "%(run)s" repeats no other run: name the other one.') % {"run": run.id})
    other: Run = pages.find(request, as_key(other_id))
    with_payloads = access.may(request, "view_payload")
    start = read_whole(request.GET.get("start", ""), 10**9) or 0
    found = compare_runs(other, run, with_payloads=with_payloads, start=start)
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
