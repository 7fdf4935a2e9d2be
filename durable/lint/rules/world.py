"""Rules of the code between steps: it must not read clocks or random numbers, must not reach outside of the process,
and must build its state from the results of steps.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any, Final

from durable.lint.facts import Facts, Level, Report, report, rule
from durable.lint.modules import Env, Given, Input, Module, NaiveMoment

_AGAIN: Final = "The code between steps runs again in each pass, after each sleep, message and crash."


def _no_calls(kinds: Collection[str], says: str, id: str, level: Level, title: str, *, why: str, fix: str) -> None:
    """Create the rule that code between steps makes no calls of these kinds."""

    def check(facts: Facts) -> Iterator[Report]:
        for call in facts.calls:
            if call.kind in kinds and not call.in_name:
                yield report(call, f"{_called(call.name)} {says} between steps.")

    rule(id, level, title, why=why, fix=fix)(check)


def _called(name: str) -> str:
    short = name.removeprefix("builtins.").removeprefix("datetime.").removeprefix("django.utils.")
    return f"`{short}`"


_no_calls(
    {"clock"},
    "reads the clock",
    "W101",
    "error",
    "The clock is read between steps",
    why=f"{_AGAIN} Each pass reads another time, and may decide otherwise.",
    fix="Write ctx.now(), which is the same in each pass, or read the clock in a step.",
)
_no_calls(
    {"dice"},
    "draws a random value",
    "W102",
    "error",
    "Random numbers are drawn between steps",
    why=f"{_AGAIN} Each pass draws other numbers.",
    fix="Write ctx.random, whose numbers are the same in each pass, or draw in a step.",
)
_no_calls(
    {"uuid"},
    "makes another UUID in each pass",
    "W103",
    "error",
    "A UUID is made between steps",
    why=f"{_AGAIN} Each pass makes another UUID.",
    fix="Write ctx.uuid4(), or make the UUID in a step.",
)
_no_calls(
    {"environment"},
    "reads the environment of this process",
    "W104",
    "warning",
    "The environment is read between steps",
    why="The next pass may run in another process, on another host, after a deploy.",
    fix="Read it in a step, or take it from Django's settings if it never changes while runs are open.",
)
_no_calls(
    {"files"},
    "uses a file",
    "W105",
    "error",
    "A file is used between steps",
    why=f"{_AGAIN} The next pass may run on another host, and writes are repeated.",
    fix="Put the file's use into a step, and return what the workflow needs of it.",
)
_no_calls(
    {"network", "process"},
    "reaches another service or process",
    "W106",
    "error",
    "The network or another process is used between steps",
    why=f"{_AGAIN} So the call is repeated, and its answer may differ.",
    fix="Put the call into a step: ctx.step(name, function, ...).",
)
_no_calls(
    {"threads"},
    "starts concurrent work that durable does not know of",
    "W107",
    "error",
    "Threads or tasks are started between steps",
    why="The order in which they go on differs from pass to pass, and one context serves one line of code.",
    fix="Use ctx.join or ctx.race: each branch gets a context of its own.",
)
_no_calls(
    {"query"},
    "uses the database",
    "W109",
    "error",
    "The database is used between steps",
    why=f"{_AGAIN} Rows may have changed since, and a write is repeated.",
    fix="Put it into a step that returns what the workflow needs, with atomic=True if it writes.",
)
_no_calls(
    {"sleep"},
    "holds the worker",
    "W110",
    "error",
    "The thread sleeps instead of the run",
    why="The worker's slot is held meanwhile, and each later pass sleeps again.",
    fix="Write ctx.sleep(name, duration): no worker waits.",
)


@rule(
    "W108",
    "error",
    "Operations follow the order of a set",
    why="The order of a set of texts differs from process to process, so the next pass comes to other operations first.",
    fix="Iterate over sorted(...).",
)
def _order(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        for branch in operation.path:
            if branch.kind == "loop" and branch.origins:
                text = min(each.text for each in branch.origins)
                yield Report(
                    operation.module,
                    int(getattr(branch.node, "lineno", operation.line)),
                    f"This loop has operations, in the order of the set `{text}`.",
                )
                break


@rule(
    "W111",
    "error",
    "A moment has no time zone",
    why="durable refuses naive moments: a worker in another zone would mean another moment. ctx.now() is aware.",
    fix="Give it a zone: datetime(2026, 5, 1, tzinfo=UTC), or add a timedelta to ctx.now().",
)
def _naive(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        moment = operation.keywords.get("moment" if operation.kind == "sleep_until" else "until")
        if operation.kind == "sleep_until" and len(operation.args) > 1:
            moment = operation.args[1]
        if moment is not None and isinstance(moment.value, NaiveMoment):
            yield report(operation, f"`{operation.kind}` gets a moment without a time zone.")
    for module, node, workflow in facts.usings:
        if "deadline" in workflow.options and isinstance(workflow.options["deadline"][1].value, NaiveMoment):
            yield Report(module, node.lineno, "The deadline is a moment without a time zone.")
    for comparison in facts.comparisons:
        yield report(comparison, "A moment without a time zone is compared with ctx.now().")


@rule(
    "W121",
    "error",
    "A step changes a variable that the workflow reads",
    why="A recorded step is not called again, so in the next pass the variable is as if the step had never run.",
    fix="Let the step return the value, and assign it: found = ctx.step(...).",
)
def _outside_steps(facts: Facts) -> Iterator[Report]:
    receivers = {mutation.receiver for step in facts.steps for mutation in step.mutations}
    read: dict[ast.AST, set[str]] = {}
    for step in facts.steps:
        for mutation in step.mutations:
            name, env = mutation.name, mutation.env
            if isinstance(mutation.value, Given):
                name, env = mutation.value.name, mutation.value.env
            if env is None or env.node is None or isinstance(mutation.value, Input) or _is_within(env, step.functions):
                continue
            if mutation.attribute:
                if _reads_attribute(env.node, name, mutation.attribute):
                    yield report(
                        mutation,
                        f"This runs within a step and changes `{name}.{mutation.attribute}`, which the code outside of the "
                        "step reads.",
                    )
                continue
            if env.node not in read:
                read[env.node] = _read_names(env.node, receivers)
            if name in read[env.node]:
                yield report(
                    mutation, f"This runs within a step and changes `{name}`, which the code outside of the step reads."
                )


@rule(
    "W122",
    "warning",
    "The workflow relies on a global that code changes",
    why="Each worker process has globals of its own, and they are gone when it ends. The next pass may see other values.",
    fix="Keep the value in a variable that is made of what steps return, or in a row that a step reads.",
)
def _globals(facts: Facts) -> Iterator[Report]:
    changed = [
        each
        for each in (*facts.mutations, *(each for step in facts.steps for each in step.mutations))
        if each.env is None
    ]
    names = {(each.module, each.name) for each in changed}
    with_operations = {each.function for each in facts.own()}
    by_itself = {(each.module, each.name, each.function) for each in changed if each.function not in with_operations}
    seen: set[tuple[Module, str]] = set()
    for module, function, node in facts.globals_read:
        key = (module, node.id)
        if key not in names or key in seen or (*key, function) in by_itself or _only_adds(node, module):
            continue
        seen.add(key)
        yield Report(module, node.lineno, f"`{node.id}` is a global, and code of the workflow changes it.")


@rule(
    "W123",
    "warning",
    "The input is changed",
    why="Each pass gets a fresh copy of the input: what a step puts into it is gone, and operators see the original.",
    fix="Make a copy first, or keep the new value in a variable of its own.",
)
def _changed_input(facts: Facts) -> Iterator[Report]:
    for mutation in [*facts.mutations, *(each for step in facts.steps for each in step.mutations)]:
        if isinstance(mutation.value, Input) and mutation.how == "changed":
            yield report(mutation, f"`{mutation.name}` is input of the workflow, and is changed here.")


def _is_within(env: Env, functions: list[tuple[Module, Any]]) -> bool:
    """Return True if the names are those of the step's own functions."""
    here: Env | None = env
    while here is not None:
        if any(here.node is node for _, node in functions):
            return True
        if isinstance(here.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        here = here.parent
    return False


def _read_names(function: ast.AST, receivers: set[ast.AST | None]) -> set[str]:
    """Return the names that a function reads, except to change their objects."""
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in receivers
    }


def _reads_attribute(function: ast.AST, name: str, attribute: str) -> bool:
    """Return True if a function reads an attribute of what a name holds."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in ast.walk(function)
    )


def _only_adds(node: ast.Name, module: Module) -> bool:
    """Return True if a name is read only to add to its object, so that nothing depends on it."""
    user = module.parents.get(node)
    if isinstance(user, ast.Subscript):
        return isinstance(user.ctx, ast.Store) and user.value is node
    return isinstance(user, ast.Attribute) and user.attr in ("append", "add", "extend", "update", "clear")
