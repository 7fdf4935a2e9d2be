"""Shapes (`durable.listings.shapes`) as serializers: they describe an answer in the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durable.api.serializers.fields import Moment
from durable.listings.shapes import UNSET, Field, Shape, data_of, fields_of

_FIELDS: Final[dict[Any, type[serializers.Field[Any, Any, Any, Any]]]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    bool: serializers.BooleanField,
    float: serializers.FloatField,
    datetime: Moment,
    Any: serializers.JSONField,
}


def serializer_of(shape: type[Shape]) -> type[serializers.Serializer[Any]]:
    """Return the serializer of a shape, one for all its uses. What it shows depends on the `seen` of its context."""
    key: Any = shape
    return _serializer(key)


@cache
def _serializer(shape: Any) -> type[serializers.Serializer[Any]]:
    below: Any = type("Below", (serializers.JSONField,), {})
    extend_schema_field({"type": "array", "items": {"$ref": f"#/components/schemas/Durable{shape.__name__}"}})(below)
    fields = {
        name: below() if kind == list[shape] else _field(kind, said)  # a shape may have itself inside
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
