"""Reads the expressions of a workflow's code: what they stand for, and what in them differs from pass to pass."""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager
from typing import Final

from durable.lint import operations
from durable.lint.calls import Acts, Calls, Walker
from durable.lint.facts import Branch, Comparison, Frame
from durable.lint.known import (
    ROW_METHODS,
    all_origins,
    has_default_repr,
    in_order,
    is_model,
    method_of,
    reads,
    shown,
    without_order,
)
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
    Input,
    Instance,
    Message,
    Module,
    ModuleItself,
    NaiveMoment,
    OneOf,
    Operator,
    Origin,
    OwnSet,
    Queue,
    Result,
    Rows,
    Starter,
    Text,
    Value,
    WorkflowValue,
    is_class_name,
)
from durable.lint.operations import bodies_of

_MANAGERS: Final = frozenset({"objects", "_default_manager", "_base_manager"})

_NONE: Final[frozenset[Origin]] = frozenset()


def _address(node: ast.expr, result: Result, *, is_repr: bool) -> frozenset[Origin]:
    """Return the origin of the text of a value whose class says nothing: its address."""
    if not has_default_repr(result.value, is_repr=is_repr):
        return _NONE
    return frozenset({Origin("identity", shown(node), node.lineno)})


def _plain(value: Value) -> Result:
    return Result(value, _NONE)


def _is_external_model(name: str) -> bool:
    """Return True if a name outside of the project is that of a class in a module of models."""
    *path, last = name.split(".")
    return "models" in path and is_class_name(last)


class Expressions:
    """The expressions of one workflow's code."""

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self._facts = walker.facts
        self._acts = Acts(walker.facts)
        self._calls = Calls(walker, self, self._acts)

    def of(self, node: ast.expr, frame: Frame) -> Result:
        """Read an expression. What a name or a call means is only guessed where it is certain."""
        match node:
            case ast.Constant():
                return Result(Text(node.value) if isinstance(node.value, str) else None, _NONE)
            case ast.Name():
                return self._name(node, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Call():
                return self._calls.read(node, frame, is_awaited=False)
            case ast.Await():
                if isinstance(node.value, ast.Call):
                    return self._calls.read(node.value, frame, is_awaited=True)
                return self.of(node.value, frame)
            case ast.Lambda():
                return Result(Function(frame.module, node, frame.env), _NONE)
            case ast.NamedExpr():
                result = self.of(node.value, frame)
                self._walker.assign(node.target, result, frame)
                return result
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.Dict():
                values = [self.of(each, frame) for each in node.values]
                keys = [self.of(each, frame) for each in node.keys if each is not None]
                by_key: dict[object, frozenset[Origin]] = {
                    key.value: value.origins
                    for key, value in zip(node.keys, values, strict=True)
                    if isinstance(key, ast.Constant)
                }
                return Result(Display([each.value for each in values], by_key), all_origins(keys + values))
            case ast.List() | ast.Tuple():
                parts = [self.of(each, frame) for each in node.elts]
                return Result(
                    Display([each.value for each in parts], {n: each.origins for n, each in enumerate(parts)}),
                    all_origins(parts),
                )
            case ast.Set():
                elements = [self.of(each, frame) for each in node.elts]
                is_steady = all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts)
                value = None if is_steady or len(node.elts) < 2 else OwnSet(shown(node), node.lineno)
                return Result(value, all_origins(elements))
            case ast.JoinedStr():
                return self._joined(node, frame)
            case ast.FormattedValue():
                result = self.of(node.value, frame)
                is_repr = node.conversion in (ord("r"), ord("a"))
                origins = in_order(result) | _address(node.value, result, is_repr=is_repr)
                return Result(result.value if node.format_spec is None else None, origins)
            case ast.Subscript():
                holder = self.of(node.value, frame)
                index = self.of(node.slice, frame)
                if isinstance(holder.value, Display) and isinstance(node.slice, ast.Constant):
                    return Result(None, holder.value.by_key.get(node.slice.value, _NONE))
                if isinstance(holder.value, Display) and (functions := tuple(bodies_of(holder))):
                    return Result(OneOf(functions), holder.origins | index.origins)
                kept = holder.value if isinstance(holder.value, Input | Given) else None
                return Result(kept, holder.origins | index.origins)
            case ast.BinOp():
                return self._binary(node, frame)
            case ast.Compare():
                sides = [self.of(each, frame) for each in (node.left, *node.comparators)]
                if any(isinstance(each, ast.In | ast.NotIn) for each in node.ops):
                    return Result(None, without_order(all_origins(sides)))
                self._compare(node, sides, frame)
                return Result(None, all_origins(sides))
            case ast.IfExp():
                return self._conditional(node, frame)
            case ast.Starred():
                result = self.of(node.value, frame)
                return Result(None, in_order(result))
            case _:
                parts = [self.of(each, frame) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
                return Result(None, all_origins(parts))

    # -- names and attributes

    def _name(self, node: ast.Name, frame: Frame) -> Result:
        owner = frame.env.owner(node.id)
        if owner is not None and node.id not in frame.globals:
            value = owner.names[node.id]
            return Result(value, owner.origins.get(node.id, _NONE))
        module = frame.module
        if isinstance(module.definitions.get(node.id), ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._facts.globals_read.append((module, frame.node, node))
            if node.id in module.rebound:
                return Result(None, frozenset({Origin("global", node.id, node.lineno)}))
            if module.is_counter(node.id):
                return Result(None, frozenset({Origin("counter", node.id, node.lineno)}))
        return Result(module.value(node.id), _NONE)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Result:
        holder, origins = self.of(node.value, frame)
        name = node.attr
        match holder:
            case Context():
                if name == "queue":
                    return Result(Queue(holder), origins)
                return Result(Operator(name, holder) if name in operations.CONTEXT_METHODS else None, origins)
            case Queue():
                return Result(Operator(name, holder.context) if name in operations.QUEUE_METHODS else None, origins)
            case Child() | Message():
                known = operations.CHILD_METHODS if isinstance(holder, Child) else operations.MESSAGE_METHODS
                here = Context(frame.scope, holder.context.is_async)
                return Result(Operator(name, here) if name in known else None, origins)
            case External():
                full = f"{holder.name}.{name}"
                if name in _MANAGERS or (name in ROW_METHODS and _is_external_model(holder.name)):
                    return Result(Rows(), origins)
                if (kind := reads(full)) and not _is_method_handed_on(node, frame.module):
                    self._acts.note(kind, full, node, frame)
                    origins |= {Origin(kind, full, node.lineno)}
                return Result(External(full), origins)
            case ModuleItself():
                return Result(holder.module.project.member(holder, name), origins)
            case WorkflowValue():
                return Result(Starter(holder, name), origins)
            case Input() | Rows() | Given():
                return Result(holder, origins)
            case Class() | Instance():
                if (method := method_of(holder, name)) is not None:
                    return Result(method, origins)
                if isinstance(holder, Instance) and (held := holder.holds.get(name)) is not None:
                    return Result(held, _NONE)
                owner = holder if isinstance(holder, Class) else holder.of
                if name in _MANAGERS or (name in ROW_METHODS and isinstance(holder, Instance) and is_model(owner)):
                    return Result(Rows(), origins)
                return NOTHING  # which of its values came from where is not known
            case _:
                is_class = isinstance(node.value, ast.Name | ast.Attribute) and is_class_name(_last(node.value))
                return Result(Rows() if name in _MANAGERS and is_class else None, origins)

    # -- compounds

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> Result:
        outer = frame.env
        origins: frozenset[Origin] = _NONE
        order: frozenset[Origin] = _NONE
        has_order = True
        frame.env = Env(frame.module, node, outer)
        branch_count = 0
        managers: list[AbstractContextManager[None]] = []
        try:
            for each in node.generators:
                iterated = self.of(each.iter, frame)
                element, reason = self._walker.element(iterated)
                order |= reason
                has_order = has_order and not isinstance(iterated.value, OwnSet)
                manager = self._walker.within(Branch("loop", node, branch_count, "", reason, has_order), frame)
                manager.__enter__()
                managers.append(manager)
                branch_count += 1
                self._walker.assign(each.target, element, frame)
                for condition in each.ifs:
                    self.of(condition, frame)
            if isinstance(node, ast.DictComp):
                origins |= self.of(node.key, frame).origins
                made = self.of(node.value, frame)
                return Result(Display([made.value]), origins | made.origins | order)
            made = self.of(node.elt, frame)
        finally:
            for manager in reversed(managers):
                manager.__exit__(None, None, None)
            frame.env = outer
        origins |= made.origins | order
        if isinstance(node, ast.SetComp):
            return Result(OwnSet(shown(node), node.lineno), without_order(origins))
        return Result(None, origins)

    def _joined(self, node: ast.JoinedStr, frame: Frame) -> Result:
        parts = [self.of(each, frame) for each in node.values]
        texts = [each.value.text for each in parts if isinstance(each.value, Text)]
        return Result(Text("".join(texts)) if len(texts) == len(parts) else None, all_origins(parts))

    def _binary(self, node: ast.BinOp, frame: Frame) -> Result:
        sides = [self.of(node.left, frame), self.of(node.right, frame)]
        left, right = (each.value for each in sides)
        if isinstance(node.op, ast.Sub):
            self._compare(node, sides, frame)
        if isinstance(node.op, ast.Mod) and isinstance(left, Text):
            given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            values = right.values if isinstance(right, Display) else [right]
            addresses = [_address(*each, is_repr=False) for each in zip(given, map(_plain, values), strict=False)]
            return Result(None, all_origins(sides).union(*addresses))
        if isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and isinstance(left, OwnSet):
            return Result(left, all_origins(sides))
        if isinstance(node.op, ast.Add):
            if isinstance(left, Text) and isinstance(right, Text):
                return Result(Text(left.text + right.text), all_origins(sides))
            if isinstance(left, NaiveMoment):
                return Result(left, all_origins(sides))
        return Result(None, all_origins(sides))

    def _compare(self, node: ast.expr, sides: list[Result], frame: Frame) -> None:
        values = [each.value for each in sides]
        if any(isinstance(each, NaiveMoment) for each in values) and any(
            isinstance(each, ContextMoment) for each in values
        ):
            self._facts.comparisons.append(Comparison(node=node, module=frame.module))

    def _conditional(self, node: ast.IfExp, frame: Frame) -> Result:
        test = self.of(node.test, frame)
        arms = []
        for index, each in enumerate((node.body, node.orelse)):
            with self._walker.within(Branch("arm", node, index), frame):
                arms.append(self.of(each, frame))
        one, other = arms
        kept = one.value if one.value == other.value else None
        return Result(kept, test.origins | all_origins(arms))


def _is_method_handed_on(node: ast.Attribute, module: Module) -> bool:
    """Return True if a method is named here and called elsewhere: `ctx.step("region", os.environ.get, ...)`."""
    method = module.parents.get(node)
    caller = module.parents.get(method) if isinstance(method, ast.Attribute) else None
    return caller is not None and not (isinstance(caller, ast.Call) and caller.func is method)


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
