"""The forms of verbs: a field for each option, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django import forms
from django.utils.translation import gettext

from durable.admin import pages
from durable.admin.forms import ActForm
from durable.core.duration import later, parse_duration
from durable.core.ids import MAX_ID
from durable.operations.catalogue import Flag, Number, Option, Text, Until, Verb


class _Duration(forms.CharField):
    """For how long; the value is the moment when it is over."""

    def clean(self, value: Any) -> Any:
        """Return the moment. Raises ValidationError for what is no duration above zero."""
        given = super().clean(value)
        try:
            if not parse_duration(given):
                raise ValueError(gettext("a duration above 0"))
            return later(pages.now(), parse_duration(given), "a closing")
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


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
    try:
        if text and check is not None:
            check(text)
    except (TypeError, ValueError) as error:
        raise forms.ValidationError(str(error)) from None
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
    assert isinstance(option, Text)
    return _CheckedField(option, **said)
