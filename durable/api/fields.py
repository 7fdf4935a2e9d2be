"""Strict fields and forms, the fields of a verb's options and a listing's filters, and shapes as serializers.

Unknown names, numbers in place of text and text in place of numbers are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from math import isfinite
from types import NoneType
from typing import Any, Final, get_args, get_origin

from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.core.clock import BEYOND, to_utc
from durable.core.duration import seconds
from durable.core.ids import MAX_ID, MAX_REASON, check_id
from durable.core.tags import MAX_TAGS, MAX_VALUE
from durable.inspection.run_facts import checked_tags, read_tag
from durable.listings.listing import MOST_LISTED, Filter, Listing
from durable.listings.problems import MAX_FAULTS
from durable.listings.shapes import UNSET, Field, Shape, data_of, fields_of
from durable.operations import options
from durable.operations.options import Option


class Text(serializers.CharField):
    """JSON text, unchanged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class Id(Text):
    """A run's id: 1 to 200 printable characters without "/"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=MAX_ID, **options)

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if 1 <= len(text) <= MAX_ID:  # the field's own validators report other lengths
            try:
                check_id(text)
            except ValueError as error:
                raise ValidationError(f"{error}.") from None
        return text


class Flag(serializers.BooleanField):
    """JSON true or false."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class QueryFlag(serializers.ChoiceField):
    """`true` or `false` in a query string."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=["true", "false"], **options)

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(data) == "true"


class Moment(serializers.DateTimeField):
    """A time with its time zone, as ISO 8601 text; answers are in UTC."""

    default_error_messages = {
        "naive": "Name the time zone: 2026-01-31T12:00:00Z.",
        "beyond": BEYOND,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(format="iso-8601", input_formats=["iso-8601"], default_timezone=UTC, **options)

    def enforce_timezone(self, value: datetime) -> datetime:
        if timezone.is_naive(value):
            self.fail("naive")
        try:
            return to_utc(value)
        except ValueError:
            self.fail("beyond")


class Number(serializers.FloatField):
    """A finite number.

    Releases of REST framework before 3.18.1 accept "nan", which passes every bound.
    """

    def to_internal_value(self, data: Any) -> float:
        number = float(super().to_internal_value(data))
        if not isfinite(number):
            self.fail("invalid")
        return number


class Value(serializers.JSONField):
    """Any JSON value, as it was parsed; the codec decides whether it can be recorded."""

    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field({"type": "array", "items": {}})
class JSONArray(serializers.Field[list[Any], Any, Any, Any]):
    """A JSON array of any values; its contents are not examined."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise ValidationError("A JSON array.", code="not_a_list")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {}})
class JSONObject(serializers.Field[dict[str, Any], Any, Any, Any]):
    """A JSON object of any values; its contents are not examined."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise ValidationError("A JSON object.", code="not_a_dict")
        return data


class Items(serializers.ListField):
    """A JSON array whose length is checked before its items."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if isinstance(data, list) and self.max_length is not None and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        return list(super().to_internal_value(data))


class Words(Items):
    """Several words, in a query string as `?state=failed&state=paused`."""


class Checked(Text):
    """A text for which `check` raises no ValueError."""

    def __init__(self, check: Callable[[str], object], **options: Any) -> None:
        super().__init__(**options)
        self._check = check

    def to_internal_value(self, data: Any) -> Any:
        text = super().to_internal_value(data)
        try:
            self._check(text)
        except ValueError as error:
            raise ValidationError(f"{str(error)[:1].upper()}{str(error)[1:]}.", code="invalid") from None
        return text


class TagWord(Text):
    """A tag as `name=value`; `name:value` is the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=MAX_ID + 1 + MAX_VALUE, **options)

    def to_internal_value(self, data: Any) -> Any:
        try:
            return read_tag(super().to_internal_value(data))
        except ValueError as error:
            text = f"{error}."
            raise ValidationError(text[:1].upper() + text[1:], code="no_tag") from None


class TagWords(Words):
    """Tags that a run has to have, all of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=TagWord(), max_length=MAX_TAGS, **options)

    def to_internal_value(self, data: Any) -> Any:
        try:
            return checked_tags(super().to_internal_value(data))
        except ValueError as error:
            raise ValidationError(f"{error}.", code="no_tag") from None


class Form(serializers.Serializer[Any]):
    """A JSON object of known names."""

    default_error_messages = {"unknown": "There is no such name here; the names are {names}."}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = list(islice((name for name in data if name not in self.fields), MAX_FAULTS))
            if unknown:
                message = self.error_messages["unknown"].format(names=", ".join(self.fields) or "none")
                raise ValidationError({name: [message] for name in unknown}, code="unknown")
        return super().to_internal_value(data)


class Query(Form):
    """The query string of a URL: each name once, except those that take several values."""

    @classmethod
    def read(cls, given: QueryDict) -> dict[str, Any]:
        """Return the values of a query string. Raises ValidationError."""
        several = {name for name, field in cls().fields.items() if isinstance(field, serializers.ListField)}
        twice = [name for name, values in given.lists() if len(values) > 1 and name not in several]
        if twice:
            raise ValidationError({name: ["Give this once."] for name in twice}, code="twice")
        data = {name: values if name in several else values[-1] for name, values in given.lists()}
        form = cls(data=data)
        form.is_valid(raise_exception=True)
        values: dict[str, Any] = form.validated_data
        return values


class PageQuery(Query):
    """The size of a page, and where it begins."""

    cursor = Text(required=False, max_length=1_200, help_text="The `next_cursor` of the page before.")
    limit = serializers.IntegerField(
        required=False, default=50, min_value=1, max_value=MOST_LISTED, help_text="How many at most."
    )


_LONGEST_TEXT = 200  # characters of a delay as text


_LONGEST_DELAY = 100 * 365 * 86_400  # seconds; a longer delay comes near the limit of Python's dates


@extend_schema_field(
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": _LONGEST_DELAY},
            {"type": "string", "maxLength": _LONGEST_TEXT},
        ]
    }
)
class Delay(serializers.Field[float, Any, Any, Any]):
    """Seconds, or a text such as "3 hours"."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float | str):
            raise ValidationError('A number of seconds, or a text such as "3 hours".')
        if isinstance(data, str) and len(data) > _LONGEST_TEXT:
            raise ValidationError(f"At most {_LONGEST_TEXT} characters.", code="max_length")
        try:
            delay = seconds(data, "a delay")
        except (ValueError, TypeError, OverflowError) as error:
            raise ValidationError(f"{error}.") from None
        if delay > _LONGEST_DELAY:
            raise ValidationError("A century at most.")
        return delay


class Deadline(Delay):
    """Seconds, a text such as "30 days", or a time with its time zone, as ISO 8601 text."""

    def to_internal_value(self, data: Any) -> Any:
        is_time = isinstance(data, str) and len(data) <= _LONGEST_TEXT and _is_time(data)
        return Moment().run_validation(data) if is_time else super().to_internal_value(data)


def _is_time(text: str) -> bool:
    try:
        return parse_datetime(text) is not None
    except ValueError:  # like a time, and none: Moment says what is wrong
        return True


def audit_reason() -> Text:
    """Return the field of a reason, which the audit log has."""
    return Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class VerbForm(Form):
    """The reason, and the revision that the user saw."""

    reason = audit_reason()
    revision = Text(
        required=False, max_length=MAX_ID, help_text="As it was seen; what has changed since is left alone."
    )


def checked(check: Any, text: str) -> str:
    """Return the text if `check` accepts it. Raises ValidationError."""
    try:
        check(text)
    except (TypeError, ValueError) as error:
        raise ValidationError(f"{error}.") from None
    return text


_OF_KINDS: Final[dict[type[Option], type[serializers.Field[Any, Any, Any, Any]]]] = {
    options.Id: Id,
    options.Decimal: Number,
    options.Length: Delay,
    options.Deadline: Deadline,
    options.Tags: JSONObject,
}


def option_field(option: Option, *, is_required: bool | None = None) -> serializers.Field[Any, Any, Any, Any]:
    """Return the field of an option. It is required if the option is, unless `is_required` says otherwise."""
    said: dict[str, Any] = {"help_text": option.does}
    if not (option.is_required if is_required is None else is_required):
        has_default = not option.is_required and option.default is not None
        said |= {"required": False, **({"default": option.default} if has_default else {})}
    if isinstance(option, options.Number):
        return serializers.IntegerField(min_value=option.least, max_value=option.most, **said)
    if isinstance(option, options.Json):
        return Value(allow_null=True, required=False, help_text=option.does)
    if isinstance(option, options.Until):
        return Moment(**said)
    if isinstance(option, options.Flag):
        return Flag(**said)
    if isinstance(option, options.OneOf):
        return serializers.ChoiceField(choices=option.values, **said)
    for kind, field in _OF_KINDS.items():
        if isinstance(option, kind):
            return field(**said)
    assert isinstance(option, options.Text)
    if option.shortest:
        said["min_length"] = option.shortest
    if option.check is not None:
        said["validators"] = [partial(checked, option.check)]
    return Text(max_length=option.longest, **said, **({"allow_blank": True} if option.default == "" else {}))


def form_of(
    name: str, meaning: str, base: type[Form], *asked: Option, check: Callable[..., object] | None = None
) -> type[Form]:
    """Return a form with these options. `name` and the description appear in the document.

    `check` raises ValueError for options that do not go together.
    """
    members: dict[str, Any] = {each.name: option_field(each) for each in asked}
    if check is not None:

        def validate(_form: Form, attrs: dict[str, Any]) -> dict[str, Any]:
            checked_together(check, {each.name: attrs[each.name] for each in asked if each.name in attrs})
            return attrs

        members["validate"] = validate
    return type(name, (base,), {"__doc__": meaning, **members})


def checked_together(check: Callable[..., object], given: Mapping[str, Any]) -> None:
    """Raise ValidationError for options that do not go together."""
    try:
        check(**given)
    except ValueError as error:
        raise ValidationError(f"{error}.") from None


def query_of(listing: Listing) -> type[Query]:
    return type("ListQuery", (PageQuery if listing.is_paged else Query,), filters_of(*listing.filters))


def filters_of(*filters: Filter, in_body: bool = False) -> dict[str, Any]:
    """Return the fields of filters by their names: in a query string, or in JSON."""
    return {each.name: _filter_field(each, in_body=in_body) for each in filters}


def _filter_field(each: Filter, *, in_body: bool) -> serializers.Field[Any, Any, Any, Any]:
    said: dict[str, Any] = {"required": False, **({"help_text": each.does} if each.does else {})}
    if each.default is not None:
        said["default"] = each.default
    if each.kind is bool:
        return (Flag if in_body else QueryFlag)(**{"default": False, **said})
    if each.kind is datetime:
        return Moment(**said)
    if each.kind is tuple:
        return TagWords(**said)
    if each.kind is int:
        return serializers.IntegerField(min_value=each.least, max_value=each.most, **said)
    if each.is_id:
        return Id(**said)
    if not each.choices:
        return (
            Checked(each.check, max_length=each.longest, **said)
            if each.check
            else Text(max_length=each.longest, **said)
        )
    one: dict[str, Any] = {"choices": list(each.choices)}
    if not each.several:
        return serializers.ChoiceField(**one, **said)
    several = {"child": serializers.ChoiceField(**one), **said}
    return Items(max_length=20, **several) if in_body else Words(**several)


_FIELDS: Final[dict[Any, type[serializers.Field[Any, Any, Any, Any]]]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    bool: serializers.BooleanField,
    float: serializers.FloatField,
    datetime: Moment,
    Any: serializers.JSONField,
}


def serializer_of(shape: type[Shape]) -> type[serializers.Serializer[Any]]:
    """Return the serializer of a shape, one for all its uses. The `seen` in its context decides what it shows."""
    key: Any = shape
    return _serializer(key)


@cache
def _serializer(shape: Any) -> type[serializers.Serializer[Any]]:
    below: Any = type("Below", (serializers.JSONField,), {})
    extend_schema_field({"type": "array", "items": {"$ref": f"#/components/schemas/Durable{shape.__name__}"}})(below)
    fields = {
        name: below() if kind == list[shape] else _field(kind, said)  # a shape may contain itself
        for name, (kind, said) in fields_of(shape).items()
    }

    def to_representation(self: serializers.Serializer[Any], instance: Any) -> dict[str, Any]:
        return data_of(shape, instance, self.context["seen"])

    members = {**fields, "__doc__": shape.__doc__, "__module__": __name__, "to_representation": to_representation}
    return type(f"{shape.__name__}Serializer", (serializers.Serializer,), members)


def _field(kind: Any, said: Field) -> serializers.Field[Any, Any, Any, Any]:
    options: dict[str, Any] = {"help_text": said.help} if said.help else {}
    if said.default is not UNSET:
        options["default"] = said.default
    if NoneType in get_args(kind):
        [kind] = [each for each in get_args(kind) if each is not NoneType]
        options["allow_null"] = True
    if get_origin(kind) is list:
        [inner] = get_args(kind)
        if _is_shape(inner):
            return serializer_of(inner)(many=True, **options)
        return serializers.ListField(child=_field(inner, Field(choices=said.choices)), **options)
    if get_origin(kind) is dict:
        return serializers.DictField(child=_field(get_args(kind)[1], Field()), **options)
    if _is_shape(kind):
        return serializer_of(kind)(**options)
    if said.choices:
        return serializers.ChoiceField(choices=list(said.choices), **options)
    return _FIELDS[kind](**options)


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Shape)
