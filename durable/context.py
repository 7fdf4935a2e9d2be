"""The contexts: the API that workflow code calls. One line per operation; all logic is in `durable.core`."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from durable.core import registry
from durable.core.bodies import BLOCK_CATCHES, BLOCK_CATCHES_DEFAULT, try_block
from durable.core.branches import join_branches, race_branches
from durable.core.children.maps import MapRequest, map_children
from durable.core.children.operations import ChildRequest, call_child, child_result, start_child
from durable.core.current import current_scope
from durable.core.duration import Duration, check_moment, parse_duration, parse_remaining
from durable.core.effects import Operation
from durable.core.loops import loop
from durable.core.message_claims import record_of
from durable.core.messages import Received, Wait, body_of, complete, mapped, receive, receive_one, refuse, send
from durable.core.numbers import check_whole
from durable.core.options import StepOptions, StepPolicy, options_of
from durable.core.records import OnFailure, WhenHeld
from durable.core.results import (
    AsyncQueueMessage,
    BlockCatch,
    BlockResult,
    Break,
    Continue,
    MapResult,
    QueueMessage,
    RaceResult,
    StepCatch,
    StepResult,
    Verdict,
)
from durable.core.rollback import compensate
from durable.core.scope import ReplayLogger, Scope
from durable.core.signatures import advised
from durable.core.simple_operations import get_version, publish, removed, rollback_checkpoint, sleep, tag
from durable.core.steps import STEP_CATCHES, STEP_CATCHES_DEFAULT, check_catch, step, try_step
from durable.core.tags import TagValue
from durable.drivers.aio import AsyncDriver
from durable.drivers.sync import SyncDriver

__all__ = ["AsyncChild", "AsyncContext", "AsyncLink", "Child", "Context", "Link", "step_definition"]

if TYPE_CHECKING:
    from durable.core.links import OpenLink
    from durable.definitions import Input, Workflow
    from durable.handles import Handle

P = ParamSpec("P")
B = TypeVar("B")
R = TypeVar("R")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
logger = logging.getLogger("durable.workflow")

D = TypeVar("D", SyncDriver, AsyncDriver)

_RECEIVING = (
    'write queue.next("approved"), or queue.next("approval", names=["approved", "rejected"]): the wait has a name, and '
    "names are the queues it waits for"
)


class HasId(Protocol):
    """An object with a run's id, such as a handle; all that `send` needs."""

    @property
    def id(self) -> str:
        """The run's id."""


class Done:
    """The answer of a call that has nothing to wait for. Async code may await it; it is None then."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE: Final = Done()


class _Shared(Generic[D]):
    """The members of both contexts that are not awaited."""

    def __init__(self, scope: Scope, driver: D) -> None:
        self._scope = scope
        self._driver: D = driver
        self.logger = ReplayLogger(logger, scope)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._scope.journal.run.id

    @property
    def scheduled_for(self) -> datetime | None:
        """The moment of the schedule's tick that started the run; None for a run that no schedule started. In UTC.

        It is not the time of the start: a tick that waited or was made up for keeps its moment.
        """
        moment = self._scope.journal.scheduled_for
        return None if moment is None else datetime.fromisoformat(moment)

    @property
    def random(self) -> random.Random:
        """A random generator seeded by run and location: it draws the same numbers in each pass."""
        return self._scope.determinism.random

    def is_evicted(self) -> bool:
        """Return True if the pass has to end: the worker stops, or an operator has asked to pause or cancel the run.

        The next operation ends the pass. Code that takes long between two operations may check this.
        """
        return bool(self._scope.journal.eviction_reason())

    def eviction_reason(self) -> str:
        """Return why the pass has to end; "" while it has not.

        "cancel", "cancel_rollback" or "pause": an operator has asked for that. "shutdown": this worker stops, and
        another one continues the run. "lease_lost": another worker may have the run already. "commits_lost": the
        database has lost what this pass has written, and the run is loaded again.
        """
        return self._scope.journal.eviction_reason()

    def now(self) -> datetime:
        """Return the time of the newest record that this code has seen: the same in each pass. Aware, in UTC."""
        return self._scope.determinism.moment

    def uuid4(self) -> uuid.UUID:
        """Return a UUID drawn from `random`."""
        return self._scope.determinism.uuid4()

    def status(
        self, text: str, *, done: float | None = None, of: float | None = None, eta: datetime | None = None
    ) -> Done:
        """Show what the run does, and how far it is: `status("waiting for the courier", done=3, of=7)`.

        The newest status wins. It is not an entry of the history. It is written with the next commit of the run, or by
        its worker within a second, and costs no commit of its own. `eta` is when the run expects to be done, an aware
        datetime. Async code may await the call, and need not. `text` is plain and has at most 500 characters. Raises
        ValueError for a longer one and for numbers below 0, and TypeError for other types.
        """
        _innermost(self._scope).show(text, done, of, eta)
        return DONE


class Context(_Shared[SyncDriver]):
    """The context of a synchronous workflow; a body receives one of its own.

    Each operation is recorded under its name, unique within the scope, and returns what was recorded. All of them
    raise EntryInProgressError, HistoryDivergedError and, for names, TypeError or ValueError.
    """

    @property
    def queue(self) -> Queue:
        """Messages: `next`, `next_batch` and `send`."""
        return Queue(self._scope, self._driver)

    def _do(self, label: str, operation: Operation) -> Any:
        return self._driver.operate(self._scope, label, operation)

    # A coroutine function is a function too, so its overload comes first. Then the same two for a function of @step.

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> R: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> R: ...
    @overload
    def step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> R: ...
    @overload
    def step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> R: ...
    def step(self, name: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]  # checkers do not take *Any for *Ts
        """Call a function and record its result: `step(name, fn, *args, **options)`, or `step(fn, *args)` of a `@step`.

        Positional arguments are the function's, keywords are options (see `StepOptions`). Returns what was recorded.
        Raises StepExhaustedError after the last attempt, CriticalError, RollbackError, and PayloadError for a result
        that cannot be recorded.
        """
        name, function, args, chosen = _step_call(name, args, options)
        return self._do(f'step "{name}"', step(self._scope, name, function, args, chosen))

    @overload
    def try_step(
        self,
        name: str,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> StepResult[R]: ...
    @overload
    def try_step(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> StepResult[R]: ...
    @overload
    def try_step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> StepResult[R]: ...
    @overload
    def try_step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> StepResult[R]: ...
    def try_step(  # type: ignore[misc]  # checkers do not take *Any for *Ts
        self, name: Any, /, *args: Any, catch: Collection[str] = STEP_CATCHES_DEFAULT, **options: Any
    ) -> Any:
        """Call a function as `step` does, but return a terminal failure of a kind in `catch` instead of raising it."""
        name, function, args, chosen = _step_call(name, args, options)
        caught = check_catch(catch, STEP_CATCHES)
        return self._do(f'step "{name}"', try_step(self._scope, name, function, args, chosen, caught))

    def try_block(
        self,
        name: str,
        body: Callable[[Context], R],
        catch: BlockCatch | Collection[BlockCatch] = BLOCK_CATCHES_DEFAULT,
    ) -> BlockResult[R]:
        """Run `body(ctx)`, and return a terminal failure of an operation in it instead of raising it.

        `catch` lists the kinds of failures to return. A plain exception of the body's own code is raised.
        """
        caught = check_catch(catch, BLOCK_CATCHES)
        result: BlockResult[R] = self._do(f'try block "{name}"', try_block(self._scope, name, body, caught))
        return result

    @overload
    def loop(
        self,
        name: str,
        body: Callable[[Context], Break[R] | Continue[None] | None],
        *,
        history_prune_interval: int = ...,
        history_size: int | None = ...,
    ) -> R: ...
    @overload
    def loop(
        self,
        name: str,
        body: Callable[[Context, S], Break[R] | Continue[S]],
        state: S,
        history_prune_interval: int = ...,
        history_size: int | None = ...,
    ) -> R: ...
    def loop(
        self,
        name: str,
        body: Callable[..., Any],
        state: Any = None,
        history_prune_interval: int = 20,
        history_size: int | None = None,
    ) -> Any:
        """Call `body(ctx, state)` until it returns `Break(value)`; return that value.

        `Continue(state)` begins the next iteration with another state. Without a state, `body(ctx)` is called, which
        may also return None to continue. Each iteration is a scope of its own. After every `history_prune_interval`
        iterations, the records of all but the newest `history_size` (by default: the interval) are deleted.
        """
        operation = loop(self._scope, name, body, state, history_prune_interval, history_size)
        return self._do(f'loop "{name}"', operation)

    def sleep(self, name: str, duration: Duration) -> None:
        """Continue after `duration`: seconds, a timedelta, or text such as "3 hours".

        The run is parked; no worker waits. With a negative duration the run continues at once.
        """
        self._do(f'sleep "{name}"', sleep(self._scope, name, parse_remaining(duration), None))

    def sleep_until(self, name: str, moment: datetime) -> None:
        """Continue at `moment`, an aware datetime."""
        self._do(f'sleep "{name}"', sleep(self._scope, name, None, check_moment(moment)))

    def join(
        self, name: str, branches: Mapping[str, Callable[[Context], R]], *, at_once: int | None = None
    ) -> dict[str, R]:
        """Run all branches concurrently until all have settled. Return their outputs by name.

        With `at_once`, at most that many have begun and not ended at a time, in the order of `branches`; one that
        sleeps or waits counts. Raises JoinError if a branch has failed.
        """
        outputs: dict[str, R] = self._do(f'join "{name}"', join_branches(self._scope, name, branches, at_once))
        return outputs

    def race(self, name: str, branches: Mapping[str, Callable[[Context], R]]) -> RaceResult[R]:
        """Run the branches concurrently until one has completed, and cancel the others. Return its name and value.

        A message that a cancelled branch received and did nothing with returns to the inbox. Raises RaceError if all
        branches have failed.
        """
        result: RaceResult[R] = self._do(f'race "{name}"', race_branches(self._scope, name, branches))
        return result

    @overload
    def child(self, name: str, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def child(self, name: str, workflow: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def child(self, name: str, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Start a run of another workflow as a child, wait for its end, and return its output.

        Arguments are the workflow's; options are given with `workflow.using(...)`: `id`, `key`, `queue`, `delay`,
        `deadline`, `priority`, `when_parent_ends`, `rollback` and others. The workflow may be given by its name. Raises
        ChildFailedError, ChildCancelledError, RunConflictError if the id is another run's, KeyConflictError if an open
        run has the key, and DeadlockError if the child could never begin.
        """
        return self._do(f'child "{name}"', call_child(self._scope, name, _child_request(workflow, args, kwargs)))

    @overload
    def start_child(self, name: str, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    def start_child(self, name: str, workflow: str, /, *args: Any, **kwargs: Any) -> Child[Any]: ...
    def start_child(self, name: str, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Start a child as `child` does, without waiting for it; `child.result(...)` waits."""
        request = _child_request(workflow, args, kwargs)
        start = mapped(
            start_child(self._scope, name, request), lambda found: Child(self._scope, self._driver, request, *found)
        )
        return self._do(f'child "{name}"', start)

    @overload
    def map(
        self,
        name: str,
        workflow: Workflow[P, R],
        inputs: Iterable[Input[P]] | Iterable[Sequence[Any]],
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> MapResult[R]: ...
    @overload
    def map(
        self,
        name: str,
        workflow: str,
        inputs: Iterable[Sequence[Any]],
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> MapResult[Any]: ...
    def map(
        self,
        name: str,
        workflow: Any,
        inputs: Any,
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> Any:
        """Start a child for each input, and return how all of them have ended.

        An input is a tuple of the workflow's arguments, or its `input(...)`. At most `at_once` children run at a time,
        by default all. When one fails or is cancelled, the others are cancelled and MapError is raised; with
        `on_failure="finish"` they go on, and the result has those that have failed. A child whose step waits for a
        person (`when_exhausted="hold"`, `once=True`) keeps its place among the `at_once`; with `when_held="free"` the
        next child begins meanwhile, and a settled child goes on at once, whether or not that makes them one more.
        `workflow.using(...)` says how each child is started, without an id.

        The outputs are recorded in this run's history: let children return little, such as the key of a row.
        """
        request = _map_request(workflow, inputs, at_once, on_failure, when_held)
        return self._do(f'map "{name}"', map_children(self._scope, name, request))

    def link(
        self, name: str, *, timeout: Duration | None = None, verify: str | Callable[..., Any] | None = None
    ) -> Link:
        """Open an address at which somebody outside answers the run, once; `link.url` is the address.

        It accepts one POST, until `timeout` has passed or the run has ended; `link.wait` returns its body. A GET shows
        a page with a button. `verify`, a function at the top level of a module or its name, decides whether a request
        may answer: it is called with the raw body and the headers and has to return True
        (`durable.hooks.signatures`). Without it, whoever has the address may answer.
        """
        opening = mapped(
            _opening(self._scope, name, timeout, verify), lambda found: Link(self._scope, self._driver, found)
        )
        link: Link = self._do(f'link "{name}"', opening)
        return link

    def event(
        self, name: str, event: str, *, key: str, within: Duration | None = None, timeout: Duration | None = None
    ) -> Any:
        """Wait for an event that is published with this key, and return its body: `durable.publish(event, body, key=)`.

        Events count that are published from the beginning of the wait on; with `within`, also one that was published up
        to that long before. The first of them is received. In a loop, `within` does not give an event again that an
        earlier iteration has got. The key is compared whole. Raises EventTimeoutError when `timeout` has passed,
        TypeError and ValueError for a name or a key that no event can have.
        """
        return self._do(f'event "{name}"', _awaiting(self._scope, name, event, key, within, timeout))

    def ask_person(
        self,
        name: str,
        form: Any = None,
        *,
        permission: str | None = None,
        to: Any = None,
        about: Any = None,
        not_by: Any = None,
        approvals: int = 1,
        remind: Duration | None = None,
        timeout: Duration | None = None,
        text: str = "",
        escalate: tuple[Duration, Any] | None = None,
        mail: bool | None = None,
    ) -> Verdict:
        """Ask people, and wait for what they decide: `data`, `by`, `at`, `comment`.

        `form` is a Django form at the top level of a module, or its name; `data` is what it says. Without one people
        say yes or no, and `data` is True or False. Who may answer: a user or the members of a group (`to`), whoever has
        a `permission`, or who is both; `to` may be the mail address of somebody without an account. `not_by` are people
        who may not: users, "starter" for the person who started the run, an earlier verdict, or a list of these. With
        `approvals=2` two different people have to agree, and a refusal decides at once.

        `remind` is the time between two mails, `mail=True` sends one at once. `escalate=("3 days", boss)` asks somebody
        else after that time. `text` and `about`, an instance of a model, are shown beside the form.

        Raises PersonTimeoutError when `timeout` has passed; without it `DURABLE["ASK_TIMEOUT"]` counts.
        """
        asking = _asking(self._scope, name, locals())
        verdict: Verdict = self._do(f'question "{name}"', asking)
        return verdict

    def rollback_checkpoint(self, name: str) -> None:
        """Allow rollback handlers for the steps that follow, in this scope and in scopes inside it."""
        self._do(f'checkpoint "{name}"', rollback_checkpoint(self._scope, name))

    def tag(self, /, **tags: TagValue) -> None:
        """Tag the run, so that `Run.objects.tagged` finds it: `ctx.tag(stage="paid")`.

        A tag that the run has already gets the new value. The tags are written with the next commit of the run, at the
        latest before its next step begins, and a replay does not write them again. Raises ValueError for an invalid
        tag, and for more than 8 in all; TypeError for a value of another type.
        """
        self._do("tag()", tag(self._scope, tags))

    def publish(self, name: str, value: Any) -> None:
        """Publish a value of the run: `publish("quote", {"price": 12})`.

        An entry of the history: it is recorded at once and once, and `handle.view(name)` has it from then on. A name
        may be used again, and the newest value of a name is shown. A number, a text, `Markdown(text)`, a table (a list
        of dicts) and other JSON have a form of their own on pages. Raises PayloadError for a value that cannot be
        recorded.
        """
        self._do(f'publish "{name}"', publish(self._scope, name, value))

    def compensate(self, reason: str) -> None:
        """Run the rollback handlers of all completed steps, the newest first, and continue.

        `reason` is for operators. Later steps may be undone by a later compensation or failure. Raises ValueError in a
        branch of a join or race, and RollbackCheckpointError if no checkpoint came before.
        """
        self._do("compensate()", compensate(self._scope, reason))

    def removed(self, name: str, kind: str) -> None:
        """Mark an operation that was deleted from the code, so that histories which contain it still replay.

        Call it where the operation was. `kind` is the kind of its entry: "step", "sleep", ...
        """
        self._do(f'removed "{name}"', removed(self._scope, name, kind))

    def get_version(self, name: str, latest: int) -> int:
        """Return this run's version of the code path `name`, and record it.

        A run that reaches this call for the first time gets `latest`; a run whose history already continues past it
        gets 1.
        """
        version: int = self._do(f'version "{name}"', get_version(self._scope, name, latest))
        return version


class _SharedChild(Generic[R, D]):
    """The base of both kinds of children. `id` is the id of the child's run."""

    def __init__(self, scope: Scope, driver: D, request: ChildRequest, location: str, child_id: str) -> None:
        self.id = child_id
        self._scope = scope
        self._driver: D = driver
        self._request = request
        self._location = location

    def __repr__(self) -> str:
        return f"<child {self.id} of {self._request.workflow}>"

    @property
    def handle(self) -> Handle[R]:
        """The handle of the child's run."""
        handle: Handle[R] = self._request.handle(self.id)
        return handle

    def _result(self, name: str, timeout: Duration | None) -> Any:
        scope = _innermost(self._scope)
        limit = None if timeout is None else parse_remaining(timeout, "a timeout")
        operation = child_result(scope, name, self._location, self.id, self._request, limit)
        return self._driver.operate(scope, f'wait for child "{name}"', operation)


class Child(_SharedChild[R, SyncDriver]):
    """A child that a synchronous workflow has started: `id`, `handle`, and `result`."""

    def result(self, name: str, timeout: Duration | None = None) -> R:
        """Wait for the child's end, and return its output; the wait is recorded under `name`.

        Raises ChildFailedError, ChildCancelledError, and ChildTimeoutError when `timeout` has passed; the child
        continues.
        """
        output: R = self._result(name, timeout)
        return output


class AsyncChild(_SharedChild[R, AsyncDriver]):
    """A child that an async workflow has started: `id`, `handle`, and `result`, awaited."""

    async def result(self, name: str, timeout: Duration | None = None) -> R:  # noqa: ASYNC109  # of the wait, recorded
        """Wait for the child's end, and return its output. See `Child.result`."""
        output: R = await self._result(name, timeout)
        return output


class _SharedLink(Generic[D]):
    """What both links have."""

    def __init__(self, scope: Scope, driver: D, found: OpenLink) -> None:
        self._scope = scope
        self._driver: D = driver
        self._found = found

    @property
    def url(self) -> str:
        """The absolute address, with a token that nobody can guess. The same in each pass.

        Give it to a step. Where the run records a value that contains it, the token is hidden.
        """
        return self._found.url

    @property
    def expires_at(self) -> datetime | None:
        """When the link stops to accept an answer; None: not before the run ends."""
        return self._found.expires_at

    def __repr__(self) -> str:
        return f"<link {self._found.name!r}>"  # without its token

    def _wait(self, name: str, timeout: Duration | None) -> Any:
        from durable.core.links import answer_of

        scope = _innermost(self._scope)
        limit = None if timeout is None else parse_remaining(timeout, "a timeout")
        return self._driver.operate(scope, f'wait for link "{name}"', answer_of(scope, self._found, name, limit))


class Link(_SharedLink[SyncDriver]):
    """A link that a synchronous workflow has opened: `url`, `expires_at`, and `wait`."""

    def wait(self, name: str, timeout: Duration | None = None) -> Any:
        """Wait for the answer, and return its body; the wait is recorded under `name`.

        The body is what JSON, a form (a dict of texts and lists) or text says, by the content type of the request;
        bytes for any other. Raises LinkTimeoutError when `timeout` has passed or the link has expired.
        """
        return self._wait(name, timeout)


class AsyncLink(_SharedLink[AsyncDriver]):
    """A link that an async workflow has opened: `url`, `expires_at`, and `wait`, awaited."""

    async def wait(self, name: str, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109  # of the wait, recorded
        """Wait for the answer, and return its body. See `Link.wait`."""
        return await self._wait(name, timeout)


class _SharedQueue(Generic[D]):
    """The logic of both queues."""

    def __init__(self, scope: Scope, driver: D) -> None:
        self._scope = scope
        self._driver: D = driver

    def _next(self, wait: Wait) -> Any:
        return self._driver.operate(
            self._scope, f'wait "{wait.name}"', mapped(receive_one(self._scope, wait), partial(self._message, wait))
        )

    def _next_batch(self, wait: Wait) -> Any:
        return self._driver.operate(
            self._scope, f'wait "{wait.name}"', mapped(receive(self._scope, wait), partial(self._messages, wait))
        )

    def _send(self, queue: str, body: Any, to: str | HasId | None) -> Any:
        return self._driver.operate(self._scope, f'send to "{queue}"', send(self._scope, queue, body, _run_id(to)))

    def _messages(self, wait: Wait, received: list[Received]) -> list[QueueMessage[Any, Any]]:
        return [self._message(wait, each) for each in received]

    def _message(self, wait: Wait, received: Received) -> QueueMessage[Any, Any]:
        def answer(message_id: str, response: Any) -> Any:
            scope = self._here()
            return self._driver.operate(scope, "message.complete()", complete(scope, message_id, response))

        def decline(message_id: str, reason: str) -> Any:
            scope = self._here()
            return self._driver.operate(scope, "message.refuse()", refuse(scope, message_id, reason))

        def is_answered(message_id: str) -> bool:
            receipts = self._here().receipts
            if receipts.wait_for(message_id) is None:  # its scope has ended, and the record stands
                return bool(record_of(received.entry, message_id)["completed"])
            return receipts.is_completed(message_id)

        record = received.record
        return QueueMessage(
            id=record["id"],
            name=record["name"],
            body=body_of(self._scope, wait, received),
            sent_at=datetime.fromisoformat(record["sent_at"]),
            _complete=answer if wait.is_completable else None,
            _is_completed=is_answered if wait.is_completable else None,
            _refuse=decline if wait.is_completable else None,
        )

    def _here(self) -> Scope:
        """Return the scope whose code runs now: this queue's, or one inside it."""
        return _innermost(self._scope)


class Queue(_SharedQueue[SyncDriver]):
    """The messages of a synchronous workflow."""

    @overload
    def next(
        self,
        name: str,
        of: type[B],
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> QueueMessage[B]: ...
    @overload
    def next(
        self,
        name: str,
        of: UnionType | Sequence[str] | None = None,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> QueueMessage: ...
    @advised(_RECEIVING)
    def next(
        self,
        name: str,
        of: Any = None,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Any:
        """Wait for one message and return it.

        The wait is called `name`. It receives from the queues in `names`; without `names`, from the queue called
        `name`; with `names=ANY`, from any queue. The wait ends when `timeout` has passed or at `until`, an aware
        datetime, whichever is earlier; then MessageTimeoutError is raised. A wait that is over when it begins, with
        `timeout=0` for example, receives a message that is already in the inbox. With `completable`, the code has to
        complete or refuse the message.

        `next("approved", Approval)` gives a message whose `body` is an `Approval`. `of` is the type: a dataclass, a
        TypedDict, a named tuple, a pydantic model, an Enum, a type of which JSON is made, Decimal, UUID, a date, a
        time, a length of time, or a list, dict, tuple, set or union of such. Without it, the type is that of
        `@workflow(messages=...)`, if the workflow declares any. A body that was sent as JSON is made a value of the
        type; one that is of it already stays as it is. For a body that does not fit, MessageBodyError is raised, and
        the message counts as received. (In the place of `of`, queues may be given as `names`.)
        """
        return self._next(_wait(name, of, names, 1, timeout, until, completable))

    @overload
    def next_batch(
        self,
        name: str,
        of: type[B],
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> list[QueueMessage[B]]: ...
    @overload
    def next_batch(
        self,
        name: str,
        of: UnionType | Sequence[str] | None = None,
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> list[QueueMessage]: ...
    @advised(_RECEIVING)
    def next_batch(
        self,
        name: str,
        of: Any = None,
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Any:
        """Return up to `count` messages as soon as at least one has arrived, or `[]` when the wait ends without one.

        The queues, the type of the bodies and the end of the wait are those of `next`. With `timeout=0`, return only
        what is already in the inbox. A batch ends before a message whose body does not fit; the next receive gets that
        message alone, and raises MessageBodyError.
        """
        return self._next_batch(_wait(name, of, names, count, timeout, until, completable))

    def send(self, queue: str, body: Any, to: str | HasId | None = None) -> None:
        """Send a message once, to this run or to the run `to` (an id or a handle).

        Raises RunNotFoundError, InvalidTransitionError if that run has ended, and MessageNotAcceptedError if its
        workflow declares its messages and this is none of them.
        """
        self._send(queue, body, to)


class AsyncContext(_Shared[AsyncDriver]):
    """The context of an async workflow: the same operations, awaited. Bodies are coroutine functions."""

    @property
    def queue(self) -> AsyncQueue:
        """Messages: `next`, `next_batch` and `send`, awaited."""
        return AsyncQueue(self._scope, self._driver)

    def _do(self, label: str, operation: Operation) -> Coroutine[Any, Any, Any]:
        return self._driver.operate(self._scope, label, operation)

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, R]: ...
    def step(self, name: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]  # checkers do not take *Any for *Ts
        """See `Context.step`."""
        name, function, args, chosen = _step_call(name, args, options)
        return self._do(f'step "{name}"', step(self._scope, name, function, args, chosen))

    @overload
    def try_step(
        self,
        name: str,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, StepResult[R]]: ...
    @overload
    def try_step(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, StepResult[R]]: ...
    @overload
    def try_step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, StepResult[R]]: ...
    @overload
    def try_step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        catch: StepCatch | Collection[StepCatch] = ...,
        **options: Unpack[StepOptions[R]],
    ) -> Coroutine[Any, Any, StepResult[R]]: ...
    def try_step(  # type: ignore[misc]  # checkers do not take *Any for *Ts
        self, name: Any, /, *args: Any, catch: Collection[str] = STEP_CATCHES_DEFAULT, **options: Any
    ) -> Any:
        """See `Context.try_step`."""
        name, function, args, chosen = _step_call(name, args, options)
        caught = check_catch(catch, STEP_CATCHES)
        return self._do(f'step "{name}"', try_step(self._scope, name, function, args, chosen, caught))

    def try_block(
        self,
        name: str,
        body: Callable[[AsyncContext], Coroutine[Any, Any, R]],
        catch: BlockCatch | Collection[BlockCatch] = BLOCK_CATCHES_DEFAULT,
    ) -> Coroutine[Any, Any, BlockResult[R]]:
        """See `Context.try_block`."""
        caught = check_catch(catch, BLOCK_CATCHES)
        return self._do(f'try block "{name}"', try_block(self._scope, name, body, caught))

    @overload
    def loop(
        self,
        name: str,
        body: Callable[[AsyncContext], Coroutine[Any, Any, Break[R] | Continue[None] | None]],
        *,
        history_prune_interval: int = ...,
        history_size: int | None = ...,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def loop(
        self,
        name: str,
        body: Callable[[AsyncContext, S], Coroutine[Any, Any, Break[R] | Continue[S]]],
        state: S,
        history_prune_interval: int = ...,
        history_size: int | None = ...,
    ) -> Coroutine[Any, Any, R]: ...
    def loop(
        self,
        name: str,
        body: Callable[..., Any],
        state: Any = None,
        history_prune_interval: int = 20,
        history_size: int | None = None,
    ) -> Any:
        """See `Context.loop`."""
        operation = loop(self._scope, name, body, state, history_prune_interval, history_size)
        return self._do(f'loop "{name}"', operation)

    def sleep(self, name: str, duration: Duration) -> Coroutine[Any, Any, None]:
        """See `Context.sleep`."""
        return self._do(f'sleep "{name}"', sleep(self._scope, name, parse_remaining(duration), None))

    def sleep_until(self, name: str, moment: datetime) -> Coroutine[Any, Any, None]:
        """See `Context.sleep_until`."""
        return self._do(f'sleep "{name}"', sleep(self._scope, name, None, check_moment(moment)))

    def join(
        self,
        name: str,
        branches: Mapping[str, Callable[[AsyncContext], Awaitable[R]]],
        *,
        at_once: int | None = None,
    ) -> Coroutine[Any, Any, dict[str, R]]:
        """See `Context.join`."""
        return self._do(f'join "{name}"', join_branches(self._scope, name, branches, at_once))

    def race(
        self, name: str, branches: Mapping[str, Callable[[AsyncContext], Awaitable[R]]]
    ) -> Coroutine[Any, Any, RaceResult[R]]:
        """See `Context.race`."""
        return self._do(f'race "{name}"', race_branches(self._scope, name, branches))

    @overload
    def child(
        self, name: str, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def child(self, name: str, workflow: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...
    def child(self, name: str, workflow: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """See `Context.child`."""
        return self._do(f'child "{name}"', call_child(self._scope, name, _child_request(workflow, args, kwargs)))

    @overload
    def start_child(
        self, name: str, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, AsyncChild[R]]: ...
    @overload
    def start_child(
        self, name: str, workflow: str, /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, AsyncChild[Any]]: ...
    def start_child(self, name: str, workflow: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """See `Context.start_child`."""
        request = _child_request(workflow, args, kwargs)
        start = mapped(
            start_child(self._scope, name, request),
            lambda found: AsyncChild(self._scope, self._driver, request, *found),
        )
        return self._do(f'child "{name}"', start)

    @overload
    def map(
        self,
        name: str,
        workflow: Workflow[P, R],
        inputs: Iterable[Input[P]] | Iterable[Sequence[Any]],
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> Coroutine[Any, Any, MapResult[R]]: ...
    @overload
    def map(
        self,
        name: str,
        workflow: str,
        inputs: Iterable[Sequence[Any]],
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> Coroutine[Any, Any, MapResult[Any]]: ...
    def map(
        self,
        name: str,
        workflow: Any,
        inputs: Any,
        *,
        at_once: int | None = None,
        on_failure: Literal["stop", "finish"] = "stop",
        when_held: Literal["keep", "free"] = "keep",
    ) -> Coroutine[Any, Any, Any]:
        """See `Context.map`."""
        request = _map_request(workflow, inputs, at_once, on_failure, when_held)
        return self._do(f'map "{name}"', map_children(self._scope, name, request))

    def link(
        self, name: str, *, timeout: Duration | None = None, verify: str | Callable[..., Any] | None = None
    ) -> Coroutine[Any, Any, AsyncLink]:
        """See `Context.link`."""
        opening = mapped(
            _opening(self._scope, name, timeout, verify), lambda found: AsyncLink(self._scope, self._driver, found)
        )
        return self._do(f'link "{name}"', opening)

    def event(
        self, name: str, event: str, *, key: str, within: Duration | None = None, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, Any]:
        """See `Context.event`."""
        return self._do(f'event "{name}"', _awaiting(self._scope, name, event, key, within, timeout))

    def ask_person(
        self,
        name: str,
        form: Any = None,
        *,
        permission: str | None = None,
        to: Any = None,
        about: Any = None,
        not_by: Any = None,
        approvals: int = 1,
        remind: Duration | None = None,
        timeout: Duration | None = None,
        text: str = "",
        escalate: tuple[Duration, Any] | None = None,
        mail: bool | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """See `Context.ask_person`."""
        return self._do(f'question "{name}"', _asking(self._scope, name, locals()))

    def rollback_checkpoint(self, name: str) -> Coroutine[Any, Any, None]:
        """See `Context.rollback_checkpoint`."""
        return self._do(f'checkpoint "{name}"', rollback_checkpoint(self._scope, name))

    def tag(self, /, **tags: TagValue) -> Coroutine[Any, Any, None]:
        """See `Context.tag`."""
        return self._do("tag()", tag(self._scope, tags))

    def publish(self, name: str, value: Any) -> Coroutine[Any, Any, None]:
        """See `Context.publish`."""
        return self._do(f'publish "{name}"', publish(self._scope, name, value))

    def compensate(self, reason: str) -> Coroutine[Any, Any, None]:
        """See `Context.compensate`."""
        return self._do("compensate()", compensate(self._scope, reason))

    def removed(self, name: str, kind: str) -> Coroutine[Any, Any, None]:
        """See `Context.removed`."""
        return self._do(f'removed "{name}"', removed(self._scope, name, kind))

    def get_version(self, name: str, latest: int) -> Coroutine[Any, Any, int]:
        """See `Context.get_version`."""
        return self._do(f'version "{name}"', get_version(self._scope, name, latest))


class AsyncQueue(_SharedQueue[AsyncDriver]):
    """The messages of an async workflow."""

    @overload
    def next(
        self,
        name: str,
        of: type[B],
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Coroutine[Any, Any, AsyncQueueMessage[B]]: ...
    @overload
    def next(
        self,
        name: str,
        of: UnionType | Sequence[str] | None = None,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Coroutine[Any, Any, AsyncQueueMessage]: ...
    @advised(_RECEIVING)
    def next(
        self,
        name: str,
        of: Any = None,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Any:
        """See `Queue.next`."""
        return self._next(_wait(name, of, names, 1, timeout, until, completable))

    @overload
    def next_batch(
        self,
        name: str,
        of: type[B],
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Coroutine[Any, Any, list[AsyncQueueMessage[B]]]: ...
    @overload
    def next_batch(
        self,
        name: str,
        of: UnionType | Sequence[str] | None = None,
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Coroutine[Any, Any, list[AsyncQueueMessage]]: ...
    @advised(_RECEIVING)
    def next_batch(
        self,
        name: str,
        of: Any = None,
        count: int = 1,
        timeout: Duration | None = None,
        completable: bool = False,
        until: datetime | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Any:
        """See `Queue.next_batch`."""
        return self._next_batch(_wait(name, of, names, count, timeout, until, completable))

    def send(self, queue: str, body: Any, to: str | HasId | None = None) -> Coroutine[Any, Any, None]:
        """See `Queue.send`."""
        sent: Coroutine[Any, Any, None] = self._send(queue, body, to)
        return sent


# -- parsing of calls


def step_definition(function: Callable[..., Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and options that `@step` gave the function, or None.

    A mock has any attribute, so the attribute counts only if it is a tuple.
    """
    found = getattr(function, "_durable_step", None)
    return found if isinstance(found, tuple) else None


def _step_call(
    name: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, Callable[..., Any], tuple[Any, ...], StepPolicy]:
    """Return name, function, the function's arguments and options of a step call in either form."""
    if callable(name):
        definition = step_definition(name)
        if definition is None:
            raise TypeError(
                f"{name!r} is not decorated with @step, so the step has no name: write ctx.step(name, fn, *args), or "
                "decorate the function"
            )
        return definition[0], name, args, options_of({**definition[1], **options})
    if not args or not callable(args[0]):
        found = f"found {args[0]!r}" if args else "found none"
        raise TypeError(f'step "{name}" needs a function after its name, {found}: write ctx.step(name, fn, *args)')
    function = args[0]
    definition = step_definition(function)
    if definition is not None:
        options = {**definition[1], **options}
    return name, function, args[1:], options_of(options)


def _child_request(workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChildRequest:
    """Return the request to start a child of a workflow, given by its definition or its name."""
    definition = registry.get(workflow) if isinstance(workflow, str) else workflow
    if not hasattr(definition, "child_request"):
        raise TypeError(
            f"a child is started of a workflow or of its name, not of {workflow!r}: decorate it with @workflow"
        )
    request: ChildRequest = definition.child_request(args, kwargs)
    return request


def _opening(scope: Scope, name: str, timeout: Duration | None, verify: str | Callable[..., Any] | None) -> Operation:
    from durable.core.links import open_link  # loaded in every process that executes passes

    return open_link(scope, name, None if timeout is None else parse_duration(timeout), verify)


def _awaiting(
    scope: Scope, name: str, event: str, key: str, within: Duration | None, timeout: Duration | None
) -> Operation:
    from durable.core.events import await_event  # loaded in every process that executes passes

    earlier = None if within is None else parse_duration(within)
    return await_event(
        scope, name, event, key, earlier, None if timeout is None else parse_remaining(timeout, "a timeout")
    )


def _asking(scope: Scope, name: str, given: Mapping[str, Any]) -> Operation:
    from durable.core.people import ask_person, asked_of  # loaded by workflows that ask

    options = {each: given[each] for each in given.keys() - {"self", "name", "timeout"}}
    timeout = given["timeout"]
    limit = None if timeout is None else parse_remaining(timeout, "a timeout")
    return ask_person(scope, name, asked_of(**options), limit)


def _map_request(workflow: Any, inputs: Any, at_once: Any, on_failure: Any, when_held: Any) -> MapRequest:
    """Return the request to start a map's children of a workflow, given by its definition or its name."""
    definition = registry.get(workflow) if isinstance(workflow, str) else workflow
    if not hasattr(definition, "map_requests"):
        raise TypeError(
            f"a map starts children of a workflow or of its name, not of {workflow!r}: decorate it with @workflow"
        )
    if at_once is not None:
        check_whole("at_once", at_once, least=1, or_else=", or None for all children at a time")
    if on_failure not in list(OnFailure):
        raise ValueError(f'on_failure is "stop" or "finish", not {on_failure!r}')
    if when_held not in list(WhenHeld):
        raise ValueError(f'when_held is "keep" or "free", not {when_held!r}')
    children = definition.map_requests(inputs)
    return MapRequest(
        workflow=definition.name, children=children, at_once=at_once, on_failure=on_failure, when_held=when_held
    )


def _innermost(scope: Scope) -> Scope:
    """Return the scope whose code runs now if it belongs to the same pass; else this one."""
    here = current_scope()
    return here if here is not None and here.journal is scope.journal else scope


def _wait(
    name: str,
    of: Any,
    names: Sequence[str] | None,
    count: int,
    timeout: Duration | None,
    until: datetime | None,
    completable: bool,
) -> Wait:
    if names is None and not isinstance(of, type) and isinstance(of, Collection):  # queues, given by position
        of, names = None, of
    limit = None if timeout is None else parse_remaining(timeout, "a timeout")
    moment = None if until is None else check_moment(until, "until")
    return Wait(name=name, names=names, count=count, timeout=limit, until=moment, is_completable=completable, of=of)


def _run_id(to: Any) -> str | None:
    run_id = getattr(to, "id", to)
    if run_id is not None and not isinstance(run_id, str):
        raise TypeError(f"to is a run's id or handle, not {to!r}")
    return run_id
