"""The encoder, from values to text, and the decoder, its mirror.

The encoder must not change the value, evaluate a lazy one, or call any code of the user except reading fields. A value
of JSON's own types takes the fast path: a check of types, level by level, then the C encoder. `_Encoder` handles a
value that fails the check or whose text is ambiguous.

The decoder returns a value or raises a `PayloadError` for any text; it builds only the types that the encoder writes,
and runs no `__init__`, `__post_init__` or validator.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sized
from enum import Enum, Flag
from typing import Any, Final, NoReturn, TypeAlias

from durable.codec.classes import (
    DAMAGED,
    ELEMENT,
    KEY,
    MAX_DEPTH,
    PREFIX,
    PREFIX_IN_TEXT,
    Path,
    Refused,
    check_hashes,
    class_name,
    fault,
    find_class,
    is_dataclass_type,
    is_enum_type,
    is_named_tuple_type,
    is_pydantic_type,
    pydantic_base,
    stray_attribute,
    to_json,
)
from durable.codec.scalars import READERS, WRITERS, has_surrogate_pair, refusal, write_date, write_datetime, write_str
from durable.core.errors import PayloadError

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ALL_STR: Final = frozenset({str})

# A dataclass that derives from one of these has state beside its fields.
_BUILTIN_BASES: Final = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset, BaseException, type)

_STORE_ELSEWHERE: Final = (
    'store it elsewhere (a file, a row of your own) and pass a reference to it, or raise DURABLE["MAX_PAYLOAD_BYTES"]'
)


def encode_text(value: object, what: str, max_bytes: int) -> str:
    """Return `value` as ASCII JSON with tags, of at most `max_bytes`. Raises PayloadError."""
    text = None
    if type(value) in _SCALARS or _is_plain(value, max_bytes):
        try:
            text = to_json(value)
        except (ValueError, RecursionError):
            text = None  # NaN, an infinity or a huge integer: the walk has tags for them
        else:
            # A key that looks like a tag, or surrogates that JSON may have joined: rare, so check again. A text that is
            # too long already is refused: that of the walk is no shorter, and the walk takes long.
            if len(text) <= max_bytes and (PREFIX_IN_TEXT in text or "\\ud" in text):
                text = None
    if text is None:
        text = _walk(value, what, max_bytes)
    if len(text) > max_bytes:
        raise fault(what, None, f"it takes {len(text):,} bytes and the limit is {max_bytes:,}", _STORE_ELSEWHERE)
    return text


def _is_plain(value: object, max_bytes: int) -> bool:
    """Return whether `value` has exactly JSON's own types, and neither too many levels nor too many parts."""
    level = [value]
    seen = 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for node in level:
            children: Iterable[object]
            if type(node) is dict:
                if node and set(map(type, node)) != _ALL_STR:
                    return False
                children = node.values()
            elif type(node) is list:
                children = node
            else:
                return False
            below += [child for child in children if type(child) not in _SCALARS]
            if seen + len(below) > max_bytes:
                return False
        if not below:
            return True
        seen += len(below)
        level = below
    return False


def _walk(value: object, what: str, max_bytes: int) -> str:
    try:
        return to_json(_Encoder(what, max_bytes).write(value, None, 0))
    except RecursionError as error:
        raise fault(
            what,
            None,
            "it is nested too deeply for what is left of Python's stack",
            "flatten it, or record it from a function that is not itself called from so deep",
        ) from error


class _Encoder:
    """One walk over one value, to an equivalent tree of plain JSON."""

    __slots__ = ("inside", "max_bytes", "room", "what")

    def __init__(self, what: str, max_bytes: int) -> None:
        self.what = what
        self.max_bytes = max_bytes
        # Every part takes a byte or more, so a value in which shared parts multiply is refused here.
        self.room = max_bytes
        self.inside: set[int] = set()

    def write(self, value: Any, path: Path, depth: int) -> Any:
        """Return the form of `value`, which is at `path` inside `depth` containers."""
        self.room -= 1
        if self.room < 0:
            raise fault(
                self.what,
                None,
                f"its parts alone take more than the limit of {self.max_bytes:,} bytes",
                _STORE_ELSEWHERE,
            )
        kind = type(value)
        try:
            scalar = WRITERS.get(kind)
            if scalar is not None:
                return scalar(value)
            form = _ENCODERS.get(kind) or _form_of(kind)
            if form is None:
                return _stand_in(value, kind)
            return self._nested(form, value, path, depth)
        except Refused as refused:
            raise fault(self.what, path, refused.problem, refused.advice) from refused.__cause__

    def _nested(self, form: _Encode, value: Any, path: Path, depth: int) -> Any:
        if id(value) in self.inside:
            raise Refused("it contains itself", "pass a tree, in which parts refer to their parents by an id")
        if depth >= MAX_DEPTH:
            raise Refused(f"it is nested more than {MAX_DEPTH} levels deep", "flatten it, or pass it as text")
        self.inside.add(id(value))
        try:
            return form(self, value, path, depth + 1)
        finally:
            self.inside.discard(id(value))

    def write_list(self, value: Iterable[Any], path: Path, depth: int) -> Any:
        return [self.write(item, (path, index), depth) for index, item in enumerate(value)]

    def write_tuple(self, value: tuple[Any, ...], path: Path, depth: int) -> Any:
        return {PREFIX + "tuple": self.write_list(value, path, depth)}

    def write_set(self, value: set[Any] | frozenset[Any], path: Path, depth: int) -> Any:
        check_hashes(value)
        # In the order of their text, so that equal sets give equal text in every process.
        elements = [self.write(item, (path, ELEMENT), depth) for item in value]
        return {PREFIX + type(value).__name__: sorted(elements, key=to_json)}

    def write_dict(self, value: dict[Any, Any], path: Path, depth: int) -> Any:
        if all(map(_is_plain_key, value)):
            return {key: self.write(item, (path, key), depth) for key, item in value.items()}
        check_hashes(value)
        return {
            PREFIX + "dict": [
                [self.write(key, (path, KEY), depth), self.write(item, (path, key), depth)]
                for key, item in value.items()
            ]
        }

    def write_member(self, value: Enum, path: Path, depth: int) -> Any:
        kind = type(value)
        name = class_name(kind)
        if kind.__members__.get(value.name or "") is value:
            return {PREFIX + "enum": [name, value.name]}
        if isinstance(value, Flag) and type(value.value) is int:
            return {PREFIX + "flag": [name, self.write(value.value, path, depth)]}
        raise Refused(f"it is not among the members of {name}", "pass a member of the enumeration")

    def write_named_tuple(self, value: Any, path: Path, depth: int) -> Any:
        names = type(value)._fields
        if len(names) != len(value):
            raise Refused(*refusal(value))
        _refuse_stray(value, names)
        fields = self.write_fields(zip(names, value, strict=True), path, depth)
        return {PREFIX + "named": [class_name(type(value)), fields]}

    def write_dataclass(self, value: Any, path: Path, depth: int) -> Any:
        name = class_name(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        _refuse_stray(value, names)
        fields = self.write_fields(((field, _field(value, field)) for field in names), path, depth)
        return {PREFIX + "dataclass": [name, fields]}

    def write_pydantic(self, value: Any, path: Path, depth: int) -> Any:
        # pydantic's own pickling contract. model_dump() would lose the types of the fields.
        kind = type(value)
        name = class_name(kind)
        state = pydantic_base().__getstate__(value)
        _refuse_stray(value, (*kind.model_fields, *state))
        values = state["__dict__"]
        missing = [field for field, each in kind.model_fields.items() if each.is_required() and field not in values]
        if missing:  # it could not be read again
            fields = f"its field{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            raise Refused(f"{name} lacks {fields}", "give model_construct() the fields that have no default")
        known = ((field, values[field]) for field in kind.model_fields if field in values)
        fields = self.write_fields(known, path, depth)
        extra, private = (
            None if part is None else self.write_dict(part, path, depth)
            for part in (state["__pydantic_extra__"], state["__pydantic_private__"])
        )
        return {PREFIX + "pydantic": [name, fields, sorted(state["__pydantic_fields_set__"]), extra, private]}

    def write_fields(self, fields: Iterable[tuple[str, Any]], path: Path, depth: int) -> Any:
        return {name: self.write(item, (path, name), depth) for name, item in fields}


_Encode: TypeAlias = Callable[[_Encoder, Any, Path, int], Any]

_ENCODERS: Final[Mapping[type, _Encode]] = {
    dict: _Encoder.write_dict,
    list: _Encoder.write_list,
    tuple: _Encoder.write_tuple,
    set: _Encoder.write_set,
    frozenset: _Encoder.write_set,
}


def _form_of(kind: type) -> _Encode | None:
    if is_enum_type(kind):
        return _Encoder.write_member
    if is_named_tuple_type(kind):
        return _Encoder.write_named_tuple
    if is_pydantic_type(kind):
        return _Encoder.write_pydantic
    if is_dataclass_type(kind) and not issubclass(kind, _BUILTIN_BASES):
        return _Encoder.write_dataclass
    return None


def _stand_in(value: Any, kind: type) -> Any:
    """Return the plain value for Django's safe text and freezegun's replacements of dates."""
    match kind.__module__, kind.__qualname__:
        case "django.utils.safestring", "SafeString":
            return write_str(str.__str__(value))
        case "freezegun.api", "FakeDatetime":
            return write_datetime(value)
        case "freezegun.api", "FakeDate":
            return write_date(value)
        case _:
            raise Refused(*refusal(value))


def _is_plain_key(key: object) -> bool:
    return type(key) is str and not key.startswith(PREFIX) and not has_surrogate_pair(key)


def _field(value: object, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError as error:
        raise Refused(
            f"its field {name} was never set", "give the field a default, or set it in __post_init__"
        ) from error


def _refuse_stray(value: object, fields: Iterable[str]) -> None:
    stray = stray_attribute(value, frozenset(fields))
    if stray is not None:
        raise Refused(
            f"it has the attribute {stray}, which is not one of its fields and would be lost",
            "declare it as a field, or make it a property",
        )


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
        if PREFIX_IN_TEXT not in text:
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
            if key.startswith(PREFIX):
                return self.read_tag(node, path)
        return {key: self.read(item, (path, key)) if type(item) in _CONTAINERS else item for key, item in node.items()}

    def read_tag(self, node: dict[str, Any], path: Path) -> Any:
        try:
            ((tag, body),) = node.items()
            scalar = READERS.get(tag)
            if scalar is not None:
                return scalar(body)
            form = _DECODERS.get(tag)
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


_Decode: TypeAlias = Callable[[_Decoder, Any, Path], Any]

_DECODERS: Final[Mapping[str, _Decode]] = {
    PREFIX + "tuple": _Decoder.read_tuple,
    PREFIX + "set": _Decoder.read_set,
    PREFIX + "frozenset": _Decoder.read_frozenset,
    PREFIX + "dict": _Decoder.read_dict,
    PREFIX + "enum": _Decoder.read_member,
    PREFIX + "flag": _Decoder.read_flag,
    PREFIX + "named": _Decoder.read_named_tuple,
    PREFIX + "dataclass": _Decoder.read_dataclass,
    PREFIX + "pydantic": _Decoder.read_pydantic,
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
