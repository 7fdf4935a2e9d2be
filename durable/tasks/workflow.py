"""The workflow whose runs are enqueued tasks: one step, which calls the task.

Knows the task by its importable name and calls nothing that is not a task. Imports no tasks framework by itself: the
call names the framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, TypedDict

from django.utils.module_loading import import_string

from durable.context import Context
from durable.core.current import current_step
from durable.core.errors import CriticalError
from durable.definitions import workflow
from durable.execution.connections import worker_name

NAME = "durable.task"
STEP = "call"


class TaskCall(TypedDict):
    """A task and its call. `framework` is the module of the framework, `task` the dotted path of the task.

    `run_after` is an ISO 8601 time or None; `max_retries` and `timeout` (seconds, 0 for none) are the step's.
    """

    framework: str
    task: str
    backend: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    priority: int
    run_after: str | None
    max_retries: int
    timeout: float


@workflow(name=NAME)
def call_task(ctx: Context, call: TaskCall) -> Any:
    """Call the task; return its value."""
    done = ctx.step(STEP, partial(_perform, call), max_retries=call["max_retries"], timeout=call["timeout"])
    return done["value"]


def _perform(call: TaskCall) -> Any:
    """Call the task's function; return its value and the worker. For an async function, return an awaitable of both."""
    task = task_of(call)
    backend = task.get_backend()
    result = backend.get_result(current_step().run_id)
    backend.tell("task_started", result)
    args = list(call["args"])
    if task.takes_context:
        args.insert(0, import_module(f"{call['framework']}.base").TaskContext(task_result=result))
    value = task.func(*args, **call["kwargs"])
    normalize = backend.normalize
    return _awaited(value, normalize) if inspect.isawaitable(value) else _record(value, normalize)


def task_of(call: TaskCall) -> Any:
    """Return the task as it was enqueued.

    Raises ImportError if the task no longer exists, CriticalError if it is not a task.
    """
    try:
        task = import_string(call["task"])
    except ImportError as error:
        raise ImportError(f"the task {call['task']} cannot be imported: {error}. Did it move?") from error
    if not isinstance(task, import_module(f"{call['framework']}.base").Task):
        raise CriticalError(f"{call['task']} is not a task of {call['framework']}: decorate it with @task")
    run_after = datetime.fromisoformat(call["run_after"]) if call["run_after"] else None
    return task.using(
        backend=call["backend"], queue_name=call["queue_name"], priority=call["priority"], run_after=run_after
    )


async def _awaited(value: Awaitable[Any], normalize: Any) -> dict[str, Any]:
    return _record(await value, normalize)


def _record(value: Any, normalize: Any) -> dict[str, Any]:
    try:
        plain = normalize(value)
    except (TypeError, ValueError) as error:  # calling the task again would repeat its work
        raise CriticalError(f"a task returns what JSON has, and this one did not: {error}") from error
    return {"value": plain, "worker": worker_name()}
