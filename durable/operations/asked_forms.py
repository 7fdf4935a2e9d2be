"""Questions to people as a page shows them: the form, what it is about, and what a post of the page asks to do.

Pages differ in their frame alone: the admin's inbox, a project's own pages, and the page of a mail's link. What they
post is read here, once. The names of durable's own fields begin with "durable_", so that a project's form may have any
others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.datastructures import MultiValueDict

from durable.core.errors import FormInvalidError
from durable.core.words import gettext_noop
from durable.models.subjects import model_of
from durable.operations.people import Question, using_form

if TYPE_CHECKING:
    from django.db.models import Model
    from django.forms import BaseForm

VERB: Final = "durable_verb"
VERDICT: Final = "durable_verdict"
COMMENT: Final = "durable_comment"
TO: Final = "durable_to"
NO_ERRORS: Final[Mapping[str, Sequence[str]]] = {}
#: What a post may ask for; anything else is an answer.
VERBS: Final = ("answer", "claim", "release", "comment", "hand_over")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuestion:
    """A question with its form; None for yes or no. `problem` says why the form cannot be shown, or was refused.

    `fields` and `media` are the form's, as HTML. `about` is what the question is about, in words, and `instance` is
    that, if it is there.
    """

    question: Question
    form: BaseForm | None
    fields: str = ""
    media: str = ""
    problem: str = ""
    comment: str = ""
    about: str = ""
    instance: Model | None = None
    is_broken: bool = False


def shown(
    question: Question,
    posted: Mapping[str, Any] | None = None,
    problem: str = "",
    errors: Mapping[str, Sequence[str]] = NO_ERRORS,
) -> ShownQuestion:
    """Return a question as a page shows it; with what was `posted` and refused, and why: a `FormInvalidError` has the
    `errors`.
    """
    instance = instance_of(question)
    comment = "" if posted is None else str(posted.get(COMMENT, ""))[:20_000]
    form, fields, media, is_broken = None, "", "", False
    try:
        form_class = question.form_class
        if form_class is not None:
            is_answer = posted is not None and not is_other_verb(posted)
            with using_form(question):
                form = _refused(form_class(posted), errors) if is_answer else form_class()
                form.auto_id = f"id_{question.id}_%s"  # a page may show several forms of one class
                fields, media = render_to_string("durable/people/_fields.html", {"form": form}), str(form.media)
    except FormInvalidError as error:
        problem, form, is_broken = str(error), None, True
    return ShownQuestion(
        question=question,
        form=form,
        fields=fields,
        media=media,
        problem=problem,
        comment=comment,
        about=_words(instance, question.about),
        instance=instance,
        is_broken=is_broken,
    )


def _refused(form: BaseForm, errors: Mapping[str, Sequence[str]]) -> BaseForm:
    """Return the form with the errors of the whole answer, if it does not have them itself."""
    with suppress(Exception):  # of the project's form: the errors say so, and it has those of its fields
        form.full_clean()
    for text in errors.get("__all__", ()):
        if text not in form.non_field_errors():
            form.add_error(None, text)
    return form


def is_other_verb(posted: Mapping[str, Any]) -> bool:
    """Return whether a post asks for something else than an answer."""
    return posted.get(VERB, "answer") in VERBS[1:]


def instance_of(question: Question) -> Model | None:
    """Return what a question is about; None for nothing, and if it was deleted."""
    label, _, key = question.about.partition(":")
    model = model_of(label) if label else None
    if model is None:
        return None
    try:
        return model._base_manager.filter(pk=key).first()
    except (ValidationError, ValueError, TypeError, OverflowError):
        return None


def about_in_words(question: Question) -> str:
    """Return what a question is about, as its instance says it; "" for nothing."""
    return _words(instance_of(question), question.about)


def _words(instance: Model | None, label: str) -> str:
    try:
        return label if instance is None else str(instance)[:300]
    except Exception:  # noqa: BLE001  # the project's __str__
        return label


def act(question: Question, posted: Mapping[str, Any], by: Any) -> str:
    """Do what was posted, as the user `by`; return a code of what was done. Raises as the verbs do.

    The codes are those of `VERBS`, and "approved" for an approval after which more people have to agree.
    """
    verb, comment = str(posted.get(VERB, "answer")), str(posted.get(COMMENT, ""))
    if verb == "claim":
        question.claim(by=by)
    elif verb == "release":
        question.release(by=by)
    elif verb == "comment":
        question.comment(comment, by=by)
    elif verb == "hand_over":
        question.hand_over(named(question, str(posted.get(TO, ""))), by=by, comment=comment)
    else:
        given = posted if question.form_class is not None else posted.get(VERDICT)
        return "answer" if question.answer(given, by=by, comment=comment) is not None else "approved"
    return verb


def named(question: Question, name: str) -> Any:
    """Return the user or the group with this name: "ada", "user:ada" or "group:managers". Raises FormInvalidError."""
    users: Any = get_user_model()
    kind, _, rest = name.partition(":")
    sought = [(kind, rest)] if kind in ("user", "group") and rest else [("user", name), ("group", name)]
    for kind, each in sought if name.isprintable() else ():
        rows = (
            users._default_manager.filter(**{users.USERNAME_FIELD: each})
            if kind == "user"
            else Group.objects.filter(name=each)
        )
        if (found := rows.first()) is not None:
            return found
    raise FormInvalidError(question.name, {TO: [_NOBODY]})


_NOBODY: Final = gettext_noop("There is no user and no group with this name.")


# -- the form, for programs


def answer_with(question: Question, data: Any, by: Any, comment: str = "") -> None:
    """Answer with JSON. Its values are given to a form as a browser posts them, so that no field gets another type."""
    if isinstance(data, dict) and (form_class := question.form_class) is not None:
        data = _posted_of(data, form_class().fields)
    question.answer(data, by=by, comment=comment)


def _posted_of(data: Mapping[str, Any], fields: Mapping[str, Any]) -> MultiValueDict[str, str]:
    def texts(name: str, value: Any) -> list[str]:
        takes_several = name in fields and getattr(fields[name].widget, "allow_multiple_selected", False)
        values = value if takes_several and isinstance(value, list) else [value]
        return [each if isinstance(each, str) else json.dumps(each) for each in values]

    return MultiValueDict({name: texts(name, value) for name, value in data.items() if value is not None})


_MOST_CHOICES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedField:
    """A field of a question's form. `kind` is the name of its class; `choices` are values with labels, at most 200."""

    name: str
    label: str
    kind: str
    help: str
    is_required: bool
    choices: list[tuple[str, str]]


def fields_of(question: Question) -> tuple[list[AskedField], str]:
    """Return the fields of a question's form, none for yes or no; and why the form cannot be shown, "" if it can."""
    try:
        form_class = question.form_class
        if form_class is None:
            return [], ""
        with using_form(question):
            form = form_class()
            return [
                AskedField(
                    name=name,
                    label=str(form[name].label),
                    kind=type(field).__name__,
                    help=str(field.help_text),
                    is_required=bool(field.required),
                    choices=list(islice(_choices(field), _MOST_CHOICES)),
                )
                for name, field in form.fields.items()
            ], ""
    except FormInvalidError as error:
        return [], str(error)


def _choices(field: Any) -> Iterator[tuple[str, str]]:
    for value, label in getattr(field, "choices", ()):
        if isinstance(label, list | tuple):  # a group of choices
            yield from ((str(each), str(words)) for each, words in label)
        else:
            yield str(value), str(label)
