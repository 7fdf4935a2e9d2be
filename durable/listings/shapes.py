"""Shapes: the names of a JSON object with their types and values, the same for REST and the command line.

A shape is a class. Its annotations are the names in order: text, numbers, moments, other shapes, and lists, tables and
`None` of these. A name without a `field` is an attribute of what is shown. `data_of` makes the JSON;
`durable.api.fields` describes the same annotations in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from durable.core.clock import to_utc
from durable.models.run import RunQuerySet

UNSET: Final = object()
SeenT = TypeVar("SeenT", bound="Seen")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the caller may see: the runs `within` (None: all), and `payloads`; and the moment of the answer.

    `user` is the caller's key, if `within` is given. `person` is the caller as a user, for what waits for that user.
    """

    now: datetime
    within: RunQuerySet | None = None
    payloads: bool = True
    user: Any = None
    person: Any = None

    def more(self, kind: type[SeenT], **more: Any) -> SeenT:
        """Return the same, with what the shapes of a list need beside."""
        own = {each.name: getattr(self, each.name) for each in fields(Seen)}
        return kind(**own, **more)


class Shape:
    """The base of all shapes. The docstring of a shape is its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A name of a shape.

    `source` is the path to the value from the item, by attributes or names, or a function of the item and `Seen`.
    `default` replaces the value if an attribute on the path is None.
    """

    source: str | Callable[[Any, Any], Any] = ""
    help: str = ""
    choices: Collection[str] = ()
    default: Any = UNSET


_PLAIN: Final = Field()


def field(
    source: str | Callable[[Any, Any], Any] = "", *, help: str = "", choices: Collection[str] = (), default: Any = UNSET
) -> Any:
    """Declare more about a name than its annotation says; see `Field`."""
    return Field(source=source, help=help, choices=choices, default=default)


def fields_of(shape: type[Shape]) -> dict[str, tuple[Any, Field]]:
    """Return the type and the field of each name, those of the base class first."""
    return {name: (kind, getattr(shape, name, _PLAIN)) for name, kind in get_type_hints(shape).items()}


def data_of(shape: Any, item: Any, seen: Seen) -> dict[str, Any]:
    """Return the item as JSON data. A moment is text, in UTC."""
    return {name: shown(value(item, seen), seen) for name, value, shown in _readers(shape)}


@cache
def _readers(shape: Any) -> list[tuple[str, Callable[[Any, Seen], Any], Callable[[Any, Seen], Any]]]:
    return [(name, _reader(name, field), _shower(kind)) for name, (kind, field) in fields_of(shape).items()]


def _reader(name: str, field: Field) -> Callable[[Any, Seen], Any]:
    if callable(field.source):
        return field.source
    way = (field.source or name).split(".")
    otherwise = None if field.default is UNSET else field.default

    def read(item: Any, _seen: Seen) -> Any:
        for each in way:
            if item is None:
                return otherwise
            item = item[each] if isinstance(item, dict) else getattr(item, each)
        return item

    return read


def _shower(kind: Any) -> Callable[[Any, Seen], Any]:
    """Return the function that converts values of this type to JSON."""
    if kind in _SHOWN:
        return _SHOWN[kind]
    if get_origin(kind) in (Union, UnionType):
        [inner] = [_shower(each) for each in get_args(kind) if each is not NoneType]
        return lambda value, seen: None if value is None else inner(value, seen)
    if get_origin(kind) is list:
        each_of = _shower(get_args(kind)[0])
        return lambda value, seen: [each_of(each, seen) for each in value]
    if get_origin(kind) is dict:
        value_of = _shower(get_args(kind)[1])
        return lambda value, seen: {str(name): value_of(each, seen) for name, each in value.items()}
    return lambda value, seen: data_of(kind, value, seen)


def moment_text(moment: datetime) -> str:
    """Return the moment in the JSON form: ISO 8601 in UTC, with "Z"."""
    return to_utc(moment).isoformat().replace("+00:00", "Z")


def _number(value: Any, _seen: Seen) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


_SHOWN: Final[dict[Any, Callable[[Any, Seen], Any]]] = {
    str: lambda value, _seen: str(value),
    int: lambda value, _seen: int(value),
    bool: lambda value, _seen: bool(value),
    float: _number,
    datetime: lambda value, _seen: moment_text(value),
    Any: lambda value, _seen: value,
}
