"""Classes by importable name, `module:qualname`, and the conditions under which each kind is recordable.

Owns the only place where recorded text leads to a class. Must never import a module of a top-level package that this
process has not imported already, nor a module whose source has no such class, call anything it finds, or follow a
module's `__getattr__` or a descriptor.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Collection, Iterator
from enum import Enum
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from durable.codec.notation import Refused

__all__ = [
    "class_name",
    "find_class",
    "is_dataclass_type",
    "is_enum_type",
    "is_named_tuple_type",
    "is_pydantic_type",
    "loaded",
    "pydantic_base",
    "stray_attribute",
]


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


def find_class(name: str) -> type:
    """Return the class called `name`, also by an alias that was left in its old module.

    Raises Refused if there is none.
    """
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
    module = sys.modules.get(module_name)
    if module is not None:
        return module
    package = module_name.partition(".")[0]
    if package not in sys.modules:
        raise Refused(
            f"the class {name} was recorded, and nothing in this process has imported {package}",
            f"import {package} in the workflows.py of an installed app, or, if the class moved, leave an alias of it "
            "under the old name",
        )
    if "__main__" in module_name:
        # A package's __main__ is a program; importing it runs it.
        raise Refused(f"{name} is a part of a program, not of a library")
    if not _has_name(module_name, name.partition(":")[2].partition(".")[0]):
        raise Refused(*_moved(name))  # importing it would run a file that the text has chosen
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the module's own code runs here and may raise anything
        raise Refused(*_moved(name)) from error


def _has_name(module_name: str, wanted: str) -> bool:
    """Return whether the module's source defines a class or a name called `wanted`; imports nothing."""
    spec = _spec(module_name)
    source = None if spec is None or spec.loader is None else getattr(spec.loader, "get_source", None)
    try:
        text = None if source is None else source(module_name)
        tree = None if text is None else ast.parse(text)
    except (SyntaxError, ValueError, ImportError, OSError, RecursionError):
        return False
    return tree is not None and any(wanted in _names_of(node) for node in _top_level(tree))


def _spec(module_name: str) -> ModuleSpec | None:
    """Return the spec of the module, found without importing the packages around it."""
    around, _, _ = module_name.rpartition(".")
    loaded_package = sys.modules.get(around)
    if loaded_package is not None:
        places = getattr(loaded_package, "__path__", None)
    else:
        package = _spec(around) if around else None
        places = None if package is None else package.submodule_search_locations
    return None if places is None else PathFinder.find_spec(module_name, list(places))


def _top_level(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if` and `try` included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
            if isinstance(node, ast.If | ast.Try):
                yield from _top_level(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from _top_level(node)


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _moved(name: str) -> tuple[str, str]:
    module_name, _, qualname = name.partition(":")
    problem = f"the class {name} was recorded and is not there now: it was moved, renamed or removed"
    advice = f"put it back, or leave an alias of it in {module_name} under the name {qualname}"
    return problem, advice + ", until every run that recorded it has ended"


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
