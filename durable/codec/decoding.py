"""Text to values.

Owns the walk over a parsed text and the rebuilding of classes. Returns a value or raises a `PayloadError` for any text;
builds only the types that `encoding` writes, and runs no `__init__`, `__post_init__` or validator.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sized
from enum import Flag
from typing import Any, Final, NoReturn, TypeAlias

from durable.codec.classes import (
    find_class,
    is_dataclass_type,
    is_enum_type,
    is_named_tuple_type,
    is_pydantic_type,
    pydantic_base,
)
from durable.codec.notation import DAMAGED, ELEMENT, KEY, MARK, MARK_IN_TEXT, Path, Refused, check_hashes, fault
from durable.codec.scalars import READERS
from durable.core.errors import PayloadError

_CONTAINERS: Final = frozenset({list, dict})


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_text(text: str, what: str) -> Any:
    """Return the value of `text`. Raises PayloadError."""
    if type(text) is not str:
        raise fault(what, None, f"it is {type(text).__name__} and not recorded text", DAMAGED, "read")
    try:
        tree = _DECODER.decode(text)
        if MARK_IN_TEXT not in text:
            return tree
        return _Decoder(what).read(tree, None)
    except ValueError as error:
        problem = f"its {len(text):,} characters are not the JSON of a value ({error})"
        raise fault(what, None, problem, DAMAGED, "read") from error
    except (RecursionError, MemoryError) as error:
        problem = "its text is nested too deeply, or is too large, for the stack and the memory that are left"
        raise fault(
            what, None, problem, "read it from a function that is not itself called from so deep", "read"
        ) from error


class _Decoder:
    """One walk over one parsed text."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def read(self, node: Any, path: Path) -> Any:
        """Return the value of `node`."""
        if type(node) is list:
            return self.read_list(node, path)
        if type(node) is not dict:
            return node
        for key in node:
            if key.startswith(MARK):
                return self.read_tag(node, path)
        return {key: self.read(item, (path, key)) if type(item) in _CONTAINERS else item for key, item in node.items()}

    def read_tag(self, node: dict[str, Any], path: Path) -> Any:
        try:
            ((tag, body),) = node.items()
            scalar = READERS.get(tag)
            if scalar is not None:
                return scalar(body)
            form = _FORMS.get(tag)
            if form is None:
                raise Refused(
                    f"the tag {ascii(tag)[:80]} is unknown here",
                    "run the version of durable, or the codec, that recorded it",
                )
            return form(self, body, path)
        except (PayloadError, RecursionError, MemoryError):
            raise
        except Refused as refused:
            raise fault(self.what, path, refused.problem, refused.advice, "read") from refused.__cause__
        except Exception as error:  # constructors raise any kind of error for text that the codec did not write
            # The error's text may quote the payload, and this message is shown to people who may not see payloads.
            problem = f"it is not what the codec writes ({type(error).__name__})"
            raise fault(self.what, path, problem, DAMAGED, "read") from error

    def read_list(self, body: list[Any], path: Path) -> list[Any]:
        return [
            self.read(item, (path, index)) if type(item) in _CONTAINERS else item
            for index, item in enumerate(_list(body))
        ]

    def read_tuple(self, body: list[Any], path: Path) -> tuple[Any, ...]:
        return tuple(self.read_list(body, path))

    def read_set(self, body: list[Any], path: Path) -> set[Any]:
        elements = [self.read(item, (path, ELEMENT)) for item in _list(body)]
        check_hashes(elements)
        made = set(elements)
        _check_distinct(made, len(elements))
        return made

    def read_frozenset(self, body: list[Any], path: Path) -> frozenset[Any]:
        return frozenset(self.read_set(body, path))

    def read_dict(self, body: list[Any], path: Path) -> dict[Any, Any]:
        keys = [(self.read(key, (path, KEY)), item) for key, item in map(_list, _list(body))]
        check_hashes([key for key, _ in keys])
        made = {key: self.read(item, (path, key)) for key, item in keys}
        _check_distinct(made, len(keys))
        return made

    def read_member(self, body: list[Any], _: Path) -> Any:
        name, member = body
        cls: Any = _class(name, is_enum_type, "an enumeration")
        found = cls.__members__.get(member)
        if found is None:
            raise Refused(
                f"{name} has no member {ascii(member)[:80]} now",
                "put the member back (an alias will do) until every run that recorded it has ended",
            )
        return found

    def read_flag(self, body: list[Any], path: Path) -> Any:
        name, value = body
        cls: Any = _class(name, lambda cls: issubclass(cls, Flag), "a flag")
        value = self.read(value, path)
        if type(value) is not int:
            raise Refused(f"the value of the flag {name} is not a number")
        if not cls.__members__:  # Python 3.11.2 makes another value of this one
            raise Refused(
                f"{name} has no members now", "put the members back until every run that recorded one has ended"
            )
        return cls(value)

    def read_named_tuple(self, body: list[Any], path: Path) -> Any:
        name, fields = body
        cls: Any = _class(name, is_named_tuple_type, "a named tuple")
        values = self.read_fields(name, cls._fields, fields, path)
        defaults = cls._field_defaults
        for field in _missing(name, cls._fields, values, lambda field: field in defaults):
            values[field] = defaults[field]
        return tuple.__new__(cls, [values[field] for field in cls._fields])

    def read_dataclass(self, body: list[Any], path: Path) -> Any:
        name, fields = body
        cls: Any = _class(name, is_dataclass_type, "a dataclass")
        known = {field.name: field for field in dataclasses.fields(cls)}
        values = self.read_fields(name, known, fields, path)
        for field in _missing(name, known, values, lambda field: _has_default(known[field])):
            values[field] = _default(known[field])
        made = object.__new__(cls)
        for field in known:
            # Bypass a frozen class's own __setattr__, and keep the order of the fields.
            object.__setattr__(made, field, values[field])
        return made

    def read_pydantic(self, body: list[Any], path: Path) -> Any:
        name, fields, fields_set, extra, private = body
        cls: Any = _class(name, is_pydantic_type, "a pydantic model")
        known = cls.model_fields
        values = self.read_fields(name, known, fields, path)
        for field in _missing(name, known, values, lambda field: not known[field].is_required()):
            values[field] = _pydantic_default(known[field], values)
        made = cls.__new__(cls)
        state = {
            "__dict__": {field: values[field] for field in known},
            "__pydantic_fields_set__": set(map(_str, _list(fields_set))),
            "__pydantic_extra__": _dict_or_none(self.read(extra, path)),
            "__pydantic_private__": _dict_or_none(self.read(private, path)),
        }
        pydantic_base().__setstate__(made, state)
        return made

    def read_fields(self, name: str, known: Iterable[str], fields: Any, path: Path) -> dict[str, Any]:
        """Return the recorded fields; the class `name` must still have all of them."""
        if type(fields) is not dict:
            raise Refused(f"the fields of {name} are not there")
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise Refused(
                f"{name} has no field {ascii(unknown[0])[:80]} now, and one was recorded",
                "put the field back (with a default, it may be unused) until every run that recorded it has ended",
            )
        return {field: self.read(item, (path, field)) for field, item in fields.items()}


_Form: TypeAlias = Callable[[_Decoder, Any, Path], Any]

_FORMS: Final[Mapping[str, _Form]] = {
    MARK + "tuple": _Decoder.read_tuple,
    MARK + "set": _Decoder.read_set,
    MARK + "frozenset": _Decoder.read_frozenset,
    MARK + "dict": _Decoder.read_dict,
    MARK + "enum": _Decoder.read_member,
    MARK + "flag": _Decoder.read_flag,
    MARK + "named": _Decoder.read_named_tuple,
    MARK + "dataclass": _Decoder.read_dataclass,
    MARK + "pydantic": _Decoder.read_pydantic,
}


def _class(name: object, is_kind: Callable[[type], bool], noun: str) -> type:
    cls = find_class(_str(name), is_kind)
    if not is_kind(cls):
        raise Refused(f"{name} was recorded as {noun} and is none now", f"make it {noun} again, or restore the record")
    return cls


def _missing(
    name: str, known: Iterable[str], values: Mapping[str, Any], has_default: Callable[[str], bool]
) -> list[str]:
    """Return the fields that the class has gained since; each must have a default."""
    missing = [field for field in known if field not in values]
    for field in missing:
        if not has_default(field):
            raise Refused(
                f"{name} now has a field {field} that was not recorded, and the field has no default",
                "give the field a default",
            )
    return missing


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _pydantic_default(field: Any, values: dict[str, Any]) -> Any:
    if getattr(field, "default_factory_takes_validated_data", False):
        return field.get_default(call_default_factory=True, validated_data=values)
    return field.get_default(call_default_factory=True)


def _check_distinct(made: Sized, count: int) -> None:
    if len(made) != count:
        raise Refused("an element or key that must be unique is there twice")


def _list(node: Any) -> list[Any]:
    if type(node) is not list:
        raise Refused(f"it is {type(node).__name__} where a list was recorded")
    return node


def _str(node: Any) -> str:
    if type(node) is not str:
        raise Refused(f"it is {type(node).__name__} where a name was recorded")
    return node


def _dict_or_none(node: Any) -> dict[str, Any] | None:
    if node is not None and type(node) is not dict:
        raise Refused(f"it is {type(node).__name__} where attributes were recorded")
    return node
