"""Waiting for you: the open questions that the user of the request may answer, and the page of each.

For users of the admin, whatever else they may see of durable: who may answer a question is decided by the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.admin import access
from durable.admin.pages import AdminPages
from durable.admin.run_buttons import asked_by
from durable.admin.subjects import page_of
from durable.core.errors import FormInvalidError, NotAllowedError, QuestionClosedError
from durable.inspection.pagination import InvalidCursorError, moment_key_of
from durable.inspection.run_rules import asked_of
from durable.inspection.wording import told
from durable.listings.people import position_text
from durable.models import Run
from durable.operations import people
from durable.operations.asked_forms import NO_ERRORS, ShownQuestion, act, shown
from durable.operations.audit import acting_as
from durable.operations.people import Question

#: Questions on one page, each with its form.
SHOWN: Final = 20

DONE: Final = {
    "answer": gettext_lazy("Your answer has been recorded."),
    "approved": gettext_lazy("Your approval has been recorded. Somebody else has to agree too."),
    "claim": gettext_lazy("It is yours: nobody else can answer it until you release it."),
    "release": gettext_lazy("Others can answer it again."),
    "comment": gettext_lazy("Your comment has been recorded."),
    "hand_over": gettext_lazy("It has been handed over."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A question in the inbox or on a run's page. `url` is its page, `run_url` and `about_url` are "" if hidden."""

    shown: ShownQuestion
    url: str
    run_url: str
    about_url: str


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show a page of the inbox, which begins after the question that `after` names."""
    try:
        after = moment_key_of(request.GET.get("after"), str)
    except InvalidCursorError as error:
        raise Http404(told(error)) from error
    found, end = people.page_for(request.user, most=SHOWN, after=after)
    context = {
        "title": _("Waiting for you"),
        "cards": [card_of(admin, request, each) for each in _asked_of(request, found)],
        "after": after is not None,
        "next": position_text(end),
    }
    return admin.page(request, "inbox", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show a question, or do what was posted. `next` is the page that leads here, where an answer leads back to."""
    question, back = _find(request, key), _back_of(request)
    own = f"{request.path}?{urlencode({'next': back})}" if back else request.path
    problem, status, posted, errors = "", 200, None, NO_ERRORS
    if request.method == "POST":
        try:
            with acting_as(access.actor_of(request)):
                done = act(question, request.POST, request.user)
        except FormInvalidError as error:
            problem, status, posted, errors = _problem(error), 422, request.POST, error.errors
        except NotAllowedError as error:
            raise PermissionDenied(told(error)) from error
        except QuestionClosedError as error:
            messages.warning(request, told(error))
            return HttpResponseRedirect(back or admin.url("inbox"))
        else:
            messages.success(request, DONE[done])
            is_kept = done in ("claim", "release", "comment")
            return HttpResponseRedirect(own if is_kept else back or admin.url("inbox"))
    card = card_of(admin, request, question, shown(question, posted, problem, errors))
    context = {"title": question.name, "card": replace(card, url=own), "place": "durable_run_inbox"}
    return admin.page(request, "question", context, status=status)


def _asked_of(request: HttpRequest, questions: Sequence[Question]) -> list[Question]:
    return asked_of(questions, access.existing(request, [each.run_id for each in questions]))


def _back_of(request: HttpRequest) -> str:
    """Return the page of this site that `next` names, "" without one."""
    back = request.GET.get("next", "")
    is_here = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    return back if is_here else ""


def _problem(error: FormInvalidError) -> str:
    """Return why an answer was refused, where the form does not say it beside a field."""
    others = [text for name, texts in error.errors.items() if name.startswith("durable_") for text in texts]
    texts = [*others, *error.errors.get("comment", [])]
    if "verdict" in error.errors and not texts:
        return _("Say yes or no.")
    return " ".join(map(_, texts)) or _("Nothing was done: please correct what is marked below.")


def _find(request: HttpRequest, key: str) -> Question:
    """Return an open question that the user may answer. Raises Http404, and PermissionDenied for anybody else."""
    try:
        question = people.question(key)
    except QuestionClosedError as error:
        raise Http404(told(error)) from error
    if not question.is_for(request.user) or not _asked_of(request, [question]):
        if access.may(request, "view_run") and access.find_run(request, question.run_id) is not None:
            raise PermissionDenied(_("This question is not for you, or you have answered it already."))
        raise Http404(_("There is no such question."))
    if not question.is_open:
        raise Http404(_("This question is not open any more: it was answered, or its time is over."))
    return question


def card_of(admin: AdminPages, request: HttpRequest, question: Question, view: ShownQuestion | None = None) -> Card:
    """Return a question as the admin shows it."""
    found = view or shown(question)
    sees_run = access.may(request, "view_run") and access.find_run(request, question.run_id) is not None
    return Card(
        shown=found,
        url=admin.url("question", None, question.id),
        run_url=admin.url("change", question.run_id) if sees_run else "",
        about_url="" if found.instance is None else page_of(admin.admin_site, request, found.instance),
    )


def cards_of_run(admin: AdminPages, request: HttpRequest, run: Run) -> list[Card]:
    """Return the open questions of a run that the user may answer; no statement of a run that does not wait."""
    return [card_of(admin, request, each) for each in asked_by(request, run)]
