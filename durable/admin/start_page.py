"""Start one run of a workflow, with its arguments as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable.admin import access, action_page, pages, sight
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.start_form import StartForm
from durable.admin.typed_arguments import misfit
from durable.admin.url_keys import as_id
from durable.conf import conf
from durable.core.own_runs import BULK
from durable.core.records import HoldKind
from durable.definitions import Workflow
from durable.inspection.queues import find_hold
from durable.inspection.wording import command
from durable.inspection.workflow_code import WorkflowCode, code_of
from durable.inspection.workflows import workflow_of
from durable.notifier import redis_clients
from durable.operations.audit import acting_as


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the form for the arguments, or start a run."""
    action_page.admit(request, "start", "")
    found = workflow_of(as_id(key))
    name, workflow = found.name, found.definition
    if not isinstance(workflow, Workflow) or name == BULK:
        raise Http404(_('There is no workflow "%(workflow)s" that this process can start.') % {"workflow": name})
    code = code_of(workflow, may_see_payloads=access.may(request, "view_payload"))
    form = StartForm(request.POST if request.method == "POST" else None, initial={"arguments": _skeleton(code)})
    problem, status = "", 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                run_id, is_new = _start(request, workflow, form)
            except Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, _("It is started.") if is_new else _("Such a run exists; this is it."))
                return HttpResponseRedirect(admin.url("change", run_id))
    context = {
        "title": _("Start one: %(workflow)s") % {"workflow": name},
        "now": pages.now(),
        "name": name,
        "code": code,
        "form": form,
        "problem": problem,
        "hold": find_hold(HoldKind.WORKFLOW, name),
        "back": admin.url("workflow", name) if sight.is_offered("workflow") else admin.url("changelist"),
        "queues": sorted(redis_clients.queue_names()),
        "priorities": list(conf.PRIORITIES),
        "command": command("start", name),
    }
    return admin.page(request, "start", context, status=status)


def _start(request: HttpRequest, workflow: Workflow[Any, Any], form: StartForm) -> tuple[str, bool]:
    given = form.cleaned_data
    args, kwargs = given["arguments"]
    if (found := misfit(workflow.function, args, kwargs)) is not None:
        argument, expected, value = found
        told = {"argument": argument, "expected": expected, "value": value}
        raise Refusal(_('Nothing was started: "%(argument)s" is %(expected)s, and %(value)s was given.') % told, 422)
    run_id = given["run_id"] or given["token"]  # so that a form sent twice starts one run
    with (
        action_page.refusals(),
        acting_as(access.actor_of(request), reason=given["reason"], sees=sight.seen_by(request)),
    ):
        try:
            handle = workflow.using(id=run_id, **form.start_options).start(*args, **kwargs)
            return str(handle.id), bool(handle.is_new)
        except TypeError as error:  # the arguments do not fit the signature
            raise Refusal(_("Nothing was started: %(why)s") % {"why": error}, 422) from error


def _skeleton(code: WorkflowCode) -> str:
    """Return the keywords without a default, each null, as JSON to fill in."""
    required = [each.name for each in code.parameters if each.is_required and each.kind != "positional_only"]
    return json.dumps(dict.fromkeys(required), indent=2) if required else "{}"
