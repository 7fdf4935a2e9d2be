"""Deleting a message that a run has not received, and putting it into the inbox of another run."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable import operations
from durable.admin import access, action_page, pages, sight
from durable.admin.base import AdminPages
from durable.admin.forms import ActForm, MoveMessageForm
from durable.conf import conf
from durable.core.location import unescape
from durable.core.records import MessageState
from durable.inspection.wording import command
from durable.models import QueueMessage
from durable.operations.audit import acting_as

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


def show(admin: AdminPages, request: HttpRequest, key: str, message_key: str, name: str) -> HttpResponse:
    """Ask, or take the message out of the run's inbox."""
    if name not in _WORDS:
        raise Http404(action_page.no_verb(name, _WORDS))
    action_page.admit(request, f"{name}_message", unquote(key))
    run, message_id = pages.find(request, key), unquote(message_key)
    message = QueueMessage.objects.using(conf.DATABASE).filter(run=run, pk=message_id).defer("body", "response").first()
    title, does, done = _WORDS[name]
    given = request.POST if request.method == "POST" else None
    form = MoveMessageForm(given, visible=sight.visible_runs(request)) if name == "move" else ActForm(given)
    problem, status = "", 200
    if given is not None:
        status = 422
        if form.is_valid():
            to = form.cleaned_data.get("to", run.id)
            try:
                # No revision is expected: the operation refuses a message that the run has received.
                with action_page.refusals(), acting_as(access.actor_of(request), reason=form.cleaned_data["reason"]):
                    if name == "move":
                        operations.move_message(run.id, message_id, to)
                    else:
                        operations.delete_message(run.id, message_id)
            except action_page.Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, done)
                return HttpResponseRedirect(admin.url("change", to))
    elif message is None:
        raise Http404(_('The run has no message "%(message)s" in its inbox.') % {"message": message_id})
    context = {
        **action_page.asking_context(admin, request, run),
        "title": _("%(verb)s: run %(run)s") % {"verb": title, "run": run.id},
        "verb": {"title": title, "confirm": title, "does": does, "is_grave": name == "delete"},
        "form": form,
        "problem": problem,
        "location": "" if message is None else unescape(message.queue),
        "is_possible": message is not None and message.state == MessageState.PENDING and not run.lease_expires_at,
        "command": command(f"{name}-message", run.id, message_id, *(["RUN"] if name == "move" else [])),
    }
    return admin.page(request, "act", context, status=status)
