"""`durable question` and what a person does with one: an answer, a comment, a hand-over, a claim.

`durable questions` lists them (`durable.cli.list_command`). A question is answered by a user, so `--as` names one.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Exit, Output
from durable.cli.subcommand import (
    ACTING,
    JSON_HELP,
    Argument,
    Subcommand,
    acting,
    argument,
    formats,
    json_value,
    shell_actor,
    subcommand,
)
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


# -- verbs


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
