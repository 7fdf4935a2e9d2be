"""The notation of recorded text, and classes by importable name, `module:qualname`.

Owns the conventions shared by encoder and decoder: the tag marker, the limits, the paths that errors give, and the
conditions under which each kind of class is recordable. A value that JSON cannot express is an object with one key, the
marker and the tag's name: `{"$:uuid": "..."}`. Text without the marker is plain JSON and is not walked at all. A
dictionary of the user's with a key that starts with the marker is written as pairs, so it cannot be mistaken for a tag.

Owns the only place where a recorded value leads to a class. Must never import a module of a top-level package that this
process has not imported already, nor a module whose source has no such class (`durable.core.names.recorded_names`),
call anything it finds, or follow a module's `__getattr__` or a descriptor.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum
from typing import Any, Final, TypeAlias

from durable.core.errors import PayloadError
from durable.core.names.recorded_names import ModuleRefused, NotInUse, other_names, used_module

PREFIX: Final = "$:"
PREFIX_IN_TEXT: Final = '"' + PREFIX

MAX_DEPTH: Final = 100
"""The limit of nested containers.

A tag takes up to three levels of JSON, and both directions up to four frames a level, so this fits Python's default
recursion limit of 1,000 with room for the frames of the caller.
"""

SURROGATE_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two adjacent lone surrogates, which JSON writes exactly like the one character that they would form."""

MOST_ALIKE: Final = 1_000
"""The limit of elements of a set, or keys of a dict, with one hash.

Each is compared with all of them, which takes seconds for tens of thousands.
"""

DAMAGED: Final = "restore the record from a backup: it is damaged, or this codec did not write it"

to_json: Final = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
"""Encode a plain tree as ASCII text. Raises ValueError for NaN, infinities and integers past Python's digit limit."""

# A path is a linked list, so that descending a level costs one tuple and nothing is formatted until an error needs it.
Path: TypeAlias = "tuple[Path, object] | None"


class _PathMark:
    """A part of a path that is neither an index nor a key."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


ELEMENT: Final = _PathMark("{element}")
KEY: Final = _PathMark("{key}")


class Refused(Exception):
    """A value, or a node of a text, is refused.

    Raised where the path is unknown, and caught where it is known.
    """

    def __init__(self, problem: str, advice: str = DAMAGED) -> None:
        self.problem = problem
        self.advice = advice
        super().__init__(f"{problem}; {advice}")


def render(path: Path) -> str:
    """Return the path as text, such as `$.items[3].user`."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(_part(part))
    return "$" + "".join(reversed(parts))


def _part(part: object) -> str:
    if isinstance(part, _PathMark):
        return part.text
    if type(part) is str:
        if part.isidentifier() and part.isascii():
            return "." + part
        return f"[{part if len(part) <= 40 else part[:37] + '...'!a}]"
    if type(part) is int and part.bit_length() <= 64:
        return f"[{part}]"
    # The repr of any other type may be long, secret or wrong.
    return f"[<{type(part).__name__}>]"


def fault(what: str, path: Path, problem: str, advice: str, action: str = "record") -> PayloadError:
    """Return the error for the value at `path`; the caller raises it."""
    return PayloadError(what, render(path), problem, advice, action)


def check_hashes(elements: Collection[object]) -> None:
    """Raise Refused if too many of the elements have one hash."""
    if len(elements) > MOST_ALIKE and max(Counter(map(hash, elements)).values()) > MOST_ALIKE:
        raise Refused(
            f"more than {MOST_ALIKE:,} of its elements or keys have the same hash",
            "give their class a __hash__ that tells them apart, or record a list",
        )


def loaded(module: str, name: str) -> Any:
    """Return `module.name` if the module is imported in this process, else None. Imports nothing."""
    found = sys.modules.get(module)
    return None if found is None else vars(found).get(name)


def class_name(cls: type) -> str:
    """Return the name under which `find_class` finds `cls` in any process of the project. Raises Refused."""
    module, qualname = cls.__module__, cls.__qualname__
    name = f"{module}:{qualname}"
    if "<locals>" in qualname:
        raise Refused(
            f"the class {name} is defined inside a function",
            "define it at the top level of a module, where a worker can import it",
        )
    if module == "__main__":
        raise Refused(
            f"the class {qualname} is defined in the program that was started (__main__)",
            "define it in a module that a worker can import",
        )
    try:
        found = find_class(name)
    except Refused as error:
        raise Refused(
            f"the class {name} cannot be imported by its name",
            "define it at the top level of a module, under its own name (of a generic class, record a named subclass)",
        ) from error
    if found is not cls:
        raise Refused(
            f"the name {name} now names something else than the class of this value",
            "give the class a name of its own, and build the value after the last reload of its module",
        )
    return name


def find_class(name: str, fits: Callable[[type], bool] | None = None) -> type:
    """Return the class called `name`, in its own module or where it has moved.

    It is also found by an alias that was left in its old module, or where a migration says that it is. A class that
    does not fit does not hide one that has moved; it is returned if nothing fits. Raises Refused if there is none.
    """
    first = refused = None
    try:
        first = _found(name)
        if fits is None or fits(first):
            return first
    except Refused as error:
        refused = error
    for other in other_names(name):
        with suppress(Refused):
            found = _found(other)
            if fits is None or fits(found):
                return found
    if first is None:
        assert refused is not None
        raise refused
    return first


def _found(name: str) -> type:
    module_name, _, qualname = name.partition(":")
    steps = qualname.split(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *steps)):
        raise Refused(f"{ascii(name)[:200]} is not the name of a class")
    found: object = _module(module_name, name)
    for step in steps:
        # vars() and not getattr(): hostile text must not run a module's __getattr__ or a property.
        found = vars(found).get(step) if found is not None else None
        if not isinstance(found, type):
            raise Refused(*_moved(name))
    assert isinstance(found, type)
    return found


def _module(module_name: str, name: str) -> object:
    try:
        return used_module(module_name, name.partition(":")[2].partition(".")[0])
    except NotInUse as error:
        raise Refused(
            f"the class {name} was recorded, and nothing in this process has imported {error.name}",
            f"import {error.name} in the workflows.py of an installed app, or, if the class moved, say so in a migration with "
            "durable.migrations.MoveClass, or leave an alias of it under the old name",
        ) from error.__cause__
    except ModuleRefused as error:
        if "__main__" in module_name:
            raise Refused(f"{name} is a part of a program, not of a library") from error.__cause__
        raise Refused(*_moved(name)) from error.__cause__


def _moved(name: str) -> tuple[str, str]:
    module_name, _, qualname = name.partition(":")
    problem = f"the class {name} was recorded and is not there now: it was moved, renamed or removed"
    advice = f"put it back, or leave an alias of it in {module_name} under the name {qualname}"
    advice += ", until every run that recorded it has ended; or say in a migration where it is now: durable.migrations.MoveClass"
    return problem, advice


def is_enum_type(cls: type) -> bool:
    return issubclass(cls, Enum)


def is_dataclass_type(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def is_named_tuple_type(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_pydantic_type(cls: type) -> bool:
    base = pydantic_base()
    return base is not None and cls is not base and issubclass(cls, base)


def pydantic_base() -> Any:
    """Return pydantic's BaseModel (version 2), or None if pydantic is not imported: then no value can be a model."""
    base = loaded("pydantic.main", "BaseModel")
    return base if hasattr(base, "model_fields") else None


def stray_attribute(value: object, fields: Collection[str]) -> str | None:
    """Return the name of an attribute of `value` that is not a field and would be lost, or None.

    Cached properties do not count: they are computed again.
    """
    cls = type(value)
    for name in getattr(value, "__dict__", ()):
        if name not in fields and name != "__orig_class__" and not _is_cached_property(cls, name):
            return str(name)
    for owner in cls.__mro__:
        slots = vars(owner).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{owner.__name__.lstrip('_')}{slot}" if slot.startswith("__") and slot[-2:] != "__" else slot
            if name not in fields and name not in ("__dict__", "__weakref__") and hasattr(value, name):
                return str(name)
    return None


def _is_cached_property(cls: type, name: str) -> bool:
    attribute = inspect.getattr_static(cls, name, None)
    return isinstance(attribute, functools.cached_property) or type(attribute).__name__ == "cached_property"
