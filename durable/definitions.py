"""The decorators: what makes a function a workflow, and what names a step.

A `Workflow` is the function, its name and queue, and the verbs that start runs of it. It holds no state of any run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from django.apps import apps

from durable import operations, runtime
from durable.conf import conf
from durable.core import registry
from durable.core.current import running_run
from durable.core.duration import Duration, parse_remaining
from durable.core.errors import UndiscoveredWorkflowError
from durable.core.location import escape
from durable.core.options import options_of
from durable.handles import Handle
from durable.mistakes import Mistakes, check_mistakes
from durable.operations.async_calls import run_sync

__all__ = ["Start", "Workflow", "step", "workflow"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


# What one would call a task's methods elsewhere, and what it is here.
_ELSEWHERE = {
    "delay": "start(...)",
    "apply_async": 'using(id=..., queue=..., delay="10 s").start(...)',
    "enqueue": "start(...)",
    "send": "start(...), and send messages to its handle",
    "map": "start_many([(...,), (...,)])",
}


class Workflow(Generic[P, R]):
    """A function that runs durably. Call `start` to start a run of it, `using(...)` to say how."""

    def __init__(
        self,
        function: Callable[..., R],
        name: str | None = None,
        queue: str | None = None,
        mistakes: Mistakes | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"@workflow decorates a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"the workflow {function.__qualname__} is a generator: a workflow is a plain function or a coroutine "
                "function; use ctx.loop to repeat and ctx.queue.next to wait"
            )
        self.signature = inspect.signature(function)
        if not _takes_a_context(self.signature):
            raise TypeError(
                f"the workflow {function.__qualname__} takes no context: write def {function.__name__}(ctx: Context, ...)"
            )
        if name is not None:
            escape(name)
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self._name = name
        self._queue = queue
        self.mistakes = check_mistakes(mistakes)
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Workflow {self._name or self.__qualname__}>"

    def __getattr__(self, name: str) -> Any:
        """Only for what there is not: habits from task queues are told what to write here."""
        if name.startswith("_"):  # asked for while it is being made, copied or looked through
            raise AttributeError(name)
        message = f"{self!r} has no attribute {name!r}"
        if instead := _ELSEWHERE.get(name):
            message += f": start a run with .{instead}"
        raise AttributeError(message)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The function itself, for code that brings a context of its own."""
        if not args or not hasattr(args[0], "run_id"):
            raise TypeError(
                f"{self.name} is a workflow: start a run of it with .start(...); called like a function it takes a context"
            )
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name under which runs are recorded; "<app label>.<function>" unless given."""
        if self._name is None:
            self._name = _default_name(self.function)
        return self._name

    @property
    def queue(self) -> str:
        """The RQ queue of its runs."""
        return self._queue or conf.QUEUE

    def using(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        on_conflict: Literal["return", "error"] = "return",
    ) -> Start[P, R]:
        """How to start: with this id, on this queue, after `delay` (negative: at once); `on_conflict="error"` refuses an existing id."""
        return Start(self, run_id=id, queue=queue, delay=_delay(delay), refuses_existing=_refuses(on_conflict))

    def start(self, *args: Any, **kwargs: Any) -> Handle:
        """Start a run with an id of its own; inside a transaction, if and when that commits.

        Raises TypeError for arguments that do not fit the function, PayloadError for a value the codec refuses.
        """
        return Start(self).start(*args, **kwargs)

    async def astart(self, *args: Any, **kwargs: Any) -> Handle:
        """`start`, from async code."""
        return await Start(self).astart(*args, **kwargs)

    def start_many(self, inputs: Iterable[Sequence[Any]], *, ids: Sequence[str] | None = None) -> list[Handle]:
        """Start a run for each tuple of arguments, in one transaction and few statements; `ids` name them in order."""
        return Start(self).start_many(inputs, ids=ids)

    async def astart_many(self, inputs: Iterable[Sequence[Any]], *, ids: Sequence[str] | None = None) -> list[Handle]:
        """`start_many`, from async code."""
        return await Start(self).astart_many(inputs, ids=ids)


@dataclass(frozen=True, slots=True)
class Start(Generic[P, R]):
    """A workflow and how to start it; made by `Workflow.using`."""

    workflow: Workflow[P, R]
    run_id: str | None = None
    queue: str | None = None
    delay: float = 0.0
    refuses_existing: bool = False

    def using(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        on_conflict: Literal["return", "error"] | None = None,
    ) -> Start[P, R]:
        """The same, with these changed."""
        return replace(
            self,
            run_id=self.run_id if id is None else id,
            queue=self.queue if queue is None else queue,
            delay=self.delay if delay is None else _delay(delay),
            refuses_existing=self.refuses_existing if on_conflict is None else _refuses(on_conflict),
        )

    def start(self, *args: Any, **kwargs: Any) -> Handle:
        """Start the run. With an id that exists, the handle of that run; RunConflictError if it is another's.

        Raises UndiscoveredWorkflowError if no installed app brings the workflow into workers.
        """
        return self._started([(self.run_id, args, kwargs)])[0]

    async def astart(self, *args: Any, **kwargs: Any) -> Handle:
        """`start`, from async code."""
        return await run_sync(self.start, *args, **kwargs)

    def start_many(self, inputs: Iterable[Sequence[Any]], *, ids: Sequence[str] | None = None) -> list[Handle]:
        """Start a run for each tuple of arguments; see `Workflow.start_many`."""
        if self.run_id is not None:
            raise TypeError("start_many starts several runs, so they cannot share one id: pass ids=[...]")
        tuples = [_arguments(each) for each in inputs]
        if ids is not None and len(ids) != len(tuples):
            raise ValueError(f"start_many got {len(tuples)} inputs and {len(ids)} ids; pass one id for each input")
        names = ids if ids is not None else [None] * len(tuples)
        return self._started([(name, args, {}) for name, args in zip(names, tuples, strict=True)])

    async def astart_many(self, inputs: Iterable[Sequence[Any]], *, ids: Sequence[str] | None = None) -> list[Handle]:
        """`start_many`, from async code."""
        return await run_sync(self.start_many, inputs, ids=ids)

    def _started(self, calls: Sequence[tuple[str | None, tuple[Any, ...], dict[str, Any]]]) -> list[Handle]:
        _check_is_discovered(self.workflow)
        request = operations.StartRequest(
            workflow=self.workflow.name,
            signature=self.workflow.signature,
            queue=self.queue or self.workflow.queue,
            delay=self.delay,
            refuses_existing=self.refuses_existing,
        )
        return [Handle(run_id, is_new) for run_id, is_new in operations.start(request, calls)]


@overload
def workflow(function: Callable[..., R], /) -> Workflow[Any, R]: ...
@overload
def workflow(
    *, name: str | None = None, queue: str | None = None, mistakes: Mistakes | None = None
) -> Callable[[Callable[..., R]], Workflow[Any, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | None = None,
    mistakes: Mistakes | None = None,
) -> Any:
    """Make a function a workflow: `@workflow` or `@workflow(name="shop.fulfil", queue="default")`.

    The function takes a context first. An `async def` gets an AsyncContext, and awaits its operations. `mistakes` replaces
    the setting MISTAKES: the classes of errors that, out of its own code, stop a run with nothing undone; `()` for none.
    """
    chosen = check_mistakes(mistakes)

    def decorate(function: Callable[..., Any]) -> Workflow[Any, Any]:
        definition: Workflow[Any, Any] = Workflow(function, name, queue, chosen)
        registry.register(definition, discovered=not apps.ready)
        return definition

    return decorate if function is None else decorate(function)


@overload
def step(function: F, /) -> F: ...
@overload
def step(*, name: str | None = None, **options: Any) -> Callable[[F], F]: ...
def step(function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Give a function a step's name and options: `@step` or `@step(name="charge", max_retries=5)`.

    The function stays what it is; `ctx.step(function, *args)` takes name and options from it. The name defaults to
    the function's. Raises TypeError for an unknown option.
    """
    options_of(options)

    def decorate(function: F) -> F:
        chosen = name if name is not None else function.__name__
        escape(chosen)
        function._durable_step = (chosen, dict(options))  # type: ignore[attr-defined]  # read by durable.context
        return function

    return decorate if function is None else decorate(function)


def _check_is_discovered(workflow: Workflow[Any, Any]) -> None:
    """Raises UndiscoveredWorkflowError where it is certain that no worker finds the workflow.

    A worker is set up like this process, so it has what was registered while Django was set up here. What was imported later
    it lacks, unless this process is a worker itself, or a test that passes its runs itself. Of code that is run by name
    (`__main__`) nothing is certain.
    """
    if registry.is_discovered(workflow.name) or runtime.is_replaced() or running_run() is not None:
        return
    is_test = hasattr(sys.modules.get("django.core.mail"), "outbox")  # set up by Django's and pytest's runners
    if is_test or "durable.worker.job" in sys.modules or workflow.__module__ in ("__main__", "__mp_main__"):
        return
    config = apps.get_containing_app_config(workflow.__module__)
    if config is not None and workflow.__module__ == f"{config.name}.workflows":
        return
    raise UndiscoveredWorkflowError(workflow.name, registry.source_location(workflow), workflow.__module__)


def _takes_a_context(signature: inspect.Signature) -> bool:
    try:
        signature.bind_partial(None)
    except TypeError:
        return False
    return True


def _default_name(function: Callable[..., Any]) -> str:
    module = function.__module__
    config = apps.get_containing_app_config(module) if apps.ready else None
    label = config.label if config else module.partition(".")[0]
    return f"{label}.{function.__name__}"


def _delay(delay: Duration | None) -> float:
    return 0.0 if delay is None else parse_remaining(delay, "a delay").total_seconds()


def _refuses(on_conflict: str) -> bool:
    if on_conflict not in ("return", "error"):
        raise ValueError(f'on_conflict is "return" or "error", not {on_conflict!r}')
    return on_conflict == "error"


def _arguments(each: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(each, str | bytes | dict):
        raise TypeError(f"start_many takes a tuple of arguments for each run, not {each!r}: write ({each!r},)")
    return tuple(each)
