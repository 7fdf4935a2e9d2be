"""The backend: maps a task of Django's framework to a run and back; and the workflow of such runs.

| task | run | | --- | --- | | `enqueue` | a start: it happens if and when the transaction on durable's database commits
| | the result's id | the run's id | | `queue_name` | the RQ queue of that name; `QUEUES` of the backend says which
there are | | `run_after` | the start's delay | | `priority` | another RQ queue, if OPTIONS["priorities"] has one for
it; workers serve queues in their order | | READY, RUNNING, SUCCESSFUL, FAILED | pending or parked, running, completed,
failed or cancelled | | an exception | a failed attempt; tried again OPTIONS["max_retries"] times (0) |

The workflow has one step, which calls the task. It knows the task by its importable name and calls nothing else. A
worker that dies in a task leaves it to another one, so a task may be called more than once. No tasks framework is
imported here: a call names its own.
"""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

from django.conf import settings
from django.core import checks
from django.db import connections, transaction
from django.utils.module_loading import import_string

from durable import operations, signals
from durable import runtime as engine
from durable.conf import conf
from durable.context import Context
from durable.core import errors
from durable.core.current import current_step
from durable.core.errors import CriticalError, ErrorInfo, RunNotFoundError
from durable.core.places import Place
from durable.core.records import ENDED, EntryRecord, RunRecord, RunState
from durable.definitions import workflow
from durable.execution.connections import worker_name
from durable.operations.common import run_sync

if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend as _Base

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


if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend as _Base
else:
    _Base = object

OPTIONS = {"max_retries": 0, "timeout": 0, "priorities": {}}


class DurableTaskBackend(_Base):
    """The backend for either framework; `framework` is the name of its module."""

    framework: str
    normalize: Callable[[Any], Any]

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.given: Mapping[str, Any] = {**OPTIONS, **self.options}
        self.supports_priority = bool(self.given["priorities"])
        signals.run_changed.connect(self._on_change, dispatch_uid=("durable.tasks", alias), weak=False)

    # -- for the framework

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Start a run that calls the task; return its result, which is READY."""
        self.validate_task(task)
        call = TaskCall(
            framework=self.framework,
            task=task.module_path,
            backend=self.alias,
            args=self.normalize(args),
            kwargs=self.normalize(kwargs),
            queue_name=task.queue_name,
            priority=task.priority,
            run_after=task.run_after.isoformat() if task.run_after is not None else None,
            max_retries=self.given["max_retries"],
            timeout=self.given["timeout"],
        )
        now = engine.current().now()
        delay = 0.0 if task.run_after is None else max(0.0, (task.run_after - now).total_seconds())
        handle = call_task.using(queue=self._queue(task), delay=delay).start(call)
        result = self._result(operations.record(handle.id))
        if connections[conf.DATABASE].in_atomic_block:
            transaction.on_commit(lambda: self.tell("task_enqueued", result), using=conf.DATABASE)
        else:
            self.tell("task_enqueued", result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of the run with this id. Raises the framework's TaskResultDoesNotExist."""
        missing = import_module(f"{self.framework}.exceptions").TaskResultDoesNotExist
        try:
            run = operations.record(result_id)
        except RunNotFoundError:
            raise missing(result_id) from None
        if run.workflow != NAME:
            raise missing(result_id)
        return self._result(run)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Do what `enqueue` does, from async code."""
        return await run_sync(self.enqueue, task, args, kwargs)

    async def aget_result(self, result_id: str) -> Any:
        """Do what `get_result` does, from async code."""
        return await run_sync(self.get_result, result_id)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Yield the faults of QUEUES and OPTIONS."""
        yield from super().check(**kwargs)
        for option in self.options:
            if option not in OPTIONS:
                hint = f"It may have {', '.join(OPTIONS)}."
                message = f'TASKS["{self.alias}"], OPTIONS has the unknown key {option!r}.'
                yield checks.Error(message, hint=hint, id="durable.E020")
        if not conf.REDIS:
            return  # without Redis, a queue is only a name that runs have and workers serve
        known = getattr(settings, "RQ_QUEUES", {})
        for queue in sorted({*self.queues, *self.given["priorities"].values()}):
            if queue not in known:
                hint = f'Add "{queue}" to RQ_QUEUES, which has {", ".join(known) or "none"}, or leave it out.'
                message = f'TASKS["{self.alias}"] names the queue "{queue}", which RQ lacks.'
                yield checks.Error(message, hint=hint, id="durable.E021")

    # -- for the run

    def _queue(self, task: Any) -> str:
        """Return the queue for the task's priority: the highest step that it reaches, upwards or downwards from 0."""
        steps: Mapping[int, str] = self.given["priorities"]
        reached = [each for each in steps if 0 < each <= task.priority or task.priority <= each < 0]
        return steps[max(reached, key=abs)] if reached else str(task.queue_name)

    def _result(self, run: RunRecord) -> Any:
        at = engine.current()
        base = import_module(f"{self.framework}.base")
        call: TaskCall = at.decode(run.input, Place(run.id, "input"))["args"][0]
        history = at.store.history(run.id) if run.started_at is not None else []
        step = next((each for each in history if each.location == STEP), None)
        failed = at.store.attempts(run.id) if step is not None else []
        result = base.TaskResult(
            task=task_of(call),
            id=run.id,
            status=base.TaskResultStatus(_status(run)),
            enqueued_at=run.created_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            last_attempted_at=step.last_attempt_at if step is not None else run.started_at,
            args=call["args"],
            kwargs=call["kwargs"],
            backend=call["backend"],
            errors=[base.TaskError(**_error(each)) for each in _errors(run, [each.error for each in failed])],
            worker_ids=[*(each.worker for each in failed), *self._last_worker(run, step)],
        )
        if run.state == RunState.COMPLETED:
            object.__setattr__(result, "_return_value", at.decode(run.output or None, Place(run.id, "output")))
        return result

    def _last_worker(self, run: RunRecord, step: EntryRecord | None) -> list[str]:
        """Return the worker that has called the task, or calls it now."""
        if step is not None and step.output is not None:
            return [engine.current().decode(step.output, Place(run.id, "output", STEP))["worker"]]
        return [run.worker] if run.state == RunState.RUNNING and run.worker else []

    def _on_change(self, *, run: str, workflow: str, state: str, **_: Any) -> None:
        if workflow != NAME or state not in ENDED:
            return
        result = self.get_result(run)
        if result.backend == self.alias:
            self.tell("task_finished", result)

    def tell(self, signal: str, result: Any) -> None:
        """Send one of the framework's signals; errors of its receivers are logged and not raised."""
        getattr(import_module(f"{self.framework}.signals"), signal).send_robust(type(self), task_result=result)


def backend_for(framework: str, module: str) -> type[DurableTaskBackend]:
    """Return the backend class for the framework with this package, to be defined in `module`."""
    base = import_module(f"{framework}.backends.base").BaseTaskBackend
    utils = "django.utils.json" if find_spec("django.utils.json") is not None else f"{framework}.utils"
    return type(
        "DurableBackend",
        (DurableTaskBackend, base),
        {
            "__doc__": "Runs tasks as durable runs.",
            "__module__": module,
            "framework": framework,
            "normalize": staticmethod(import_module(utils).normalize_json),
        },
    )


def _status(run: RunRecord) -> str:
    if run.state == RunState.COMPLETED:
        return "SUCCESSFUL"
    if run.state in ENDED:
        return "FAILED"
    return "RUNNING" if run.state == RunState.RUNNING else "READY"


def _errors(run: RunRecord, attempts: list[ErrorInfo]) -> list[ErrorInfo]:
    """Return the errors of the attempts and of a cancel; without attempts, the error that ended the run."""
    if run.state == RunState.CANCELLED:
        return [*attempts, ErrorInfo("RunCancelledError", run.request_reason)]
    if run.state == RunState.FAILED and not attempts and run.error is not None:
        return [run.error]
    return attempts


def _error(info: ErrorInfo) -> dict[str, str]:
    return {"exception_class_path": _class_path(info), "traceback": info.traceback or str(info)}


def _class_path(info: ErrorInfo) -> str:
    """Return the import path of the error's class: the last line of a traceback names the class."""
    named = re.findall(rf"^([\w.]+\.{re.escape(info.type)})(?::|$)", info.traceback, re.MULTILINE)
    if named:
        return str(named[-1])
    home = "builtins" if hasattr(builtins, info.type) else "durable.core.errors"
    return f"{home}.{info.type if home == 'builtins' or hasattr(errors, info.type) else 'DurableError'}"
