"""Sending a message to a run: the queues that it waits for first, the body as JSON; posting twice sends one message."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable import operations, runtime
from durable.admin import access, action_page, pages, sight
from durable.admin.base import AdminPages
from durable.admin.forms import SendMessageForm
from durable.conf import conf
from durable.core.entry_shapes import readable
from durable.core.ids import new_id
from durable.core.location import unescape
from durable.core.message_types import MessageTypes
from durable.core.records import EntryKind
from durable.inspection.explanation import awaited_queues
from durable.inspection.payloads import former_messages
from durable.inspection.wording import command
from durable.inspection.workflow_code import declared_messages
from durable.models import Entry, QueueMessage, Run
from durable.operations.audit import acting_as

_MOST = 50  # waits and messages that are searched for names of queues


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Ask for queue and body, or send."""
    action_page.admit(request, "send", unquote(key))
    run = pages.find(request, key)
    awaited = awaited_queues(run)
    declared = runtime.current().messages_of(run.workflow)
    known = _known_queues(run, awaited or []) if declared is None else _declared_queues(declared, awaited or [])
    may_see = access.may(request, "view_payload")
    shapes = [] if declared is None else declared_messages(declared, may_see_payloads=may_see)
    former = former_messages(run, known, sight.within(request)) if known and may_see else []
    copied = next((each for each in former if each.key == request.GET.get("copy")), None)
    queue = request.GET.get("queue") or (known[0] if awaited and known else "")
    shape = next((each for each in shapes if each.name == queue), None)
    example = "" if shape is None else _indented(shape.example)
    initial = {
        "queue": queue,
        "body": example if copied is None else copied.body,
        "token": new_id(),
    }
    form = SendMessageForm(
        request.POST if request.method == "POST" else None,
        initial=initial,
        known=known,
        is_any=awaited == [],
        accepts=None if declared is None else partial(declared.check, run.workflow),
    )
    problem, status = "", 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                _send(request, run, form.cleaned_data)
            except action_page.Refusal as refusal:
                problem, status = refusal.why, refusal.status
                run = pages.find(request, key)
            else:
                sent = _('A message was sent to "%(queue)s".') % {"queue": form.cleaned_data["queue"]}
                messages.success(request, sent)
                return HttpResponseRedirect(admin.url("change", run.id))
    context = {
        **action_page.asking_context(admin, request, run),
        "title": _("Send a message to run %(run)s") % {"run": run.id},
        "form": form,
        "problem": problem,
        "known": known,
        "awaited": awaited,
        "declared": [(each.name, _indented(each.example), _indented(each.schema)) for each in shapes],
        "former": former,
        "command": command("send", run.id, initial["queue"] or "QUEUE", "-"),
    }
    return admin.page(request, "send", context, status=status)


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _declared_queues(declared: MessageTypes, awaited: list[str]) -> list[str]:
    """Return the queues that the workflow declares, those first that the run waits for now."""
    return list(dict.fromkeys([*(each for each in declared if each in awaited), *declared]))


def _send(request: HttpRequest, run: Run, given: dict[str, Any]) -> None:
    # No revision is expected: a message fits every state of the run. The token prevents a second send.
    with (
        action_page.refusals(),
        acting_as(access.actor_of(request), reason=given["reason"], sees=sight.seen_by(request)),
    ):
        operations.send(run.id, given["queue"], given["body"], idempotency_id=f"admin-{given['token']}")


def _known_queues(run: Run, awaited: list[str]) -> list[str]:
    """Return the queues that the run waits for now, then those that it has waited for or received messages in."""
    found = Entry.objects.using(conf.DATABASE).filter(run=run, kind=EntryKind.MESSAGE.value).order_by("-ordinal")
    waits = found.values_list("data", flat=True)
    waited = [str(name) for data in waits[:_MOST] for name in readable(EntryKind.MESSAGE, data)["names"]]
    sent = QueueMessage.objects.using(conf.DATABASE).filter(run=run).order_by("-order").values_list("queue", flat=True)
    return list(dict.fromkeys([*awaited, *waited, *(unescape(each) for each in sent[:_MOST])]))
