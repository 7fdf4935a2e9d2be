"""Reads the calls in a workflow's code: whom they call, and what that does and returns."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from durable.lint import operators
from durable.lint.acts import Acts
from durable.lint.classes import ROW_METHODS, has_default_repr, method_of
from durable.lint.facts import Branch, Frame, Start
from durable.lint.known import acts
from durable.lint.operation_calls import OperationCalls
from durable.lint.outside import all_origins, called, shown
from durable.lint.values import (
    NOTHING,
    Class,
    Context,
    ContextMoment,
    Display,
    External,
    Function,
    Instance,
    OneOf,
    Operator,
    Origin,
    OwnSet,
    Result,
    Rows,
    Starter,
    Text,
    Value,
    WorkflowValue,
)
from durable.lint.walker import Reader, Walker

_MUTATORS: Final = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
        *("reverse", "setdefault", "sort", "update"),
    }
)
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_NONE: Final[frozenset[Origin]] = frozenset()


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
        if method in operators.START_METHODS:
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
