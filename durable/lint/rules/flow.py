"""Rules of operations and steps: whose context, awaited, outside of steps, and what one step does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from durable.lint.facts import Branch, Call, Facts, Operation, Report, Step, ending, report, rule
from durable.lint.known import SERVICES, is_write, service_of
from durable.lint.modules import External, Function, Module, Text, is_class_name

_LOOKS: Final = (  # expressions that read a value, which a coroutine does not have yet
    *(ast.Attribute, ast.Subscript, ast.FormattedValue, ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp),
    *(ast.If, ast.While, ast.For, ast.IfExp),
)
#: Functions that inspect a coroutine without awaiting it.
_LOOKING: Final = frozenset(
    {"print", "str", "repr", "bool", "len", "int", "isinstance", "type", "format", "list", "dict"}
)
_WIDE: Final = frozenset({"builtins.BaseException", "asyncio.CancelledError"})


@rule(
    "W141",
    "error",
    "An operation is called within a step",
    why="A step is one unit: a recorded one is not called again, so operations within it would leave no place in the history.",
    fix="Call the operation in the workflow's code, or make the step's function a body of ctx.try_block.",
)
def _in_step(facts: Facts) -> Iterator[Report]:
    for operation in facts.operations:
        if operation.in_step is not None:
            yield report(operation, f"`{operation.kind}` is called within a step's function.")


@rule(
    "W142",
    "error",
    "An operation is not awaited",
    why="In an async workflow an operation that is not awaited does nothing, and the next one is refused.",
    fix="Write await before it.",
)
def _not_awaited(facts: Facts) -> Iterator[Report]:
    used: dict[ast.AST, set[str]] = {}
    for operation in facts.operations:
        if not operation.context.is_async or operation.is_awaited:
            continue
        if _is_lost(operation.node, operation.module, used):
            yield report(operation, f"`{operation.kind}` is not awaited.")
    for module, node, function in facts.unawaited:
        if isinstance(module.parents.get(node), ast.Expr):
            yield Report(module, node.lineno, f"`{function.name}` is a coroutine function, and is not awaited.")


def _is_lost(node: ast.expr, module: Module, used: dict[ast.AST, set[str]]) -> bool:
    """Return True if nothing later can await the result of the call."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Expr) or _is_looked_at(node, module):
        return True
    if isinstance(parent, ast.NamedExpr):
        return _is_lost(parent, module, used) and not _is_awaited_later(parent, parent.target.id, module, used)
    targets: list[ast.expr] = []
    if isinstance(parent, ast.Assign):
        targets = parent.targets
    elif isinstance(parent, ast.AnnAssign):
        targets = [parent.target]
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    if parent is None or not names or len(names) < len(targets):
        return False
    return not any(_is_awaited_later(parent, name, module, used) for name in names)


def _is_looked_at(node: ast.AST, module: Module) -> bool:
    """Return True if the enclosing code inspects a coroutine, or returns it from another coroutine."""
    parent = module.parents.get(node)
    if isinstance(parent, _LOOKS):
        return True
    if isinstance(parent, ast.Call) and node is not parent.func:
        return isinstance(parent.func, ast.Name) and parent.func.id in _LOOKING
    while isinstance(parent, ast.Dict | ast.List | ast.Tuple | ast.Set):
        parent = module.parents.get(parent)
    if not isinstance(parent, ast.Return):
        return False
    return isinstance(_function_around(parent, module), ast.AsyncFunctionDef)  # a coroutine within a coroutine


def _function_around(node: ast.AST, module: Module) -> ast.AST | None:
    here: ast.AST | None = node
    while here is not None and not isinstance(here, ast.FunctionDef | ast.AsyncFunctionDef):
        here = module.parents.get(here)
    return here


def _is_awaited_later(assign: ast.AST, name: str, module: Module, used: dict[ast.AST, set[str]]) -> bool:
    """Return True if the name is awaited in the function, or passed to something that may await it."""
    here = _function_around(assign, module)
    if here is None:
        return True
    if here not in used:
        used[here] = {
            node.id
            for node in ast.walk(here)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not _is_looked_at(node, module)
        }
    return name in used[here]


@rule(
    "W143",
    "error",
    "A body uses the context of the code around it",
    why="A body has a scope and a context of its own. The outer one is busy with the operation that calls the body.",
    fix="Use the context that the body gets as its first argument.",
)
def _outer_context(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        if operation.context.scope is not operation.scope:
            yield report(
                operation, f"`{operation.kind}` is called on a context of the code around this {operation.scope.kind}."
            )


@rule(
    "W144",
    "error",
    "Control flow of durable is swallowed",
    why="Sleeps, waits and shutdowns leave the code as exceptions below BaseException. Code that catches them takes them for errors.",
    fix="Catch Exception or a class of durable's errors, or raise again at the end of the handler.",
)
def _swallowed(facts: Facts) -> Iterator[Report]:
    seen: set[tuple[ast.AST, int]] = set()
    for operation in facts.own():
        for branch in operation.path:
            if (branch.node, branch.index) in seen or branch.kind not in ("try", "suppress"):
                continue
            seen.add((branch.node, branch.index))
            for node, message in _swallowing(branch, operation):
                yield Report(_home(facts, node, operation), _line(node), message)


def _swallowing(branch: Branch, operation: Operation) -> Iterator[tuple[ast.AST, str]]:
    node = branch.node
    suppressed = node.args if branch.kind == "suppress" and isinstance(node, ast.Call) else []
    if any(_is_wide(each, operation.module) for each in suppressed):
        yield node, "`suppress` catches the control flow of the operations within it."
    if branch.kind != "try" or branch.index not in (0, 2) or not isinstance(node, ast.Try | ast.TryStar):
        return
    if branch.index == 0:
        for handler in node.handlers:
            is_wide = handler.type is None or any(_is_wide(each, operation.module) for each in _classes(handler.type))
            if is_wide and not _raises_again(handler):
                name = "except" if handler.type is None else f"except {ast.unparse(handler.type)}"
                yield handler, f"`{name}` catches the control flow of the operations in the `try`."
    for each in node.finalbody:
        for inner in ast.walk(each):
            if isinstance(inner, ast.Return):
                yield inner, "`return` in `finally` swallows the control flow of the operations in the `try`."
                return


def _classes(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _is_wide(node: ast.expr, module: Module) -> bool:
    value = module.dotted(node)
    return isinstance(value, External) and value.name in _WIDE


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return True if the handler lets what it caught go on."""
    for statement in handler.body:
        if isinstance(statement, ast.Raise):
            raised = statement.exc
            return raised is None or (isinstance(raised, ast.Name) and raised.id == handler.name)
    return False


@rule(
    "W145",
    "warning",
    "An operation in `finally` does not run when the run is cancelled",
    why="Sleeps, waits and cancellations leave the code through `finally` too, and an operation is refused then. So it runs only "
    "if the code above returns or raises an error.",
    fix="Clean up in a rollback handler, or in a step after a ctx.try_block.",
)
def _in_finally(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        for position, branch in enumerate(operation.path):
            if branch.kind == "try" and branch.index == 3:
                yield report(operation, f"`{operation.kind}` is called in `finally`.")
                break
            arm = operation.path[position + 1] if position + 1 < len(operation.path) else None
            if branch.kind == "try" and branch.index == 1 and arm is not None and _is_widest(arm, operation):
                yield report(operation, f"`{operation.kind}` is called in a handler that catches control flow too.")
                break


def _is_widest(arm: Branch, operation: Operation) -> bool:
    handler = arm.node.handlers[arm.index]  # type: ignore[attr-defined]  # the arm of a handler is one of a `try`
    return handler.type is None or any(_is_wide(each, operation.module) for each in _classes(handler.type))


@rule(
    "W147",
    "error",
    "A rollback handler cannot be imported",
    why="A handler is recorded by its name, so that another process can call it. A lambda or a nested function has none.",
    fix="Define the handler at the top level of a module, and let the step return what it needs.",
)
def _handler(facts: Facts) -> Iterator[Report]:
    for step in facts.steps:
        node = step.options.get("rollback")
        if node is None:
            continue
        value = step.option_values.get("rollback")
        what = "a lambda" if isinstance(node, ast.Lambda) else _unnamed(value.value if value is not None else None)
        if what:
            yield report(step.operation, f"The rollback handler is {what}.")


def _unnamed(handler: object) -> str:
    """Describe a function that no other process can import; "" if it can be imported, or nothing is known."""
    if not isinstance(handler, Function):
        return ""
    if handler.is_partial:
        return "a functools.partial"
    if handler.is_method and handler.given:
        return "a bound method"
    return "" if handler.env is None else "a nested function"


@rule(
    "W148",
    "error",
    "RetryLater is raised between steps",
    why="RetryLater ends an attempt of a step. Between steps there is no attempt.",
    fix="Raise it in the function of a step, or write ctx.sleep(name, duration).",
)
def _retry_outside(facts: Facts) -> Iterator[Report]:
    for call in facts.calls:
        if call.kind == "retry" and isinstance(call.module.parents.get(call.node), ast.Raise):
            yield report(call, "`RetryLater` is raised in the code between steps.")


@rule(
    "W149",
    "error",
    "An iteration of a loop with a state may end without Continue or Break",
    why="A loop with a state needs the next state. An iteration that returns None is refused.",
    fix="Return Continue(state) or Break(value) at the end of the body.",
)
def _undecided(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        if operation.kind != "loop" or not _has_state(operation.node):
            continue
        for body in operation.bodies:
            node = body.node
            if not isinstance(node, ast.Lambda) and _runs_off(node.body):
                yield Report(body.module, node.lineno, f"`{node.name}` may come to its end without a return.")


def _has_state(node: ast.Call) -> bool:
    given = node.args[2:3] or [each.value for each in node.keywords if each.arg == "state"]
    return bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value is None)


def _runs_off(body: list[ast.stmt]) -> bool:
    """Return True if the end of the body is certainly reached in one case: after a plain statement or a lone `if`."""
    last = body[-1]
    if ending(body) or (isinstance(last, ast.If) and last.orelse):
        return False
    return isinstance(last, ast.If | ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Pass)


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))


def _home(facts: Facts, node: ast.AST, operation: Operation) -> Module:
    """Return the module that a node around an operation is in."""
    if node in operation.module.parents:
        return operation.module
    return next((module for module in facts.functions.values() if node in module.parents), facts.module)


_FEW: Final = 2  # calls of one service: to ask whether something is done, and to do it
_ROW_WRITES: Final = frozenset({"save", "asave", "create", "acreate", "update", "aupdate", "delete", "bulk_create"})
_KEYS: Final = ("idempot", "current_step", "dedup")


@rule(
    "W151",
    "hint",
    "A step calls several services",
    why="When the second call fails, the first one is repeated with it.",
    fix="Give each call a step of its own, with retries of its own.",
)
def _several_services(facts: Facts) -> Iterator[Report]:
    if _is_whole(facts):
        return
    for step in facts.steps:
        services = sorted(_services(step))
        calls = [each for each in step.calls if each.kind in SERVICES and _is_request(each)]
        if len(services) > 1:
            yield report(step.operation, f"The step calls {', '.join(services)}.")
        elif len(calls) > _FEW:
            yield report(step.operation, f"The step makes {len(calls)} calls of services.")


@rule(
    "W152",
    "hint",
    "A whole workflow is one step",
    why="Nothing is recorded before the step's end: whatever fails, all of it is done again.",
    fix="Make a step of each call of a service and of each change of rows.",
)
def _whole_workflow(facts: Facts) -> Iterator[Report]:
    for step in facts.steps if _is_whole(facts) else ():
        if len(_services(step)) > 1 or _calls_and_then_writes(step):
            yield report(step.operation, f"All that `{facts.name}` does is in this step.")


@rule(
    "W153",
    "hint",
    "A step charges, sends or posts without a key",
    why="A process can die after the service has done it and before that is recorded. Then the step runs again.",
    fix="Pass current_step().idempotency_key to the service. If it knows no keys, use once=True with a verify= that asks it "
    "whether it is done. If the step only writes rows of your own database, use atomic=True.",
)
def _no_key(facts: Facts) -> Iterator[Report]:
    for step in facts.steps:
        options = [step.options.get(each) for each in ("atomic", "once")]
        if any(isinstance(each, ast.Constant) and each.value is True for each in options):
            continue
        if any(word in ast.unparse(node).lower() for _, node in step.functions for word in _KEYS):
            continue
        asked: set[str] = set()
        for call in step.calls:
            service = _service(call)
            is_acting = call.kind == "service" or (call.kind == "network" and is_write(call.name))
            if is_acting and service not in asked:
                yield report(step.operation, f"`{call.name}` runs again if the process dies before it is recorded.")
                break
            if call.kind == "network":
                asked.add(service)


def _is_request(call: Call) -> bool:
    """Return True if a call of a library asks a service, as `requests.get` does, and makes no client of one."""
    return not is_class_name(call.name)


def _calls_and_then_writes(step: Step) -> bool:
    """Return True if a service is called, and then rows are written."""
    kinds = [
        "write" if each.kind == "query" and each.name.rpartition(".")[2] in _ROW_WRITES else each.kind
        for each in step.calls
        if each.kind == "query" or _is_request(each)
    ]
    return "network" in kinds and "write" in kinds[kinds.index("network") :]


def _services(step: Step) -> set[str]:
    return {_service(each) for each in step.calls if each.kind in SERVICES} - {""}


def _service(call: Call) -> str:
    """Return which service a call reaches: the host of its address, else its package; "" if that is not known."""
    package = service_of(call.name)
    if package not in ("requests", "httpx", "aiohttp", "urllib", "urllib3"):
        return package
    given = call.node.args if isinstance(call.node, ast.Call) else []
    for node in given[:2]:
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        if isinstance(first, ast.FormattedValue):
            first = first.value
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and "//" in first.value:
            return _host(first.value)
        if isinstance(first, ast.Name) and first.id.isupper():
            known = call.module.value(first.id)
            return _host(known.text) if isinstance(known, Text) else first.id
    return ""


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_whole(facts: Facts) -> bool:
    return len(list(facts.own())) == 1
