"""Values to text.

Owns the walk over a value. Must not change the value, evaluate a lazy one, or call any code of the user except reading
fields. `decoding` is its mirror: a form changed here is changed there.

A value of JSON's own types takes the fast path: a check of types, level by level, then the C encoder. `_Walk` handles a
value that fails the check or whose text is ambiguous.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from typing import Any, Final, TypeAlias

from durable.codec.classes import (
    class_name,
    is_dataclass_type,
    is_enum_type,
    is_named_tuple_type,
    is_pydantic_type,
    pydantic_base,
    stray_attribute,
)
from durable.codec.notation import (
    ELEMENT,
    KEY,
    MARK,
    MARK_IN_TEXT,
    MAX_DEPTH,
    Path,
    Refused,
    check_hashes,
    fault,
    to_json,
)
from durable.codec.scalars import WRITERS, has_surrogate_pair, refusal, write_date, write_datetime, write_str

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
            if len(text) <= max_bytes and (MARK_IN_TEXT in text or "\\ud" in text):
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
            form = _FORMS.get(kind) or _form_of(kind)
            if form is None:
                return _stand_in(value, kind)
            return self._nested(form, value, path, depth)
        except Refused as refused:
            raise fault(self.what, path, refused.problem, refused.advice) from refused.__cause__

    def _nested(self, form: _Form, value: Any, path: Path, depth: int) -> Any:
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
        return {MARK + "tuple": self.write_list(value, path, depth)}

    def write_set(self, value: set[Any] | frozenset[Any], path: Path, depth: int) -> Any:
        check_hashes(value)
        # In the order of their text, so that equal sets give equal text in every process.
        elements = [self.write(item, (path, ELEMENT), depth) for item in value]
        return {MARK + type(value).__name__: sorted(elements, key=to_json)}

    def write_dict(self, value: dict[Any, Any], path: Path, depth: int) -> Any:
        if all(map(_is_plain_key, value)):
            return {key: self.write(item, (path, key), depth) for key, item in value.items()}
        check_hashes(value)
        return {
            MARK + "dict": [
                [self.write(key, (path, KEY), depth), self.write(item, (path, key), depth)]
                for key, item in value.items()
            ]
        }

    def write_member(self, value: Enum, path: Path, depth: int) -> Any:
        kind = type(value)
        name = class_name(kind)
        if kind.__members__.get(value.name or "") is value:
            return {MARK + "enum": [name, value.name]}
        if isinstance(value, Flag) and type(value.value) is int:
            return {MARK + "flag": [name, self.write(value.value, path, depth)]}
        raise Refused(f"it is not among the members of {name}", "pass a member of the enumeration")

    def write_named_tuple(self, value: Any, path: Path, depth: int) -> Any:
        names = type(value)._fields
        if len(names) != len(value):
            raise Refused(*refusal(value))
        _refuse_stray(value, names)
        fields = self.write_fields(zip(names, value, strict=True), path, depth)
        return {MARK + "named": [class_name(type(value)), fields]}

    def write_dataclass(self, value: Any, path: Path, depth: int) -> Any:
        name = class_name(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        _refuse_stray(value, names)
        fields = self.write_fields(((field, _field(value, field)) for field in names), path, depth)
        return {MARK + "dataclass": [name, fields]}

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
        return {MARK + "pydantic": [name, fields, sorted(state["__pydantic_fields_set__"]), extra, private]}

    def write_fields(self, fields: Iterable[tuple[str, Any]], path: Path, depth: int) -> Any:
        return {name: self.write(item, (path, name), depth) for name, item in fields}


_Form: TypeAlias = Callable[[_Encoder, Any, Path, int], Any]

_FORMS: Final[Mapping[type, _Form]] = {
    dict: _Encoder.write_dict,
    list: _Encoder.write_list,
    tuple: _Encoder.write_tuple,
    set: _Encoder.write_set,
    frozenset: _Encoder.write_set,
}


def _form_of(kind: type) -> _Form | None:
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
    """Return the base value of Django's safe text and of freezegun's replacements for dates."""
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
    return type(key) is str and not key.startswith(MARK) and not has_surrogate_pair(key)


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
