"""Starting a run again with another input: a JSON editor for the arguments that can be edited."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable import operations
from durable.admin import access, action_page, pages, sight
from durable.admin.base import AdminPages
from durable.admin.forms import EditInputForm
from durable.core.ids import new_id
from durable.core.registry import UnknownWorkflowError
from durable.inspection.database import reading
from durable.inspection.payloads import EditableInput, recorded_input, shown_arguments
from durable.models import Run
from durable.operations.audit import acting_as
from durable.operations.start import arguments_of


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the editor, or start the run again."""
    for action in ("edit_input", "restart"):
        action_page.admit(request, action, unquote(key))
    if request.method == "POST" and not access.may(request, "view_payload"):
        action_page.log_denied(request, "edit_input", "view_payload", unquote(key))
    access.demand(request, "view_payload")
    run = pages.find(request, key)
    with reading():
        editable, refusal = _editable(run)
    initial = {
        "values": json.dumps(editable.values, indent=2, ensure_ascii=False),
        "token": new_id(),
    }
    form = EditInputForm(request.POST if request.method == "POST" else None, initial=initial)
    problem, status = "", 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                shown = _start(request, run, editable, form.cleaned_data)
            except action_page.Refusal as refused:
                problem, status = refused.why, refused.status
            else:
                messages.success(request, _("A new run with this input has begun; this is it."))
                return HttpResponseRedirect(admin.url("change", shown))
    context = {
        **action_page.asking_context(admin, request, run),
        "title": _("Start again with another input: run %(run)s") % {"run": run.id},
        "form": form,
        "problem": problem,
        "refusal": refusal,
        "kept": editable.kept,
    }
    return admin.page(request, "edit_input", context, status=status)


def _editable(run: Run) -> tuple[EditableInput, str]:
    """Return the arguments that can be edited, and why none can be; "" if that is not so."""
    nothing = EditableInput(values={}, kept=())
    given = recorded_input(run)
    if given is None:
        return nothing, _("The input is too large to be edited here, or it cannot be read.")
    try:
        return shown_arguments(run, given, arguments_of(run.workflow, given)), ""
    except UnknownWorkflowError:
        return nothing, _("The code here does not have the workflow %(workflow)s, so its arguments are not known.") % {
            "workflow": run.workflow
        }
    except ValueError as error:
        return nothing, _("Nothing can be edited: %(why)s.") % {"why": error}


def _start(request: HttpRequest, run: Run, editable: EditableInput, given: dict[str, Any]) -> str:
    """Start the new run. Arguments that are as they were are no changes."""
    values = given["values"]
    changes = {
        name: value for name, value in values.items() if name not in editable.values or editable.values[name] != value
    }
    with (
        action_page.refusals(),
        acting_as(access.actor_of(request), reason=given["reason"], sees=sight.seen_by(request)),
    ):
        return operations.restart(run.id, as_id=given["token"], changes=changes).id
