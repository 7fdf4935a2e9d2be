"""Tests of workflows, without workers, Redis or waiting: a harness with a virtual clock.

Runs live in memory, or in the test's database. While the harness is in force, all code that starts, sends or reads uses
them. Nothing runs by itself: the test says which pass happens when. Branches run in turn, in their order.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar, overload

from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.http.response import HttpResponse

from durable import guard, operations, runtime
from durable.conf import conf
from durable.core import registry
from durable.core.clock import to_utc
from durable.core.current import running_place, running_workflow
from durable.core.duration import Duration, check_moment, parse_duration
from durable.core.effects import Call, Operation
from durable.core.errors import ErrorInfo
from durable.core.outcomes import HeldStep
from durable.core.records import ENDED, ActionRecord, EntryRecord, EntryStatus, RunRecord, RunState
from durable.core.results import Verdict
from durable.core.scope import Scope
from durable.core.summary import Summary, SummaryKind
from durable.core.time_limits import History
from durable.definitions import Workflow
from durable.drivers import loop_threads
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.handles import Handle
from durable.operations import ends
from durable.operations.common import in_async, run_sync
from durable.operations.events import publish
from durable.operations.schedules.tick import next_due, tick_due
from durable.operations.settle import NOTHING
from durable.runtime import Runtime
from durable.testing.deaths import trials
from durable.testing.muting import RunsInMemoryError, muted, queries_refused
from durable.testing.replays import NotDeterministicError, Trace, different, replay
from durable.testing.stores import (
    InMemoryStore,
    SimulatedCrash,
    SimulatedDeath,
    When,
    go_on_after_refusals,
    harness_store,
    roll_back_inside,
)

__all__ = ["Harness", "NotDeterministicError", "Pass", "RunsInMemoryError", "SimulatedCrash"]

P = ParamSpec("P")
R = TypeVar("R")
_LEASE = timedelta(seconds=30)
_MAX_PASSES = 10_000
#: How often `finish` tries an end that the workflow's `on_end` refuses: what makes it fail is rarely gone by then.
_MAX_REFUSED_ENDS = 20
#: The states after a pass in which the run can be replayed with the same code.
_REPLAYED = (RunState.COMPLETED, RunState.SLEEPING)


@dataclass(frozen=True, slots=True)
class Pass:
    """The state in which a pass left a run.

    `error` has `type` and `message`; a failing workflow does not raise. `waiting_for` is None if the run waits for no
    message, `[]` if it waits for one of any queue.
    """

    state: str
    output: Any
    error: ErrorInfo | None
    wake_at: datetime | None
    waiting_for: list[str] | None


class Harness:
    """Runs that a test passes by hand under a virtual clock.

    They live in memory, and a query of the tables of runs that would find none of them raises RunsInMemoryError. With
    `store="database"` they are rows of the test's database, for tests of code that queries `Run.objects`, and of pages
    that list runs.
    `now` is where the clock starts (aware; the real moment by default); `short_sleep`, in seconds, below which sleeps
    do not park (0: every sleep yields; the setting by default); `divergence_grace` in seconds, none by default. With
    `quiet=False` what durable logs during passes is printed. Each pass is replayed once more from its records, with
    another clock, other random numbers and sets in another order, and NotDeterministicError says where the code does
    something else; `strict=False` turns that off.

    Methods that pass runs cannot be called while the thread's event loop runs; async tests await their twins, such as
    `asettle()`.
    """

    def __init__(
        self,
        now: datetime | None = None,
        *,
        store: Literal["memory", "database"] = "memory",
        short_sleep: Duration | None = None,
        divergence_grace: Duration = 0,
        codec: Any = None,
        quiet: bool = True,
        strict: bool = True,
    ) -> None:
        self._quiet = quiet
        self._strict = strict
        # by run: within a step of one run, passes of others may be executed
        self._traces: dict[str, Trace] = {}
        self._snapshots: dict[str, list[History]] | None = None
        self._replays = 0
        self._advances = 0  # by the test
        self._is_watched = True  # if the test is; not in `crash_everywhere`, which simulates deaths itself
        self._now = check_moment(now, "now") if now is not None else datetime.now(UTC)
        self._store_name = store
        # or the database store, with the same methods
        self._store: InMemoryStore = harness_store(store, self._after_commit)
        self._watching: dict[str, _Eviction] = {}
        self._local: dict[str, Workflow[Any, Any]] = {}
        self._declared: frozenset[str] = frozenset()
        self._changes_declared = -1
        self._in_force: list[ExitStack] = []
        self._runtime = Runtime(
            store=self._store,
            codec=codec or runtime.production().codec,
            now=lambda: self._now,
            monotonic=lambda: self._now.timestamp(),
            notify=lambda _queues: None,
            notify_at=lambda _queue, _moment: None,
            poll_wait=self._pause,
            after_commit=lambda callback: callback(),  # a test case's own transaction never commits
            short_sleep=None if short_sleep is None else parse_duration(short_sleep).total_seconds(),
            divergence_grace=parse_duration(divergence_grace).total_seconds(),
            sequential_branches=True,
            sleep=self._sleep,
            on_call=self._check_call,
            on_operation=self._note if strict else None,
            on_save=lambda saved: self._store.save_details([saved]),
            on_status=lambda status: self._store.show([status]),
            find_workflow=self._local.get,
            roll_back_inside=roll_back_inside,
            schedules=set(),
            chunks=[],
        )

    def __enter__(self) -> Self:
        stack = ExitStack()
        stack.enter_context(loop_threads.keep())  # from one pass to the next
        stack.enter_context(guard.raising_by_default())
        if isinstance(self._store, InMemoryStore):
            stack.enter_context(queries_refused(self._runtime, self._store.queues))
        self._in_force.append(stack)
        runtime.activate(self._runtime)
        trials.enter(self, self._store, is_watched=self._is_watched)
        return self

    def __exit__(self, *exc: object) -> None:
        trials.leave(self, self._end)
        try:
            runtime.deactivate(self._runtime)
        finally:
            self._in_force.pop().close()

    def _require_force(self) -> None:
        if runtime.current() is not self._runtime:
            raise RuntimeError("this harness is not in force, so runs would go elsewhere: write `with Harness() as h:`")

    # -- the clock

    @property
    def now(self) -> datetime:
        """The virtual time. Aware."""
        return self._now

    def advance(self, duration: Duration) -> None:
        """Advance the virtual clock. Executes nothing."""
        self._now += parse_duration(duration)
        self._advances += 1

    def advance_to(self, moment: datetime) -> None:
        """Advance the virtual clock to `moment`, an aware datetime, unless it is already past it. Executes nothing.

        A `drive` of `crash_everywhere` may call it again after a crash, with the same effect.
        """
        self._now = max(self._now, to_utc(check_moment(moment, "the moment to advance to")))

    def _sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    # -- runs

    @overload
    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def start(
        self, workflow: Callable[..., Any], /, *args: Any, id: str | None = None, **kwargs: Any
    ) -> Handle[Any]: ...
    def start(  # type: ignore[misc]  # *Any is not P.args to mypy
        self, workflow: Any, /, *args: Any, id: str | None = None, **kwargs: Any
    ) -> Any:
        """Start a run of a workflow, or of a plain function; nothing runs yet.

        `h.start(fulfil.using(id="order-7"), 7)` is the form whose result has a type.
        """
        self._require_force()
        definition = workflow if isinstance(workflow, Workflow) else self._definition(workflow)
        with running_workflow(None):  # the test counts as outside, even if one of its hooks is called within a pass
            return definition.using(id=id).start(*args, **kwargs)

    def _definition(self, function: Callable[..., Any]) -> Workflow[Any, Any]:
        definition: Workflow[Any, Any] = Workflow(
            function, f"harness.{function.__name__}".replace("<lambda>", "lambda")
        )
        self._local[definition.name] = definition
        return definition

    def send(self, run_id: str | Handle, queue: str, body: Any = None, *, id: str | None = None) -> str:
        """Send a message to a run, and return its id."""
        self._require_force()
        with running_workflow(None):
            return operations.send(_id(run_id), queue, body, idempotency_id=id).id

    def publish(self, event: str, body: Any = None, *, key: str, id: str | None = None) -> str:
        """Publish an event, and return its id. Runs that wait for it are due then; nothing runs yet."""
        self._require_force()
        with running_workflow(None):
            return publish(event, body, key=key, id=id).id

    def run(self, run_id: str | Handle) -> Pass:
        """Execute one pass of the run, due or not, and return its state. A paused or ended run stays as it is."""
        require_no_loop("run")
        self._require_force()
        name = _id(run_id)
        operations.record(name)
        claimed = self._store.claim_run(name, now=self._now, lease_until=self._now + _LEASE, worker="harness")
        if claimed is not None:
            self._pass(claimed)
        return self.peek(name)

    def peek(self, run_id: str | Handle) -> Pass:
        """Return the state of the run without executing a pass."""
        self._require_force()
        run = operations.record(_id(run_id))
        return Pass(
            state=str(run.state),
            output=operations.output(run.id),
            error=run.error,
            wake_at=run.wake_at,
            waiting_for=operations.waiting_for(run.id),
        )

    def run_due(self) -> int:
        """Execute one pass of every run that is due now, and return the number of passes."""
        require_no_loop("run_due")
        return self._run_due()

    def _run_due(self) -> int:
        self._require_force()
        due = self._claimed_due()
        for number, claimed in enumerate(due):
            try:
                self._pass(claimed)
            except SimulatedCrash:
                self._store.release([(each.id, each.fence) for each in due[number + 1 :]], self._now)
                raise
        return len(due)

    def _claimed_due(self) -> list[RunRecord]:
        """Claim all due runs: those of a queue in the order of its claim, those of several by when they were due."""
        lease_until = self._now + _LEASE
        of_queues = [
            self._store.claim(queue=each, now=self._now, lease_until=lease_until, worker="harness", limit=_MAX_PASSES)
            for each in self._store.due_queues(self._now)
        ]
        return list(heapq.merge(*of_queues, key=lambda run: (run.wake_at or self._now, run.id)))

    def _tick(self) -> bool:
        """Tick schedules of this harness that are due now; return whether there were any."""
        names = self._runtime.schedules
        return bool(names and tick_due(self._now, only=names))

    def settle(self) -> None:
        """Tick the schedules that are due, and execute passes, until nothing is due at this moment.

        Then the mails about questions to people that are due are sent, and questions are escalated.
        These are the schedules that were created or synchronised while the harness is in force. They need the database.
        """
        require_no_loop("settle")
        self._settle()

    def _settle(self) -> None:
        self._pass_until_nothing_is_due()
        if self._store.due_questions(self._now, 1):
            from durable.operations.question_mails import remind

            remind(self._now)

    def _pass_until_nothing_is_due(self) -> None:
        rounds = 0
        # First the runs: those due before the moment of a tick must have ended by then.
        while (due := self._run_due() + self._cascade() + self._sweep_slots()) or self._tick():
            rounds += due or 1
            if rounds > _MAX_PASSES:
                raise RuntimeError(f"after {rounds} passes runs are still due at {self._now}: do they wake each other?")

    def _sweep_slots(self) -> int:
        """Hand on the slots of limits that ended runs have given up, as the sweep does."""
        return self._store.sweep_slots(self._now, 1_000)[1]

    def _cascade(self) -> int:
        """Cancel children of ended runs that are still open, as the sweep does; return how many."""
        number, last = 0, ""
        while (found := self._store.cascade(last, self._now)) is not None:
            number += found[1]
            last = "" if found[1] else found[0]
        return number

    def finish(self, run_id: str | Handle) -> Pass:
        """Advance to each deadline until the run has ended, and return its state.

        Raises RuntimeError if the run waits for a message or to be resumed, because no deadline ends that, and if its
        `on_end` goes on refusing the end.
        """
        require_no_loop("finish")
        name = _id(run_id)
        refused = 0
        for _ in range(_MAX_PASSES):
            self._settle()
            run = operations.record(name)
            if run.state in ENDED:
                return self.peek(name)
            refused = refused + 1 if Summary.load(run.summary).kind is SummaryKind.END_REFUSED else 0
            if refused == _MAX_REFUSED_ENDS:
                raise RuntimeError(f'run "{name}" has not ended at {refused} deadlines in a row: {run.summary}')
            deadline = self._store.next_deadline(self._store.queues(), self._now)
            names = self._runtime.schedules
            if deadline is not None and names and (tick := next_due(names)) is not None:
                deadline = min(deadline, tick)
            if deadline is None:
                raise RuntimeError(
                    f'run "{name}" is {run.state} and does not end by itself: {run.summary or "nothing is due"}; send '
                    "what it waits for, or resume it, before finish()"
                )
            self._now = max(self._now, deadline)
        raise RuntimeError(
            f'run "{name}" has not ended after {_MAX_PASSES} deadlines: {operations.record(name).summary}; if it goes on '
            "for ever, use advance() and settle() instead of finish()"
        )

    def _pass(self, claimed: RunRecord) -> None:
        self._declare_ends()
        try:
            self._one_pass(claimed)
        except SimulatedDeath:
            if self._watching:  # the process has died, and with it the step around, which executed this pass
                raise
            self._take_over(claimed.id)

    def _declare_ends(self) -> None:
        """Record the workflows with an `on_end`, as a worker does at its start. A test may define some at any time."""
        if self._changes_declared != registry.registry.changes:
            self._declared = ends.declare(self._store, known=self._declared)
            self._changes_declared = registry.registry.changes

    def _take_over(self, run_id: str) -> None:
        """Execute what the next worker does with a run whose worker has died, the retry of a lost attempt included.

        That waits for its backoff, and the clock moves on with it, as it does while a lease expires.
        """
        while (run := self._store.get(run_id)) is not None:
            if run.lease_expires_at is None:
                lost = [each for each in self._store.load(run_id) if _is_lost(each)]
                moment = max((each.next_attempt_at for each in lost if each.next_attempt_at), default=self._now)
                if moment <= self._now:
                    return
                self._now = moment
            again = self._store.claim_run(run_id, now=self._now, lease_until=self._now + _LEASE, worker="harness")
            if again is None:
                return
            self._one_pass(again)

    def _one_pass(self, claimed: RunRecord) -> None:
        try:
            eviction = self._watching[claimed.id] = _Eviction(self._store, claimed.id)
            self._traces[claimed.id] = Trace()
            if self._snapshots is not None:
                self._snapshots[claimed.id] = []
            with muted() if self._quiet else nullcontext():
                outcome = execute_pass(claimed, store=self._store, eviction=eviction, at=self._runtime)
            if self._strict:
                self._replay(claimed.id, outcome)
        except SimulatedCrash:
            self._store.expire_lease(claimed.id, self._now)
            raise
        finally:
            self._traces.pop(claimed.id, None)
            self._watching.pop(claimed.id, None)
            go_on_after_refusals()

    def _note(self, scope: Scope, label: str, operation: Operation) -> None:
        trace = self._traces.get(scope.journal.run.id)
        if trace is not None:  # None for a pass that a test executes by itself
            trace.note(scope, label, operation)

    def _replay(self, run_id: str, outcome: PassOutcome) -> None:
        """Replay the recorded pass. Raises NotDeterministicError if its code does something else."""
        run, trace = self._store.get(run_id), self._traces[run_id]
        if run is None or not trace.scopes.get("") or outcome.due_now or run.state not in _REPLAYED:
            return
        definition = self._local.get(run.workflow) or registry.get(run.workflow)
        snapshots = (self._snapshots or {}).get(run_id, [])
        for history in [*snapshots, self._store.load(run_id)]:
            found = replay(run, definition, self._runtime, history)
            self._replays += 1
            if difference := different(trace, found, outcome):
                raise NotDeterministicError(
                    f'the code of run "{run_id}" of {run.workflow} is not deterministic: {difference}. The replay had the '
                    "records of the pass, another clock, other random numbers and sets in another order. Let names and "
                    "decisions follow from the input, from what operations return, and from ctx.now() and ctx.random"
                )

    def _after_commit(self, run_id: str) -> None:
        if run_id in self._watching:
            self._watching[run_id].look()
        if self._snapshots is not None and run_id in self._snapshots:
            self._snapshots[run_id].append(self._store.load(run_id))

    def assert_deterministic(
        self,
        workflow: Any,
        *args: Any,
        drive: Callable[[Harness, Handle], Any] | None = None,
        **kwargs: Any,
    ) -> int:
        """Run the workflow, and replay it after each commit of each pass as `strict` does after each pass.

        Returns the number of replays. Raises NotDeterministicError at the first difference. `drive(harness, handle)`
        sends what the workflow waits for, and may be a coroutine function; by default the run is finished by its
        deadlines. The run has a harness of its own, and inside a test's transaction, or with `store="database"`, its
        rows are rolled back after it.
        """
        require_no_loop("assert_deterministic")
        trial = self._another(strict=True)
        trial._snapshots = {}
        with self._rolled_back(), trial:
            _plain(drive or _finish)(trial, trial.start(workflow, *args, **kwargs))
        return trial._replays

    def _pause(self, _seconds: float) -> None:
        """Execute due work while a caller waits for a result or a response."""
        before = self._store.commits
        self._settle()
        if self._store.commits == before:
            raise TimeoutError(
                "nothing is due, so nothing more will come: advance the clock or send what is waited for"
            )

    def open_link(
        self, link_url: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Answer a link as a program outside does, by a POST to its `url`; return the response. Nothing runs yet.

        The view gets the request itself, so the URLs of the project need not include `durable.hooks.urls`.
        `headers` are by name; without a `Content-Type` the workflow gets bytes.
        """
        from durable.hooks.links import answer_in_test

        self._require_force()
        with running_workflow(None):
            return answer_in_test(link_url, body, headers or {})

    # -- questions to people

    def answer(
        self, run_id: str | Handle, location: str, data: Any = None, *, by: Any, comment: str = ""
    ) -> Verdict | None:
        """Answer the question of the run at `location`, or with this name, as the user `by`; nothing runs yet.

        `data` is what the form is given, or True or False for yes or no. Raises what `durable.people.Question.answer`
        raises. Returns the verdict, or None if more people have to agree.
        """
        from durable.operations.people import question_at

        self._require_force()
        with running_workflow(None):
            return question_at(_id(run_id), location).answer(data, by=by, comment=comment)

    # -- steps that wait for a person

    def held(self, run_id: str | Handle) -> list[HeldStep]:
        """Return the steps of the run that wait for a person: `location`, `reason`, `attempt`, `since`, `error`."""
        self._require_force()
        return list(operations.held(_id(run_id)))

    def settle_step(
        self,
        run_id: str | Handle,
        location: str,
        *,
        done: Any = NOTHING,
        not_done: bool = False,
        fail: bool = False,
    ) -> None:
        """Settle a step that waits for a person, as `handle.settle` does; nothing runs yet."""
        self._require_force()
        operations.settle(_id(run_id), location, done=done, not_done=not_done, fail=fail)

    def put_in_doubt(self) -> None:
        """Treat the open runs as `durable restored --unknown` does in a database that went back in time.

        What they do next may have been done already: `verify` is asked about their next steps that are not atomic, and
        a person about those without one. To let a run go back itself, raise in a step or crash at a commit (`crash`)
        after the step has done its work, and call this before the run goes on.
        """
        self._require_force()
        self._store.put_in_doubt(self.now, sys.maxsize)

    def emitted(self, run_id: str | Handle, location: str) -> list[Any]:
        """Return what the newest attempt of the step at `location` has emitted, in order."""
        self._require_force()
        found: list[Any] = []
        for chunk in Handle[Any](_id(run_id)).stream(location):
            if chunk.event == "restart":
                found.clear()
            elif chunk.event == "chunk":
                found.append(chunk.value)
        return found

    @property
    def actions(self) -> list[ActionRecord]:
        """The rows of the audit log, oldest first: verbs called by code and by operators (`acting_as`)."""
        return self._store.actions

    # -- crashes

    @property
    def commits(self) -> int:
        """The number of commits that the passes have made so far."""
        return self._store.commits

    @contextmanager
    def crash_at(self, number: int, when: When = "before") -> Iterator[None]:
        """Simulate a crash at the `number`-th commit from now (from 1): the pass raises SimulatedCrash."""
        self._store.arm(number, when)
        try:
            yield
        finally:
            self._store.disarm()

    def crash_everywhere(
        self,
        workflow: Any,
        *args: Any,
        check: Callable[[], Any] | None = None,
        drive: Callable[[Harness, Handle], Any] | None = None,
        **kwargs: Any,
    ) -> int:
        """Run the workflow twice for each commit that it makes: with a crash before that commit, and with one after it.

        Returns the number of these runs. After each crash a new pass continues the run. Asserts that the outcome is
        that of an undisturbed run, its tags included, that no step's function was called again after its result was
        recorded, and, if `check` is given, that it returns what it returned after the undisturbed run (it may also
        assert by itself).
        `drive(harness, handle)` sends what the workflow waits for; it is called again after a crash, so let it move the
        clock by `advance_to`. By default the run is finished by its deadlines. `check` and `drive` may be coroutine
        functions. Each run has a harness of its own, and the id of `workflow.using(id=...)`, if that was given. Inside
        a test's transaction, or with `store="database"`, its rows are rolled back after it. Log records of the runs
        that crash are neither printed nor captured, unless the harness has `quiet=False`.
        """
        require_no_loop("crash_everywhere")
        drive, check = _plain(drive or _finish), None if check is None else _plain(check)
        undisturbed, commits, _ = self._trial(workflow, args, kwargs, drive, check, None)
        trials = [(number, when) for number in range(1, commits + 1) for when in ("before", "after")]
        for number, when in trials:
            outcome, _, has_moved_twice = self._trial(workflow, args, kwargs, drive, check, (number, when))  # type: ignore[arg-type]
            if outcome != undisturbed:
                why = f"{_MOVED_TWICE}. Otherwise: " if has_moved_twice else ""
                raise AssertionError(
                    f"a crash {when} commit {number} of {commits} changed the outcome: {why}"
                    f"{_difference(outcome, undisturbed)}"
                )
        return len(trials)

    def _trial(
        self,
        workflow: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        drive: Callable[[Harness, Handle], Any],
        check: Callable[[], Any] | None,
        crash: tuple[int, When] | None,
    ) -> tuple[tuple[Any, ...], int, bool]:
        """Return the outcome, the number of commits, and whether `drive` moved the clock before and after the crash."""
        trial = self._another(strict=self._strict)
        is_repetition = crash is not None
        with self._rolled_back(), trial, muted(wholly=True) if self._quiet and is_repetition else nullcontext():
            run_id = (workflow._start_options.id if isinstance(workflow, Workflow) else None) or "crash-everywhere"
            handle = trial.start(workflow, *args, id=run_id, **kwargs)
            has_moved_twice = False
            if crash is None:
                drive(trial, handle)
            else:
                with trial.crash_at(*crash):
                    has_moved_twice = _drive_through_crash(trial, handle, drive)
            end = trial.peek(handle)
            error = (end.error.type, end.error.message) if end.error else None
            checked = check() if check is not None else None
            return (end.state, end.output, error, handle.tags, checked), trial.commits, has_moved_twice

    def _another(self, *, strict: bool) -> Harness:
        at = self._runtime
        another = Harness(
            self._now,
            store=self._store_name,
            short_sleep=at.short_sleep,
            divergence_grace=at.divergence_grace or 0,
            codec=at.codec,
            quiet=self._quiet,
            strict=strict,
        )
        another._is_watched = False
        return another

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        """Roll back changes of rows at the end of the block, on each database with an open test transaction, and on the
        runs' own.
        """
        aliases = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
        if self._store_name == "database" and conf.DATABASE not in aliases:
            aliases.append(conf.DATABASE)
        with ExitStack() as stack:
            for alias in aliases:
                stack.enter_context(_savepoint(alias))
            yield

    def _end(self, run_id: str) -> tuple[str, str] | None:
        """Return the state of a run and its error as text; None if it is gone, or cannot be read here."""
        with suppress(Exception):
            if (run := self._store.get(run_id)) is not None:
                return str(run.state), "" if run.error is None else f"{run.error.type}: {run.error.message}"
        return None

    # -- twins for async tests: passes run in the thread in which Django runs all synchronous code of the test, and
    #    async workflows beside the test on its own event loop

    async def astart(self, workflow: Any, /, *args: Any, id: str | None = None, **kwargs: Any) -> Handle:
        """`start`, from async code."""
        return await run_sync(lambda: self.start(workflow, *args, id=id, **kwargs))

    asend = in_async(send)
    apublish = in_async(publish)
    aopen_link = in_async(open_link)
    aanswer = in_async(answer)
    arun = in_async(run)
    apeek = in_async(peek)
    arun_due = in_async(run_due)
    asettle = in_async(settle)
    afinish = in_async(finish)
    acrash_everywhere = in_async(crash_everywhere)
    aassert_deterministic = in_async(assert_deterministic)

    def _check_call(self, call: Call) -> None:
        trials.note_call(call, running_place()[1])
        if call.is_rollback:
            return
        has_result = False
        with suppress(SynchronousOnlyOperation):  # an async workflow's runs are checked in memory only
            has_result = self._store.has_result(call.info.run_id, call.info.location)
        if has_result:
            raise _Repeated(f'step "{call.info.location}" was called again after its result was recorded')


def _difference(found: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    """Say how two outcomes differ. The usual reason is a step that is called again after a crash."""
    names = ("the state", "the output", "the error", "what the run is tagged with", "what check() returned")
    parts = [
        f"{name} is {one!r} instead of {other!r}"
        for name, one, other in zip(names, found, expected, strict=True)
        if one != other
    ]
    return (
        f"{', and '.join(parts)}. Either a step is not idempotent (it is called again if it dies before its commit: use "
        "current_step().idempotency_key, or atomic=True), or the code between the steps is not deterministic, or the "
        "outcome has a moment in it, such as ctx.now(): a run that has died goes on later"
    )


def _is_lost(entry: EntryRecord) -> bool:
    """Return True for a step whose attempt died with its worker, and which waits for the next one."""
    return entry.status == EntryStatus.FAILED and entry.error is not None and entry.error.type == "WorkerDied"


class _Repeated(BaseException):
    """A broken promise of the engine. A BaseException, so that the code under test cannot catch it."""


def require_no_loop(verb: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread; name the twin of `Harness.verb` to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if "DJANGO_ALLOW_ASYNC_UNSAFE" in os.environ:  # an event loop of another tool, such as Playwright's
        return
    raise RuntimeError(
        f"Harness.{verb}() was called while an event loop runs in this thread, and a pass would block it: write "
        f"`await harness.a{verb}(...)`"
    )


def _plain(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a coroutine function as a plain function, for a thread that an event loop waits for."""
    return async_to_sync(function) if inspect.iscoroutinefunction(function) else function


def _finish(harness: Harness, handle: Handle) -> None:
    harness.finish(handle)


def _drive_through_crash(trial: Harness, handle: Handle, drive: Callable[[Harness, Handle], Any]) -> bool:
    """Call `drive`, and call it again after the crash. Return True if both calls have moved the clock by `advance`."""
    try:
        drive(trial, handle)
    except SimulatedCrash:
        before = trial._advances
        try:
            drive(trial, handle)
        except Exception as error:
            if 0 < before < trial._advances:
                raise AssertionError(f"{_MOVED_TWICE}. It then failed: {type(error).__name__}: {error}") from error
            raise
        return 0 < before < trial._advances
    return False


_MOVED_TWICE: Final = (
    "`drive` moved the clock with advance() before the crash and, called again, after it: so it came later than in the "
    "undisturbed run. Write advance_to(moment), which comes to the same moment however often it is called"
)


@contextmanager
def _savepoint(alias: str) -> Iterator[None]:
    with transaction.atomic(using=alias):
        try:
            yield
        finally:
            transaction.set_rollback(True, using=alias)


def _id(run: str | Handle) -> str:
    return run.id if isinstance(run, Handle) else run


class _Eviction(Eviction):
    """The eviction of a pass in the harness. It queries for requests by itself, as a worker's lease manager does."""

    def __init__(self, store: InMemoryStore, run_id: str) -> None:
        super().__init__()
        self._store = store
        self._run_id = run_id
        self._asked = ""

    def look(self) -> None:
        self._asked = self._store.requests([self._run_id]).get(self._run_id, "")

    @property
    def asked(self) -> str:
        """The pending request of an operator."""
        with suppress(SynchronousOnlyOperation):  # an event loop runs in this thread: the newest commit has looked
            self.look()
        return self._asked

    @asked.setter
    def asked(self, _request: str) -> None:
        pass
