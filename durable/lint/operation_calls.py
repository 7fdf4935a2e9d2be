"""Reads the calls of operations: their names, the functions of steps, and the bodies."""

from __future__ import annotations

import ast
from typing import Final

from durable.lint import operators
from durable.lint.acts import Acts
from durable.lint.facts import Frame, Operation, Step
from durable.lint.operations import Arguments, bodies_of, step_definition
from durable.lint.outside import in_order
from durable.lint.values import (
    NOTHING,
    Child,
    Context,
    Display,
    Env,
    Function,
    Given,
    Instance,
    Message,
    Operator,
    Origin,
    OwnSet,
    Result,
    Scope,
    Text,
    WorkflowValue,
)
from durable.lint.walker import Reader, Walker

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
        if kind in operators.STEPS:
            self._step(operation, arguments, frame)
            return NOTHING
        if kind in operators.NAMED and arguments.name is not None:
            _name_it(operation, arguments.name, arguments.name_result)
        if kind in operators.BODIES:
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
            is_name = index == 0 and kind in operators.NAMED
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
        scope = Scope(operators.BODIES[operation.kind], frame.scope)  # type: ignore[arg-type]  # one of the four kinds
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
