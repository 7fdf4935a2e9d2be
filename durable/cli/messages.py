"""`durable start`, `send`, `ask` and `result`: an application's calls, from a shell. And `durable question` with what a
person does with one: an answer, a comment, a hand-over, a claim.

`durable questions` lists them (`durable.cli.list_command`). A question is answered by a user, so `--as` names one.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable import operations
from durable.cli.output import Exit, Output
from durable.cli.subcommand import (
    ACTING,
    JSON_HELP,
    KEYWORDS,
    RUN,
    Argument,
    RefusedError,
    Subcommand,
    acting,
    argument,
    duration,
    formats,
    found_run,
    json_value,
    option,
    shell_actor,
    subcommand,
    tags,
)
from durable.core import registry
from durable.core.errors import (
    MessageRefusedError,
    QuestionClosedError,
    RunCancelledError,
    RunFailedError,
    UnknownLimitError,
)
from durable.core.places import Place
from durable.inspection.humanize import moment
from durable.inspection.payloads import jsonable, payload, redacted, redacted_error
from durable.inspection.run_facts import checked_tags
from durable.listings.people import QuestionDetail, seen_questions
from durable.listings.shapes import Seen, data_of
from durable.operations import people
from durable.operations.asked_forms import answer_with, named
from durable.operations.common import workflow_named
from durable.operations.options import Option, Tags
from durable.operations.people import Question
from durable.operations.start import request_of
from durable.operations.start_options import START_OPTIONS, StartOptions

# -- start


def _argument_of(each: Option) -> Argument:
    if each.name == "on_conflict":
        return argument("--new", action="store_true", help=each.shell_help)
    return tags(each.shell_help) if isinstance(each, Tags) else option(each, letter="q" if each.name == "queue" else "")


@subcommand(
    "start",
    "Start a run of a workflow; prints its id.",
    argument("workflow", metavar="WORKFLOW"),
    argument("arguments", nargs="*", metavar="ARG", type=json_value, help=JSON_HELP),
    KEYWORDS,
    *map(_argument_of, START_OPTIONS),
    argument("--send", metavar="QUEUE", help="with --key: send a message to the open run, or to the new one"),
    argument("--body", type=json_value, metavar="BODY", help="with --send: the message's body, as JSON"),
    ACTING,
    formats("ids", "json"),
)
def start_command(options: Namespace, output: Output) -> int:
    try:
        definition = workflow_named(options.workflow)
    except registry.UnknownWorkflowError as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    if options.send is not None and options.key is None:
        raise CommandError("--send needs --key", returncode=Exit.USAGE)
    given = {
        each.name: getattr(options, each.name) for each in START_OPTIONS if each.name not in ("on_conflict", "tags")
    }
    try:
        given |= {"tags": dict(checked_tags(options.tag)) or None, "on_conflict": "error" if options.new else None}
        how = StartOptions().changed(**given)
        request = request_of(definition, inspect.signature(definition.function), how)
    except UnknownLimitError as error:
        raise RefusedError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    call = (options.id, tuple(options.arguments), dict(options.keyword))
    with acting(options):
        if options.send is None:
            [(run_id, _)] = operations.start(request, [call])
        else:
            run_id, _ = operations.start_or_send(request, call, options.send, options.body)
    if output.format == "json":
        output.json({"id": run_id, "workflow": definition.name})
    else:
        output.id(run_id)
    return Exit.OK


# -- send and ask


_SENT: Final = (
    RUN,
    argument("queue", metavar="QUEUE", help="the message queue that the run waits for"),
    argument("body", nargs="?", metavar="BODY", type=json_value, help=JSON_HELP),
    argument("--message-id", metavar="ID", help="a message with an id that the run has seen is not sent again"),
    ACTING,
)


@subcommand(
    "send",
    "Send a message to a run; prints the message's id.",
    *_SENT,
)
def send_command(options: Namespace, output: Output) -> int:
    with acting(options):
        sent = operations.send(options.id, options.queue, options.body, idempotency_id=options.message_id)
    output.id(sent.id)
    return Exit.OK


# -- publish


@subcommand(
    "publish",
    "Publish an event to all runs that wait for it; prints the event's id.",
    argument("event", metavar="EVENT", help="the name of the event, such as order.paid"),
    argument("body", nargs="?", metavar="BODY", type=json_value, help=JSON_HELP),
    argument("--key", required=True, metavar="KEY", help="whose event it is; waits name the same key"),
    argument("--id", metavar="ID", help="an event with an id that is known is not published again"),
    ACTING,
)
def publish_command(options: Namespace, output: Output) -> int:
    from durable.operations.events import publish  # processes that publish nothing do without

    with acting(options):
        try:
            published = publish(options.event, options.body, key=options.key, id=options.id)
        except ValueError as error:
            raise CommandError(str(error), returncode=Exit.USAGE) from error
    output.id(published.id)
    return Exit.OK


@subcommand(
    "ask",
    "Send a message to a run and print its answer, as JSON.",
    *_SENT,
    argument(
        "--timeout",
        type=duration,
        metavar="DURATION",
        help='how long to wait for the answer: "30 s" (default: for ever)',
    ),
)
def ask_command(options: Namespace, output: Output) -> int:
    timeout = None if options.timeout is None else options.timeout.total_seconds()
    with acting(options):
        try:
            answer = operations.ask(
                options.id, options.queue, options.body, timeout=timeout, idempotency_id=options.message_id
            )
        except MessageRefusedError as error:
            workflow = operations.record(options.id).workflow
            reason = redacted(workflow, f"response:{options.queue}", error.reason)
            raise MessageRefusedError(str(jsonable(reason)), options.id) from None
        except TimeoutError as error:
            output.complain(error)
            return Exit.TIMEOUT
    workflow = operations.record(options.id).workflow
    output.pretty(jsonable(redacted(workflow, f"response:{options.queue}", answer)))
    return Exit.OK


# -- messages that were sent to the wrong run


_UNRECEIVED: Final = (
    argument("id", metavar="ID", help="the run that has not received it"),
    argument("message", metavar="MESSAGE", help="the id of the message, as `durable send` prints it"),
)


@subcommand(
    "delete-message",
    "Delete a message that a run has not received.",
    *_UNRECEIVED,
    ACTING,
)
def delete_message_command(options: Namespace, output: Output) -> int:
    with acting(options):
        operations.delete_message(options.id, options.message)
    output.say(f"The message {options.message} is deleted.")
    return Exit.OK


@subcommand(
    "move-message",
    "Put a message that a run has not received into the inbox of another run.",
    *_UNRECEIVED,
    argument("to", metavar="TO", help="the run that gets it"),
    ACTING,
)
def move_message_command(options: Namespace, output: Output) -> int:
    with acting(options):
        operations.move_message(options.id, options.message, options.to)
    output.say(f"The message {options.message} is in the inbox of run {options.to} now.")
    return Exit.OK


# -- result


@subcommand(
    "result",
    "Wait until a run has ended, and print what it returned, as JSON.",
    RUN,
    argument(
        "--timeout", type=duration, metavar="DURATION", help='how long to wait for the end: "30 s" (default: for ever)'
    ),
)
def result_command(options: Namespace, output: Output) -> int:
    run = found_run(options.id)
    timeout = None if options.timeout is None else options.timeout.total_seconds()
    try:
        operations.result(run.id, timeout)
    except TimeoutError as error:
        output.complain(error)
        return Exit.TIMEOUT
    except RunFailedError as error:
        how = "was stopped by a mistake in the code" if error.is_mistake else "failed"
        output.complain(f'run "{run.id}" {how}: {redacted_error(run.workflow, error.error)}')
        return Exit.REFUSED
    except RunCancelledError as error:
        raise RefusedError(str(error)) from error
    output.pretty(_output(run.id))
    return Exit.OK


def _output(run_id: str) -> Any:
    ended = found_run(run_id)
    return payload(ended.workflow, "output", ended.output, Place(ended.id, "output"))


# -- questions to people


def _found(options: Namespace) -> Question:
    try:
        return people.question(options.id)
    except QuestionClosedError:
        raise CommandError(f'there is no question "{options.id}"', returncode=Exit.REFUSED) from None


_ID: Final = argument("id", metavar="ID", help="the question's id, as `questions` prints it")


@subcommand("question", "Show a question to people, with the fields of its form.", _ID, formats("table", "json"))
def question_command(options: Namespace, output: Output) -> int:
    question, now = _found(options), timezone.now()
    _, seen = seen_questions(Seen(now=now), None, [question])
    data = data_of(QuestionDetail, question, seen)
    if output.format == "json":
        output.pretty(data)
        return Exit.OK
    output.line(question.name)
    if question.text:
        output.text(question.text)
    open_until = "" if question.expires_at is None else moment(question.expires_at, now)
    facts = {
        "run": question.run_id,
        "about": question.about,
        "for": question.to,
        "permission": question.permission,
        "asked": moment(question.asked_at, now),
        "open until": open_until if data["is_open"] else "it is not open any more",
        "claimed by": question.claimed_by,
        "agreed": f"{len(question.answered_by)} of {question.approvals} {', '.join(question.answered_by)}".strip(),
        "problem": data["problem"],
    }
    for name, value in facts.items():
        if value:
            output.line(f"{name:<12}{value}")
    for each in question.notes:
        output.line(f"{each['by']}: {each['text']}")
    if data["fields"]:
        rows = [
            [each["name"], each["kind"], "yes" if each["is_required"] else "", each["label"], _choices(each["choices"])]
            for each in data["fields"]
        ]
        output.table(["FIELD", "KIND", "REQUIRED", "LABEL", "CHOICES"], rows)
    elif not question.has_form:
        output.line("answer       yes or no")
    return Exit.OK


def _choices(choices: list[dict[str, str]]) -> str:
    return " ".join(each["value"] for each in choices[:20] if each["value"]) + (" ..." if len(choices) > 20 else "")


def _verb(name: str, help: str, act: Callable[[Question, Namespace, Any], object], *arguments: Argument) -> Subcommand:
    @subcommand(name, help, _ID, *arguments, ACTING)
    def run(options: Namespace, output: Output) -> int:
        user = shell_actor(options.user).user
        if user is None:
            raise CommandError("a question is answered by a user: give --as USER", returncode=Exit.USAGE)
        question = _found(options)
        with acting(options):
            act(question, options, user)
        output.line(people.question(question.id).outcome or "open")
        return Exit.OK

    return run


_COMMENT: Final = argument("--comment", default="", metavar="TEXT", help="what the next reader sees")

QUESTION_VERBS = (
    _verb(
        "answer-question",
        "Answer a question, as the user that --as names.",
        lambda question, given, user: answer_with(question, given.data, user, given.comment),
        argument(
            "data",
            metavar="DATA",
            type=json_value,
            help=f"yes or no, or the fields of the form as a JSON object; {JSON_HELP}",
        ),
        _COMMENT,
    ),
    _verb(
        "comment-question",
        "Write a comment on a question, without an answer.",
        lambda question, given, user: question.comment(given.text, by=user),
        argument("text", metavar="TEXT", help="what the next reader sees"),
    ),
    _verb(
        "hand-over-question",
        "Ask another user or a group instead.",
        lambda question, given, user: question.hand_over(named(question, given.to), by=user, comment=given.comment),
        argument("to", metavar="TO", help="the name of a user or a group: ada, user:ada, group:managers"),
        _COMMENT,
    ),
    _verb(
        "claim-question",
        "Take a question: nobody else may answer it until it is released or handed over.",
        lambda question, _given, user: question.claim(by=user),
    ),
    _verb(
        "release-question",
        "Give back a question that the user has claimed.",
        lambda question, _given, user: question.release(by=user),
    ),
)
