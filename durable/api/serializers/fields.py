"""Strict fields and forms: no unknown name, no number for a text, no text for a number."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from typing import Any

from django.http import QueryDict
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.problems import MAX_FAULTS
from durable.core.clock import BEYOND, to_utc
from durable.core.ids import MAX_ID, check_id
from durable.core.tags import MAX_TAGS, MAX_VALUE
from durable.inspection.run_facts import checked_tags, read_tag
from durable.listings.listing import MOST_LISTED


class Text(serializers.CharField):
    """JSON text, unchanged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        """Return the text. Raises ValidationError for anything else."""
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class Id(Text):
    """A run's id: 1 to 200 printable characters without "/"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=MAX_ID, **options)

    def to_internal_value(self, data: Any) -> str:
        """Return the id. Raises ValidationError for an invalid one."""
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
        """Return the flag. Raises ValidationError for anything else."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class QueryFlag(serializers.ChoiceField):
    """`true` or `false` in a query string."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=["true", "false"], **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the flag, a bool."""
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
        """Return the time in UTC. Raises ValidationError without a time zone."""
        if timezone.is_naive(value):
            self.fail("naive")
        try:
            return to_utc(value)
        except ValueError:
            self.fail("beyond")


class Number(serializers.FloatField):
    """A finite number: releases of REST framework before 3.18.1 take "nan" for one, which no bound refuses."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number. Raises ValidationError for anything else."""
        number = float(super().to_internal_value(data))
        if not isfinite(number):
            self.fail("invalid")
        return number


class Value(serializers.JSONField):
    """Any JSON value, as it was parsed; the codec decides whether it can be recorded."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value itself."""
        return data


@extend_schema_field({"type": "array", "items": {}})
class JSONArray(serializers.Field[list[Any], Any, Any, Any]):
    """A JSON array of any values; its contents are not examined."""

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the array. Raises ValidationError for anything else."""
        if not isinstance(data, list):
            raise ValidationError("A JSON array.", code="not_a_list")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {}})
class JSONObject(serializers.Field[dict[str, Any], Any, Any, Any]):
    """A JSON object of any values; its contents are not examined."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Return the object. Raises ValidationError for anything else."""
        if not isinstance(data, dict):
            raise ValidationError("A JSON object.", code="not_a_dict")
        return data


class Items(serializers.ListField):
    """A JSON array whose length is looked at before its items are."""

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the items. Raises ValidationError for too many of them, and for one that is not valid."""
        if isinstance(data, list) and self.max_length is not None and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        return list(super().to_internal_value(data))


class Words(Items):
    """Several words, in a query string as `?state=failed&state=paused`."""


class TagWord(Text):
    """A tag as `name=value`; `name:value` is the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=MAX_ID + 1 + MAX_VALUE, **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return its name and its value. Raises ValidationError for what no tag is."""
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
        """Return them, each once. Raises ValidationError for what no tag is, and for two values of one tag."""
        try:
            return checked_tags(super().to_internal_value(data))
        except ValueError as error:
            raise ValidationError(f"{error}.", code="no_tag") from None


class Form(serializers.Serializer[Any]):
    """A JSON object of known names."""

    default_error_messages = {"unknown": "There is no such name here; the names are {names}."}

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values. Raises ValidationError, also for unknown names."""
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
