"""Values of expressions of workflow code, as far as reading them tells; None for all that is not known."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from durable.lint.modules import Module

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Value: TypeAlias = Any  # one of the classes below, or None


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value that differs from pass to pass: its kind, and the expression that made it."""

    kind: str
    text: str
    line: int


class Result(NamedTuple):
    """The value of an expression, and what in it differs from pass to pass."""

    value: Value
    origins: frozenset[Origin]


NOTHING: Final = Result(None, frozenset())


@dataclass(eq=False, slots=True)
class Scope:
    """A scope of names: the root, an iteration, a branch or a block."""

    kind: Literal["root", "iteration", "branch", "block"]
    parent: Scope | None = None


class Env:
    """The names of one function while it is read; those of the functions around it are looked up in `parent`."""

    __slots__ = ("module", "names", "node", "origins", "parent")

    def __init__(self, module: Module, node: ast.AST | None, parent: Env | None) -> None:
        self.module = module
        self.node = node
        self.parent = parent
        self.names: dict[str, Value] = {}
        self.origins: dict[str, frozenset[Origin]] = {}

    def owner(self, name: str) -> Env | None:
        """Return the function's names that have `name`, None for a global or unknown one."""
        here: Env | None = self
        while here is not None:
            if name in here.names:
                return here
            here = here.parent
        return None


@dataclass(frozen=True, slots=True)
class Context:
    """A context of a scope."""

    scope: Scope
    is_async: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """`ctx.queue`."""

    context: Context


@dataclass(frozen=True, slots=True)
class Operator:
    """A method of a context, a queue, a child or a message that performs an operation."""

    kind: str
    context: Context


@dataclass(frozen=True, slots=True)
class Child:
    """The value of `ctx.start_child`."""

    context: Context


@dataclass(frozen=True, slots=True)
class Message:
    """The value of `ctx.queue.next`."""

    context: Context


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the project. `given` are arguments that it has already: `self`, and those of `partial`."""

    module: Module
    node: FunctionNode
    env: Env | None
    given: tuple[Value, ...] = ()
    is_method: bool = False
    is_partial: bool = False

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """One of these functions: which one is not known."""

    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of the project."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An instance of a class of the project. `holds` has the contexts and instances that its attributes were given."""

    of: Class
    holds: dict[str, Context | Instance | None] = field(default_factory=dict)

    def give(self, name: str, value: Value) -> None:
        """Note what an attribute is given; None for one that is given two things."""
        known = value if isinstance(value, Context | Instance) else None
        self.holds[name] = known if self.holds.get(name, known) == known else None


@dataclass(frozen=True, slots=True)
class ModuleItself:
    """A module of the project."""

    module: Module


@dataclass(frozen=True, slots=True)
class External:
    """A name outside of the project, or what calling a class of that name returns."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class WorkflowValue:
    """A workflow of the project, with what `using(...)` gave it: (the arguments, and what is known of them)."""

    name: str
    function: Function | None
    options: Mapping[str, tuple[ast.expr, Result]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Starter:
    """A method of a workflow: `start`, `using`, ..."""

    workflow: WorkflowValue
    method: str


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of the workflow, or a part of it. `is_set`: annotated as one."""

    name: str
    is_set: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """In a step's function: what a local name of the workflow's code holds."""

    name: str
    env: Env


@dataclass(frozen=True, slots=True)
class Text:
    """A constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class OwnSet:
    """A set, whose order differs from process to process."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A manager or queryset of a model."""


@dataclass(frozen=True, slots=True)
class NaiveMoment:
    """A datetime without a time zone."""


@dataclass(frozen=True, slots=True)
class ContextMoment:
    """The value of `ctx.now()`, which is aware."""


@dataclass(eq=False, slots=True)
class Display:
    """A dict, list or tuple that is written out, such as the bodies for `ctx.join`.

    `by_key` has the origins of each value, by constant keys and positions; what it lacks is not known.
    """

    values: list[Value]
    by_key: dict[object, frozenset[Origin]] = field(default_factory=dict)
