"""Questions to people: the caller's inbox, and what a caller does with one of them.

The question decides who may do what, when it is done; a refusal is in the audit log. A question that the caller neither
may answer nor sees as an operator is answered as if there were none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View, listed
from durable.api.fields import Form, Text, Value, serializer_of
from durable.api.requests import Done, answered
from durable.api.schema import described
from durable.core.errors import FormInvalidError, NotAllowedError, QuestionClosedError
from durable.core.ids import MAX_REASON
from durable.listings.access import actor_of, may, seen_of
from durable.listings.people import QUESTIONS, QuestionDetail, QuestionState, SeenQuestions, seen_questions
from durable.listings.problems import ProblemError
from durable.listings.shapes import data_of
from durable.operations import people
from durable.operations.asked_forms import answer_with, named
from durable.operations.audit import acting_as
from durable.operations.people import Question


class QuestionForm(Form):
    """The reason."""

    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class CommentQuestionForm(QuestionForm):
    """A comment."""

    comment = Text(max_length=10_000, help_text="What the next reader of the question sees.")


class AnswerQuestionForm(QuestionForm):
    """An answer."""

    data = Value(  # type: ignore[assignment]  # a field, which leaves the property of the serializer as it is
        allow_null=True, help_text="The fields of the form as an object; without a form true or false."
    )
    comment = Text(required=False, default="", allow_blank=True, max_length=10_000)


class HandOverQuestionForm(QuestionForm):
    """Whom to ask instead."""

    to = Text(
        min_length=1, max_length=300, help_text="The name of a user or of a group: ada, user:ada, group:managers."
    )
    comment = Text(required=False, default="", allow_blank=True, max_length=10_000)


class QuestionsView(View):
    about = "questions"
    reads_with = ()

    get = listed(QUESTIONS)


class QuestionView(View):
    about = "questions"
    reads_with = ()

    @described(operation_id="get_question", responses=serializer_of(QuestionDetail))
    def get(self, request: Request, question_id: str) -> Response:
        """Return a question that you may answer, with the fields of its form.

        With `durable.operate_run` and `durable.view_run`, also one that is for others.
        """
        question = _found(question_id)
        is_seen, seen = _sees(request, question)
        if not is_seen:
            raise _missing()
        return Response(data_of(QuestionDetail, question, seen))


def _found(question_id: str) -> Question:
    try:
        return people.question(question_id)
    except QuestionClosedError:
        raise _missing() from None


def _missing() -> ProblemError:
    return ProblemError("not-found", 404, "There is no such question, or it is for somebody else.")


def _sees(request: Request, question: Question) -> tuple[bool, SeenQuestions]:
    """Return whether the caller may answer the question or sees it as an operator, and what it is shown with."""
    shown, seen = seen_questions(seen_of(request), request.user, [question])
    is_theirs = bool(shown) and question.is_for(request.user)
    return is_theirs or (may(request, "operate_run") and question.run_id in seen.runs), seen


class QuestionVerbView(View):
    about = "questions"
    takes: ClassVar[type[Form]]
    act: ClassVar[Any]  # a function of the question, the user and what was given

    def perform(self, request: Request, question_id: str) -> HttpResponse:
        """Validate, act once, answer."""
        given = self.form(self.takes, request)

        def done() -> Done:
            question = _found(question_id)
            if question.is_for_operators and not _sees(request, question)[0]:
                raise _missing()
            try:
                self.act(question, request.user, given)
            except (NotAllowedError, FormInvalidError, QuestionClosedError):
                if not _sees(request, question)[0]:
                    raise _missing() from None
                raise
            seen = seen_of(request)
            return Done(data=data_of(QuestionState, people.question(question_id), seen))

        with acting_as(actor_of(request), reason=given["reason"]):
            return answered(request, done)


def _verb(
    word: str, takes: type[Form], act: Callable[[Question, Any, dict[str, Any]], object], does: str
) -> URLPattern:
    """Return the endpoint of a verb. `does` is its description in the document."""

    def post(self: QuestionVerbView, request: Request, question_id: str) -> HttpResponse:
        return self.perform(request, question_id)

    post.__doc__ = does
    operation = f"{word.replace('-', '_')}_question"
    described_post = described(operation_id=operation, request=takes, responses=serializer_of(QuestionState))(post)
    members = {"takes": takes, "act": staticmethod(act), "post": described_post}
    view: type[View] = type("QuestionVerbView", (QuestionVerbView,), members)
    found: URLPattern = path(f"questions/<str:question_id>/{word}", view.as_view(), name=f"{word}-question")
    return found


QUESTION_VERBS: Final = (
    _verb(
        "answer",
        AnswerQuestionForm,
        lambda question, user, given: answer_with(question, given["data"], user, given["comment"]),
        """Answer a question, as the user of the request.

        422 with the `errors` of the form, after which it can be answered again. 409 if it is not open any more. 403 for
        a user who has answered already, or who may see it and not answer it.
        """,
    ),
    _verb(
        "comment",
        CommentQuestionForm,
        lambda question, user, given: question.comment(given["comment"], by=user),
        "Write a comment on a question that you may answer, without an answer.",
    ),
    _verb(
        "hand-over",
        HandOverQuestionForm,
        lambda question, user, given: question.hand_over(
            named(question, given["to"]), by=user, comment=given["comment"]
        ),
        """Ask another user or a group instead: one that you may answer, or with `durable.operate_run` any.

        403 if the other user may not answer it.
        """,
    ),
    _verb(
        "claim",
        QuestionForm,
        lambda question, user, _given: question.claim(by=user),
        "Take a question that you may answer: nobody else may until you release it or hand it over.",
    ),
    _verb(
        "release",
        QuestionForm,
        lambda question, user, _given: question.release(by=user),
        "Give back a question that you have claimed.",
    ),
)
