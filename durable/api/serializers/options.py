"""The forms of verbs, a field for each option, and the queries of listings, a field for each filter."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.serializers.fields import (
    Flag,
    Form,
    Id,
    Items,
    Moment,
    PageQuery,
    Query,
    QueryFlag,
    TagWords,
    Text,
    Words,
)
from durable.core.ids import MAX_ID, MAX_REASON
from durable.listings.listing import Filter, Listing
from durable.operations import verbs
from durable.operations.verbs import Option


class VerbForm(Form):
    """The reason, and the revision that the user saw."""

    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")
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


def option_field(option: Option, *, is_required: bool | None = None) -> serializers.Field[Any, Any, Any, Any]:
    """Return the field of an option. It is required if the option is, unless told otherwise."""
    said: dict[str, Any] = {"help_text": option.does}
    if not (option.is_required if is_required is None else is_required):
        has_default = not option.is_required and option.default is not None
        said |= {"required": False, **({"default": option.default} if has_default else {})}
    if isinstance(option, verbs.Number):
        return serializers.IntegerField(min_value=option.least, max_value=option.most, **said)
    if isinstance(option, verbs.Until):
        return Moment(**said)
    if isinstance(option, verbs.Flag):
        return Flag(**said)
    assert isinstance(option, verbs.Text)
    if option.check is not None:
        said["validators"] = [partial(checked, option.check)]
    return Text(max_length=option.longest, **said, **({"allow_blank": True} if option.default == "" else {}))


def form_of(name: str, meaning: str, base: type[Form], *options: Option) -> type[Form]:
    """Return a form with these options. Its name and its meaning are those in the document."""
    return type(name, (base,), {"__doc__": meaning, **{each.name: option_field(each) for each in options}})


def query_of(listing: Listing) -> type[Query]:
    """Return the query string of a listing."""
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
        return Text(max_length=each.longest, **said)
    one: dict[str, Any] = {"choices": list(each.choices)}
    if not each.several:
        return serializers.ChoiceField(**one, **said)
    several = {"child": serializers.ChoiceField(**one), **said}
    return Items(max_length=20, **several) if in_body else Words(**several)
