"""The decorators that make a function a workflow, and that name a step.

A `Workflow` is the function, its name and queue, and the verbs that start runs of it. It holds no state of any run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from django.apps import apps

from durable import operations, runtime
from durable.conf import conf
from durable.core import registry
from durable.core.children.operations import ChildKey, ChildRequest
from durable.core.current import running_run
from durable.core.duration import Duration
from durable.core.errors import UndiscoveredWorkflowError
from durable.core.ids import check_id, check_queue
from durable.core.limits.workflow_limits import Limit, WorkflowLimits
from durable.core.location import escape
from durable.core.options import CommonStepOptions, RollbackContext, options_of
from durable.core.outcomes import WHEN_EXHAUSTED, WhenExhausted
from durable.core.records import WhenParentEnds
from durable.core.registry import MessageTypes
from durable.core.results import frozen
from durable.core.signatures import advised
from durable.core.tags import TagValue
from durable.handles import Handle
from durable.mistakes import Mistakes, check_mistakes
from durable.operations.common import in_async
from durable.operations.start import check_arguments, request_of
from durable.operations.start_options import IfOpen, Keep, StartOptions, WhenDeleted, WhenFull, warn_of
from durable.schedules import RuleLike, Rules, check_name, read_rules

if TYPE_CHECKING:
    from django.db.models import Model

    from durable.context import AsyncContext, Context
    from durable.core.registry import EndFunction
    from durable.operations.ends import OnEnd
    from durable.operations.events import EventSource

__all__ = ["Input", "StepDecorator", "Workflow", "WorkflowDecorator", "step", "workflow"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Output_contra = TypeVar("Output_contra", contravariant=True)
F = TypeVar("F", bound=Callable[..., Any])


# The usual methods of tasks in other projects, and their counterparts here.
_ELSEWHERE = {
    "delay": "start(...)",
    "apply_async": 'using(id=..., queue=..., delay="10 s").start(...)',
    "enqueue": "start(...)",
    "send": "start(...), and send messages to its handle",
    "map": "start_many([(...,), (...,)])",
}


@frozen
@dataclass(frozen=True, slots=True)
class Input(Generic[P]):
    """The arguments of one run, for `start_many`; made by `Workflow.input`."""

    workflow: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Workflow(Generic[P, R_co]):
    """A function that runs durably. Call `start` to start a run of it, `using(...)` to say how.

    `P` are the function's parameters after the context, `R_co` is what a run returns.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        queue: str | None = None,
        mistakes: Mistakes | None = None,
        schedule: RuleLike | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        messages: Mapping[str, Any] | None = None,
        quiet: bool = False,
        on_end: OnEnd | None = None,
        when_exhausted: WhenExhausted = "fail",
        on: EventSource | None = None,
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
        self._start_options = StartOptions()
        self.mistakes = check_mistakes(mistakes)
        #: The limits of which its runs hold slots; None for none.
        self.limits = None if limit is None else WorkflowLimits(limit)
        #: The messages that its runs accept; None for any.
        self.messages = None if messages is None else MessageTypes(messages)
        if not isinstance(quiet, bool):
            raise TypeError(f"quiet is True or False, not {quiet!r}")
        #: Whether lists of runs omit its runs, unless they have failed or are asked for.
        self.is_quiet = quiet
        #: The function to call in the commit that ends a run; None for none.
        self.on_end = None if on_end is None else _called_at_end(on_end)
        if when_exhausted not in WHEN_EXHAUSTED:
            raise ValueError(f'when_exhausted is "fail" or "hold", not {when_exhausted!r}')
        #: What its steps do when their attempts are used up, unless they say something else.
        self.when_exhausted: WhenExhausted = when_exhausted
        #: The name of the event that starts runs; None for none.
        self.on: str | None = None if on is None else _started_by(on, function, self.signature)
        #: The schedule that starts runs automatically; None for none.
        self.schedule: Rules | None = None if schedule is None else _scheduled(self, name, read_rules(schedule))
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Workflow {self._name or self.__qualname__}>"

    if not TYPE_CHECKING:  # a type checker must report missing attributes

        def __getattr__(self, name: str) -> Any:
            """Called for unknown attributes only.

            Point users of other task queues (`.delay()`, `.enqueue()`) to `start()`.
            """
            if name.startswith("_"):  # requested while the object is being created, copied or inspected
                raise AttributeError(name)
            message = f"{self!r} has no attribute {name!r}"
            if instead := _ELSEWHERE.get(name):
                message += f": start a run with .{instead}"
            raise AttributeError(message)

    @overload
    def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, ctx: AsyncContext, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # *Any is not P.args to mypy
        """Call the function itself, for code that passes its own context."""
        if not args or not hasattr(args[0], "run_id"):
            raise TypeError(
                f"{self.name} is a workflow: start a run of it with .start(...), or pass a context as the first argument"
            )
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name under which runs are recorded; "<app label>.<function>" unless given."""
        if self._name is None:
            self._name = _default_name(self.function)
        return self._name

    @property
    def is_about_something(self) -> bool:
        """Whether `using(about=...)` says what its runs are about."""
        return bool(self._start_options.about)

    @property
    def queue(self) -> str:
        """The RQ queue of its runs."""
        return self._start_options.queue or self._queue or conf.QUEUE

    @advised(
        "using() says how a run is started, before start(arguments)",
        {"countdown": "delay", "eta": "delay", "expires": "deadline", "task_id": "id", "workflow_id": "id"},
    )
    def using(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        on_conflict: Literal["return", "error"] | None = None,
        deadline: Duration | datetime | None = None,
        work_limit: Duration | None = None,
        key: str | None = None,
        if_open: IfOpen | None = None,
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        keep: Keep | None = None,
        rate: str | None = None,
        when_full: WhenFull | None = None,
        when_parent_ends: Literal["cancel", "leave"] | None = None,
        rollback: bool | None = None,
        priority: Duration | None = None,
        share: str | None = None,
        weight: float | None = None,
        tags: Mapping[str, TagValue] | None = None,
        about: Model | Iterable[Model | str] | str | None = None,
        when_deleted: WhenDeleted | None = None,
    ) -> Workflow[P, R_co]:
        """Return a copy of the workflow whose `start` uses these: an id, a queue, a delay (negative: none), a key.

        A run that has not ended by its `deadline`, a length of time from its start or an aware moment, fails with
        RunDeadlineError, and is compensated. So does a run on which workers have worked for `work_limit`: the time of
        its passes, without what it waits.

        With `on_conflict="error"`, starting with an id that exists raises RunConflictError; by default ("return") it
        returns the handle of that run. What is left out stays as it is. Workers know the original only.

        At most one open run of the workflow has a `key` (1 to 200 printable characters). If one is open, `if_open` says
        what a start does: "return" its handle (the default), raise KeyConflictError ("error"), or cancel it and start
        another ("replace"). With `debounce`, a start begins that long after it was made, and so long after each further
        start under the key, but not later than `at_most` after the first; `keep` says whose input it has, the "last"
        (the default) or the "first". A run that has begun is not moved: the next start begins another, unless `if_open`
        says otherwise. A run that has the id comes first, then the key's, then the debounce.

        With `when_full="drop"`, a start that would make a run takes a unit of a rate first. If the rate has no room
        now, the start is refused with StartRefusedError, and nothing waits: at most one run a minute, say. `rate` names
        the limit and its key, as of a step ("reports" or "reports/acme"); without it, it is that of the workflow's own
        limit. A run that the start finds, by its id or key, takes nothing.

        A child has a key too (`ctx.child`, `ctx.start_child`): if a run with it is open, the child is refused with
        KeyConflictError ("error", the default there), or that run is cancelled ("replace").

        `when_parent_ends` is for `ctx.child` and `ctx.start_child`: what becomes of a child that is open when its
        parent ends, whatever way. By default it is cancelled. With `rollback=True` the child is compensated when its
        parent is: a completed one runs its rollback handlers, one that has not ended is cancelled with its rollback.
        The parent waits for that. Such a child is started after a rollback checkpoint.

        Workers begin the run that has waited longest. A `priority` is a head start in this order: a length of time such
        as "10 min", or a name in `DURABLE["PRIORITIES"]`. A negative one puts the run back. Runs that have a `share`, a
        tenant's say, take turns with those of other shares in their queue. A run of `weight` 2 has its turn twice as
        often as one of 1. A child has the priority and the share of its parent, unless its own start gives another.

        Runs are found by their `tags`, at most 8 names with values of at most 200 characters (`Run.objects.tagged`).
        They are stored in clear, unless `DURABLE["TAGS"]` says otherwise. They replace those of an earlier `using`, and
        a child has its own alone.

        A run is `about` a saved instance of a model, or a list of at most 100: `using(about=order)`. It is found by
        `Run.objects.about(order)` and shown beside the order. Only the model's label and the primary key are kept, so
        the instance may be in another database, and a deleted one leaves its runs. With `when_deleted="cancel"`, the
        runs that are open then are cancelled in the transaction of the deletion, in each process that has called
        `durable.triggers.on_delete` for the model. A restart and a replay are about the same, and a child is about what
        its own `using` says alone.
        """
        given = {name: value for name, value in locals().items() if value is not None}
        del given["self"]
        how = copy(self)
        how._start_options = self._start_options.changed(**given)
        return how

    def child_request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChildRequest:
        """Return the request with which `ctx.child` and `ctx.start_child` start a child of this workflow.

        Raises TypeError for arguments that do not fit the function, and for options that a child cannot have.
        """
        options = self._start_options
        if options.on_conflict == "error":
            raise TypeError(
                f'using(on_conflict="error") does not fit a child of {self.name}: an id that another run has is always an '
                "error there"
            )
        key = options.key_options()
        if key is not None and key.debounce is not None:
            raise TypeError(
                f"using(debounce=...) does not fit a child of {self.name}, which is one run: start the run in a step"
            )
        if key is not None and key.if_open == "return":
            raise TypeError(
                f'using(if_open="return") does not fit a child of {self.name}: the open run is not a child of this one. Leave it '
                'out, which raises KeyConflictError, or write if_open="replace"'
            )
        if options.rate is not None or options.when_full is not None:
            raise TypeError(
                f'using(when_full="drop") does not fit a child of {self.name}, which the parent needs: start the run in a step'
            )
        check_arguments(self.name, self.signature, args, kwargs)
        if options.queue is not None:
            warn_of(check_queue(options.queue))
        return ChildRequest(
            workflow=self.name,
            queue=check_queue(self.queue),
            args=args,
            kwargs=kwargs,
            handle=Handle,
            run_id=None if options.id is None else check_id(options.id),
            how=options.how,
            when_parent_ends=options.when_parent_ends or WhenParentEnds.CANCEL,
            rollback=bool(options.rollback),
            key=None if key is None else ChildKey(key.key, replaces=key.if_open == "replace"),
            limits=self.limits,
        )

    def map_requests(self, inputs: Iterable[Input[P]] | Iterable[Sequence[Any]]) -> list[ChildRequest]:
        """Return the requests with which `ctx.map` starts a child for each input. Raises what `child_request`
        raises.
        """
        if self._start_options.id is not None:
            raise TypeError("ctx.map starts several children, so they cannot share one id: leave using(id=...) out")
        if self._start_options.key is not None:
            raise TypeError(
                "ctx.map starts several children, so they cannot share one key: leave using(key=...) out, or start each with "
                "ctx.child under its own"
            )
        return [self.child_request(args, kwargs) for args, kwargs in map(self._arguments, inputs)]

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Start a run, with an id of its own unless `using` gave one; inside a transaction, if and when that commits.

        With an id that exists, return the handle of that run; raises RunConflictError if it is another's. Raises
        TypeError for arguments that do not fit the function, ValueError for a queue of `using` that the settings lack,
        PayloadError for a value the codec refuses,
        StartRefusedError where `using(when_full="drop")` finds no room in the rate, UnknownLimitError for a limit of
        the workflow that is not defined, and UndiscoveredWorkflowError if no installed app brings the workflow into
        workers.
        """
        return self._start([(self._start_options.id, args, kwargs)])[0]

    astart = in_async(start)

    def input(self, *args: P.args, **kwargs: P.kwargs) -> Input[P]:
        """Return the arguments of one run, for `start_many`; type checkers compare them with the function."""
        return Input(self.name, args, kwargs)

    def start_many(
        self, inputs: Iterable[Input[P]] | Iterable[Sequence[Any]], *, ids: Sequence[str] | None = None
    ) -> list[Handle[R_co]]:
        """Start a run for each `input(...)` or tuple of arguments, in one transaction and few statements.

        `ids` name the runs in order.
        """
        if self._start_options.id is not None:
            raise TypeError("start_many starts several runs, so they cannot share one id: pass ids=[...]")
        if self._start_options.key is not None:
            raise TypeError("start_many starts several runs, so they cannot share one key: start each with its own")
        given = [self._arguments(each) for each in inputs]
        if ids is not None and len(ids) != len(given):
            raise ValueError(f"start_many got {len(given)} inputs and {len(ids)} ids; pass one id for each input")
        names = ids if ids is not None else [None] * len(given)
        return self._start([(name, args, kwargs) for name, (args, kwargs) in zip(names, given, strict=True)])

    astart_many = in_async(start_many)

    def start_or_send(self, queue: str, body: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Send a message to the open run that has the key of `using(key=...)`, or start a run and send it the message.

        The arguments are those of a new run; an open one keeps its own. Both are one transaction. Returns the handle of
        the run that has the message. Raises what `start` and `Handle.send` raise, and InvalidTransitionError for an
        open run that is being cancelled or compensated.
        """
        options = self._start_options
        if options.key is None:
            raise TypeError("start_or_send needs a key: write .using(key=...).start_or_send(...)")
        if options.if_open is not None or options.debounce is not None:
            raise TypeError("start_or_send sends to the open run: leave out if_open=... and debounce=...")
        return Handle(*operations.start_or_send(self._request(), (options.id, args, kwargs), queue, body))

    astart_or_send = in_async(start_or_send)

    def open_run(self, *, key: str) -> Handle[R_co] | None:
        """Return the handle of the workflow's open run that has the key, or None."""
        found = operations.open_run(self.name, key)
        return None if found is None else Handle(found.id)

    aopen_run = in_async(open_run)

    def _start(self, calls: Sequence[tuple[str | None, tuple[Any, ...], dict[str, Any]]]) -> list[Handle[R_co]]:
        return [Handle(run_id, is_new) for run_id, is_new in operations.start(self._request(), calls)]

    def _request(self) -> operations.StartRequest:
        _check_is_discovered(self)
        return request_of(self, self.signature, self._start_options)

    def _arguments(self, given: Input[P] | Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(given, Input):
            if given.workflow != self.name:
                raise TypeError(
                    f"start_many of {self.name} got an input of {given.workflow}: write {self.__name__}.input(...)"
                )
            return given.args, dict(given.kwargs)
        if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
            raise TypeError(
                f"start_many and ctx.map take a tuple of arguments for each run, not {given!r}: write "
                f"{self.__name__}.input({given!r}), or ({given!r},)"
            )
        return tuple(given), {}


class WorkflowDecorator(Protocol):
    """The result of `@workflow(name=...)`: a decorator that keeps the function's types."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /
    ) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Workflow[P, R]: ...


@overload
def workflow(function: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(function: Callable[Concatenate[Context, P], R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    queue: str | None = None,
    mistakes: Mistakes | None = None,
    schedule: RuleLike | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    messages: Mapping[str, Any] | None = None,
    quiet: bool = False,
    on_end: OnEnd | None = None,
    when_exhausted: WhenExhausted = "fail",
    on: EventSource | None = None,
) -> WorkflowDecorator: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | None = None,
    mistakes: Mistakes | None = None,
    schedule: RuleLike | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    messages: Mapping[str, Any] | None = None,
    quiet: bool = False,
    on_end: OnEnd | None = None,
    when_exhausted: WhenExhausted = "fail",
    on: EventSource | None = None,
) -> Any:
    """Make a function a workflow: `@workflow` or `@workflow(name="shop.fulfil", queue="default")`.

    The function takes a context first. An `async def` gets an AsyncContext, and awaits its operations. `mistakes`
    replaces the setting MISTAKES: the classes of errors that, out of its own code, stop a run with nothing undone; `()`
    for none.

    `schedule` starts runs by itself: `cron("30 2 * * *", zone="Europe/Berlin")`, `every("6 hours")`, a list of them or
    their text. `migrate` and `durable schedules --sync` write the schedule, which has the workflow's name, into the
    database.

    `limit` is how many of its runs may go on at once: `Limit("crm", at_once=1, key=lambda tenant: tenant)`, or several,
    which a run holds together or not at all.

    `messages` are all messages that its runs accept, with the types of their bodies:
    `{"approved": Approval, "cancel": None}`. A send of another name or of a body that does not fit is refused with
    MessageNotAcceptedError, wherever this code is known; `ctx.queue.next("approved")` gives a body of that type. A body
    of JSON is made one: see `Queue.next`. Without it, runs accept any message.

    With `quiet`, lists of runs leave its runs out unless they have failed or are asked for: for one that runs each
    minute and has nothing to report.

    `on_end` is called with the RunInfo of each run that ends, in the commit that ends it, whatever ended it: a
    function, or its dotted path ("shop.orders.ended"). It writes rows of durable's database in that transaction, for at
    most five seconds, and has no other effect. If it raises, the run has not ended: a worker tries the end again later,
    and a verb raises EndRefusedError. A run that is recovered or replayed ends again, and it is called again.

    With `when_exhausted="hold"`, a step whose attempts are used up waits for a person, and the run stays open; "fail",
    the default, fails the step. It is the default of the steps' option of that name.

    With `on=event("order.paid")`, each event of this name starts a run with the event's body as its argument, once, in
    the transaction that publishes it (`durable.publish`). Its id is "<workflow>:<the event's id>".
    """
    chosen = check_mistakes(mistakes)

    def decorate(function: Callable[..., Any]) -> Workflow[Any, Any]:
        definition: Workflow[Any, Any] = Workflow(
            function, name, queue, chosen, schedule, limit, messages, quiet, on_end, when_exhausted, on
        )
        registry.register(definition, discovered=not apps.ready)
        return definition

    return decorate if function is None else decorate(function)


class StepDecorator(Generic[Output_contra]):
    """The result of `@step(rollback=handler)` for a type checker.

    It decorates functions whose output the handler takes.
    """

    if TYPE_CHECKING:  # at run time it is a function

        @overload
        def __call__(
            self: StepDecorator[R], function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> Callable[P, Coroutine[Any, Any, R]]: ...
        @overload
        def __call__(self: StepDecorator[R], function: Callable[P, R], /) -> Callable[P, R]: ...
        def __call__(self, function: Any, /) -> Any: ...


@overload
def step(function: F, /) -> F: ...
@overload
def step(
    *, name: str | None = None, rollback: None = None, **options: Unpack[CommonStepOptions]
) -> Callable[[F], F]: ...
@overload
def step(
    *,
    name: str | None = None,
    rollback: Callable[[RollbackContext, R], object],
    **options: Unpack[CommonStepOptions],
) -> StepDecorator[R]: ...
def step(function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Give a function a step's name and options: `@step` or `@step(name="charge", max_retries=5)`.

    The function itself is returned; `ctx.step(function, *args)` takes name and options from it. The name defaults to
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
    """Raise UndiscoveredWorkflowError if it is certain that no worker finds the workflow.

    A worker is set up like this process, so it has what was registered while Django was set up here. What was imported
    later it lacks, unless this process is a worker itself, or a test that passes its runs itself. Of code that is run
    by name (`__main__`) nothing is certain.
    """
    if registry.is_discovered(workflow.name) or runtime.is_replaced() or running_run() is not None:
        return
    is_test = hasattr(sys.modules.get("django.core.mail"), "outbox")  # set up by Django's and pytest's runners
    if is_test or "durable.worker.loop" in sys.modules or workflow.__module__ in ("__main__", "__mp_main__"):
        return
    config = apps.get_containing_app_config(workflow.__module__)
    if config is not None and workflow.__module__ == f"{config.name}.workflows":
        return
    raise UndiscoveredWorkflowError(workflow.name, registry.source_location(workflow), workflow.__module__)


def _scheduled(workflow: Workflow[Any, Any], name: str | None, rules: Rules) -> Rules:
    """Return the schedule's rules if the workflow can have them. Raises TypeError and ValueError."""
    if name is not None:
        check_name(name)
    args, kwargs = rules.options.args or (), rules.options.kwargs or {}
    try:
        workflow.signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"the schedule of {workflow.function.__qualname__} starts it with other arguments than it takes: {error}; write "
            "cron(..., args=[...], kwargs={...})"
        ) from None
    return rules


def _started_by(source: EventSource, function: Callable[..., Any], signature: inspect.Signature) -> str:
    from durable.operations.events import EventSource  # processes without such a workflow do without

    if not isinstance(source, EventSource):
        raise TypeError(f'on is an event, not {source!r:.64}: write on=event("order.paid"), with durable.event')
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"the workflow {function.__qualname__} is started by an event, with its body alone: {error}; write "
            f"def {function.__name__}(ctx: Context, body)"
        ) from None
    return source.name


def _called_at_end(function: OnEnd) -> EndFunction:
    from durable.operations.ends import CallAtEnd  # processes without such a workflow do without

    return CallAtEnd(function)


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
