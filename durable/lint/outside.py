"""The values of calls outside of the project, as far as their names tell, and the origins that pass through them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from durable.lint.classes import has_default_repr
from durable.lint.known import kind_of
from durable.lint.modules import is_class_name
from durable.lint.values import NOTHING, External, Function, Message, NaiveMoment, Origin, OwnSet, Result

_NONE: Final[frozenset[Origin]] = frozenset()
_MODELS: Final = frozenset({"django.contrib.auth.get_user_model", "django.apps.apps.get_model"})
_ORDERLESS: Final = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool"})
_IN_ORDER: Final = frozenset({"list", "tuple", "iter", "enumerate", "next", "str", "repr", "map", "filter", "zip"})
_BUILTINS: Final = "builtins."
_DATETIME: Final = "datetime.datetime"
_NAIVE: Final = frozenset({f"{_DATETIME}.utcnow", f"{_DATETIME}.today"})
_NOW: Final = f"{_DATETIME}.now"
_POSITION_OF_ZONE: Final = 8  # of the parameters of datetime
_WITHOUT_VALUE: Final = frozenset({"threads", "sleep"})  # kinds of calls whose values come from nowhere


def called(name: str, node: ast.Call, args: Sequence[Result], origins: frozenset[Origin]) -> tuple[Result, str | None]:
    """Return what a call is read as, and the kind of what it does to the world, None if nothing is known of that."""
    if name == "functools.partial" and args and isinstance(args[0].value, Function):
        function = args[0].value
        given = (*function.given, *(each.value for each in args[1:]))
        return Result(Function(function.module, function.node, function.env, given, is_partial=True), origins), None
    if name == _DATETIME and len(node.args) < _POSITION_OF_ZONE and _is_without_zone(node):
        return Result(NaiveMoment(), origins), None
    if name in _MODELS:
        return Result(External("django.db.models.Model"), origins), None
    kind = kind_of(name)
    if kind is not None and kind not in _WITHOUT_VALUE:
        origins |= {Origin(kind, name.removeprefix(_BUILTINS), node.lineno)}
    if name in _NAIVE or (name == _NOW and not node.args and not node.keywords):
        return Result(NaiveMoment(), origins), kind
    if name.startswith(_BUILTINS):
        return _builtin(name.removeprefix(_BUILTINS), node, args, origins), kind
    return Result(External(name) if is_class_name(name) or name == "contextlib.suppress" else None, origins), kind


def _builtin(name: str, node: ast.Call, args: Sequence[Result], origins: frozenset[Origin]) -> Result:
    first = args[0] if args else NOTHING
    if name in ("str", "repr", "format", "ascii") and has_default_repr(first.value, is_repr=name in ("repr", "ascii")):
        return Result(None, origins | {Origin("identity", shown(node), node.lineno)})
    if name == "object":
        return Result(External(f"{_BUILTINS}object"), origins)
    if name in _ORDERLESS:
        is_set = name in ("set", "frozenset")
        return Result(OwnSet(shown(node), node.lineno) if is_set else None, without_order(origins))
    if name in _IN_ORDER:
        ordered = _NONE.union(origins, *(in_order(each) for each in args))
        kept = first.value if name in ("list", "tuple", "iter") and isinstance(first.value, Message) else None
        return Result(kept, ordered)
    if name in ("hash", "id"):
        return Result(None, origins | {Origin("identity", shown(node), node.lineno)})
    return Result(None, origins)


def all_origins(results: Sequence[Result]) -> frozenset[Origin]:
    """Return the origins of all."""
    return _NONE.union(*(each.origins for each in results))


def in_order(result: Result) -> frozenset[Origin]:
    """Return the origins of something whose elements are looked at in their order."""
    if isinstance(result.value, OwnSet):
        return result.origins | {Origin("set order", result.value.text, result.value.line)}
    return result.origins


def without_order(origins: frozenset[Origin]) -> frozenset[Origin]:
    """Return the origins of something that does not depend on the order of elements."""
    return frozenset(each for each in origins if each.kind != "set order")


def shown(node: ast.AST) -> str:
    """Return the text of an expression, shortened."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_without_zone(node: ast.Call) -> bool:
    zone = next((each.value for each in node.keywords if each.arg in ("tzinfo", None)), None)
    return zone is None or (isinstance(zone, ast.Constant) and zone.value is None)
