"""Rules of children, starts, keys and their options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from durable.lint.facts import Facts, Start
from durable.lint.operators import START_OPTIONS, STEP_OPTIONS
from durable.lint.outside import in_order
from durable.lint.rules.base import Report, Rule
from durable.lint.rules.ranking import problems_of_rank
from durable.lint.values import NOTHING, Text, WorkflowValue

CHOICES: Final = {
    "on_conflict": ("return", "error"),
    "if_open": ("return", "error", "replace"),
    "keep": ("last", "first"),
    "when_full": ("drop",),
    "when_parent_ends": ("cancel", "leave"),
}
#: Operations that may take long enough for a child to end.
_WAITS: Final = frozenset(
    {"sleep", "sleep_until", "next", "next_batch", "child", "result", "join", "race", "loop", "map"}
)
_ABOUT_KEYS: Final = ("if_open", "debounce", "at_most", "keep")


class Started(Rule):
    """Starts between steps."""

    id = "W146"
    level = "error"
    title = "A run is started between steps without an id of its own"
    why = "The code between steps runs again in each pass, and would start another run each time. durable refuses it."
    fix = 'Use ctx.child or ctx.start_child, start in a step, or give an id: using(id=f"{ctx.run_id}-mail").'

    def check(self, facts: Facts) -> Iterator[Report]:
        for start in facts.starts:
            if start.in_step is not None:
                continue
            node, given = start.workflow.options.get("id", (None, NOTHING))
            if given.origins:
                origin = min(each.text for each in given.origins)
                yield Report(start.module, start.node.lineno, f"The id differs from pass to pass: `{origin}`.")
            elif not _has_ids(start):
                yield Report(
                    start.module,
                    start.node.lineno,
                    f"`{start.method}` starts a run of {start.workflow.name} in each pass.",
                )
            elif isinstance(given.value, Text) and isinstance(node, ast.Constant) and _differs(start.node):
                yield Report(
                    start.module,
                    start.node.lineno,
                    f'The id is always "{given.value.text}": a start with other arguments is refused with RunConflictError.',
                    'Make the id of ctx.run_id or of the input: using(id=f"{ctx.run_id}-mail").',
                )


def _differs(call: ast.Call) -> bool:
    """Return True if arguments of the start are not the same for each run."""
    return not all(isinstance(each, ast.Constant) for each in (*call.args, *(given.value for given in call.keywords)))


def _has_ids(start: Start) -> bool:
    if start.method.endswith("start_many"):
        return any(each.arg in ("ids", None) for each in start.node.keywords)
    return "**" in start.workflow.options or "id" in start.workflow.options


class Options(Rule):
    """Options that are refused."""

    id = "W161"
    level = "error"
    title = "An option is refused"
    why = "durable refuses it when the line runs."
    fix = "See the docstring of using(...)."

    def check(self, facts: Facts) -> Iterator[Report]:
        for module, node, workflow in facts.usings:
            for name in _unknown(node, START_OPTIONS):
                yield Report(module, node.lineno, f"`using` has no option `{name}`.")
            for message, fix in _problems(workflow):
                yield Report(module, node.lineno, message, fix)
        for step in facts.steps:
            for name in _unknown(step.operation.node, STEP_OPTIONS):
                yield Report(
                    step.operation.module,
                    step.operation.line,
                    f"A step has no option `{name}`.",
                    "See the options of a step. Arguments of its function are passed by position.",
                )
        yield from self._starts(facts)
        yield from self._children(facts)

    def _starts(self, facts: Facts) -> Iterator[Report]:
        for start in facts.starts:
            line = start.node.lineno
            about = next((each for each in _ABOUT_KEYS if _has(start.workflow, each)), None)
            if about is not None and not _has(start.workflow, "key"):
                yield Report(start.module, line, f"`{about}` is about a key, and there is none.", "Add key=....")
            if start.method.endswith("start_many"):
                if _has(start.workflow, "id"):
                    yield Report(start.module, line, "Several runs cannot share one id.", "Pass ids=[...].")
                if _has(start.workflow, "key"):
                    yield Report(
                        start.module, line, "Several runs cannot share one key.", "Start each with its own key."
                    )
            if start.method.endswith("start_or_send"):
                if not _has(start.workflow, "key"):
                    yield Report(
                        start.module, line, "`start_or_send` needs a key.", "Write using(key=...).start_or_send(...)."
                    )
                elif _has(start.workflow, "if_open") or _has(start.workflow, "debounce"):
                    yield Report(
                        start.module, line, "`start_or_send` sends to the open run.", "Leave out if_open and debounce."
                    )

    def _children(self, facts: Facts) -> Iterator[Report]:
        for operation in facts.own():
            child = operation.child
            if child is None:
                continue
            for message, fix in _problems_of_key(child, is_map=operation.kind == "map"):
                yield Report(operation.module, operation.line, message, fix)
            conflict = child.options.get("on_conflict")
            if conflict is not None and isinstance(conflict[0], ast.Constant) and conflict[0].value == "error":
                yield Report(
                    operation.module,
                    operation.line,
                    'A child cannot have on_conflict="error".',
                    "Leave it out: an id that another run has is always an error for a child.",
                )


class FixedId(Rule):
    """One id for the children of all runs."""

    id = "W162"
    level = "error"
    title = "A child has the same id in each run"
    why = "An id names one run for ever: the second parent's child is refused with RunConflictError."
    fix = "Leave the id out, which makes it of the parent's id and the place, or make it of ctx.run_id or the input."

    def check(self, facts: Facts) -> Iterator[Report]:
        for operation in facts.own():
            if operation.child is None or "id" not in operation.child.options:
                continue
            node, result = operation.child.options["id"]
            if isinstance(result.value, Text) and isinstance(node, ast.Constant):
                yield Report(operation.module, operation.line, f'The child\'s id is always "{result.value.text}".')


class Forgotten(Rule):
    """Children for which no code waits."""

    id = "W163"
    level = "hint"
    title = "A child is started, and nothing waits for it"
    why = "When the parent ends, its open children are cancelled, and nothing here takes long enough for one to end."
    fix = 'Wait with child.result(name), or write using(when_parent_ends="leave") if the child shall go on.'

    def check(self, facts: Facts) -> Iterator[Report]:
        operations = list(facts.own())
        waits = [position for position, each in enumerate(operations) if each.kind in _WAITS]
        for operation in operations[max(waits, default=-1) + 1 :]:
            if operation.kind != "start_child" or operation.child is None or _has(operation.child, "when_parent_ends"):
                continue
            here = operation.module.parents.get(operation.node)
            if isinstance(here, ast.Await):
                here = operation.module.parents.get(here)
            if isinstance(here, ast.Expr):
                yield Report(
                    operation.module, operation.line, "The child is cancelled if it is open when this run ends."
                )


class UnsteadyInputs(Rule):
    """Inputs of maps."""

    id = "W164"
    level = "error"
    title = "The inputs of a map differ from pass to pass"
    why = (
        "A map starts its children in batches and knows an input by its place: in the next pass another input is there."
    )
    fix = "Return the inputs from a step, and sort what has no order: sorted(...)."

    def check(self, facts: Facts) -> Iterator[Report]:
        for operation in facts.own():
            if operation.kind != "map":
                continue
            inputs = operation.args[2] if len(operation.args) > 2 else operation.keywords.get("inputs", NOTHING)
            if origins := in_order(inputs):
                text = min(each.text for each in origins)
                yield Report(operation.module, operation.line, f"The inputs are made of `{text}`.")


def _has(workflow: WorkflowValue, option: str) -> bool:
    found = workflow.options.get(option)
    return found is not None and not (isinstance(found[0], ast.Constant) and found[0].value is None)


def _problems_of_key(child: WorkflowValue, *, is_map: bool) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the key of a child, or of the children of a map."""
    if _has(child, "debounce"):
        yield "A child cannot have `debounce`.", "Start the run in a step."
    elif _has(child, "id") and is_map:
        yield "Several children cannot share one id.", "Leave the id out: each child has one of its own."
    elif _has(child, "key") and is_map:
        yield "Several children cannot share one key.", "Start each with ctx.child under its own key."
    elif _has(child, "if_open") and not _has(child, "key"):
        yield "`if_open` is about a key, and there is none.", "Add key=...."
    elif _is(child, "if_open", "return"):
        yield (
            'A child cannot have if_open="return": the open run is not a child of this one.',
            'Leave it out, which raises KeyConflictError, or write if_open="replace".',
        )


def _unknown(call: ast.Call, options: frozenset[str]) -> Iterator[str]:
    return (each.arg for each in call.keywords if each.arg is not None and each.arg not in options)


def _is(workflow: WorkflowValue, option: str, value: str) -> bool:
    node = workflow.options[option][0] if option in workflow.options else None
    return isinstance(node, ast.Constant) and bool(node.value == value)


def _problems(workflow: WorkflowValue) -> Iterator[tuple[str, str]]:
    for name, choices in CHOICES.items():
        given = workflow.options[name][0] if name in workflow.options else None
        if isinstance(given, ast.Constant) and given.value is not None and given.value not in choices:
            allowed = " or ".join(f'"{each}"' for each in choices)
            yield f"`{name}` is {allowed}, not {given.value!r}.", f"Write {allowed}."
    if _has(workflow, "delay") and _has(workflow, "debounce"):
        yield "`delay` and `debounce` both say when the run begins.", "Leave one of them out."
    yield from problems_of_rank(workflow)


STARTS: tuple[Rule, ...] = (Started(), Options(), FixedId(), Forgotten(), UnsteadyInputs())
