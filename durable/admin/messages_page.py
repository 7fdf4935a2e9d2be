"""Messages of a run: list the newest, delete or move one that was not received, and send one."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable import operations, runtime
from durable.admin import access, action_page, pages
from durable.admin.forms import ActForm, MoveMessageForm, SendMessageForm
from durable.admin.pages import AdminPages
from durable.admin.payload_page import PayloadView, payload_title, view_of
from durable.admin.text import as_key
from durable.conf import conf
from durable.core.entry_shapes import readable
from durable.core.ids import new_id
from durable.core.links import is_of_link
from durable.core.places import of_message
from durable.core.records import EntryKind, MessageState
from durable.inspection.entry_detail import inbox, newest_messages
from durable.inspection.explain_states import awaited_queues
from durable.inspection.landmarks import newest_of_kind
from durable.inspection.payloads import TooLarge, former_messages, payload, read_within
from durable.inspection.wording import command, display_location, display_queue
from durable.inspection.workflow_code import declared_messages
from durable.models import QueueMessage, Run

MOST_MESSAGES: Final = 30
_MOST: Final = 4_000  # characters of a body that a row shows


def message_rows(admin: AdminPages, run: Run, *, with_payloads: bool) -> list[dict[str, Any]]:
    """Return the newest messages, the newest first; `body` and `response` are None if missing or hidden from the user.

    The addresses of verbs are "" once the run has received the message.
    """
    found = inbox(run, newest=MOST_MESSAGES)
    values = read_within(newest_messages(run, MOST_MESSAGES), "body", "response") if with_payloads else {}
    rows = []
    for message in found:
        read = values.get(message.pk)
        body, response = (read, None) if read is None or isinstance(read, TooLarge) else read
        is_pending = message.state == MessageState.PENDING
        rows.append(
            {
                "message": message,
                "queue": display_queue(message.queue),
                "receiver": display_location(message.received_by),
                "body": _view(admin, run, message, "message", body),
                "response": _view(admin, run, message, "response", response),
                "move_url": admin.url("message_act", run.id, as_key(message.pk), "move") if is_pending else "",
                "delete_url": admin.url("message_act", run.id, as_key(message.pk), "delete") if is_pending else "",
            }
        )
    return rows


def _view(
    admin: AdminPages, run: Run, message: QueueMessage, name: str, read: TooLarge | str | None
) -> PayloadView | None:
    if read is None:
        return None
    place = of_message(run.id, name, message.id, message.queue)
    value = read if isinstance(read, TooLarge) else payload(run.workflow, f"{name}:{message.queue}", read, place)
    return view_of(admin, run.id, payload_title(name, message.queue), value, {"of": name, "id": message.id}, _MOST)


#: By verb: its title, what it does, and the answer.
_WORDS: Final = {
    "delete": (
        gettext_lazy("Delete the message"),
        gettext_lazy("The run never receives it. Who waits for its answer goes on waiting until the timeout."),
        gettext_lazy("The message is deleted."),
    ),
    "move": (
        gettext_lazy("Move the message"),
        gettext_lazy("Another run gets it, as the last one in its inbox. It keeps its id; this run never receives it."),
        gettext_lazy("The message is in the inbox of this run now."),
    ),
}


def show_verb(admin: AdminPages, request: HttpRequest, key: str, message_key: str, name: str) -> HttpResponse:
    """Show the confirmation, or take the message out of the run's inbox."""
    if name not in _WORDS:
        raise Http404(action_page.no_verb(name, _WORDS))
    action_page.admit(request, f"{name}_message", unquote(key))
    run, message_id = pages.find(request, key), unquote(message_key)
    message = QueueMessage.objects.using(conf.DATABASE).filter(run=run, pk=message_id).defer("body", "response").first()
    title, does, done = _WORDS[name]
    given = pages.posted(request)
    form = MoveMessageForm(given, visible=access.visible_runs(request)) if name == "move" else ActForm(given)

    def act(given: dict[str, Any]) -> str:
        to: str = given.get("to", run.id)
        # No revision is expected: the operation refuses a message that the run has received.
        with action_page.acting_on_runs(request, given["reason"]):
            if name == "move":
                operations.move_message(run.id, message_id, to)
            else:
                operations.delete_message(run.id, message_id)
        return to

    tried = action_page.attempt(form, act)
    if tried.is_done:
        messages.success(request, done)
        return HttpResponseRedirect(admin.url("change", tried.result))
    if given is None and message is None:
        raise Http404(_('The run has no message "%(message)s" in its inbox.') % {"message": message_id})
    context = {
        **action_page.asking_context(admin, request, run),
        "title": _("%(verb)s: run %(run)s") % {"verb": title, "run": run.id},
        "verb": {"title": title, "confirm": title, "does": does, "is_grave": name == "delete"},
        "form": form,
        "problem": tried.problem,
        "location": "" if message is None else display_queue(message.queue),
        "is_possible": message is not None and message.state == MessageState.PENDING and not run.lease_expires_at,
        "command": command(f"{name}-message", run.id, message_id, *(["RUN"] if name == "move" else [])),
    }
    return admin.page(request, "act", context, status=tried.status)


_MOST_TEXT = 50  # waits and messages to search for names of queues


def show_sending(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the form for queue and body, or send."""
    action_page.admit(request, "send", unquote(key))
    run = pages.find(request, key)
    awaited = awaited_queues(run)
    declared = runtime.current().messages_of(run.workflow)
    # of declared queues those first that the run now waits for
    known = (
        _known_queues(run, awaited or [])
        if declared is None
        else sorted(declared, key=lambda each: each not in (awaited or []))
    )
    may_see = access.may(request, "view_payload")
    shapes = [] if declared is None else declared_messages(declared, may_see_payloads=may_see)
    former = former_messages(run, known, access.within(request)) if known and may_see else []
    copied = next((each for each in former if each.key == request.GET.get("copy")), None)
    queue = request.GET.get("queue") or (known[0] if awaited and known else "")
    shape = next((each for each in shapes if each.name == queue), None)
    example = "" if shape is None else _indented(shape.example)
    initial = {"queue": queue, "body": example if copied is None else copied.body, "token": new_id()}
    form = SendMessageForm(
        request.POST if request.method == "POST" else None,
        initial=initial,
        known=known,
        is_any=awaited == [],
        accepts=None if declared is None else partial(declared.check, run.workflow),
    )
    tried = action_page.attempt(form, partial(_send, request, run.id))
    if tried.is_done:
        messages.success(request, _('A message was sent to "%(queue)s".') % {"queue": form.cleaned_data["queue"]})
        return HttpResponseRedirect(admin.url("change", run.id))
    if tried.problem:
        run = pages.find(request, key)
    context = {
        **action_page.asking_context(admin, request, run),
        "title": _("Send a message to run %(run)s") % {"run": run.id},
        "form": form,
        "problem": tried.problem,
        "known": known,
        "awaited": awaited,
        "declared": [(each.name, _indented(each.example), _indented(each.schema)) for each in shapes],
        "former": former,
        "command": command("send", run.id, initial["queue"] or "QUEUE", "-"),
    }
    return admin.page(request, "send", context, status=tried.status)


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _send(request: HttpRequest, run_id: str, given: dict[str, Any]) -> None:
    # No revision is expected: a message fits every state of the run. The token prevents a second send.
    with action_page.acting_on_runs(request, given["reason"]):
        operations.send(run_id, given["queue"], given["body"], idempotency_id=f"admin-{given['token']}")


def _known_queues(run: Run, awaited: list[str]) -> list[str]:
    """Return the queues that the run waits for now, then those that it has waited for or received messages in."""
    waits = newest_of_kind(run, EntryKind.MESSAGE, _MOST_TEXT).values_list("data", flat=True)
    waited = [str(name) for data in waits for name in readable(EntryKind.MESSAGE, data)["names"]]
    sent = QueueMessage.objects.using(conf.DATABASE).filter(run=run).order_by("-order").values_list("queue", flat=True)
    names = [*awaited, *waited, *sent[:_MOST_TEXT]]
    return [each for each in dict.fromkeys(names) if not is_of_link(each)]
