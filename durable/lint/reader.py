"""Reads the code of one workflow, as far as it belongs to the project, and notes facts. Judges nothing.

Follows calls two deep, bodies of loops, branches and blocks to any depth, and functions of steps. It skips what it does
not understand: a value that is not known is None, and no rule speaks of it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from durable.lint.expressions import Expressions
from durable.lint.facts import Branch, Facts, Frame, Step, ending
from durable.lint.modules import (
    NOTHING,
    Class,
    Context,
    Env,
    External,
    Function,
    Given,
    Input,
    OwnSet,
    Result,
    Scope,
    WorkflowValue,
    workflow_decorator,
    workflow_name,
)

MAX_DEPTH: Final = 2
_MAX_STATEMENTS: Final = 200_000  # statements read for one workflow; a helper's count for each call


class Reader(Expressions):
    """The statements of a workflow's code."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._active: list[ast.AST] = []
        self._left = _MAX_STATEMENTS

    def read(self, function: Function, outer: Env | None) -> None:
        scope = Scope("root")
        node = function.node
        parameters = [*node.args.posonlyargs, *node.args.args]
        inputs = [Result(Input(each.arg, is_set=_is_set_type(each.annotation))) for each in parameters[1:]]
        keywords = {
            each.arg: Result(Input(each.arg, is_set=_is_set_type(each.annotation))) for each in node.args.kwonlyargs
        }
        frame = Frame(
            module=function.module,
            node=node,
            env=Env(function.module, None, outer),
            scope=scope,
            depth=0,
            step=None,
            path=[],
        )
        context = Result(Context(scope, self.facts.is_async))
        self.enter(function, [context, *inputs], keywords, frame)

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
        node = function.node
        if any(each is node for each in self._active) or self._left <= 0:
            return NOTHING
        is_helper = site is not None and scope is None and step is None
        depth = caller.depth + 1 if is_helper else 0 if step is not None else caller.depth
        if depth > MAX_DEPTH:
            return NOTHING
        self._left -= 1
        env = Env(function.module, node, function.env)
        self._bind(env, function, args, keywords)
        inner_step = step or caller.step
        frame = Frame(
            module=function.module,
            node=node,
            env=env,
            scope=scope or caller.scope,
            depth=depth,
            step=inner_step,
            path=[] if scope is not None else [*caller.path, Branch("call", site or node)],
            sites=(*caller.sites, (caller.module, site)) if is_helper and site is not None else caller.sites,
            is_async=isinstance(node, ast.AsyncFunctionDef),
        )
        if inner_step is None:
            self.facts.functions[node] = function.module
        else:
            inner_step.functions.append((function.module, node))
        self._active.append(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.of(node.body, frame)
            self.block(node.body, frame)
        finally:
            self._active.pop()
        return Result(frame.value, frame.origins)

    def _bind(self, env: Env, function: Function, args: Sequence[Result], keywords: dict[str, Result]) -> None:
        arguments = function.node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        values = [*map(Result, function.given), *args]
        for name in (*names, *(each.arg for each in arguments.kwonlyargs)):
            env.names[name] = None
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                env.names[extra.arg] = None
        given = dict(zip(names, values, strict=False)) | {
            name: keywords[name] for name in keywords if name in env.names
        }
        for name, result in given.items():
            env.names[name] = result.value
            env.origins[name] = result.origins

    # -- statements

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        """Read statements in their order."""
        for statement in body:
            self._left -= 1
            self.statement(statement, frame)

    def statement(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node, frame)
            case ast.ClassDef():
                frame.env.names[node.name] = Class(frame.module, node)
            case ast.Return():
                if node.value is not None:
                    result = self.of(node.value, frame)
                    frame.origins |= result.origins
                    frame.value = result.value if frame.value is None else None
            case ast.Assign():
                result = self.of(node.value, frame)
                for target in node.targets:
                    self.assign(target, result, frame)
            case ast.AnnAssign():
                if node.value is not None:
                    self.assign(node.target, self.of(node.value, frame), frame)
            case ast.AugAssign():
                self._augment(node, frame)
            case ast.If():
                self.of(node.test, frame)
                for index, body in enumerate((node.body, node.orelse)):
                    with self.within(Branch("arm", node, index, ending(body)), frame):
                        self.block(body, frame)
            case ast.For() | ast.AsyncFor():
                self._iterate(node, frame)
            case ast.While():
                with self.within(Branch("loop", node, ends=ending(node.body)), frame):
                    self.of(node.test, frame)
                    self.block(node.body, frame)
                self.block(node.orelse, frame)
            case ast.With() | ast.AsyncWith():
                self._with(node, frame)
            case ast.Try() | ast.TryStar():
                self._try(node, frame)
            case ast.Match():
                self.of(node.subject, frame)
                for index, case in enumerate(node.cases):
                    with self.within(Branch("arm", node, index, ending(case.body)), frame):
                        for part in ast.walk(case.pattern):
                            if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
                                self.set(part.name, NOTHING, frame)
                        if case.guard is not None:
                            self.of(case.guard, frame)
                        self.block(case.body, frame)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    name = alias.asname or (
                        alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
                    )
                    frame.env.names[name] = frame.module.imported(node, name)
            case ast.Global():
                frame.globals.update(node.names)
            case ast.Nonlocal():
                frame.nonlocals.update(node.names)
            case ast.Delete():
                for target in node.targets:
                    if isinstance(target, ast.Subscript | ast.Attribute):
                        self.mutate(target.value, target, frame)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.of(child, frame)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        function = Function(frame.module, node, frame.env)
        decorator = workflow_decorator(node, frame.module)
        frame.env.names[node.name] = (
            function if decorator is None else WorkflowValue(workflow_name(node, decorator, frame.module), function)
        )

    def _augment(self, node: ast.AugAssign, frame: Frame) -> None:
        result = self.of(node.value, frame)
        if not isinstance(node.target, ast.Name):
            self.assign(node.target, result, frame)
            return
        name = node.target.id
        owner = frame.env.owner(name)
        is_container = isinstance(node.value, ast.List | ast.ListComp | ast.Set | ast.Dict)
        if owner is not None and is_container and isinstance(owner.names[name], Input | Given):
            self.mutate(node.target, node, frame)
        before = owner.origins.get(name, frozenset()) if owner is not None else frozenset()
        self.assign(node.target, Result(None, before | result.origins), frame)

    def _iterate(self, node: ast.For | ast.AsyncFor, frame: Frame) -> None:
        iterated = self.of(node.iter, frame)
        element, order = self.element(iterated)
        has_order = not isinstance(iterated.value, OwnSet)
        with self.within(Branch("loop", node, 0, ending(node.body), order, has_order), frame):
            self.assign(node.target, element, frame)
            self.block(node.body, frame)
        self.block(node.orelse, frame)

    def _with(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        suppressing: Branch | None = None
        for item in node.items:
            result = self.of(item.context_expr, frame)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, result, frame)
            if isinstance(item.context_expr, ast.Call) and result.value == External("contextlib.suppress"):
                suppressing = Branch("suppress", item.context_expr)
        if suppressing is None:
            self.block(node.body, frame)
            return
        with self.within(suppressing, frame):
            self.block(node.body, frame)

    def _try(self, node: ast.Try | ast.TryStar, frame: Frame) -> None:
        for index, body in ((0, node.body), (2, node.orelse)):
            with self.within(Branch("try", node, index), frame):
                self.block(body, frame)
        for number, handler in enumerate(node.handlers):
            if handler.type is not None:
                self.of(handler.type, frame)
            if handler.name:
                self.set(handler.name, NOTHING, frame)
            arm = Branch("arm", node, number, ending(handler.body))
            with self.within(Branch("try", node, 1), frame), self.within(arm, frame):
                self.block(handler.body, frame)
        with self.within(Branch("try", node, 3), frame):
            self.block(node.finalbody, frame)


def _is_set_type(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return isinstance(annotation, ast.Name) and annotation.id in ("set", "frozenset")
