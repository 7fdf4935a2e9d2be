"""Rules of children, starts, keys, limits and rates, and of their options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from durable.lint.facts import Facts, Operation, Report, Start, Step, report, rule
from durable.lint.known import in_order, kind_of, start_options, step_options
from durable.lint.modules import NOTHING, External, Function, Module, Text, WorkflowValue, workflow_decorator

#: what a node is if its text does not say what it stands for
_UNKNOWN: Final = object()
_DAY: Final = 24 * 60 * 60
_LONGEST_SHARE: Final = 200


def problems_of_rank(workflow: WorkflowValue) -> Iterator[tuple[str, str]]:
    """Yield the problems of the rank, each with the advice.

    A text as a priority may be a name from the settings, so it is not judged.
    """
    priority, share, weight = (_constant(workflow, each) for each in ("priority", "share", "weight"))
    if priority == "":
        yield "`priority` is an empty text.", 'Write a length, such as "10 min", or leave it out.'
    elif _is_number(priority) and not abs(priority) <= _DAY:  # type: ignore[arg-type]  # a number
        yield f"`priority` is at most a day of seconds, not {priority!r}.", 'Write a length, such as "10 min".'
    elif isinstance(priority, bool | bytes):
        yield f"`priority` is a length of time or a name, not {priority!r}.", 'Write a length, such as "10 min".'
    if isinstance(share, str):
        if not (1 <= len(share) <= _LONGEST_SHARE and share.isprintable()):
            yield "`share` is made of 1 to 200 printable characters.", "Name the tenant, or leave it out."
    elif share is not None and share is not _UNKNOWN:
        yield f"`share` is text, not {share!r}.", "Write share=str(...)."
    if isinstance(weight, str | bytes | bool):
        yield f"`weight` is a number, not {weight!r}.", "Write a number, such as 2."
    elif _is_number(weight) and not 0.001 <= weight <= 1000:  # type: ignore[operator]  # a number
        yield f"`weight` is a number from 0.001 to 1000, not {weight!r}.", "Write a number, such as 2."


def _constant(workflow: WorkflowValue, option: str) -> object:
    """Return the literal of an option, None without the option."""
    if option not in workflow.options:
        return None
    try:
        return ast.literal_eval(workflow.options[option][0])
    except (ValueError, TypeError, RecursionError):
        return _UNKNOWN


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CHOICES: Final = {
    "on_conflict": ("return", "error"),
    "if_open": ("return", "error", "replace"),
    "keep": ("last", "first"),
    "when_full": ("drop",),
    "when_parent_ends": ("cancel", "leave"),
    "when_deleted": ("leave", "cancel"),
}
#: Operations that may take long enough for a child to end.
_WAITS: Final = frozenset(
    {"sleep", "sleep_until", "next", "next_batch", "child", "result", "join", "race", "loop", "map"}
)
_ABOUT_KEYS: Final = ("if_open", "debounce", "at_most", "keep")


@rule(
    "W146",
    "error",
    "A run is started between steps without an id of its own",
    why="The code between steps runs again in each pass, and would start another run each time. durable refuses it.",
    fix='Use ctx.child or ctx.start_child, start in a step, or give an id: using(id=f"{ctx.run_id}-mail").',
)
def _started(facts: Facts) -> Iterator[Report]:
    for start in facts.starts:
        if start.in_step is not None:
            continue
        node, given = start.workflow.options.get("id", (None, NOTHING))
        if given.origins:
            origin = min(each.text for each in given.origins)
            yield report(start, f"The id differs from pass to pass: `{origin}`.")
        elif not _has_ids(start):
            yield report(start, f"`{start.method}` starts a run of {start.workflow.name} in each pass.")
        elif isinstance(given.value, Text) and isinstance(node, ast.Constant) and _differs(start.node):
            yield report(
                start,
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


@rule(
    "W161",
    "error",
    "An option is refused",
    why="durable refuses it when the line runs.",
    fix="See the docstring of using(...).",
)
def _options(facts: Facts) -> Iterator[Report]:
    for module, node, workflow in facts.usings:
        for name in _unknown(node, start_options()):
            yield Report(module, node.lineno, f"`using` has no option `{name}`.")
        for message, fix in _problems(workflow):
            yield Report(module, node.lineno, message, fix)
    for step in facts.steps:
        for name in _unknown(step.operation.node, step_options()):
            yield report(
                step.operation,
                f"A step has no option `{name}`.",
                "See the options of a step. Arguments of its function are passed by position.",
            )
    yield from _starts(facts)
    yield from _children(facts)


def _starts(facts: Facts) -> Iterator[Report]:
    for start in facts.starts:
        about = next((each for each in _ABOUT_KEYS if _has(start.workflow, each)), None)
        if about is not None and not _has(start.workflow, "key"):
            yield report(start, f"`{about}` is about a key, and there is none.", "Add key=....")
        if start.method.endswith("start_many"):
            if _has(start.workflow, "id"):
                yield report(start, "Several runs cannot share one id.", "Pass ids=[...].")
            if _has(start.workflow, "key"):
                yield report(start, "Several runs cannot share one key.", "Start each with its own key.")
        if start.method.endswith("start_or_send"):
            if not _has(start.workflow, "key"):
                yield report(start, "`start_or_send` needs a key.", "Write using(key=...).start_or_send(...).")
            elif _has(start.workflow, "if_open") or _has(start.workflow, "debounce"):
                yield report(start, "`start_or_send` sends to the open run.", "Leave out if_open and debounce.")


def _children(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        child = operation.child
        if child is None:
            continue
        for message, fix in _problems_of_key(child, is_map=operation.kind == "map"):
            yield report(operation, message, fix)
        conflict = child.options.get("on_conflict")
        if conflict is not None and isinstance(conflict[0], ast.Constant) and conflict[0].value == "error":
            yield report(
                operation,
                'A child cannot have on_conflict="error".',
                "Leave it out: an id that another run has is always an error for a child.",
            )


@rule(
    "W162",
    "error",
    "A child has the same id in each run",
    why="An id names one run for ever: the second parent's child is refused with RunConflictError.",
    fix="Leave the id out, which makes it of the parent's id and the place, or make it of ctx.run_id or the input.",
)
def _fixed_id(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        if operation.child is None or "id" not in operation.child.options:
            continue
        node, result = operation.child.options["id"]
        if isinstance(result.value, Text) and isinstance(node, ast.Constant):
            yield report(operation, f'The child\'s id is always "{result.value.text}".')


@rule(
    "W163",
    "hint",
    "A child is started, and nothing waits for it",
    why="When the parent ends, its open children are cancelled, and nothing here takes long enough for one to end.",
    fix='Wait with child.result(name), or write using(when_parent_ends="leave") if the child shall go on.',
)
def _forgotten(facts: Facts) -> Iterator[Report]:
    operations = list(facts.own())
    waits = [position for position, each in enumerate(operations) if each.kind in _WAITS]
    for operation in operations[max(waits, default=-1) + 1 :]:
        if operation.kind != "start_child" or operation.child is None or _has(operation.child, "when_parent_ends"):
            continue
        here = operation.module.parents.get(operation.node)
        if isinstance(here, ast.Await):
            here = operation.module.parents.get(here)
        if isinstance(here, ast.Expr):
            yield report(operation, "The child is cancelled if it is open when this run ends.")


@rule(
    "W164",
    "error",
    "The inputs of a map differ from pass to pass",
    why="A map starts its children in batches and knows an input by its place: in the next pass another input is there.",
    fix="Return the inputs from a step, and sort what has no order: sorted(...).",
)
def _unsteady_inputs(facts: Facts) -> Iterator[Report]:
    for operation in facts.own():
        if operation.kind != "map":
            continue
        inputs = operation.args[2] if len(operation.args) > 2 else operation.keywords.get("inputs", NOTHING)
        if origins := in_order(inputs):
            text = min(each.text for each in origins)
            yield report(operation, f"The inputs are made of `{text}`.")


def _has(workflow: WorkflowValue, option: str) -> bool:
    found = workflow.options.get(option)
    return found is not None and not (isinstance(found[0], ast.Constant) and found[0].value is None)


def _problems_of_key(child: WorkflowValue, *, is_map: bool) -> Iterator[tuple[str, str]]:
    """Yield the problems of the key of a child, or of a map's children."""
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


_NAMING: Final = ("limit", "rate")
_DECLARING: Final = frozenset({"durable.Limit", "durable.core.limits.workflow_limits.Limit"})
_MANAGERS: Final = frozenset({"objects", "_default_manager", "_base_manager"})
_WAITED_FOR: Final = frozenset({"child", "map"})


@rule(
    "W171",
    "error",
    "The limit of a step is refused",
    why="A limit is a text: its name, and behind a slash a key if it has keys. Units are of a rate.",
    fix='Write limit="carrier", limit=f"crm/{tenant}" or rate="openai", units=10.',
)
def _refused(facts: Facts) -> Iterator[Report]:
    for step in facts.steps:
        for message in _limit_problems(step):
            yield report(step.operation, message)


def _limit_problems(step: Step) -> Iterator[str]:
    for option in _NAMING:
        node = step.options.get(option)
        if not isinstance(node, ast.Constant) or node.value is None:
            continue
        if not isinstance(node.value, str):
            yield f"`{option}` is the name of a limit, not {node.value!r}."
            continue
        name, slash, key = node.value.partition("/")
        if not name:
            yield f"`{option}` names no limit."
        elif slash and not key:
            yield f"`{option}` names an empty key of the limit {name}."
    units = step.options.get("units")
    if isinstance(units, ast.Constant) and isinstance(units.value, int):
        if units.value < 1:
            yield f"One attempt takes at least 1 unit, not {units.value}."
        elif units.value != 1 and ("rate" not in step.options or _is_none(step.options["rate"])):
            yield "`units` are of a rate, and there is none."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@rule(
    "W172",
    "error",
    "A limit or its key differs from pass to pass",
    why="A run that waits in the line of one key would be asked for a slot of another in its next pass.",
    fix="Make keys of the input and of what steps returned, and of nothing else.",
)
def _unsteady_limit(facts: Facts) -> Iterator[Report]:
    for step in facts.steps:
        for option in (*_NAMING, "units"):
            given = step.option_values.get(option)
            if given is not None and given.origins:
                text = min(each.text for each in given.origins)
                yield report(step.operation, f"`{option}` is made of `{text}`.")
    for limit in _declared(Function(facts.module, facts.function, None)):
        for name in _unsteady(limit):
            yield Report(facts.module, limit.node.lineno, f"The key of {limit.name} is made of `{name}`.")


@rule(
    "W173",
    "hint",
    "A step with a limit sleeps",
    why="The step holds its slot meanwhile: all that wait in line wait for the sleep too.",
    fix="Raise RetryLater(seconds, limit=name), or sleep between steps with ctx.sleep(name, duration).",
)
def _sleep_in_slot(facts: Facts) -> Iterator[Report]:
    for step in facts.steps:
        limit = step.options.get("limit")
        sleep = next((each for each in step.calls if each.kind == "sleep"), None)
        if limit is not None and not _is_none(limit) and sleep is not None:
            yield report(step.operation, f"The step has a `limit`, and calls `{sleep.name}`.")


@rule(
    "W174",
    "warning",
    "A run waits for a slot of a limit that it holds itself",
    why='With hold="open" a run holds its slot until its end. If all slots are held by runs that wait so, none goes on.',
    fix="Give the inner one a limit of its own, or start it in a step and do not wait for it.",
)
def _own_slot(facts: Facts) -> Iterator[Report]:
    held = [each for each in _declared(Function(facts.module, facts.function, None)) if each.is_open]
    if not held:
        return
    for operation in facts.own():
        if operation.kind in _WAITED_FOR and operation.child is not None:
            for limit in _of_child(operation.child):
                if any(_is_shared(each, limit.name, limit.key is not None) for each in held):
                    yield _waits(operation, f"the child {operation.child.name}", limit.name)
    for step in facts.steps:
        name, has_key = _slot_of(step.options.get("limit"))
        if any(_is_shared(each, name, has_key) for each in held):
            yield _waits(step.operation, "the step", name)


def _waits(operation: Operation, who: str, name: str) -> Report:
    message = f"The run holds a slot of {name}, and waits here for {who}, which needs one of {name} too."
    return report(operation, message)


# -- limits of workflows, as their decorators declare them


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    key: ast.expr | None
    is_open: bool
    node: ast.Call
    module: Module


def _declared(function: Function) -> Iterator[_Declared]:
    """Yield the limits of a workflow that are written out in its decorator."""
    if isinstance(function.node, ast.Lambda):
        return
    decorator = workflow_decorator(function.node, function.module)
    given = next((each.value for each in getattr(decorator, "keywords", ()) if each.arg == "limit"), None)
    for node in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
        if not isinstance(node, ast.Call):
            continue
        made = function.module.dotted(node.func)
        name = node.args[0] if node.args else None
        if not isinstance(made, External) or made.name not in _DECLARING:
            continue
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            options = {each.arg: each.value for each in node.keywords}
            hold = options.get("hold")
            is_open = isinstance(hold, ast.Constant) and hold.value == "open"
            yield _Declared(name.value, options.get("key"), is_open, node, function.module)


def _of_child(child: WorkflowValue) -> Iterator[_Declared]:
    if child.function is not None:
        yield from _declared(child.function)


def _is_shared(held: _Declared, name: str, has_key: bool) -> bool:
    return held.name == name and (held.key is not None) == has_key


def _slot_of(node: ast.expr | None) -> tuple[str, bool]:
    """Return the limit that a step names, and whether a key; "" if the text does not tell."""
    begins = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if not isinstance(begins, ast.Constant) or not isinstance(begins.value, str):
        return "", False
    name, slash, _ = begins.value.partition("/")
    return (name, bool(slash)) if slash or begins is node else ("", False)


def _unsteady(limit: _Declared) -> Iterator[str]:
    """Yield the calls in a limit's key that may return another value at another time or in another process."""
    module, body = limit.module, limit.key
    if isinstance(body, ast.Name | ast.Attribute):
        function = module.dotted(body)
        if not isinstance(function, Function):
            return
        module, body = function.module, function.node  # type: ignore[assignment]  # walked, whatever it is
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Attribute) and node.attr in _MANAGERS:
            yield ast.unparse(node)
        called = module.dotted(node.func) if isinstance(node, ast.Call) else None
        if isinstance(called, External) and kind_of(called.name) is not None:
            yield called.name
