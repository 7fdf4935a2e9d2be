"""Classes of the project: their methods, and which of them are Django models."""

from __future__ import annotations

import ast
from typing import Final

from durable.lint.values import Class, External, Function, Instance

__all__ = ["is_model", "method_of"]

_MAX_BASES: Final = 5


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


def is_model(owner: Class, depth: int = 0) -> bool:
    """Return True if a class of the project is a Django model."""
    for base in owner.node.bases:
        parent = owner.module.dotted(base)
        if isinstance(parent, External) and parent.name in ("django.db.models.Model", "django.db.models.base.Model"):
            return True
        if isinstance(parent, Class) and depth < _MAX_BASES and is_model(parent, depth + 1):
            return True
    return False
