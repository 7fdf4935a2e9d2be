"""Facts of one workflow, the rules that judge them, and what a rule finds.

A rule is its id, level, reason and advice, and a function of facts. Facts are data only, with the ways in which a block
of statements ends.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from durable.lint.modules import Context, Env, Function, FunctionNode, Module, Origin, Result, Scope, WorkflowValue


def ending(body: Sequence[ast.stmt]) -> str:
    """Return "return", "raise", "break" or "continue" if the block always ends so, else ""."""
    for statement in body:
        found = _ending(statement)
        if found:
            return found
    return ""


def _ending(statement: ast.stmt) -> str:
    match statement:
        case ast.Return():
            return "return"
        case ast.Raise():
            return "raise"
        case ast.Break():
            return "break"
        case ast.Continue():
            return "continue"
        case ast.With() | ast.AsyncWith():
            return ending(statement.body)
        case ast.If():
            return _weaker(ending(statement.body), ending(statement.orelse))
        case ast.Match():
            is_whole = any(
                isinstance(case.pattern, ast.MatchAs) and case.pattern.name is None for case in statement.cases
            )
            found = "raise" if is_whole else ""
            for case in statement.cases:
                found = _weaker(found, ending(case.body))
            return found
        case ast.Try():
            found = ending([*statement.body, *statement.orelse])
            for handler in statement.handlers:
                found = _weaker(found, ending(handler.body))
            return ending(statement.finalbody) or found
        case _:
            return ""


def _weaker(one: str, other: str) -> str:
    """Return how code ends that ends in one of two ways: as the one that leaves less."""
    order = ("", "continue", "break", "return", "raise")
    return min(one, other, key=order.index)


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the way from the top of a scope's code to a line of it.

    "arm": arm `index` of an `if`, a `match` or the handlers of a `try`; `ends`: the statement that always ends it.
    "loop": an iteration of a native loop or comprehension; `origins`: why its order differs from pass to pass.
    "try": the body (0), a handler (1), the else (2) or the finally (3). "suppress": within `with suppress(...)`.
    "call": the body of a called function.
    """

    kind: Literal["arm", "loop", "try", "suppress", "call"]
    node: ast.AST
    index: int = 0
    ends: str = ""
    origins: frozenset[Origin] = frozenset()
    has_order: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class Frame:
    """A function while it is read, as code of a workflow or of a step."""

    module: Module
    node: FunctionNode
    env: Env
    scope: Scope
    depth: int
    step: Step | None
    path: list[Branch]
    sites: tuple[tuple[Module, ast.AST], ...] = ()
    is_async: bool = False
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    origins: frozenset[Origin] = frozenset()
    value: object = None


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """A call of an operation.

    `context` is whose it is, `scope` whose code runs; `sites` are the calls that led here.
    """

    kind: str
    node: ast.Call
    module: Module
    function: FunctionNode
    context: Context
    scope: Scope
    path: tuple[Branch, ...]
    sites: tuple[tuple[Module, ast.AST], ...]
    is_awaited: bool
    in_step: Step | None
    args: Sequence[Result]
    keywords: Mapping[str, Result]
    name_node: ast.expr | None = None
    name_text: str | None = None
    name_origins: frozenset[Origin] = frozenset()
    child: WorkflowValue | None = None
    bodies: tuple[Function, ...] = ()

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call, or a read, of something outside of the project that is known to differ or to act."""

    kind: str
    name: str
    node: ast.expr
    module: Module
    in_name: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Mutation:
    """A change of something that a name holds. `env` are the names it is one of, None for a global of `module`.

    `value` is what the name was known to hold; `how`: "changed" or "rebound". `attribute`: which attribute of it, ""
    for all of it.
    """

    name: str
    env: Env | None
    module: Module
    function: FunctionNode
    node: ast.AST
    value: object
    how: Literal["changed", "rebound"]
    receiver: ast.AST | None = None
    attribute: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A step: its function, if that is of the project, its options, and what the function was seen to do.

    `holder` is there if the function is a method of what a local name holds: the name, and the names it is one of.
    """

    operation: Operation
    function: Function | None
    options: Mapping[str, ast.expr]
    option_values: Mapping[str, Result]
    calls: list[Call] = field(default_factory=list)
    holder: tuple[str, Env] | None = None
    mutations: list[Mutation] = field(default_factory=list)
    functions: list[tuple[Module, FunctionNode]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """A call of `start`, `astart`, `start_many` or another verb of a workflow; `in_step`: within a step's function."""

    workflow: WorkflowValue
    method: str
    node: ast.Call
    module: Module
    in_step: Step | None


@dataclass(slots=True, kw_only=True, eq=False)
class Comparison:
    """A naive time beside an aware one."""

    node: ast.expr
    module: Module


@dataclass(slots=True, kw_only=True, eq=False)
class Facts:
    name: str
    module: Module
    function: FunctionNode
    is_async: bool
    operations: list[Operation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    globals_read: list[tuple[Module, FunctionNode, ast.Name]] = field(default_factory=list)
    functions: dict[FunctionNode, Module] = field(default_factory=dict)
    unawaited: list[tuple[Module, ast.Call, Function]] = field(default_factory=list)
    usings: list[tuple[Module, ast.Call, WorkflowValue]] = field(default_factory=list)

    def own(self) -> Iterator[Operation]:
        """Yield the operations that are not within a step."""
        return (each for each in self.operations if each.in_step is None)


def are_exclusive(first: Operation, second: Operation) -> bool:
    """Return True if no pass reaches both; the first one is earlier in the code."""
    for position, (one, other) in enumerate(zip(first.path, second.path, strict=False)):
        if one == other:
            continue
        if one.kind == other.kind == "arm" and one.node is other.node:
            return True
        return _is_left(first.path[position:], second.path[:position])
    return _is_left(first.path[len(second.path) :], second.path)


def _is_left(rest: tuple[Branch, ...], common: tuple[Branch, ...]) -> bool:
    """Return True if an arm in `rest` always leaves what both have in common."""
    is_within_call = is_within_loop = False
    for each in rest:
        if each.kind == "call":
            is_within_call = True
        elif each.kind == "loop":
            is_within_loop = True
        elif each.ends == "raise" or (each.ends == "return" and not is_within_call):
            return True
        elif each.ends in ("break", "continue") and not is_within_loop and not is_within_call:
            return any(branch.kind == "loop" for branch in common)
    return False


Level = Literal["error", "warning", "hint"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `line` counts from 1; `workflow` is the name of the workflow it was found in, "" for a whole file.

    "error": the code fails, or behaves differently when it is replayed. "warning": it may. "hint": it works, and could
    be better.
    """

    id: str
    path: str
    line: int
    workflow: str
    level: Level
    message: str
    fix: str

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """A place that breaks a rule; `fix` replaces the rule's."""

    module: Module
    line: int
    message: str
    fix: str = ""


def report(place: Operation | Call | Mutation | Start | Comparison, message: str, fix: str = "") -> Report:
    """Return a report of the line on which a fact begins."""
    return Report(place.module, getattr(place.node, "lineno", 1), message, fix)


#: Yields the places of a workflow that break a rule.
Check = Callable[[Facts], Iterator[Report]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule. `why` and `fix` are sentences."""

    id: str
    level: Level
    title: str
    why: str
    fix: str
    check: Check


#: The rules created by `rule`, in the order of their code.
MADE: Final[list[Rule]] = []


def rule(id: str, level: Level, title: str, *, why: str, fix: str) -> Callable[[Check], Check]:
    """Create a rule from the function that checks it."""

    def made(check: Check) -> Check:
        MADE.append(Rule(id=id, level=level, title=title, why=why, fix=fix, check=check))
        return check

    return made
