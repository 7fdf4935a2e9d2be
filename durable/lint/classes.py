"""Classes of the project: their methods, and which of them are Django models."""

from __future__ import annotations

import ast
from typing import Final

from durable.lint.values import Class, External, Function, Instance

_MAX_BASES: Final = 5
#: The methods of a model's instance that use the database.
ROW_METHODS: Final = frozenset({"save", "asave", "delete", "adelete", "refresh_from_db", "arefresh_from_db"})


def method_of(holder: Class | Instance, name: str) -> Function | None:
    """Return a method of a class or instance of the project, None if it is written nowhere in the project."""
    return _method_of(holder if isinstance(holder, Class) else holder.of, name, holder, 0)


def _method_of(owner: Class, name: str, holder: Class | Instance, depth: int) -> Function | None:
    for each in owner.node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
            decorators = {ast.unparse(decorator) for decorator in each.decorator_list}
            if decorators & {"property", "cached_property", "functools.cached_property"}:
                return None
            is_bound = "staticmethod" not in decorators and (
                isinstance(holder, Instance) or "classmethod" in decorators
            )
            return Function(owner.module, each, None, (holder,) if is_bound else (), is_method=True)
    if depth < _MAX_BASES:
        for base in owner.node.bases:
            parent = owner.module.dotted(base)
            found = _method_of(parent, name, holder, depth + 1) if isinstance(parent, Class) else None
            if found is not None:
                return found
    return None


def has_default_repr(value: object, *, is_repr: bool) -> bool:
    """Return True if the text of a value has an address in it, which differs from process to process.

    `is_repr`: the text is its `repr()`.
    """
    if isinstance(value, Function):
        return True
    if isinstance(value, External):
        return value.name == "builtins.object"
    return isinstance(value, Instance) and _is_plain(value.of, is_repr=is_repr, depth=0)


def _is_plain(owner: Class, *, is_repr: bool, depth: int) -> bool:
    """Return True if a class of the project is known not to say what its instances look like."""
    if owner.node.decorator_list or owner.node.keywords or depth > _MAX_BASES:
        return False
    says = {"__repr__"} if is_repr else {"__repr__", "__str__", "__format__"}
    if any(isinstance(each, ast.FunctionDef) and each.name in says for each in owner.node.body):
        return False
    bases = [owner.module.dotted(base) for base in owner.node.bases]
    return all(
        (isinstance(base, Class) and _is_plain(base, is_repr=is_repr, depth=depth + 1))
        or (isinstance(base, External) and base.name == "builtins.object")
        for base in bases
    )


def is_model(owner: Class, depth: int = 0) -> bool:
    """Return True if a class of the project is a Django model."""
    for base in owner.node.bases:
        parent = owner.module.dotted(base)
        if isinstance(parent, External) and parent.name in ("django.db.models.Model", "django.db.models.base.Model"):
            return True
        if isinstance(parent, Class) and depth < _MAX_BASES and is_model(parent, depth + 1):
            return True
    return False
