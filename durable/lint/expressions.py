"""Reads the expressions of a workflow's code: what they stand for, what differs from pass to pass, whom calls call, and
what names hold.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from durable.lint.facts import Branch, Call, Comparison, Facts, Frame, Mutation, Operation, Start, Step
from durable.lint.known import (
    BODIES,
    MESSAGE_METHODS,
    ROW_METHODS,
    START_METHODS,
    STEPS,
    Arguments,
    acts,
    all_origins,
    bodies_of,
    called,
    has_default_repr,
    in_order,
    is_model,
    method_of,
    methods_of,
    named,
    reads,
    shown,
    step_definition,
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
    Scope,
    Starter,
    Text,
    Value,
    WorkflowValue,
    is_class_name,
)

_MANAGERS: Final = frozenset({"objects", "_default_manager", "_base_manager"})

_NONE: Final[frozenset[Origin]] = frozenset()


def _address(node: ast.expr, result: Result, *, is_repr: bool) -> frozenset[Origin]:
    """Return the origin of the text of a value whose class says nothing: its address."""
    if not has_default_repr(result.value, is_repr=is_repr):
        return _NONE
    return frozenset({Origin("identity", shown(node), node.lineno)})


def _is_external_model(name: str) -> bool:
    """Return True if a name outside of the project is that of a class in a module of models."""
    *path, last = name.split(".")
    return "models" in path and is_class_name(last)


_MUTATORS: Final = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
        *("reverse", "setdefault", "sort", "update"),
    }
)
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})


class Expressions:
    """The expressions of one workflow's code, and what its names hold. `Reader` reads the statements around them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._names_read = 0  # how many arguments that name operations are being read
        self._counts: dict[ast.AST, Counter[str]] = {}

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
        """Read a function that is called: as a helper, with `scope` as a body of its own, with `step` as a step's."""
        raise NotImplementedError

    def of(self, node: ast.expr, frame: Frame) -> Result:
        """Read an expression. A name or a call gets a meaning only where it is certain."""
        match node:
            case ast.Constant():
                return Result(Text(node.value) if isinstance(node.value, str) else None)
            case ast.Name():
                return self._name(node, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Call():
                return self._call(node, frame, is_awaited=False)
            case ast.Await():
                if isinstance(node.value, ast.Call):
                    return self._call(node.value, frame, is_awaited=True)
                return self.of(node.value, frame)
            case ast.Lambda():
                return Result(Function(frame.module, node, frame.env))
            case ast.NamedExpr():
                result = self.of(node.value, frame)
                self.assign(node.target, result, frame)
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
        if _is_data(module, node.id):
            self.facts.globals_read.append((module, frame.node, node))
            if node.id in module.rebound:
                return Result(None, frozenset({Origin("global", node.id, node.lineno)}))
            if module.is_counter(node.id):
                return Result(None, frozenset({Origin("counter", node.id, node.lineno)}))
        return Result(module.value(node.id))

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Result:
        holder, origins = self.of(node.value, frame)
        name = node.attr
        match holder:
            case Context():
                if name == "queue":
                    return Result(Queue(holder), origins)
                return Result(Operator(name, holder) if name in methods_of("Context") else None, origins)
            case Queue():
                return Result(Operator(name, holder.context) if name in methods_of("Queue") else None, origins)
            case Child() | Message():
                known = methods_of("Child") if isinstance(holder, Child) else MESSAGE_METHODS
                here = Context(frame.scope, holder.context.is_async)
                return Result(Operator(name, here) if name in known else None, origins)
            case External():
                full = f"{holder.name}.{name}"
                if name in _MANAGERS or (name in ROW_METHODS and _is_external_model(holder.name)):
                    return Result(Rows(), origins)
                if (kind := reads(full)) and not _is_method_handed_on(node, frame.module):
                    self._act(kind, full, node, frame)
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
                    return Result(held)
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
        outer, frame.env = frame.env, Env(frame.module, node, frame.env)
        order: frozenset[Origin] = _NONE
        has_order = True
        try:
            with ExitStack() as loops:
                for number, each in enumerate(node.generators):
                    iterated = self.of(each.iter, frame)
                    element, reason = self.element(iterated)
                    order |= reason
                    has_order = has_order and not isinstance(iterated.value, OwnSet)
                    loops.enter_context(self.within(Branch("loop", node, number, "", reason, has_order), frame))
                    self.assign(each.target, element, frame)
                    for condition in each.ifs:
                        self.of(condition, frame)
                if isinstance(node, ast.DictComp):
                    key, made = self.of(node.key, frame), self.of(node.value, frame)
                    return Result(Display([made.value]), key.origins | made.origins | order)
                made = self.of(node.elt, frame)
        finally:
            frame.env = outer
        if isinstance(node, ast.SetComp):
            return Result(OwnSet(shown(node), node.lineno), without_order(made.origins | order))
        return Result(None, made.origins | order)

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
            addresses = [_address(*each, is_repr=False) for each in zip(given, map(Result, values), strict=False)]
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
            self.facts.comparisons.append(Comparison(node=node, module=frame.module))

    def _conditional(self, node: ast.IfExp, frame: Frame) -> Result:
        test = self.of(node.test, frame)
        arms = []
        for index, each in enumerate((node.body, node.orelse)):
            with self.within(Branch("arm", node, index), frame):
                arms.append(self.of(each, frame))
        one, other = arms
        kept = one.value if one.value == other.value else None
        return Result(kept, test.origins | all_origins(arms))

    # -- calls

    def _call(self, node: ast.Call, frame: Frame, *, is_awaited: bool) -> Result:
        """Read a call: of a function of the project, of one outside of it, of a workflow, or of an operation."""
        callee = self.of(node.func, frame)
        function = callee.value
        if isinstance(function, Operator):
            return self._operation(function, node, frame, is_awaited=is_awaited)
        args = [self.of(each, frame) for each in node.args]
        keywords = {each.arg: self.of(each.value, frame) for each in node.keywords if each.arg is not None}
        rest = [self.of(each.value, frame) for each in node.keywords if each.arg is None]
        origins = callee.origins | all_origins([*args, *keywords.values(), *rest])
        match function:
            case Function():
                if isinstance(function.node, ast.AsyncFunctionDef) and not is_awaited:
                    self.facts.unawaited.append((frame.module, node, function))
                return self.enter(function, args, keywords, frame, site=node)
            case OneOf():
                results = []
                for index, each in enumerate(function.functions):
                    with self.within(Branch("arm", node, index), frame):
                        results.append(self.enter(each, args, keywords, frame, site=node))
                return Result(None, origins | all_origins(results))
            case WorkflowValue():
                if function.function is not None and args and isinstance(args[0].value, Context):
                    return self.enter(function.function, args, keywords, frame, site=node)
                return NOTHING
            case Starter():
                return self._starter(function, node, keywords, frame)
            case Class():
                instance = Instance(function)
                if (make := method_of(instance, "__init__")) is not None:
                    self.enter(make, args, keywords, frame, site=node)
                return Result(instance, origins)
            case External():
                self._call_functions([*args, *keywords.values()], frame)
                result, kind = called(function.name, node, args, origins)
                if kind is None and frame.step is not None and acts(function.name):
                    kind = "service"
                if kind is not None:
                    self._act(kind, function.name, node, frame)
                if kind == "query" and function.name.startswith("django.shortcuts."):
                    return Result(Rows(), result.origins)
                return result
            case Rows():
                if not isinstance(frame.module.parents.get(node), ast.Attribute):
                    self._act("query", shown(node.func), node, frame)
                return Result(function, origins | {Origin("query", shown(node.func), node.lineno)})
        self._call_functions([*args, *keywords.values()], frame)
        return self._method(node, origins, frame)

    def _call_functions(self, given: Sequence[Result], frame: Frame) -> None:
        """Read lambdas that are given to a function which is not known: it calls them, most often."""
        for each in given:
            if isinstance(each.value, Function) and isinstance(each.value.node, ast.Lambda):
                self.enter(each.value, [], {}, frame)

    def _method(self, node: ast.Call, origins: frozenset[Origin], frame: Frame) -> Result:
        """Read a call of something unknown, most often a method of a value."""
        if not isinstance(node.func, ast.Attribute):
            return Result(None, origins)
        holder = _quiet(node.func.value, frame)
        name = node.func.attr
        if name in ROW_METHODS and not node.args and holder is None:  # most often of a model, and never of use here
            self._act("query", shown(node.func), node, frame)
        if name == "format" and (isinstance(holder, Text) or isinstance(node.func.value, ast.Constant)):
            given = [*node.args, *(each.value for each in node.keywords)]
            found = [each for each in given if has_default_repr(_quiet(each, frame), is_repr=False)]
            return Result(None, origins | {Origin("identity", shown(each), each.lineno) for each in found})
        if name in _MUTATORS:
            self.mutate(node.func.value, node, frame)
        if isinstance(holder, OwnSet):
            if name in _SET_METHODS:
                return Result(holder, origins)
            if name == "pop":
                return Result(None, origins | {Origin("set order", holder.text, holder.line)})
        if name == "join" and node.args and isinstance(given := _quiet(node.args[0], frame), OwnSet):
            return Result(None, origins | {Origin("set order", given.text, given.line)})
        if isinstance(holder, Context) and name == "now":
            return Result(ContextMoment())
        if isinstance(holder, Display) and name in ("update", "setdefault"):
            holder.values += [each.value for each in (self.of(arg, frame) for arg in node.args[1:])]
        return Result(None, origins)

    def _starter(self, starter: Starter, node: ast.Call, keywords: dict[str, Result], frame: Frame) -> Result:
        workflow, method = starter.workflow, starter.method
        if method == "using":
            options = {each.arg: (each.value, keywords[each.arg]) for each in node.keywords if each.arg is not None}
            if any(each.arg is None for each in node.keywords):
                options["**"] = (node, NOTHING)
            chosen = WorkflowValue(workflow.name, workflow.function, {**workflow.options, **options})
            self.facts.usings.append((frame.module, node, chosen))
            return Result(chosen)
        if method in START_METHODS:
            self.facts.starts.append(
                Start(workflow=workflow, method=method, node=node, module=frame.module, in_step=frame.step)
            )
        return NOTHING

    @contextmanager
    def _name_of_operation(self, *, is_name: bool) -> Iterator[None]:
        """Read an argument of an operation, which is its name or not."""
        self._names_read += is_name
        yield
        self._names_read -= is_name

    def _act(self, kind: str, name: str, node: ast.expr, frame: Frame) -> None:
        """Note what is called that reads or changes the world: a fact of the step around it, or of the code between."""
        call = Call(kind=kind, name=name, node=node, module=frame.module, in_name=self._names_read > 0)
        (self.facts if frame.step is None else frame.step).calls.append(call)

    # -- operations

    def _operation(self, operator: Operator, node: ast.Call, frame: Frame, *, is_awaited: bool) -> Result:
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
        self.facts.operations.append(operation)
        if kind in STEPS:
            self._step(operation, arguments, frame)
            return NOTHING
        if kind in named() and arguments.name is not None:
            _name_it(operation, arguments.name, arguments.name_result)
        if kind in BODIES:
            given = arguments.of(1, "body" if kind in ("loop", "try_block") else "branches")
            operation.bodies = tuple(bodies_of(given))
            for body in operation.bodies:
                self._body(body, operation, frame)
        if kind in ("child", "start_child", "map") and len(arguments.values) > 1:
            found = arguments.values[1].value
            operation.child = found if isinstance(found, WorkflowValue) else None
        if kind == "start_child":
            return Result(Child(context))
        return Result(Message(context)) if kind in ("next", "next_batch") else NOTHING

    def _arguments(self, kind: str, node: ast.Call, frame: Frame) -> Arguments:
        values: list[Result] = []
        for index, each in enumerate(node.args):
            is_name = index == 0 and kind in named()
            with self._name_of_operation(is_name=is_name):
                values.append(self.of(each, frame))
        keywords: dict[str, Result] = {}
        for keyword in node.keywords:
            is_name = keyword.arg == "name"
            with self._name_of_operation(is_name=is_name):
                result = self.of(keyword.value, frame)
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
        self.facts.steps.append(step)
        if function is None:
            return
        given = [
            _as_given(node, result, frame)
            for node, result in zip(operation.node.args[position + 1 :], arguments.values[position + 1 :], strict=False)
        ]
        self.enter(function, given, {}, frame, site=operation.node, step=step)

    def _body(self, body: Function, operation: Operation, frame: Frame) -> None:
        scope = Scope(BODIES[operation.kind], frame.scope)  # type: ignore[arg-type]  # one of the four kinds
        context = Result(Context(scope, operation.context.is_async))
        self.enter(body, [context, NOTHING], {}, frame, site=operation.node, scope=scope)

    # -- names

    def assign(self, target: ast.expr, result: Result, frame: Frame) -> None:
        """Record what a target holds from here on."""
        match target:
            case ast.Name():
                self.set(target.id, result, frame, target)
            case ast.Tuple() | ast.List():
                value, origins = result
                kept = value if isinstance(value, Input | Message | Rows) else None
                is_written_out = isinstance(value, Display) and len(value.by_key) == len(target.elts)
                for position, each in enumerate(target.elts):
                    own = value.by_key.get(position, frozenset()) if is_written_out else origins
                    self.assign(each, Result(kept, own), frame)
            case ast.Starred():
                self.assign(target.value, Result(None, result.origins), frame)
            case ast.Subscript() | ast.Attribute():
                holder = self.of(target.value, frame).value
                if isinstance(target, ast.Subscript):
                    self.of(target.slice, frame)
                if isinstance(holder, Instance) and isinstance(target, ast.Attribute):
                    holder.give(target.attr, result.value)
                if isinstance(holder, Display):
                    holder.values.append(result.value)
                    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                        holder.by_key[target.slice.value] = result.origins
                self.mutate(target.value, target, frame)

    def set(self, name: str, result: Result, frame: Frame, node: ast.AST | None = None) -> None:
        """Record what a name holds from here on."""
        value, origins = result
        if name in frame.globals or name in frame.nonlocals:
            owner = None if name in frame.globals else frame.env.parent and frame.env.parent.owner(name)
            self._note(frame, name, owner, node or frame.node, value=None, how="rebound", receiver=node)
            if owner is not None:
                owner.origins[name] = owner.origins.get(name, frozenset()) | origins
                owner.names[name] = None
            return
        if isinstance(value, Text | OwnSet | NaiveMoment) and self._bindings(frame).get(name, 1) > 1:
            value = None
        frame.env.names[name] = value
        frame.env.origins[name] = origins

    def _bindings(self, frame: Frame) -> Counter[str]:
        """Return how often each name is bound in the function."""
        node = frame.env.node or frame.node
        if node not in self._counts:
            names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            self._counts[node] = Counter(each.id for each in names if isinstance(each.ctx, ast.Store))
        return self._counts[node]

    def mutate(self, target: ast.expr, node: ast.AST, frame: Frame) -> None:
        """Record that the object behind `target` is changed."""
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return
        owner = frame.env.owner(root.id)
        value = owner.names[root.id] if owner is not None else None
        if owner is None and not _is_data(frame.module, root.id):
            return
        if root is not target and not isinstance(value, Input | Given) and isinstance(target, ast.Attribute):
            self._mutate_holder(target, node, frame)
            return
        if root is target and isinstance(node, ast.Attribute):
            self._mutate_holder(node, node, frame)
        self._note(frame, root.id, owner, node, value=value, how="changed", receiver=root)

    def _mutate_holder(self, target: ast.Attribute, node: ast.AST, frame: Frame) -> None:
        """Record that a step changes an attribute of the object whose method it is.

        The effect on other names is not known.
        """
        step = frame.step
        if step is None or step.holder is None or step.function is None or not isinstance(target.value, ast.Name):
            return
        owner = frame.env.owner(target.value.id)
        held = owner.names[target.value.id] if owner is not None else None
        if held is None or held is not next(iter(step.function.given), None):
            return
        self._note(frame, *step.holder, node, value=held, how="changed", attribute=target.attr)

    def _note(self, frame: Frame, name: str, env: Env | None, node: ast.AST, **details: Any) -> None:
        """Note a mutation: a fact of the step around it, or of the code between."""
        mutation = Mutation(name=name, env=env, node=node, module=frame.module, function=frame.node, **details)
        (self.facts if frame.step is None else frame.step).mutations.append(mutation)

    # -- branches

    @contextmanager
    def within(self, branch: Branch, frame: Frame) -> Iterator[None]:
        """Read a part of the code that may not run, or may run several times.

        Afterwards a name may also hold its earlier value.
        """
        env = frame.env
        before = dict(env.origins) if branch.kind in ("arm", "loop", "try") else {}
        frame.path.append(branch)
        try:
            yield
        finally:
            frame.path.pop()
            for name, origins in before.items():
                env.origins[name] = env.origins.get(name, frozenset()) | origins

    def element(self, iterated: Result) -> tuple[Result, frozenset[Origin]]:
        """Return an element of a value, and why the order of its elements may differ between passes."""
        value, origins = iterated
        if isinstance(value, OwnSet):
            origins |= {Origin("set order", value.text, value.line)}
        order = frozenset(each for each in origins if each.kind == "set order")
        kept = value if isinstance(value, Input | Message | Rows | Given) else None
        return Result(kept, origins), order


def _is_method_handed_on(node: ast.Attribute, module: Module) -> bool:
    """Return True if a method is named here and called elsewhere: `ctx.step("region", os.environ.get, ...)`."""
    method = module.parents.get(node)
    caller = module.parents.get(method) if isinstance(method, ast.Attribute) else None
    return caller is not None and not (isinstance(caller, ast.Call) and caller.func is method)


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


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
        return Result(Given(node.id, owner))
    return Result(result.value)


def _quiet(node: ast.expr, frame: Frame) -> Value:
    """Return what a name or an attribute stands for, without noting it again."""
    if isinstance(node, ast.Name):
        owner = frame.env.owner(node.id)
        return owner.names[node.id] if owner is not None else None
    if isinstance(node, ast.Set | ast.SetComp):
        return OwnSet(shown(node), node.lineno)
    return None


def _is_data(module: Module, name: str) -> bool:
    return isinstance(module.definitions.get(name), ast.Assign | ast.AnnAssign | ast.AugAssign)
