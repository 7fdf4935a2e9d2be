"""Rules of names, and of loops and lambdas that give operations their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from durable.lint.facts import Branch, Facts, Operation, Report, are_exclusive, ending, report, rule
from durable.lint.known import named
from durable.lint.modules import FunctionNode, Module

_WORDS: Final = {
    "clock": "the clock",
    "dice": "a random value",
    "uuid": "a random UUID",
    "environment": "the environment",
    "files": "a file",
    "network": "an answer of the network",
    "process": "another process",
    "query": "a row of the database",
    "set order": "the order of a set",
    "identity": "a value that differs from process to process",
    "global": "a global that changes",
    "counter": "a counter that goes on from pass to pass",
}
_BIND: Final = "Bind the value at once: lambda c, order=order: ..., or functools.partial(body, order)."
_MAX_COMPARED: Final = 100  # operations of one name in one scope
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@rule(
    "W131",
    "error",
    "The name of an operation differs from pass to pass",
    why="durable finds a record by its name. Under another name the operation runs again, and the history diverges.",
    fix="Make names of texts, the input and what steps returned, and of nothing else.",
)
def _unsteady(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        if operation.name_origins:
            origin = min(operation.name_origins, key=lambda each: (each.line, each.text))
            yield report(operation, f"The name is made of {_WORDS.get(origin.kind, origin.kind)}: `{origin.text}`.")


@rule(
    "W132",
    "error",
    "Two operations of a scope have one name",
    why="A name is unique in its scope. The second operation is refused, and the run stops.",
    fix="Give each a name of its own, or put one of them into ctx.try_block, ctx.loop or a branch.",
)
def _duplicate(facts: Facts) -> Iterator[Report]:
    earlier: dict[tuple[int, str], list[Operation]] = {}
    for operation in facts.own():
        if operation.name_text is None or operation.context.scope is not operation.scope:
            continue
        same = earlier.setdefault((id(operation.scope), operation.name_text), [])
        other = next((each for each in same if not are_exclusive(each, operation)), None)
        if other is not None:
            module, line = _where(operation, other)
            yield Report(
                module,
                line,
                f'The name "{operation.name_text}" is used before in this scope, in line {other.line}.',
            )
        if len(same) < _MAX_COMPARED:
            same.append(operation)


def _where(operation: Operation, other: Operation) -> tuple[Module, int]:
    """Return where the second operation is; if both are on one line of a helper, the second call of the helper."""
    if operation.node is other.node:
        for (module, node), (_, previous) in zip(operation.sites, other.sites, strict=False):
            if node is not previous:
                return module, node.lineno  # type: ignore[attr-defined]  # a call has a line
    return operation.module, operation.line


@rule(
    "W133",
    "error",
    "An operation in a native loop has the same name in each iteration",
    why="A native loop is not a scope. In the second iteration the name is used already, and the run stops.",
    fix='Make the name of what the iteration is about, f"fetch {page}", or use ctx.loop, whose iterations are scopes.',
)
def _in_loop(facts: Facts) -> Iterator[Report]:
    bound: dict[ast.AST, set[str]] = {}
    for operation in facts.own():
        if operation.context.scope is not operation.scope or operation.kind not in named():
            continue
        loop = _repeating(operation)
        if loop is None:
            continue
        if operation.name_text is not None:
            yield report(operation, f'The name "{operation.name_text}" is the same in each iteration.')
        elif _is_fixed(operation, loop, bound):
            yield report(operation, "The name does not change within the loop.")


def _repeating(operation: Operation) -> Branch | None:
    """Return the innermost native loop that may come to the operation twice."""
    for position in range(len(operation.path) - 1, -1, -1):
        branch = operation.path[position]
        if branch.kind != "loop":
            continue
        inner = operation.path[position + 1 :]
        leaves = {"break", "return", "raise"}
        is_left = branch.ends in leaves or any(
            each.kind == "arm" and each.ends in leaves and not any(other.kind == "loop" for other in inner[:at])
            for at, each in enumerate(inner)
        )
        has_call = any(each.kind == "call" for each in inner)
        if not is_left or (has_call and branch.ends not in leaves and not _leaves_before_call(inner, leaves)):
            return branch
    return None


def _leaves_before_call(inner: tuple[Branch, ...], leaves: set[str]) -> bool:
    for each in inner:
        if each.kind == "call":
            return False
        if each.kind == "arm" and each.ends in leaves:
            return True
    return False


def _is_fixed(operation: Operation, loop: Branch, bound: dict[ast.AST, set[str]]) -> bool:
    """Return True if the name depends only on names that the loop does not bind."""
    node = operation.name_node
    if node is None or not isinstance(node, ast.JoinedStr | ast.Name):
        return False
    if loop.node not in _nodes_around(operation):
        return False
    if any(isinstance(each, ast.Call | ast.Attribute | ast.Subscript) for each in ast.walk(node)):
        return False
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if loop.node not in bound:
        bound[loop.node] = _bound(loop.node)
    return bool(used) and not used & bound[loop.node]


def _bound(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _nodes_around(operation: Operation) -> set[ast.AST]:
    found: set[ast.AST] = set()
    here: ast.AST | None = operation.node
    while here is not None and here is not operation.function:
        found.add(here)
        here = operation.module.parents.get(here)
    return found


@rule(
    "W134",
    "warning",
    "`while True` repeats operations",
    why="Each iteration stays in the history, and each pass replays all of them. A ctx.loop deletes old iterations.",
    fix='Use ctx.loop("name", body, state): return Continue(state) or Break(value).',
)
def _endless(facts: Facts) -> Iterator[Report]:
    seen: set[ast.AST] = set()
    for operation in facts.own():
        for branch in operation.path:
            node = branch.node
            if branch.kind != "loop" or not isinstance(node, ast.While) or node in seen:
                continue
            if isinstance(node.test, ast.Constant) and node.test.value and not _is_one_round(node):
                seen.add(node)
                module = operation.module if node in _nodes_around(operation) else _module_of(facts, node)
                yield Report(module, node.lineno, "This loop has no bound that the history could do with.")


def _is_one_round(node: ast.While) -> bool:
    return ending(node.body) in ("break", "return", "raise")


def _module_of(facts: Facts, node: ast.AST) -> Module:
    return next((module for function, module in facts.functions.items() if node in ast.walk(function)), facts.module)


@rule(
    "W135",
    "error",
    "A function that is called later captures a loop's variable",
    why="It is called when the loop is over, and then the variable has its last value: each branch does the same.",
    fix=_BIND,
)
def _captured(facts: Facts) -> Iterator[Report]:
    for function, module in facts.functions.items():
        for loop in _own_nodes(function, (*_LOOPS, *_COMPREHENSIONS)):
            for node, name in _captures(loop, module):
                yield Report(
                    module,
                    node.lineno,
                    f"The function captures `{name}`, which the loop goes on to change.",
                    fix=_BIND.replace("order", name),
                )


def _own_nodes(function: FunctionNode, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Yield nodes of a function, without those of functions inside it."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, kinds):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _captures(
    loop: ast.AST, module: Module
) -> Iterator[tuple[ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    variables = _variables(loop)
    if not variables:
        return
    for node in ast.walk(loop):
        if (isinstance(node, ast.Lambda) and _is_kept(node, loop, module)) or (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_stored(node.name, loop, module)
        ):
            captured = _free(node) & variables
        else:
            continue
        if captured:
            yield node, min(captured)


def _variables(loop: ast.AST) -> set[str]:
    targets: list[ast.AST] = []
    if isinstance(loop, ast.For | ast.AsyncFor):
        targets = [loop.target]
    elif isinstance(loop, _COMPREHENSIONS):
        targets = [each.target for each in loop.generators]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _free(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function looks up when it is called, except its own."""
    arguments = node.args
    own = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    own |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    inner = [each for part in body for each in ast.walk(part)]
    own |= {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    used = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return used - own


def _is_kept(node: ast.AST, loop: ast.AST, module: Module) -> bool:
    """Return True if a function is stored within the loop instead of being called at once."""
    here: ast.AST = node
    while here is not loop:
        parent = module.parents.get(here)
        if parent is None:
            return False
        if isinstance(parent, ast.Call) and here is not parent.func:
            return _is_store_call(parent) and _outlives(parent, loop)
        if isinstance(parent, ast.Assign):
            return isinstance(parent.targets[0], ast.Subscript)
        if isinstance(parent, ast.DictComp | ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return parent is loop or _is_kept(parent, loop, module)
        if isinstance(parent, ast.stmt | ast.Lambda):
            return False
        here = parent
    return True


def _is_store_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "setdefault", "insert", "add")


def _outlives(call: ast.Call, loop: ast.AST) -> bool:
    """Return True if the object to which a call adds is not created anew within the loop."""
    assert isinstance(call.func, ast.Attribute)
    holder = call.func.value
    if not isinstance(holder, ast.Name):
        return True
    return not any(
        isinstance(each, ast.Name) and each.id == holder.id and isinstance(each.ctx, ast.Store)
        for each in ast.walk(loop)
    )


def _is_stored(name: str, loop: ast.AST, module: Module) -> bool:
    return any(
        isinstance(each, ast.Name)
        and each.id == name
        and isinstance(each.ctx, ast.Load)
        and _is_kept(each, loop, module)
        for each in ast.walk(loop)
    )
