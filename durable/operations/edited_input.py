"""A run's input with some arguments replaced: what a person edits before the run is started again.

An argument is replaced by its name. The others stay as they were recorded, with their types, so that a value which a
person may not see, or which JSON cannot express, is kept. Must not read or write runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, get_type_hints

from durable.operations.names import workflow_named

#: Annotations that are compared with the type of a JSON value; any other annotation is not checked.
_CHECKED: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    list: (list,),
    dict: (dict,),
}


def arguments_of(workflow: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments by the names of the workflow's parameters.

    Raises UnknownWorkflowError, and ValueError if the arguments do not fit the workflow's code any more.
    """
    bound = _bound(workflow_named(workflow).function, given)
    return dict(list(bound.arguments.items())[1:])  # without the context


def edited(workflow: str, given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input with these arguments replaced. Raises as `arguments_of` does, and ValueError for a change that
    does not fit the signature.
    """
    function = workflow_named(workflow).function
    bound = _bound(function, given)
    parameters = dict(list(bound.signature.parameters.items())[1:])
    hints = _hints(function)
    for name, value in changes.items():
        parameter = parameters.get(name)
        if parameter is None:
            known = ", ".join(parameters) or "none"
            raise ValueError(f"{workflow} has no argument {name[:100]!r}; its arguments are {known}")
        bound.arguments[name] = _fitting(name, value, parameter, hints.get(name))
    return {**given, "args": list(bound.args[1:]), "kwargs": dict(bound.kwargs)}


def _bound(function: Callable[..., Any], given: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return inspect.signature(function).bind(None, *given["args"], **given["kwargs"])
    except TypeError as error:
        raise ValueError(f"the recorded input does not fit the workflow's code any more: {error}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001  # a name that exists for type checkers only
        return {}


def _fitting(name: str, value: Any, parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        if not isinstance(value, list):
            raise ValueError(f"the arguments *{name} are a list, not {type(value).__name__}")
        return tuple(value)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        if not isinstance(value, dict):
            raise ValueError(f"the arguments **{name} are an object, not {type(value).__name__}")
        return value
    allowed = _CHECKED.get(hint)
    is_wrong = allowed is not None and (
        not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool)
    )
    if is_wrong:
        raise ValueError(f"the argument {name} is {hint.__name__}, not {type(value).__name__}")
    return value
