"""The buttons of a run: the verbs that its state and the user's permissions allow, on the run's page and beside the
objects that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext as _

from durable.admin import access
from durable.admin.pages import AdminPages
from durable.core.people import QUEUES
from durable.core.records import RunState
from durable.inspection.activities import RunningStep
from durable.inspection.explain_states import Explanation, awaited_queues
from durable.inspection.wording import command
from durable.models import Run
from durable.operations import people
from durable.operations.audit import PERMISSIONS
from durable.operations.people import Question
from durable.operations.verbs import RUN_VERBS, possible_verbs


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A verb that the run's state allows: a link to the confirmation page, and the equivalent command."""

    name: str
    title: str
    url: str
    command: str
    is_grave: bool
    is_first: bool


def buttons_of(
    admin: AdminPages,
    request: HttpRequest,
    run: Run,
    now: datetime,
    explanation: Explanation,
    running: Sequence[RunningStep],
) -> list[Button]:
    """Return the verbs that the run's state and the user's permissions allow, the remedies first."""
    remedies = explanation.remedies
    may_help = [verb for verb in possible_verbs(run) if verb not in explanation.withheld]
    possible = [verb for verb in may_help if access.may(request, PERMISSIONS[verb])]
    others = ["send"]  # a run that does not wait for a message seldom needs one
    possible.sort(key=lambda verb: remedies.index(verb) if verb in remedies else len(remedies) + (verb in others))
    buttons: list[Button] = []
    for verb in possible:
        if verb == "replay":  # a replay begins at a step, from the history
            continue
        if verb == "wake" and not ("wake" in remedies or _is_at_rest(run, now)):  # allowed, and without an effect
            continue
        if verb == "abandon" and all(step.abandon_asked_at is not None for step in running):
            continue
        is_send = verb == "send"
        buttons.append(
            Button(
                name=verb,
                title=_("Send a message") if is_send else str(RUN_VERBS[verb].title),
                url=admin.url("send", run.id) if is_send else admin.url("act", run.id, verb),
                command=command(
                    verb.replace("_", "-"),
                    run.id,
                    *([(awaited_queues(run) or ["QUEUE"])[0], "-"] if is_send else RUN_VERBS[verb].arguments),
                    **({} if is_send else RUN_VERBS[verb].placeholders),
                ),
                is_grave=not is_send and RUN_VERBS[verb].is_grave,
                is_first=not buttons and verb in remedies and (is_send or not RUN_VERBS[verb].is_grave),
            )
        )
    return [*_answers(admin, request, run), *buttons]


def _answers(admin: AdminPages, request: HttpRequest, run: Run) -> list[Button]:
    """Return a button for each open question of the run that the user may answer."""
    return [
        Button(
            name="answer",
            title=_("Answer “%(question)s”") % {"question": each.name},
            url=f"{admin.url('question', None, each.id)}?{urlencode({'next': request.path})}",
            command="",
            is_grave=False,
            is_first=True,
        )
        for each in asked_by(request, run)
    ]


def _is_at_rest(run: Run, now: datetime) -> bool:
    """Return whether nothing happens to the run before the time at which it continues by itself."""
    return run.state != RunState.RUNNING and run.wake_at is not None and run.wake_at > now


def asked_by(request: HttpRequest, run: Run) -> list[Question]:
    """Return the open questions of a run that the user may answer; no statement of a run that asks nobody."""
    if not asks(run):
        return []
    return [each for each in people.questions_of(run.id, is_open=True) if each.is_for(request.user)]


def asks(run: Run) -> bool:
    """Return whether the run's row says that it waits for a person's answer."""
    return QUEUES in run.waiting_for
