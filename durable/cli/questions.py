"""`durable question` and what a person does with one: an answer, a comment, a hand-over, a claim.

`durable questions` lists them (`durable.cli.list_command`). A question is answered by a user, so `--as` names one.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Exit, Output
from durable.cli.subcommand import JSON_HELP, Subcommand, acting, add_acting, add_format, json_value, shell_actor
from durable.core.errors import QuestionClosedError
from durable.inspection.humanize import moment
from durable.listings.people import QuestionDetail, seen_questions
from durable.listings.shapes import Seen, data_of
from durable.operations import people
from durable.operations.asked_forms import answer_with, named
from durable.operations.people import Question


def _found(options: Namespace) -> Question:
    try:
        return people.question(options.id)
    except QuestionClosedError:
        raise CommandError(f'there is no question "{options.id}"', returncode=Exit.REFUSED) from None


def _configure(parser: ArgumentParser, *more: Callable[[ArgumentParser], object]) -> None:
    parser.add_argument("id", metavar="ID", help="the question's id, as `questions` prints it")
    for each in more:
        each(parser)


# -- one question


def _configure_show(parser: ArgumentParser) -> None:
    _configure(parser)
    add_format(parser, "table", "json")


def _show(options: Namespace, output: Output) -> int:
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


QUESTION = Subcommand(
    name="question",
    help="Show a question to people, with the fields of its form.",
    configure=_configure_show,
    run=_show,
)


# -- verbs


def _verb(act: Callable[[Question, Namespace, Any], object]) -> Callable[[Namespace, Output], int]:
    def run(options: Namespace, output: Output) -> int:
        user = shell_actor(options.user).user
        if user is None:
            raise CommandError("a question is answered by a user: give --as USER", returncode=Exit.USAGE)
        question = _found(options)
        with acting(options):
            act(question, options, user)
        after = people.question(question.id)
        output.line(after.outcome or "open")
        return Exit.OK

    return run


def _add_comment(parser: ArgumentParser) -> None:
    parser.add_argument("--comment", default="", metavar="TEXT", help="what the next reader sees")


def _add_data(parser: ArgumentParser) -> None:
    what = f"yes or no, or the fields of the form as a JSON object; {JSON_HELP}"
    parser.add_argument("data", metavar="DATA", type=json_value, help=what)


def _add_to(parser: ArgumentParser) -> None:
    parser.add_argument("to", metavar="TO", help="the name of a user or a group: ada, user:ada, group:managers")


def _add_text(parser: ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="what the next reader sees")


def _subcommand(
    name: str, help: str, act: Callable[[Question, Namespace, Any], object], *more: Callable[[ArgumentParser], object]
) -> Subcommand:
    def configure(parser: ArgumentParser) -> None:
        _configure(parser, *more, add_acting)

    return Subcommand(name=name, help=help, configure=configure, run=_verb(act))


QUESTION_VERBS = (
    _subcommand(
        "answer-question",
        "Answer a question, as the user that --as names.",
        lambda question, given, user: answer_with(question, given.data, user, given.comment),
        _add_data,
        _add_comment,
    ),
    _subcommand(
        "comment-question",
        "Write a comment on a question, without an answer.",
        lambda question, given, user: question.comment(given.text, by=user),
        _add_text,
    ),
    _subcommand(
        "hand-over-question",
        "Ask another user or a group instead.",
        lambda question, given, user: question.hand_over(named(question, given.to), by=user, comment=given.comment),
        _add_to,
        _add_comment,
    ),
    _subcommand(
        "claim-question",
        "Take a question: nobody else may answer it until it is released or handed over.",
        lambda question, _given, user: question.claim(by=user),
    ),
    _subcommand(
        "release-question",
        "Give back a question that the user has claimed.",
        lambda question, _given, user: question.release(by=user),
    ),
)
