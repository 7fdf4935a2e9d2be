"""Whether JSON that a person typed fits the annotations of a workflow's parameters.

Only types that JSON has are compared: `int`, `float`, `str`, `bool`, `list`, `dict`, `None`, literals, and unions of
them. Any other annotation, and one that cannot be resolved, accepts every value: the code decides.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from durable.inspection.humanize import shortened

_PLAIN: Final[Mapping[Any, tuple[type, ...]]] = {
    bool: (bool,),
    dict: (dict,),
    float: (int, float),
    int: (int,),
    list: (list,),
    str: (str,),
    NoneType: (NoneType,),
}
_LONGEST: Final = 60  # characters of a value that is quoted
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def misfit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first argument that does not fit: its name, the annotation, and the value as JSON; None if all fit.

    Arguments that the function does not take are left to `Workflow.start`.
    """
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function)
        bound = signature.bind(None, *args, **kwargs).arguments
    except Exception:  # noqa: BLE001  # an annotation is code, and may raise anything
        return None
    for name, value in bound.items():
        hint = hints.get(name, Any)
        parameter = signature.parameters[name]
        if parameter.kind not in _MANY and value is not parameter.default and not _fits(value, hint):
            return name, inspect.formatannotation(hint), shortened(json.dumps(value, ensure_ascii=False), _LONGEST)
    return None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(hint))
    kind = origin or hint
    plain = _PLAIN.get(kind) if isinstance(kind, type) else None
    if plain is None:
        return True
    return isinstance(value, plain) and (bool in plain or not isinstance(value, bool))
