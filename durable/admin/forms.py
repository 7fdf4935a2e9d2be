"""Forms for operators' input: reasons, messages. Each form explains a refusal beside the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar, cast
from uuid import UUID

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import pages
from durable.codec.given_json import read_given
from durable.core.duration import later, parse_duration
from durable.core.errors import MessageNotAcceptedError
from durable.core.ids import MAX_ID, MAX_REASON, new_id
from durable.core.location import MAX_NAME, escape
from durable.inspection.run_facts import checked_tags, read_tag
from durable.inspection.wording import told
from durable.models.run import RunQuerySet
from durable.operations.bulk_decisions import MAX_FIRST, MAX_WITHIN, WITHIN, Canary
from durable.operations.causes import MAX_NOTE
from durable.operations.options import Choice, Deadline, Decimal, Flag, Length, Number, OneOf, Option, Tags, Text, Until
from durable.operations.verbs import RunVerb, Verb

F = TypeVar("F", bound="ActForm")

MAX_BODY = 4 * 1024 * 1024  # characters of a message that are read; the codec's own limit is smaller
_LONGEST_TIME = 100  # characters of a duration or a time
_LONGEST_TAGS = 4_000


@contextmanager
def faults() -> Iterator[None]:
    """Convert an error about a value to a ValidationError with its text."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise forms.ValidationError(told(error)) from None


def json_editor(rows: int = 6) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "class": "vLargeTextField durable-code", "spellcheck": "false"})


def read_json(text: str) -> Any:
    """Return the data of a JSON text, None for an empty one.

    Raises ValidationError.
    """
    if not text.strip():
        return None
    try:
        return read_given(text)
    except json.JSONDecodeError as error:
        raise forms.ValidationError(
            _("This is not JSON: %(problem)s at line %(line)d, column %(column)d. Text needs double quotes."),
            params={"problem": error.msg, "line": error.lineno, "column": error.colno},
        ) from None
    except (ValueError, RecursionError) as error:
        problem = told(error)
        raise forms.ValidationError(
            _("This cannot be read as JSON: %(problem)s."), params={"problem": problem}
        ) from None


def read_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments and the keywords of a JSON text. Raises ValidationError."""
    given = read_json(text)
    if isinstance(given, list):
        return given, {}
    if isinstance(given, dict):
        return [], given
    raise forms.ValidationError(_("Give an object of keywords or a list of arguments, not a single value."))


class MuteForm(forms.Form):
    """A change that is harmless if repeated: it asks for a reason."""

    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON,
        label=_("Reason"),
        help_text=_("For the audit log. Other operators will thank you."),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )


class NoteForm(forms.Form):
    """A note on a cause of failed runs."""

    note = forms.CharField(
        required=False,
        max_length=MAX_NOTE,
        label=_("Note"),
        help_text=_("For other operators: who looks at it, and what is known. An empty one deletes it."),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )


class _Asking(MuteForm):
    """A form that changes runs: a reason, the run's expected revision, and a token against repeats."""

    expected = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)
    token = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=new_id)

    def clean_token(self) -> str:
        """Return the token, which becomes the id of the new run or message."""
        return as_token(str(self.cleaned_data["token"]))


class ActForm(_Asking):
    """A verb on runs: the page shows its flags, and `with_fields` adds its other options."""

    asked: Sequence[str] = ()

    @property
    def options(self) -> list[forms.BoundField]:
        """The fields of the other options."""
        return [self[each] for each in self.asked]


class MoveMessageForm(_Asking):
    """The run that receives a moved message: one of `visible`."""

    to = forms.CharField(max_length=MAX_ID, label=_("To run"), help_text=_("The id of the run that gets the message."))

    field_order = ["to", "reason"]

    def __init__(self, *args: Any, visible: RunQuerySet, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.visible = visible

    def clean_to(self) -> str:
        """Return the id. Raises ValidationError if the run does not exist or the user may not see it."""
        to = str(self.cleaned_data["to"])
        if not self.visible.filter(pk=to).exists():
            raise forms.ValidationError(_('There is no run "%(run)s".'), params={"run": to})
        return to


class BulkForm(ActForm):
    """A verb on many runs. With `is_typed` the user has to type the number of runs shown (`count`).

    `first`, `stop_after` and `within` belong to the canary, `rate` to the bulk. `tried`: the button promised a canary.
    """

    count = forms.IntegerField(required=False, widget=forms.HiddenInput)
    tried = forms.CharField(required=False, max_length=1, widget=forms.HiddenInput)
    number = forms.CharField(
        required=False,
        max_length=20,
        label=_("Number of runs"),
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )

    first = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_FIRST,
        label=_("Runs to try first"),
        help_text=_("It waits for these runs before it goes on with the rest. Empty: it does not wait."),
    )
    stop_after = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_FIRST,
        label=_("Failures that stop it"),
        help_text=_(
            "It stops when this many of the first runs have failed again, and asks you whether to go on. Empty: 1."
        ),
    )
    within = forms.FloatField(
        required=False,
        min_value=0.1,
        max_value=MAX_WITHIN.total_seconds() / 60,
        label=_("Time for the first, in minutes"),
        help_text=format_lazy(
            _("It also stops if one of them is still under way then. Empty: {minutes}."),
            minutes=f"{WITHIN.total_seconds() / 60:g}",
        ),
    )
    rate = forms.FloatField(
        required=False,
        min_value=0.001,
        max_value=1_000,
        label=_("Runs per second"),
        help_text=_("An upper limit, to spare what the runs call. Empty: as fast as it can."),
    )

    field_order = ["number", "reason"]

    @property
    def canary(self) -> Canary | None:
        """The requested canary."""
        given = self.cleaned_data
        minutes = given.get("within")
        if not given.get("first"):
            return None
        return Canary.of(given["first"], given.get("stop_after"), None if minutes is None else minutes * 60)

    def __init__(self, *args: Any, is_typed: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_typed = is_typed

    def clean(self) -> dict[str, Any]:
        """Compare the typed number with the one that the page showed."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        typed = re.sub(r"[\s,.]", "", given.get("number", ""))
        if self.is_typed and typed != str(given.get("count")):
            self.add_error("number", gettext("Type the number of runs that is shown above. Nothing was done."))
        first, stop_after = given.get("first"), given.get("stop_after")
        if given.get("tried") and not first and "first" not in self.errors:
            self.add_error("first", gettext("The button said that some are tried first. Say how many, or choose all."))
            return given
        if first and stop_after and stop_after > first:
            self.add_error("stop_after", gettext("At most %(number)d: no more are tried first.") % {"number": first})
        elif not first and stop_after and "first" not in self.errors:
            self.add_error("first", gettext("Say how many are tried first."))
        return given


class SettleForm(ActForm):
    """The answer about a step that waits for a person."""

    said = forms.ChoiceField(
        choices=[("done", ""), ("not_done", ""), ("fail", "")],
        error_messages={"required": _("Choose an answer."), "invalid_choice": _("Choose an answer.")},
    )
    done = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_BODY,
        label=_("Result (JSON)"),
        help_text=_('What the step has returned, or would have. For example {"id": 7}, "r-1" or null. Empty is null.'),
        widget=json_editor(4),
    )

    @property
    def answer(self) -> dict[str, Any]:
        """The answer as an option of the verb."""
        name = self.cleaned_data["said"]
        return {name: self.cleaned_data["done"] if name == "done" else True}

    def clean_done(self) -> Any:
        """Return the result as data. Raises ValidationError."""
        return read_json(self.cleaned_data["done"])


class SettleManyForm(SettleForm, BulkForm):
    """One answer about the steps of many runs."""


class ReplayRunForm(_Asking):
    """A replay, as its preview showed it."""

    plan_hash = forms.CharField(max_length=200, widget=forms.HiddenInput)
    in_place = forms.BooleanField(
        required=False,
        label=_("In place"),
        help_text=_("Change this run's own history instead of beginning a new run beside it."),
    )


class GiveOutputForm(ReplayRunForm):
    """A replay from a step whose output is given by hand."""

    reason = forms.CharField(
        max_length=MAX_REASON,
        label=_("Reason"),
        help_text=_("Recorded with the step and in the audit log: who knows that this is so, and how?"),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )
    output = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_BODY,
        label=_("Output (JSON)"),
        help_text=_('As the step would have returned it. For example {"approved": true}. Empty is null.'),
        widget=json_editor(),
    )

    field_order = ["output", "in_place", "reason"]

    def clean_output(self) -> Any:
        """Return the output as data. Raises ValidationError."""
        return read_json(self.cleaned_data["output"])


class EditInputForm(_Asking):
    """The arguments of a new run, as a JSON object."""

    values = forms.CharField(
        strip=False,
        max_length=MAX_BODY,
        label=_("Arguments (JSON)"),
        help_text=_("The arguments by name. What you leave out stays as it was recorded."),
        widget=json_editor(12),
    )

    field_order = ["values", "reason"]

    def clean_values(self) -> dict[str, Any]:
        """Return the arguments by name. Raises ValidationError."""
        found = read_json(self.cleaned_data["values"])
        if not isinstance(found, dict):
            raise forms.ValidationError(_('This is not a JSON object: write {"name": value}.'))
        return found


class SendMessageForm(_Asking):
    """A message: its queue, and its body as JSON."""

    queue = forms.CharField(
        label=_("Message queue"),
        max_length=MAX_NAME,
        strip=False,
        widget=forms.TextInput(attrs={"list": "known-queues"}),
    )
    body = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_BODY,
        label=_("Body (JSON)"),
        help_text=_('For example {"by": 7}, "yes" or null. Empty is null.'),
        widget=json_editor(),
    )
    anyway = forms.BooleanField(
        required=False,
        label=_("Send to this queue anyway"),
        help_text=_("The run keeps it until it asks for that queue."),
    )

    field_order = ["queue", "anyway", "body", "reason"]

    def __init__(
        self,
        *args: Any,
        known: list[str],
        is_any: bool,
        accepts: Callable[[str, Any], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """`accepts` raises MessageNotAcceptedError for a message that the workflow does not declare; None for any."""
        super().__init__(*args, **kwargs)
        self.known = known
        self.is_any = is_any
        self.accepts = accepts
        if accepts is not None:
            self.fields["queue"] = forms.ChoiceField(
                label=self.fields["queue"].label, choices=[("", "---------"), *((each, each) for each in known)]
            )

    def clean_queue(self) -> str:
        """Return the queue's name. Raises ValidationError for an invalid one."""
        queue = str(self.cleaned_data["queue"])
        with faults():
            escape(queue)
        return queue

    def clean_body(self) -> Any:
        """Return the body as data. Raises ValidationError also for a number that JSON does not have."""
        return read_json(self.cleaned_data["body"])

    def clean(self) -> dict[str, Any]:
        """Ask for confirmation once if the run has never used the queue."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        queue = given.get("queue")
        if self.accepts is not None:
            if queue and "body" in given:
                self._check_accepted(queue, given["body"])
            return given
        if queue and not self.is_any and queue not in self.known and not given.get("anyway"):
            if self.known:
                problem = gettext(
                    'The run has not asked for the queue "%(queue)s"; those it knows: %(known)s. Choose one of them, or '
                    "tick “Send to this queue anyway”."
                )
            else:
                problem = gettext(
                    'The run has not asked for the queue "%(queue)s"; those it knows: none. Choose one of them, or tick '
                    "“Send to this queue anyway”."
                )
            self.add_error("queue", problem % {"queue": queue, "known": ", ".join(self.known)})
        return given

    def _check_accepted(self, queue: str, body: Any) -> None:
        assert self.accepts is not None
        try:
            self.accepts(queue, body)
        except MessageNotAcceptedError as error:
            for fault in error.faults:
                self.add_error("body", str(fault))
            if not error.faults:
                self.add_error("queue", told(error))


def as_token(token: str) -> str:
    """Return the token of a form as a UUID. Raises ValidationError."""
    try:
        return str(UUID(token))
    except ValueError:
        raise forms.ValidationError(_("This page was not made by the admin: open it again.")) from None


# -- the forms of verbs: a field for each option, and the reason


class _Duration(forms.CharField):
    """A duration; its value is the moment at which it ends."""

    def clean(self, value: Any) -> Any:
        """Return the moment. Raises ValidationError unless it is a duration above zero."""
        given = super().clean(value)
        with faults():
            if not parse_duration(given):
                raise ValueError(gettext("a duration above 0"))
            return later(pages.now(), parse_duration(given), "a closing")


class _Length(forms.CharField):
    """A length of time, or None."""

    def clean(self, value: Any) -> Any:
        """Return the length. Raises ValidationError."""
        text = super().clean(value)
        if not text:
            return None
        with faults():
            return parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text, str(self.label))


class _Deadline(_Length):
    """A length of time or a moment, in the zone of the page unless it has one; or None."""

    def clean(self, value: Any) -> Any:
        """Return the length or the moment. Raises ValidationError."""
        with faults():
            moment = parse_datetime(str(value or "").strip())
        if moment is None:
            return super().clean(value)
        return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


class _Tags(forms.CharField):
    """Tags, one a line."""

    widget = forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField", "spellcheck": "false"})

    def clean(self, value: Any) -> Any:
        """Return the tags. Raises ValidationError."""
        lines = [each.strip() for each in super().clean(value).splitlines()]
        with faults():
            return dict(checked_tags(read_tag(each) for each in lines if each))


class _CheckedField(forms.CharField):
    """A text that its option checks."""

    def __init__(self, option: Text, **said: Any) -> None:
        super().__init__(max_length=option.longest, **said)
        self._check = option.check

    def clean(self, value: Any) -> Any:
        """Return the text. Raises ValidationError."""
        return checked(self._check, super().clean(value))


def checked(check: Callable[[str], object] | None, text: str) -> str:
    """Return the text if `check` accepts it. Raises ValidationError."""
    with faults():
        if text and check is not None:
            check(text)
    return text


class _VerbForm(ActForm):
    """The options of a verb, and the reason."""

    verb: Verb

    def clean(self) -> dict[str, Any]:
        """Mark the first option if the options do not fit."""
        given = super().clean() or self.cleaned_data
        names = [name_of(each) for each in self.verb.options]
        if self.verb.check is not None and all(each in given for each in names):
            try:
                self.verb.check(*(given[each] for each in names))
            except ValueError as error:
                self.add_error(names[0], str(error))
        return given


@cache
def with_fields(form: type[F], verb: RunVerb) -> type[F]:
    """Return the form with a field for each option of the verb that is not a flag; for an answer, that form."""
    if verb.takes_answer:
        return cast("type[F]", SettleManyForm if issubclass(form, BulkForm) else SettleForm)
    fields = {each.name: option_field(each) for each in verb.fields}
    return type(form.__name__, (form,), {**fields, "asked": list(fields)}) if fields else form


@cache
def form_of(verb: Verb) -> type[ActForm]:
    """Return the class of a verb's form."""
    fields: dict[str, Any] = {name_of(each): option_field(each) for each in verb.asked}
    boxes = [each.name for each in verb.options if isinstance(each, Flag)]
    order = [*(each for each in fields if each not in boxes), "reason", *boxes]
    return type("VerbForm", (_VerbForm,), {**fields, "verb": verb, "field_order": order})


def name_of(option: Option) -> str:
    """Return the name of an option's field."""
    return "duration" if isinstance(option, Until) else option.name


def option_field(option: Option, *, is_required: bool | None = None) -> forms.Field:
    """Return the field of an option. It is required if the option is, unless told otherwise."""
    said: dict[str, Any] = {
        "label": option.label,
        "help_text": option.help,
        "required": option.is_required if is_required is None else is_required,
    }
    if isinstance(option, Number):
        return forms.IntegerField(min_value=option.least, max_value=option.most, **said | {"required": True})
    if isinstance(option, Until):
        return _Duration(max_length=MAX_ID, **said)
    if isinstance(option, Flag):
        return forms.BooleanField(**said)
    if isinstance(option, Choice):
        return forms.ChoiceField(choices=partial(_choices, option), **said)
    if isinstance(option, OneOf):
        return forms.ChoiceField(choices=[(each, word) for each, word in option.words.items() if word], **said)
    if isinstance(option, Decimal):
        return forms.FloatField(**said)
    if isinstance(option, Length | Deadline):
        return (_Length if isinstance(option, Length) else _Deadline)(max_length=_LONGEST_TIME, **said)
    if isinstance(option, Tags):
        return _Tags(max_length=_LONGEST_TAGS, **said)
    assert isinstance(option, Text)
    return _CheckedField(option, **said)


def _choices(option: Choice) -> list[tuple[str, str]]:
    return [("", "---------"), *((each, each) for each in option.among())]
