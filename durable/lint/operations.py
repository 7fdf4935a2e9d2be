"""The operations of contexts: the names of their methods, and what their arguments mean.

A test compares the names with `durable.context`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from durable.lint.modules import NOTHING, Display, External, Function, Result, Value

CONTEXT_METHODS: Final = frozenset(
    {
        *("step", "try_step", "try_block", "loop", "sleep", "sleep_until", "join", "race", "child", "start_child"),
        *(
            "map",
            "rollback_checkpoint",
            "compensate",
            "removed",
            "get_version",
            "tag",
            "link",
            "ask_person",
            "event",
            "publish",
        ),
    }
)
QUEUE_METHODS: Final = frozenset({"next", "next_batch", "send"})
CHILD_METHODS: Final = frozenset({"result"})
MESSAGE_METHODS: Final = frozenset({"complete", "refuse"})

#: Members of a context that perform no operation.
PLAIN: Final = frozenset(
    {"run_id", "scheduled_for", "random", "is_evicted", "eviction_reason", "now", "uuid4", "logger", "queue", "status"}
)

STEPS: Final = frozenset({"step", "try_step"})
#: Operations whose second argument is a body, or a dict of bodies, with a scope of their own.
BODIES: Final = {"loop": "iteration", "try_block": "block", "join": "branch", "race": "branch"}
#: Operations whose first argument is a name that is unique in its scope.
NAMED: Final = (CONTEXT_METHODS - {"compensate", "tag", "publish"}) | {"next", "next_batch", "result"}

START_METHODS: Final = frozenset({"start", "astart", "start_many", "astart_many", "start_or_send", "astart_or_send"})
#: What `using` takes.
START_OPTIONS: Final = frozenset(
    {
        *(
            "id",
            "queue",
            "delay",
            "on_conflict",
            "deadline",
            "work_limit",
            "key",
            "if_open",
            "debounce",
            "at_most",
            "keep",
        ),
        *("rate", "when_full", "when_parent_ends", "rollback", "priority", "share", "weight", "tags"),
        *("about", "when_deleted"),
    }
)
#: What a step takes.
STEP_OPTIONS: Final = frozenset(
    {
        *("atomic", "backoff", "ephemeral", "heartbeat", "limit", "max_retries", "not_done", "once", "rate"),
        *("retry_backoff_base", "unknown_timeout", "verify", "verify_retries", "when_exhausted"),
        *(
            "retry_backoff_max",
            "retry_if",
            "retry_jitter",
            "retry_on_timeout",
            "rollback",
            "summary",
            "timeout",
            "units",
        ),
    }
)


_STEP: Final = frozenset({"durable.step", "durable.definitions.step"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of an operation's call, as read."""

    node: ast.Call
    values: list[Result]
    keywords: dict[str, Result]

    @property
    def name(self) -> ast.expr | None:
        if self.node.args:
            return self.node.args[0]
        return next((each.value for each in self.node.keywords if each.arg == "name"), None)

    @property
    def name_result(self) -> Result:
        return self.of(0, "name")

    def of(self, position: int, keyword: str) -> Result:
        if position < len(self.values):
            return self.values[position]
        return self.keywords.get(keyword, NOTHING)


def bodies_of(result: Result) -> Iterator[Function]:
    """Yield the functions of a body, or of a dict of them."""
    values: list[Value] = result.value.values if isinstance(result.value, Display) else [result.value]
    yield from (each for each in values if isinstance(each, Function))


def step_definition(function: Function | None) -> tuple[str | None, dict[str, ast.expr]]:
    """Return the name and the options that `@step` gives a function: (None, {}) if it has none."""
    if function is None or isinstance(function.node, ast.Lambda):
        return None, {}
    for decorator in function.node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        value = function.module.dotted(call.func if call is not None else decorator)
        if not isinstance(value, External) or value.name not in _STEP:
            continue
        options = {each.arg: each.value for each in call.keywords if each.arg} if call is not None else {}
        name = options.pop("name", None)
        if name is None:
            return function.node.name, options
        return (name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None), options
    return None, {}
