"""The page of a question: for a user of the project who is logged in, and for the receiver of a mail, who need not be.

A GET never acts: programs that scan mails send these. A POST needs the CSRF token of the page, whoever sends it: people
answer questions, and programs do not. The link of a mail stands for its receiver, so the page that it leads to says
who answers. What a guessed, an old and a foreign link get is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required, login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods

from durable.core.errors import TOKEN, FormInvalidError, NotAllowedError, QuestionClosedError
from durable.hooks.links import has_csrf_token, is_too_often, set_csrf_cookie
from durable.operations import people
from durable.operations.asked_forms import NO_ERRORS, act, is_other_verb, shown
from durable.operations.people import Question
from durable.operations.question_mails import person_of_link

logger = logging.getLogger("durable.hooks")

View = Callable[..., HttpResponse]

_METHODS: Final = ("GET", "HEAD", "POST")
_DONE: Final = {
    "answer": gettext_lazy("Your answer has been recorded."),
    "approved": gettext_lazy("Your approval has been recorded. Somebody else has to agree too."),
}


def _private(view: View) -> View:
    """Let nobody keep, frame or index the response, and no other site learn its address."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        # not "no-referrer", with which browsers name no origin: Django's check of the CSRF token asks for it
        response["Referrer-Policy"] = "same-origin"
        response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
        response["X-Frame-Options"] = "DENY"
        patch_cache_control(response, no_store=True, private=True)
        response._has_been_logged = True  # type: ignore[attr-defined]  # read by django.utils.log.log_response
        return response

    return answer


@login_not_required
@_private
@sensitive_post_parameters()
@sensitive_variables()
@csrf_exempt  # it checks the token itself: Django's log would quote the address
def by_link(request: HttpRequest, question_id: str, word: str, token: str) -> HttpResponse:
    """The page for the receiver of a mail."""
    if request.method not in _METHODS:
        return HttpResponse(status=405, headers={"Allow": ", ".join(_METHODS)})
    record, person = None, None
    if TOKEN.fullmatch(token):
        record = people.find(question_id)
        person = None if record is None else person_of_link(record, word, token)
    if record is None or person is None:
        is_much = is_too_often("unknown", request.META.get("REMOTE_ADDR") or "")
        return _say(request, _("There is nothing at this address."), status=429 if is_much else 404)
    if request.method == "POST" and not has_csrf_token(request):
        return _say(request, _("Nothing was done: open the link of the mail again, and answer there."), status=403)
    response = _answer(request, Question(record), person)
    set_csrf_cookie(request, response)
    return response


@_private
@require_http_methods(_METHODS)
@sensitive_post_parameters()
@login_required
@csrf_protect
def by_login(request: HttpRequest, question_id: str) -> HttpResponse:
    """The page for the user who is logged in."""
    record = people.find(question_id)
    if record is None or not Question(record).is_for(request.user):
        return _say(request, _("There is nothing at this address."), status=404)
    return _answer(request, Question(record), request.user)


def _answer(request: HttpRequest, question: Question, person: Any) -> HttpResponse:
    problem, status, posted, errors = "", 200, None, NO_ERRORS
    if request.method == "POST" and not is_other_verb(request.POST):
        try:
            return _say(request, str(_DONE[act(question, request.POST, person)]), title=_("Thank you"))
        except FormInvalidError as error:
            problem, status, posted, errors = _problem(error), 422, request.POST, error.errors
        except NotAllowedError:
            return _say(request, _("You may not answer this question, or you have answered it already."), status=403)
        except QuestionClosedError:
            pass
    if not question.is_open:
        return _say(request, _("This question is not open any more: it was answered, or its time is over."), status=410)
    if not question.is_for(person):
        return _say(request, _("You may not answer this question, or you have answered it already."), status=403)
    name = person if isinstance(person, str) else person.get_username()
    view = shown(question, posted, problem, errors)
    context = {"title": question.name, "shown": view, "question": question, "person": name}
    return render(request, "durable/hooks/question.html", context, status=status)


def _problem(error: FormInvalidError) -> str:
    if "verdict" in error.errors:
        return _("Say yes or no.")
    return " ".join(map(_, error.errors.get("comment", []))) or _(
        "Nothing was done: please correct what is marked below."
    )


def _say(request: HttpRequest, text: str, *, title: str = "", status: int = 200) -> HttpResponse:
    context = {"title": title or text, "text": text if title else ""}
    return render(request, "durable/hooks/answer.html", context, status=status)
