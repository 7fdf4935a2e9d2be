"""The handle: a run's id, with the verbs and the state of the run behind it.

A handle holds no copy of the run: each property is one query; `info()` reads most of them in one. Of a run that has
ended a summary takes one more, for the children that are left to be cancelled. Every blocking method and property has a
twin for async code, a method with an `a` before its name: `await handle.astate()`. So `awake()` is the twin of
`wake()`, and `awaiting_for()` that of `waiting_for`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from durable import operations
from durable.core.duration import Duration
from durable.core.errors import ErrorInfo, RunNotFoundError
from durable.core.records import Status
from durable.core.results import frozen
from durable.operations.common import in_async, is_of_workflow, run_sync
from durable.operations.queries import HistoryDifference, HistoryEntry, RunInfo, differences
from durable.operations.replay_plan import ReplayPlan
from durable.operations.settle import NOTHING

if TYPE_CHECKING:  # at run time a type variable of Python 3.11 has no default
    from typing_extensions import TypeVar as TypeVarWithDefault

    from durable.definitions import Workflow
    from durable.operations.bulk import BulkReport
    from durable.streams.reading import Chunk

    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

__all__ = ["Handle", "aget_run", "aruns_info", "get_run", "runs_info"]

R = TypeVar("R")


@frozen
@dataclass(frozen=True, slots=True)
class Handle(Generic[R_co]):
    """A run, by its id, and `R_co`, the type of its output.

    Every access and every verb raises RunNotFoundError if there is no such run. A verb raises InvalidTransitionError in
    a state of the run that does not allow it, and OperationDeniedError if the actor lacks the permission.
    """

    id: str
    #: whether the call that gave this handle made the run: of `start`, `restart` and `replay`; None of `get_run`
    is_new: bool | None = field(default=None, compare=False, repr=False)

    # -- properties of the run

    @property
    def state(self) -> str:
        """pending, running, sleeping, paused, rolling_back, completed, failed or cancelled."""
        return str(operations.record(self.id).state)

    @property
    def output(self) -> R_co | None:
        """The value that the workflow returned; None until it has."""
        return operations.output(self.id)  # type: ignore[no-any-return]  # read from the database

    @property
    def error(self) -> ErrorInfo | None:
        """The error because of which the run failed or is being rolled back; None otherwise."""
        return operations.record(self.id).error

    @property
    def wake_at(self) -> datetime | None:
        """The time at which the run continues without a message or an operator. Aware.

        None if there is none, and while a worker has the run.
        """
        found = operations.record(self.id)
        return None if found.lease_expires_at is not None else found.wake_at

    @property
    def waiting_for(self) -> list[str] | None:
        """The message queues that the run waits for, [] for any queue; None if it waits for no message."""
        return operations.waiting_for(self.id)

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return operations.record(self.id).workflow

    @property
    def summary(self) -> str:
        """One line that says what the run does, what it waits for, or how it ended.

        It ends with how many children are left to be cancelled, if the run has ended and some are.
        """
        return operations.summary(self.id)

    @property
    def status(self) -> Status | None:
        """What the run's author lets it say (`ctx.status`): `text`, `done`, `of`, `eta` and `at`.

        None if it has not said anything. A run that has ended keeps its last status.
        """
        return operations.status(self.id)

    @property
    def parent(self) -> Handle[Any] | None:
        """The run whose code started this one, as a child or in a step; None if there is none or it was pruned."""
        found = operations.parent(self.id)
        return None if found is None else Handle(found)

    @property
    def passed_on_to(self) -> Handle[Any] | None:
        """The run that got the messages of `start_or_send` which this one had not received when it completed.

        None if there were none. That run has the key, and may have passed some of them on itself.
        """
        found = operations.passed_on_to(self.id)
        return None if found is None else Handle(found)

    @property
    def tags(self) -> dict[str, str]:
        """The run's tags by name, with their values as the texts by which they are compared ("42").

        The value of a hashed tag is its hash.
        """
        return operations.tags(self.id)

    def children(self, state: str | None = None, group: str | None = None) -> list[Handle[Any]]:
        """Return the children that the run's code has started, in the order of their starts; one query.

        With a `state`, only those in it; with a `group`, only those of the group at this location. Raises ValueError
        for an unknown state.
        """
        return [Handle(each) for each in operations.children(self.id, state, group)]

    def child_counts(self, group: str | None = None) -> dict[str, int]:
        """Count the children by state, `{"completed": 480, "failed": 3}`; one query.

        With a `group`, the location of a `ctx.map`, count only its children. States without children are omitted.
        """
        return operations.child_counts(self.id, group)

    def info(self) -> RunInfo:
        """Return what a `RunInfo` has of the run, read in one query, or two for a run that has ended."""
        return operations.info(self.id)

    def values(self) -> dict[str, Any]:
        """Return the values that the run has published (`ctx.publish`), the newest of each name; one query."""
        return operations.values(self.id)

    def view(self, name: str, wait: Duration | None = None) -> Any:
        """Return the newest value that the run has published under `name`; None if there is none.

        With `wait`, a length of time, wait until there is one. Raises TimeoutError after that, and at once if the run
        has ended without one.
        """
        return operations.view(self.id, name, wait)

    def history(self) -> list[HistoryEntry]:
        """Return the records of the run's operations, in the order in which they began."""
        return operations.history(self.id)

    def compare(self, other: Handle[Any] | str) -> list[HistoryDifference]:
        """Return the places at which this run differs from another one, given by handle or id; [] if there are none.

        Reads both histories, as `history` does. Raises RunNotFoundError.
        """
        return differences(self.history(), operations.history(other if isinstance(other, str) else other.id))

    def stream(self, location: str, *, after: str | None = None, timeout: Duration | None = None) -> Iterator[Chunk]:
        """Yield what the step at `location` emits, as it comes, and at last its result: see `durable.streams.Chunk`.

        A step that has ended yields its result alone. `after` is the id of a chunk: begin behind it. Raises
        TimeoutError when no chunk comes for `timeout`: seconds, a timedelta or text.
        """
        from durable.streams import reading  # few processes read streams

        return reading.read(self.id, location, after, timeout)

    # -- verbs

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the run has ended, and return its output.

        Raises RunFailedError, RunCancelledError, and TimeoutError after `timeout`: seconds, a timedelta or text such as
        "30 s".
        """
        return operations.result(self.id, timeout)  # type: ignore[no-any-return]  # read from the database

    def send(self, queue: str, body: Any = None, *, id: str | None = None) -> str:
        """Send a message, and return its id. A message with the given `id` is sent to the run once.

        Raises InvalidTransitionError if the run has ended, PayloadError for a body the codec refuses,
        MessageNotAcceptedError if the workflow declares its messages and this is none of them, and MessageConflictError
        if an earlier message with this `id` had another queue or body.
        """
        return operations.send(self.id, queue, body, idempotency_id=id).id

    def ask(self, queue: str, body: Any = None, *, timeout: Duration | None = None, id: str | None = None) -> Any:
        """Send a message, and return the response that the workflow gives by `message.complete(response)`.

        Raises MessageRefusedError if the workflow refuses the message, TimeoutError after `timeout`, and what `send`
        raises.
        """
        return operations.ask(self.id, queue, body, timeout=timeout, idempotency_id=id)

    def wake(self, end_sleeps: bool = False) -> None:
        """Make the run due now and retry steps in backoff at once; with `end_sleeps`, end its sleeps too."""
        operations.wake(self.id, end_sleeps=end_sleeps)

    def move(self, queue: str) -> None:
        """Put the run into another queue; a worker that has it finishes its pass. Its children stay in their queues."""
        operations.move(self.id, queue=queue)

    def pause(self) -> None:
        """Stop the run until `resume()`: a parked one at once, a running one at its next operation."""
        operations.pause(self.id)

    def resume(self) -> None:
        """Continue a paused run."""
        operations.resume(self.id)

    def cancel(self, reason: str = "", rollback: bool = False, interrupt: bool = False) -> None:
        """End the run; it cannot continue afterwards.

        With `rollback`, compensate first; with `interrupt`, abandon the running attempts.
        """
        operations.cancel(self.id, reason=reason, rollback=rollback, interrupt=interrupt)

    def abandon(self, location: str = "") -> None:
        """Abandon the running attempt at this location, or all running attempts, as if their timeout had come.

        The attempt fails with AttemptAbandonedError; the step's own policy decides about the next one. Raises
        InvalidTransitionError if no step has run for more than a second.
        """
        operations.abandon(self.id, location=location)

    def settle(self, location: str, *, done: Any = NOTHING, not_done: bool = False, fail: bool = False) -> None:
        """Settle the step at `location` that waits for a person (`info().held`), with one of three answers.

        `done`: it was done, and this is its result. `not_done`: it was not, and is tried again. `fail`: the step fails.
        Raises EntryNotFoundError, PayloadError, and InvalidTransitionError if the step is not held.
        """
        operations.settle(self.id, location, done=done, not_done=not_done, fail=fail)

    def recover(self) -> None:
        """Continue a failed run: retry the operation that made it fail, and recover the children that did.

        Of an open run, try the steps again that wait for a person; their `verify` is asked first.

        Raises KeyConflictError if another open run has its key by now.
        """
        operations.recover(self.id)

    def recover_children(self, group: str | None = None) -> BulkReport:
        """Recover the failed children, of one group or all, and then the run if it has failed too, as one bulk.

        More than 100 runs are recovered in the background: `report.run_id` is the run that does it.
        """
        from durable.operations.bulk import recover_children  # bulks: few processes use them

        return recover_children(self.id, group)

    def restart(self, *, id: str | None = None, changes: Mapping[str, Any] | None = None) -> Handle[R_co]:
        """Start a new run of the same workflow with the same input. With an `id` for it, a second call starts nothing.

        `changes` are arguments by name that replace those of the input. Raises ValueError for changes that do not fit
        the workflow's signature.
        """
        return Handle(*operations.restart(self.id, as_id=id, changes=changes))

    def plan_replay(self, location: str, *, with_output: bool = False) -> ReplayPlan:
        """Return the plan of `replay(location)`: what would be deleted, run again and stay, and what prevents it.

        `with_output`: what `give_output(location, ...)` would do.
        """
        return operations.plan_replay(self.id, location, with_output=with_output)

    def replay(
        self, location: str, *, in_place: bool = False, plan_hash: str | None = None, id: str | None = None
    ) -> Handle[R_co]:
        """Run again from `location` on: as a new run that keeps the history before it or, with `in_place`, as this run.

        With an `id` for the new run, a second call starts nothing. Raises EntryNotFoundError, ReplayRefusedError, and
        StalePlanError if `plan_hash` is that of a plan for another history.
        """
        return Handle(*operations.replay(self.id, location, in_place=in_place, plan_hash=plan_hash, as_id=id))

    def give_output(
        self,
        location: str,
        output: Any,
        *,
        in_place: bool = False,
        plan_hash: str | None = None,
        id: str | None = None,
    ) -> Handle[R_co]:
        """Replay after the step at `location`, which does not run again: it counts as completed with `output`.

        Call it inside `acting_as(actor, reason=...)`: the step records who gave the output and why. Raises what
        `replay` raises, ValueError without a reason, and PayloadError. The plan is `plan_replay(location,
        with_output=True)`.
        """
        given = operations.give_output(self.id, location, output, in_place=in_place, plan_hash=plan_hash, as_id=id)
        return Handle(*given)

    # -- the same, from async code

    async def astate(self) -> str:
        """`state`, from async code."""
        return await run_sync(lambda: self.state)

    async def aoutput(self) -> R_co | None:
        """`output`, from async code."""
        return await run_sync(lambda: self.output)

    async def aerror(self) -> ErrorInfo | None:
        """`error`, from async code."""
        return await run_sync(lambda: self.error)

    async def awake_at(self) -> datetime | None:
        """`wake_at`, from async code."""
        return await run_sync(lambda: self.wake_at)

    async def awaiting_for(self) -> list[str] | None:
        """`waiting_for`, from async code."""
        return await run_sync(lambda: self.waiting_for)

    async def aworkflow(self) -> str:
        """`workflow`, from async code."""
        return await run_sync(lambda: self.workflow)

    async def asummary(self) -> str:
        """`summary`, from async code."""
        return await run_sync(lambda: self.summary)

    async def astatus(self) -> Status | None:
        """`status`, from async code."""
        return await run_sync(lambda: self.status)

    async def aparent(self) -> Handle[Any] | None:
        """`parent`, from async code."""
        return await run_sync(lambda: self.parent)

    async def apassed_on_to(self) -> Handle[Any] | None:
        """`passed_on_to`, from async code."""
        return await run_sync(lambda: self.passed_on_to)

    async def atags(self) -> dict[str, str]:
        """`tags`, from async code."""
        return await run_sync(lambda: self.tags)

    achildren = in_async(children)
    achild_counts = in_async(child_counts)
    ainfo = in_async(info)

    def astream(self, location: str, *, after: str | None = None) -> AsyncIterator[Chunk]:
        """`stream`, from async code: `async for chunk in handle.astream("write")`."""
        from durable.streams import reading  # few processes read streams

        return reading.aread(self.id, location, after)

    async def aresult(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109  # the twin of result()
        """`result`, from async code."""
        return await operations.aresult(self.id, timeout)  # type: ignore[no-any-return]  # read from the database

    avalues = in_async(values)

    async def aview(self, name: str, wait: Duration | None = None) -> Any:
        """`view`, from async code."""
        return await operations.aview(self.id, name, wait)

    asend = in_async(send)

    async def aask(
        self,
        queue: str,
        body: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  # the twin of ask()
        id: str | None = None,
    ) -> Any:
        """`ask`, from async code."""
        return await operations.aask(self.id, queue, body, timeout=timeout, idempotency_id=id)

    ahistory = in_async(history)
    acompare = in_async(compare)
    awake = in_async(wake)
    amove = in_async(move)
    apause = in_async(pause)
    aresume = in_async(resume)
    acancel = in_async(cancel)
    aabandon = in_async(abandon)
    arecover = in_async(recover)
    arecover_children = in_async(recover_children)
    asettle = in_async(settle)
    arestart = in_async(restart)
    aplan_replay = in_async(plan_replay)
    agive_output = in_async(give_output)
    areplay = in_async(replay)


@overload
def get_run(run_id: str, of: None = None) -> Handle[Any]: ...
@overload
def get_run(run_id: str, of: Workflow[..., R]) -> Handle[R]: ...
def get_run(run_id: str, of: Workflow[..., Any] | None = None) -> Handle[Any]:
    """Return the handle of a run. Raises RunNotFoundError; with `of`, also for a run of another workflow."""
    found = operations.record(run_id)
    if of is not None and not is_of_workflow(found.workflow, of.name):
        raise RunNotFoundError(run_id, wanted=of.name, found=found.workflow)
    return Handle(run_id)


@overload
async def aget_run(run_id: str, of: None = None) -> Handle[Any]: ...
@overload
async def aget_run(run_id: str, of: Workflow[..., R]) -> Handle[R]: ...
async def aget_run(run_id: str, of: Workflow[..., Any] | None = None) -> Handle[Any]:
    """`get_run`, from async code."""
    return await run_sync(get_run, run_id, of)


def runs_info(ids: Iterable[str]) -> dict[str, RunInfo]:
    """Return the properties of several runs by id, read in one query, or two if some have ended.

    Ids without a run are left out.
    """
    return operations.infos(ids)


aruns_info = in_async(runs_info)
