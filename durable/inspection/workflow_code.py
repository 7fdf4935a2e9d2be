"""The code of a workflow, for display: what it does, how it is called, and where it is written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from durable.core import registry
from durable.core.body_types import example_of, schema_of
from durable.core.registry import MessageTypes, WorkflowDefinition

LONGEST_DEFAULT: Final = 200  # characters
MAX_SOURCE: Final = 100_000  # characters
_HIDDEN: Final = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a workflow's function. `kind` is Python's, in lower case; `default` is as Python shows it."""

    name: str
    kind: str
    is_required: bool
    annotation: str
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMessage:
    """A message that a workflow declares: the JSON schema of its body, and an example of one."""

    name: str
    schema: Mapping[str, Any]
    example: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCode:
    """A workflow that this process knows. `signature` and `parameters` are without the context.

    `messages` are those that it declares, None if its runs accept any. `on_end` is the dotted path of the function that
    is called in the commit that ends a run, "" for none. `place` is file and line, "" if they are
    unknown.
    """

    name: str
    queue: str
    description: str
    signature: str
    parameters: Sequence[Parameter]
    messages: Sequence[DeclaredMessage] | None
    is_async: bool
    on_end: str
    place: str


def files_of_workflows() -> list[Path]:
    """Return the files of workflows in the installed apps, except those in installed packages and in durable.

    A path below the current directory is relative to it.
    """
    found: set[Path] = set()
    for workflow in registry.all():
        code = getattr(inspect.unwrap(workflow.function), "__code__", None)
        if code is None or not registry.is_discovered(workflow.name):
            continue
        path = Path(code.co_filename)
        if path.suffix == ".py" and path.is_file() and not _is_installed(path):
            found.add(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return sorted(found)


def _is_installed(path: Path) -> bool:
    own = Path(__file__).resolve().parent.parent
    return path.is_relative_to(own) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def code_of(workflow: WorkflowDefinition, *, may_see_payloads: bool) -> WorkflowCode:
    """Describe the workflow's code.

    Without `may_see_payloads`, defaults are hidden: one may be a secret.
    """
    _context, *parameters = (_written(each) for each in inspect.signature(workflow.function).parameters.values())
    if not may_see_payloads:
        parameters = [_without_default(each) for each in parameters]
    return WorkflowCode(
        name=workflow.name,
        queue=workflow.queue,
        description=inspect.getdoc(workflow.function) or "",
        signature=str(inspect.Signature(parameters)),
        parameters=[_parameter(each) for each in parameters],
        messages=None
        if workflow.messages is None
        else declared_messages(workflow.messages, may_see_payloads=may_see_payloads),
        is_async=workflow.is_async,
        on_end="" if workflow.on_end is None else workflow.on_end.name,
        place=_place(workflow),
    )


def declared_messages(messages: MessageTypes, *, may_see_payloads: bool) -> list[DeclaredMessage]:
    """Return the messages that a workflow declares, in the order of the code; defaults are hidden as in `code_of`."""
    found = [(name, schema_of(messages[name])) for name in messages]
    if not may_see_payloads:
        found = [(name, _without_values(schema)) for name, schema in found]
    return [DeclaredMessage(name=name, schema=schema, example=example_of(schema)) for name, schema in found]


def _without_values(schema: Any) -> Any:
    """Return a JSON schema without its defaults and examples."""
    if isinstance(schema, list):
        return [_without_values(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {word: each for word, each in schema.items() if word not in ("default", "examples")}
    for word, each in kept.items():
        if word in ("properties", "$defs"):  # keys are names of fields, which may be any text
            kept[word] = {name: _without_values(inner) for name, inner in each.items()}
        else:
            kept[word] = _without_values(each)
    return kept


def source_of(workflow: WorkflowDefinition) -> str:
    """Return the text of the workflow's function, at most `MAX_SOURCE` characters; "" if it cannot be read."""
    try:
        return inspect.getsource(inspect.unwrap(workflow.function))[:MAX_SOURCE]
    except (OSError, TypeError):
        return ""


def _place(workflow: WorkflowDefinition) -> str:
    code = getattr(inspect.unwrap(workflow.function), "__code__", None)
    if code is None:
        return ""
    path = Path(code.co_filename)
    module = str(getattr(workflow.function, "__module__", ""))
    shown = "/".join(path.parts[-(module.count(".") + 1) :])  # without the path of the installation
    return f"{shown}:{code.co_firstlineno}"


class _Written:
    """An annotation, or a placeholder for a default, as written in a signature."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _written(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter
    return parameter.replace(annotation=_Written(parameter.annotation))


def _without_default(parameter: inspect.Parameter) -> inspect.Parameter:
    has_default = parameter.default is not inspect.Parameter.empty
    return parameter.replace(default=_Written(_HIDDEN)) if has_default else parameter


def _parameter(parameter: inspect.Parameter) -> Parameter:
    has_default = parameter.default is not inspect.Parameter.empty
    is_many = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return Parameter(
        name=parameter.name,
        kind=parameter.kind.name.lower(),
        is_required=not has_default and not is_many,
        annotation=str(parameter.annotation) if isinstance(parameter.annotation, _Written) else "",
        default=repr(parameter.default)[:LONGEST_DEFAULT] if has_default else None,
    )
