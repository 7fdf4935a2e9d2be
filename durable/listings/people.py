"""Questions to people that wait for the caller, and what an answer has come to.

Who may answer is decided by the question, whatever else the caller may see. A run's id is shown to those who may see
the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.inspection.pagination import cursor_of, moment_key_of
from durable.inspection.run_rules import asked_of, existing_among
from durable.listings.listing import Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, field
from durable.operations import people
from durable.operations.asked_forms import fields_of
from durable.operations.people import Question as Asked


class Question(Shape):
    """A question to people."""

    id: str
    name: str
    text: str = field(help="What the code says beside the name; empty for nothing.")
    run: str | None = field(
        lambda question, seen: question.run_id if question.run_id in seen.runs else None,
        help="Null for a caller who may not see the run.",
    )
    location: str
    about: str = field(help="What it is about, such as shop.order:42; empty for nothing.")
    to: str = field(help="The name of the user or the group that it is for; empty for whoever has the permission.")
    permission: str = field(help="The permission that an answer needs; empty for none.")
    has_form: bool = field(help="False for a question of yes or no.")
    approvals: int = field(help="How many people have to agree.")
    answered_by: list[str] = field(help="Those who have agreed so far.")
    claimed_by: str = field(help="Who has taken it; empty for nobody.")
    asked_at: datetime
    expires_at: datetime | None


class Choice(Shape):
    """A value that a field takes."""

    value: str = field(lambda pair, _seen: pair[0])
    label: str = field(lambda pair, _seen: pair[1])


class FormField(Shape):
    """A field of a form."""

    name: str
    label: str
    kind: str = field(help="The class of the field, such as DecimalField.")
    help: str
    is_required: bool
    choices: list[Choice] = field(help="At most 200.")


class Note(Shape):
    """A comment, or a hand-over."""

    by: str
    at: str
    text: str


class QuestionDetail(Question):
    """A question with its form and what people have written."""

    is_open: bool
    notes: list[Note]
    fields: list[FormField] = field(
        lambda question, _seen: fields_of(question)[0], help="Of the form; none for a question of yes or no."
    )
    problem: str = field(lambda question, _seen: fields_of(question)[1], help="Why the form cannot be shown.")


class QuestionState(Shape):
    """A question after a verb."""

    id: str
    is_open: bool = field(help="Whether an answer is still accepted.")
    outcome: str = field(help="answered, refused, or empty while it waits for more people.")


@dataclass(frozen=True, kw_only=True)
class SeenQuestions(Seen):
    """With the ids of the runs that the caller may see."""

    runs: frozenset[str]


def seen_questions(seen: Seen, user: Any, questions: Sequence[Asked]) -> tuple[list[Asked], SeenQuestions]:
    """Return those of the questions that are for the caller, and what the caller sees of them.

    Without a user, the caller sees all: a shell.
    """
    ids = existing_among(seen.within, [each.run_id for each in questions])
    may_see_runs = user is None or user.has_perm("durable.view_run")
    return asked_of(questions, ids), seen.more(SeenQuestions, runs=ids if may_see_runs else frozenset[str]())


def position_text(end: tuple[datetime, str] | None) -> str | None:
    """Return the cursor of the next page; None at the end of the list."""
    return None if end is None else cursor_of(end[0].isoformat(), end[1])


def _questions(seen: Seen, *, limit: int, cursor: str | None = None, by: Any = None) -> Page:
    found, end = people.page_for(by or seen.person, most=limit, after=moment_key_of(cursor, str))
    shown, seen = seen_questions(seen, seen.person, found)
    return Page(results=shown, next_cursor=position_text(end), seen=seen)


QUESTIONS: Final = Listing(
    name="questions",
    item=Question,
    page=list_of(Question, "QuestionPage", "Questions, the oldest first."),
    read=_questions,
    is_paged=True,
    about="questions",
    reads_with=(),
    over_rest="Return the open questions that you may answer, the oldest first. Needs no permission of durable.",
)
