"""A verb on something that is not a run and has a name: a queue, a workflow, a schedule. A form applies it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext

from durable.admin import pages
from durable.admin.action_page import Refusal
from durable.admin.forms import ActForm
from durable.admin.verb_page import acting
from durable.inspection.shell_command import command

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedVerb:
    """A verb. `call` gets the name and the form's values, and returns in words what was done.

    `action` is its name in the audit log, and `command` that of its shell command.
    """

    action: str
    title: StrPromise
    does: StrPromise
    command: str
    call: Callable[[str, dict[str, Any]], str]
    form: type[forms.Form] = ActForm
    is_grave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a request: `done` in words, or a page with `form`, `problem` or `planned`, and its status."""

    form: forms.Form
    done: str = ""
    problem: str = ""
    planned: str = ""
    status: int = 200

    def context(self, verb: NamedVerb, of: str) -> dict[str, Any]:
        """Return what the page of the verb shows."""
        return {
            "title": gettext("%(verb)s: %(of)s") % {"verb": verb.title, "of": of},
            "now": pages.now(),
            "verb": verb,
            "of": of,
            "form": self.form,
            "problem": self.problem,
            "planned": self.planned,
            "command": command(verb.command, of),
        }


def answer(
    request: HttpRequest,
    verb: NamedVerb,
    of: str,
    initial: Mapping[str, Any] | None = None,
    plan: Callable[[forms.Form], str] | None = None,
) -> Answer:
    """Return the empty form, or apply the verb. `plan` returns what has to be shown before, "" if it has been."""
    is_posted = request.method == "POST"
    form = verb.form(request.POST if is_posted else None, initial=dict(initial or {}))
    if not is_posted:
        return Answer(form=form)
    if not form.is_valid():
        return Answer(form=form, status=422)
    try:
        planned = "" if plan is None else plan(form)
        if planned:
            return Answer(form=form, planned=planned)
        with acting(request, form.cleaned_data):
            return Answer(form=form, done=verb.call(of, form.cleaned_data))
    except Refusal as refusal:
        return Answer(form=form, problem=refusal.why, status=refusal.status)
