"""Reads the calls in a workflow's code: whom they call, what that does and returns, and what operations are given."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from durable.lint import operations
from durable.lint.facts import Branch, Call, Facts, Frame, Operation, Start, Step
from durable.lint.known import ROW_METHODS, acts, all_origins, called, has_default_repr, in_order, method_of, shown
from durable.lint.modules import (
    NOTHING,
    Child,
    Class,
    Context,
    ContextMoment,
    Display,
    Env,
    External,
    Function,
    Given,
    Instance,
    Message,
    OneOf,
    Operator,
    Origin,
    OwnSet,
    Result,
    Rows,
    Scope,
    Starter,
    Text,
    Value,
    WorkflowValue,
)
from durable.lint.operations import Arguments, bodies_of, step_definition


class Walker(Protocol):
    """The reader of the statements around the expressions."""

    facts: Facts

    def enter(
        self,
        function: Function,
        args: Sequence[Result],
        keywords: dict[str, Result],
        caller: Frame,
        *,
        site: ast.AST | None = None,
        scope: Scope | None = None,
        step: Step | None = None,
    ) -> Result:
        """Read a function that is called."""

    def assign(self, target: ast.expr, result: Result, frame: Frame) -> None:
        """Note what a target holds."""

    def element(self, iterated: Result) -> tuple[Result, frozenset[Origin]]:
        """Return what an element is, and why their order differs."""

    def mutate(self, target: ast.expr, node: ast.AST, frame: Frame) -> None:
        """Note that what a target stands for is changed."""

    def within(self, branch: Branch, frame: Frame) -> AbstractContextManager[None]:
        """Read a part that is not always run, or not once."""


class Reader(Protocol):
    """The reader of the expressions within calls."""

    def of(self, node: ast.expr, frame: Frame) -> Result:
        """Read an expression."""


class Acts:
    """The calls of one workflow's code that reach the world.

    Each is a fact of the step around it, or of the code between the steps.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._naming = 0

    @contextmanager
    def naming(self, *, is_name: bool) -> Iterator[None]:
        """Read an argument of an operation, which is its name or not."""
        self._naming += is_name
        yield
        self._naming -= is_name

    def note(self, kind: str, name: str, node: ast.expr, frame: Frame) -> None:
        """Note what is called that reads or changes the world."""
        call = Call(kind=kind, name=name, node=node, module=frame.module, in_name=self._naming > 0)
        if frame.step is not None:
            frame.step.calls.append(call)
        else:
            self._facts.calls.append(call)


_NONE: Final[frozenset[Origin]] = frozenset()


class OperationCalls:
    """The calls of operations in one workflow's code."""

    def __init__(self, walker: Walker, reader: Reader, acts: Acts) -> None:
        self._walker = walker
        self._facts = walker.facts
        self._reader = reader
        self._acts = acts

    def read(self, operator: Operator, node: ast.Call, frame: Frame, *, is_awaited: bool) -> Result:
        """Read the call of an operation, the function of its step and its bodies."""
        kind, context = operator.kind, operator.context
        arguments = self._arguments(kind, node, frame)
        operation = Operation(
            kind=kind,
            node=node,
            module=frame.module,
            function=frame.node,
            context=context,
            scope=frame.scope,
            path=tuple(frame.path),
            sites=frame.sites,
            is_awaited=is_awaited,
            in_step=frame.step,
            args=arguments.values,
            keywords=arguments.keywords,
        )
        self._facts.operations.append(operation)
        if kind in operations.STEPS:
            self._step(operation, arguments, frame)
            return NOTHING
        if kind in operations.NAMED and arguments.name is not None:
            _name_it(operation, arguments.name, arguments.name_result)
        if kind in operations.BODIES:
            given = arguments.of(1, "body" if kind in ("loop", "try_block") else "branches")
            operation.bodies = tuple(bodies_of(given))
            for body in operation.bodies:
                self._body(body, operation, frame)
        if kind in ("child", "start_child", "map") and len(arguments.values) > 1:
            found = arguments.values[1].value
            operation.child = found if isinstance(found, WorkflowValue) else None
        if kind == "start_child":
            return Result(Child(context), _NONE)
        return Result(Message(context), _NONE) if kind in ("next", "next_batch") else NOTHING

    def _arguments(self, kind: str, node: ast.Call, frame: Frame) -> Arguments:
        values: list[Result] = []
        for index, each in enumerate(node.args):
            is_name = index == 0 and kind in operations.NAMED
            with self._acts.naming(is_name=is_name):
                values.append(self._reader.of(each, frame))
        keywords: dict[str, Result] = {}
        for keyword in node.keywords:
            is_name = keyword.arg == "name"
            with self._acts.naming(is_name=is_name):
                result = self._reader.of(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = result
        return Arguments(node, values, keywords)

    def _step(self, operation: Operation, arguments: Arguments, frame: Frame) -> None:
        if not arguments.values:
            return
        first = arguments.values[0].value
        is_unnamed = isinstance(first, Function) or len(arguments.values) == 1
        position = 0 if is_unnamed else 1
        function = arguments.values[position].value
        function = function if isinstance(function, Function) else None
        defined, options = step_definition(function)
        option_nodes = {**options, **{each.arg: each.value for each in operation.node.keywords if each.arg}}
        step = Step(
            operation=operation,
            function=function,
            options=option_nodes,
            option_values={**dict.fromkeys(options, NOTHING), **arguments.keywords},
            holder=_holder(operation.node.args[position], frame) if position < len(operation.node.args) else None,
        )
        if is_unnamed:
            operation.name_text = defined
        elif arguments.name is not None:
            _name_it(operation, arguments.name, arguments.name_result)
        self._facts.steps.append(step)
        if function is None:
            return
        given = [
            _as_given(node, result, frame)
            for node, result in zip(operation.node.args[position + 1 :], arguments.values[position + 1 :], strict=False)
        ]
        self._walker.enter(function, given, {}, frame, site=operation.node, step=step)

    def _body(self, body: Function, operation: Operation, frame: Frame) -> None:
        scope = Scope(operations.BODIES[operation.kind], frame.scope)  # type: ignore[arg-type]  # one of the four kinds
        context = Result(Context(scope, operation.context.is_async), _NONE)
        self._walker.enter(body, [context, NOTHING], {}, frame, site=operation.node, scope=scope)


def _name_it(operation: Operation, node: ast.expr, result: Result) -> None:
    operation.name_node = node
    operation.name_text = result.value.text if isinstance(result.value, Text) else None
    operation.name_origins = in_order(result)


def _holder(node: ast.expr, frame: Frame) -> tuple[str, Env] | None:
    """Return the local name whose method is the step's function, with the names it is one of."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return None
    owner = frame.env.owner(node.value.id)
    return None if owner is None or not isinstance(owner.names[node.value.id], Instance) else (node.value.id, owner)


def _as_given(node: ast.expr, result: Result, frame: Frame) -> Result:
    """Return an argument as a step's function has it: of a local name, the name itself is known."""
    is_own = result.value is None or isinstance(result.value, Display | OwnSet)
    if is_own and isinstance(node, ast.Name) and (owner := frame.env.owner(node.id)) is not None:
        return Result(Given(node.id, owner), _NONE)
    return Result(result.value, _NONE)


_MUTATORS: Final = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
        *("reverse", "setdefault", "sort", "update"),
    }
)
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})


class Calls:
    """The calls in one workflow's code."""

    def __init__(self, walker: Walker, reader: Reader, acts: Acts) -> None:
        self._walker = walker
        self._facts = walker.facts
        self._reader = reader
        self._acts = acts
        self._operations = OperationCalls(walker, reader, acts)

    def read(self, node: ast.Call, frame: Frame, *, is_awaited: bool) -> Result:
        """Read a call: of a function of the project, of one outside of it, of a workflow, or of an operation."""
        callee = self._reader.of(node.func, frame)
        function = callee.value
        if isinstance(function, Operator):
            return self._operations.read(function, node, frame, is_awaited=is_awaited)
        args = [self._reader.of(each, frame) for each in node.args]
        keywords = {each.arg: self._reader.of(each.value, frame) for each in node.keywords if each.arg is not None}
        rest = [self._reader.of(each.value, frame) for each in node.keywords if each.arg is None]
        origins = callee.origins | all_origins([*args, *keywords.values(), *rest])
        match function:
            case Function():
                if isinstance(function.node, ast.AsyncFunctionDef) and not is_awaited:
                    self._facts.unawaited.append((frame.module, node, function))
                return self._walker.enter(function, args, keywords, frame, site=node)
            case OneOf():
                results = []
                for index, each in enumerate(function.functions):
                    with self._walker.within(Branch("arm", node, index), frame):
                        results.append(self._walker.enter(each, args, keywords, frame, site=node))
                return Result(None, origins | all_origins(results))
            case WorkflowValue():
                if function.function is not None and args and isinstance(args[0].value, Context):
                    return self._walker.enter(function.function, args, keywords, frame, site=node)
                return NOTHING
            case Starter():
                return self._starter(function, node, keywords, frame)
            case Class():
                instance = Instance(function)
                if (make := method_of(instance, "__init__")) is not None:
                    self._walker.enter(make, args, keywords, frame, site=node)
                return Result(instance, origins)
            case External():
                self._call_functions([*args, *keywords.values()], frame)
                result, kind = called(function.name, node, args, origins)
                if kind is None and frame.step is not None and acts(function.name):
                    kind = "service"
                if kind is not None:
                    self._acts.note(kind, function.name, node, frame)
                if kind == "query" and function.name.startswith("django.shortcuts."):
                    return Result(Rows(), result.origins)
                return result
            case Rows():
                if not isinstance(frame.module.parents.get(node), ast.Attribute):
                    self._acts.note("query", shown(node.func), node, frame)
                return Result(function, origins | {Origin("query", shown(node.func), node.lineno)})
        self._call_functions([*args, *keywords.values()], frame)
        return self._method(node, origins, frame)

    def _call_functions(self, given: Sequence[Result], frame: Frame) -> None:
        """Read lambdas that are given to a function which is not known: it calls them, most often."""
        for each in given:
            if isinstance(each.value, Function) and isinstance(each.value.node, ast.Lambda):
                self._walker.enter(each.value, [], {}, frame)

    def _method(self, node: ast.Call, origins: frozenset[Origin], frame: Frame) -> Result:
        """Read a call of something unknown, most often a method of a value."""
        if not isinstance(node.func, ast.Attribute):
            return Result(None, origins)
        holder = _quiet(node.func.value, frame)
        name = node.func.attr
        if name in ROW_METHODS and not node.args and holder is None:  # most often of a model, and never of use here
            self._acts.note("query", shown(node.func), node, frame)
        if name == "format" and (isinstance(holder, Text) or isinstance(node.func.value, ast.Constant)):
            given = [*node.args, *(each.value for each in node.keywords)]
            found = [each for each in given if has_default_repr(_quiet(each, frame), is_repr=False)]
            return Result(None, origins | {Origin("identity", shown(each), each.lineno) for each in found})
        if name in _MUTATORS:
            self._walker.mutate(node.func.value, node, frame)
        if isinstance(holder, OwnSet):
            if name in _SET_METHODS:
                return Result(holder, origins)
            if name == "pop":
                return Result(None, origins | {Origin("set order", holder.text, holder.line)})
        if name == "join" and node.args and isinstance(given := _quiet(node.args[0], frame), OwnSet):
            return Result(None, origins | {Origin("set order", given.text, given.line)})
        if isinstance(holder, Context) and name == "now":
            return Result(ContextMoment(), _NONE)
        if isinstance(holder, Display) and name in ("update", "setdefault"):
            holder.values += [each.value for each in (self._reader.of(arg, frame) for arg in node.args[1:])]
        return Result(None, origins)

    def _starter(self, starter: Starter, node: ast.Call, keywords: dict[str, Result], frame: Frame) -> Result:
        workflow, method = starter.workflow, starter.method
        if method == "using":
            options = {each.arg: (each.value, keywords[each.arg]) for each in node.keywords if each.arg is not None}
            if any(each.arg is None for each in node.keywords):
                options["**"] = (node, NOTHING)
            chosen = WorkflowValue(workflow.name, workflow.function, {**workflow.options, **options})
            self._facts.usings.append((frame.module, node, chosen))
            return Result(chosen, _NONE)
        if method in operations.START_METHODS:
            self._facts.starts.append(
                Start(workflow=workflow, method=method, node=node, module=frame.module, in_step=frame.step)
            )
        return NOTHING


def _quiet(node: ast.expr, frame: Frame) -> Value:
    """Return what a name or an attribute stands for, without noting it again."""
    if isinstance(node, ast.Name):
        owner = frame.env.owner(node.id)
        return owner.names[node.id] if owner is not None else None
    if isinstance(node, ast.Set | ast.SetComp):
        return OwnSet(shown(node), node.lineno)
    return None
