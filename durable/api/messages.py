"""Messages to a run: send, ask, read, delete, move; and questions to people: the caller's inbox, and what a caller does
with one of them.

A question decides who may do what, when it is done; a refusal is in the audit log. A question that the caller neither
may answer nor sees as an operator is answered as if there were none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from durable import operations
from durable.api.base import View, link, listed
from durable.api.fields import Form, Text, Value, audit_reason, serializer_of
from durable.api.long_poll import wait_for
from durable.api.requests import Done, answered, as_json
from durable.api.runs import ResultQuery
from durable.api.schema import described
from durable.conf import conf
from durable.core.errors import FormInvalidError, NotAllowedError, QuestionClosedError
from durable.core.places import of_message
from durable.core.records import ENDED, MessageState
from durable.inspection.payloads import payload
from durable.listings.access import actor_of, admit, is_limited, may, refuse_events, seen_of, visible_run
from durable.listings.events import EVENTS
from durable.listings.history import MESSAGES, Answer, EventReference, Message, MessageReference, seen_history
from durable.listings.people import QUESTIONS, QuestionDetail, QuestionState, SeenQuestions, seen_questions
from durable.listings.problems import ProblemError
from durable.listings.shapes import data_of
from durable.models import QueueMessage, Run
from durable.operations import people
from durable.operations.asked_forms import answer_with, named
from durable.operations.audit import acting_as
from durable.operations.messages import ANSWERED
from durable.operations.people import Question


class SendForm(Form):
    """A message."""

    queue = Text(min_length=1, max_length=128)
    body = Value(required=False, default=None, allow_null=True)
    id = Text(
        required=False,
        min_length=1,
        max_length=200,
        help_text="Makes the send idempotent for as long as the run exists.",
    )
    reason = audit_reason()


class DeleteMessageForm(Form):
    """The reason."""

    reason = audit_reason()


class MoveMessageForm(DeleteMessageForm):
    """The run that gets the message."""

    to = Text(min_length=1, max_length=200, help_text="The id of the run that gets the message.")


class AskForm(SendForm):
    """A message with a response."""


class PublishForm(Form):
    """An event."""

    event = Text(min_length=1, max_length=128, help_text="The name, such as order.paid.")
    key = Text(min_length=1, max_length=200, help_text="Whose event it is. It is compared whole.")
    body = Value(required=False, default=None, allow_null=True)
    id = Text(
        required=False,
        min_length=1,
        max_length=200,
        help_text="Makes the request idempotent for as long as the event is kept (EVENTS_KEPT).",
    )
    reason = audit_reason()


class EventsView(View):
    about = "messages"
    is_list = True

    get = listed(EVENTS)

    @described(
        operation_id="publish_event",
        request=PublishForm,
        responses={200: serializer_of(EventReference), 201: serializer_of(EventReference)},
    )
    def post(self, request: Request) -> HttpResponse:
        """Publish an event to all runs that wait for its name and key, and start the workflows that it starts: 201.

        With an `id` that is known: 200, or 409 if key or body differ. Where users see only some runs: 403.

        Needs `durable.operate_run`.
        """
        refuse_events(if_limited=is_limited())
        admit(request, "publish", "")
        given = self.form(PublishForm, request)
        with acting_as(actor_of(request), reason=given["reason"]):
            return answered(request, lambda: _published(given))


def _published(given: dict[str, Any]) -> Done:
    from durable.operations.events import publish  # processes that publish nothing do without

    try:
        published = publish(given["event"], given["body"], key=given["key"], id=given.get("id"))
    except ValueError as error:
        raise ProblemError("arguments-refused", 422, f"{error}.") from None
    return Done(data={"id": published.id}, status=201 if published.is_new else 200)


class MessagesView(View):
    about = "messages"

    get = listed(MESSAGES)

    @described(
        operation_id="send_message",
        request=SendForm,
        responses={200: serializer_of(MessageReference), 201: serializer_of(MessageReference)},
    )
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Put a message into the run's inbox: 201.

        With an `id` that the run has seen: 200, or 409 if queue or body differ.

        Needs `durable.operate_run`.
        """
        admit(request, "send", run_id)
        given = self.form(SendForm, request)
        return _answered(request, run_id, given)


class MessageView(View):
    about = "messages"

    @described(operation_id="get_message", responses=serializer_of(Message))
    def get(self, request: Request, run_id: str, message_id: str) -> Response:
        """Return the message, with its response once the run has given one."""
        run = visible_run(request, run_id)
        message = _message(run, message_id)
        if message is None:
            raise ProblemError("not-found", 404, f'Run "{run_id}" was sent no message with this id.')
        return Response(data_of(Message, message, seen_history(seen_of(request), run)))


class DeleteMessageView(View):
    about = "messages"

    @described(operation_id="delete_message", request=DeleteMessageForm, responses=serializer_of(MessageReference))
    def post(self, request: Request, run_id: str, message_id: str) -> Response:
        """Delete a message that the run has not received. Needs `durable.operate_run`.

        409 if the run has received it, if there is none, and while a worker executes the run.
        """
        admit(request, "delete_message", run_id)
        given = self.form(DeleteMessageForm, request)
        with acting_as(actor_of(request), reason=given["reason"]):
            operations.delete_message(run_id, message_id)
        return Response({"id": message_id, "run": run_id})


class MoveMessageView(View):
    about = "messages"

    @described(operation_id="move_message", request=MoveMessageForm, responses=serializer_of(MessageReference))
    def post(self, request: Request, run_id: str, message_id: str) -> Response:
        """Put a message that the run has not received into the inbox of another run. Needs `durable.operate_run`.

        It keeps its id. 409 if the run has received it, if there is none, while a worker executes the run, and if the
        other run has ended.
        """
        admit(request, "move_message", run_id)
        given = self.form(MoveMessageForm, request)
        visible_run(request, given["to"])
        try:
            with acting_as(actor_of(request), reason=given["reason"]):
                operations.move_message(run_id, message_id, given["to"])
        except ValueError as error:
            raise ProblemError("arguments-refused", 422, f"{error}.") from None
        return Response({"id": message_id, "run": given["to"]})


class AskView(View):
    about = "messages"

    @described(
        operation_id="ask",
        request=AskForm,
        parameters=[ResultQuery],
        responses={200: serializer_of(Answer), 202: serializer_of(Answer)},
    )
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Send a message and wait for its response, `wait` seconds at most: 200.

        After that 202; look at the message later. 409 with the `reason` if the workflow has refused the message.

        Needs `durable.operate_run` and `durable.view_payload`. With an `Idempotency-Key`, a repeated request waits for
        the response to the same message.
        """
        admit(request, "ask", run_id, needs="view_payload")
        given = self.form(AskForm, request)
        wait = ResultQuery.read(request.query_params)["wait"]
        sent = _answered(request, run_id, given)
        if sent.status_code not in (200, 201):
            return sent
        return _awaited(request, run_id, sent, wait)


def _answered(request: Request, run_id: str, given: dict[str, Any]) -> HttpResponse:
    with acting_as(actor_of(request), reason=given["reason"]):
        return answered(request, lambda: _sent(request, run_id, given))


def _sent(request: Request, run_id: str, given: dict[str, Any]) -> Done:
    try:
        sent = operations.send(run_id, given["queue"], given["body"], idempotency_id=given.get("id"))
    except ValueError as error:
        raise ProblemError("arguments-refused", 422, f"{error}.") from None
    location = link(request, "message", run_id=run_id, message_id=sent.id)
    return Done(data={"id": sent.id, "run": run_id}, status=201 if sent.is_new else 200, location=location)


def _message(run: Run, message_id: str) -> QueueMessage | None:
    return QueueMessage.objects.using(conf.DATABASE).filter(run=run, pk=message_id).first()


def _awaited(request: Request, run_id: str, sent: HttpResponse, wait: float) -> HttpResponse:
    """Return the answer with the message's response added."""
    message_id = json.loads(sent.content)["id"]

    def look() -> QueueMessage | Run | None:
        run = visible_run(request, run_id)  # before the message: what the run did before it ended is seen below
        message = _message(run, message_id)
        if message is not None and message.state in ANSWERED:
            return message
        return run if run.state in ENDED else None

    found = wait_for(request, look, wait)
    if isinstance(found, Run):
        raise ProblemError(
            "run-ended", 409, f'Run "{run_id}" has {found.state} without answering the message.', state=found.state
        )
    response = None
    if isinstance(found, QueueMessage):
        response = payload(
            found.run.workflow,
            f"response:{found.queue}",
            found.response,
            of_message(run_id, "response", found.id, found.queue),
        )
        if found.state == MessageState.REFUSED:
            raise ProblemError(
                "message-refused",
                409,
                f'Run "{run_id}" refused the message: {response}',
                message=message_id,
                reason=response,
            )
    data = {"message": message_id, "is_answered": found is not None, "response": response}
    sent.status_code = 200 if found is not None else 202
    sent.content = as_json(data).encode()
    return sent


# -- questions to people


class QuestionForm(Form):
    """The reason."""

    reason = audit_reason()


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
