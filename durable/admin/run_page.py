"""A run's page: its state, what it waits for, its history, and the verbs that it allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from durable.admin import access, charts, pages
from durable.admin.base import AdminPages
from durable.admin.bulk_result import progress_of_bulk
from durable.admin.streamed_response import streamed
from durable.admin.url_keys import as_id
from durable.admin.verbs import VERBS
from durable.conf import conf
from durable.core.location import display_location, unescape
from durable.core.places import Place, of_message
from durable.core.records import ENDED, RunState
from durable.inspection import (
    Progress,
    awaited_queues,
    build_timeline,
    explain_fully,
    history_tree,
    inbox,
    newest_messages,
    payload,
    possible_verbs,
    pretty,
    progress_of,
    redacted_error,
    redacted_traceback,
    stuck_step,
    written,
)
from durable.inspection.shell_command import command
from durable.inspection.size_limit import TooLarge, read_within
from durable.inspection.tree import PAGE
from durable.models import OperatorAction, QueueMessage, Run
from durable.operations.audit import PERMISSIONS

__all__ = ["Button", "MessageRow", "export", "lead", "live", "show"]

_MOST_RELATED = 20
_MOST_MESSAGES = 30
_MOST_ACTIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A verb that the run's state allows: a link to the confirmation page, and the equivalent command."""

    name: str
    title: str
    url: str
    command: str
    is_grave: bool
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message; `body` and `response` are "" if the user may not see them."""

    message: QueueMessage
    queue: str
    receiver: str
    body: str
    response: str


def lead(admin: AdminPages, _request: HttpRequest, key: str) -> HttpResponse:
    """Redirect from the URL without a word after the id to the run's page."""
    return HttpResponseRedirect(admin.url("change", as_id(key)))


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the whole page."""
    run = pages.find(key)
    return admin.page(request, "run", _context(admin, request, run, progress_of(run), pages.now()))


def live(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Return the part of the page that changes, or 304 if nothing has changed."""
    run = pages.find(key)
    progress = progress_of(run)
    now = pages.now()
    etag = pages.etag_of(now, progress.revision, request.GET.urlencode())
    if pages.is_known(request, etag):
        return pages.unchanged(etag)
    return pages.tagged(admin.page(request, "_run", _context(admin, request, run, progress, now)), etag)


def export(_admin: AdminPages, request: HttpRequest, key: str) -> HttpResponseBase:
    """Return everything that is recorded of the run, as a JSON file that is written while it is sent."""
    run = pages.find(key)
    pieces = written(run, with_payloads=access.may(request, "view_payload"), indent=1)
    response = streamed(request, pieces, "application/json")
    response["Cache-Control"] = "no-store"
    disposition = content_disposition_header(as_attachment=True, filename=f"run-{run.id}.json")
    response["Content-Disposition"] = disposition or "attachment"
    return response


def _context(admin: AdminPages, request: HttpRequest, run: Run, progress: Progress, now: datetime) -> dict[str, Any]:
    with_payloads = access.may(request, "view_payload")
    only_failed = request.GET.get("only") == "failed"
    tree = history_tree(run.id, start=_whole_number(request.GET.get("start")), only_failed=only_failed)
    wall = ((run.finished_at or now) - run.created_at).total_seconds()
    explanation = explain_fully(run, now)
    return {
        "title": f"Run {run.id}",
        "now": now,
        "run": run,
        "is_ended": run.state in ENDED,
        "explanation": explanation,
        "explained_at": display_location(explanation.location),
        "progress": progress,
        "bulk": progress_of_bulk(run),
        "wall": wall,
        "waited": wall - progress.active if wall >= progress.active else None,  # branches work side by side
        "buttons": _buttons(admin, request, run, explanation.remedies),
        "tree": tree,
        "roots": charts.shallow(tree.roots),
        "tree_size": PAGE,
        "only_failed": only_failed,
        "timeline": charts.drawn(build_timeline(run, tree.nodes, now)),
        **_stuck(run, with_payloads),
        "error": redacted_error(run.workflow, run.error),
        "traceback": redacted_traceback(run.workflow, run.error) if with_payloads else "",
        **(_input_and_output(run) if with_payloads else {"input": "", "output": ""}),
        "messages_of_run": _messages(run, with_payloads),
        "most_messages": _MOST_MESSAGES,
        "related": _related(run),
        "actions": _actions(run),
        "step_url": admin.url("step", run.id),
        "replay_url": admin.url("replay", run.id),
        "export_url": admin.url("export", run.id),
        "live_url": admin.url("live", run.id),
        "live_query": request.GET.urlencode(),
        "etag": pages.etag_of(now, progress.revision, request.GET.urlencode()),
        "copies": [command("show", run.id), command("why", run.id), command("export", run.id)],
    }


def _stuck(run: Run, with_payloads: bool) -> dict[str, Any]:
    """Return the step that could not be undone, and the error of its handler."""
    stuck = stuck_step(run)
    if stuck is None:
        return {"stuck": None, "stuck_error": "", "stuck_traceback": ""}
    error = stuck.metadata.rollback_error
    return {
        "stuck": stuck,
        "stuck_error": redacted_error(run.workflow, error),
        "stuck_traceback": redacted_traceback(run.workflow, error) if with_payloads else "",
    }


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _buttons(admin: AdminPages, request: HttpRequest, run: Run, remedies: Sequence[str]) -> list[Button]:
    """Return the verbs that the run's state and the user's permissions allow, the remedies first."""
    possible = [verb for verb in possible_verbs(run) if access.may(request, PERMISSIONS[verb])]
    possible.sort(key=lambda verb: remedies.index(verb) if verb in remedies else len(remedies))
    buttons: list[Button] = []
    for verb in possible:
        if verb == "replay":  # a replay begins at a step, from the history
            continue
        if verb == "wake" and run.state == RunState.RUNNING:  # allowed, and without an effect
            continue
        is_send = verb == "send"
        buttons.append(
            Button(
                name=verb,
                title="Send a message" if is_send else VERBS[verb].title,
                url=admin.url("send", run.id) if is_send else admin.url("act", run.id, verb),
                command=command(verb, run.id, *([(awaited_queues(run) or ["QUEUE"])[0], "-"] if is_send else [])),
                is_grave=not is_send and VERBS[verb].is_grave,
                is_first=not buttons and verb in remedies,
            )
        )
    return buttons


def _input_and_output(run: Run) -> dict[str, str]:
    found = Run.objects.using(conf.DATABASE).filter(pk=run.pk)
    return {
        name: _shown(run.workflow, name, read_within(found, name).get(run.pk, [None]), Place(run.id, name))
        for name in ("input", "output")
    }


def _messages(run: Run, with_payloads: bool) -> list[MessageRow]:
    found = inbox(run, newest=_MOST_MESSAGES)
    values = read_within(newest_messages(run, _MOST_MESSAGES), "body", "response") if with_payloads else {}
    rows = []
    for message in found:
        queue = unescape(message.queue)
        body, response = _both(values.get(message.pk))
        shown = {
            "body": _shown(
                run.workflow, f"message:{queue}", body, of_message(run.id, "message", message.id, message.queue)
            ),
            "response": _shown(
                run.workflow, f"response:{queue}", response, of_message(run.id, "response", message.id, message.queue)
            ),
        }
        rows.append(MessageRow(message=message, queue=queue, receiver=display_location(message.received_by), **shown))
    return rows


def _both(read: Sequence[str | None] | TooLarge | None) -> tuple[Sequence[str | None] | TooLarge, Sequence[str | None]]:
    """Return body and response of a message, each as `_shown` takes it."""
    if read is None or isinstance(read, TooLarge):
        return read or [None], [None]
    return read[:1], read[1:]


def _shown(workflow: str, field: str, read: Sequence[str | None] | TooLarge, place: Place) -> str:
    """Return a value for the page; "" for none."""
    if isinstance(read, TooLarge):
        return str(read)
    [text] = read
    return "" if text is None else pretty(payload(workflow, field, text, place))


def _related(run: Run) -> list[tuple[str, Run]]:
    """Return the related runs, each with its relation to this one."""
    runs = Run.objects.using(conf.DATABASE).only("id", "workflow", "state", "created_at")
    around = [("started by", run.parent_id), ("made from", run.replay_of_id)]
    found = runs.in_bulk([each for _, each in around if each])
    related = [(word, found[run_id]) for word, run_id in around if run_id in found]
    related += [("started", each) for each in runs.filter(parent=run).order_by()[:_MOST_RELATED]]
    return related + [("made into", each) for each in runs.filter(replay_of=run).order_by()[:_MOST_RELATED]]


def _actions(run: Run) -> list[OperatorAction]:
    found = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run.id).order_by("-created_at", "-id")
    return list(found[:_MOST_ACTIONS])
