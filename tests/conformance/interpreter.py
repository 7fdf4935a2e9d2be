"""Two workflows that take a program as their input and do what it says: one sync, one async.

The interpreter is written once, as generators that yield what the context's operations return: the sync workflow sends
it back as it is, the async one awaits it first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeAlias

from durable import AsyncContext, Break, Context, Continue, CriticalError, RollbackError, workflow
from tests.conformance import grammar
from tests.conformance.grammar import Body, Branches, Failure, Json, Operation
from tests.conformance.reading import read_program
from tests.conformance.recorder import Recorder, recorder_of
from tests.conformance.trace import error_name

#: The moment at which every scenario starts.
START = datetime(2026, 1, 1, tzinfo=UTC)

STEP_TIMEOUT = 0.02  # seconds; of a call that has to time out
OUTLASTING = 1.0  # seconds that such a call would take

Script: TypeAlias = Generator[Any, Any, Json]
Bind: TypeAlias = Callable[[Callable[..., Script]], Callable[..., Any]]


@workflow(name="conformance.sync")
def run_sync(ctx: Context, program: Json) -> Json:
    """Do what the program says; its value is the list of the operations' values."""
    interpreter = Interpreter(recorder_of(ctx.run_id), bind=_blocking, attempt=_blocking_attempt)
    return _blocking(interpreter.perform)(ctx, read_program(program), "")


@workflow(name="conformance.async")
async def run_async(ctx: AsyncContext, program: Json) -> Json:
    """Do what the program says, awaiting it; its value is the list of the operations' values."""
    interpreter = Interpreter(recorder_of(ctx.run_id), bind=_awaiting, attempt=_awaiting_attempt)
    return await _awaiting(interpreter.perform)(ctx, read_program(program), "")


#: The workflows by their colour.
WORKFLOWS: Mapping[str, Any] = {"sync": run_sync, "async": run_async}


def undo(rollback: Any, output: Json) -> None:
    """The rollback handler of every step that has one; a step's argument is its path."""
    (path,) = rollback.args
    recorder_of(rollback.run_id).rolled_back(path, output)


def _blocking(script: Callable[..., Script]) -> Callable[..., Any]:
    def body(*arguments: Any) -> Json:
        running, value = script(*arguments), None
        while True:
            try:
                value = running.send(value)
            except StopIteration as end:
                return end.value

    return body


def _awaiting(script: Callable[..., Script]) -> Callable[..., Awaitable[Json]]:
    async def body(*arguments: Any) -> Json:
        running, value = script(*arguments), None
        while True:
            try:
                pending = running.send(value)
            except StopIteration as end:
                return end.value
            value = await pending

    return body


def _blocking_attempt(recorder: Recorder, step: grammar.Step) -> Callable[[str], Json]:
    def attempt(path: str) -> Json:
        number = recorder.called(path)
        if step.failure_of(number) == "timeout":
            time.sleep(OUTLASTING)
        return _result(step, number)

    return attempt


def _awaiting_attempt(recorder: Recorder, step: grammar.Step) -> Callable[[str], Awaitable[Json]]:
    async def attempt(path: str) -> Json:
        number = recorder.called(path)
        if step.failure_of(number) == "timeout":
            await asyncio.sleep(OUTLASTING)
        return _result(step, number)

    return attempt


def _result(step: grammar.Step, number: int) -> Json:
    failure = step.failure_of(number)
    if failure in ("error", "critical", "rollback"):
        _fail(failure, f"failure {number}")
    return step.value


def _fail(kind: Failure, message: str) -> NoReturn:
    match kind:
        case "critical":
            raise CriticalError(message)
        case "rollback":
            raise RollbackError(message)
        case _:
            raise RuntimeError(message)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`bind` makes a body of a script, `attempt` a step's function that tells the recorder of its calls."""

    recorder: Recorder
    bind: Bind
    attempt: Callable[[Recorder, grammar.Step], Callable[[str], Any]]

    def perform(self, ctx: Any, body: Body, scope: str) -> Script:
        """The values of the body's operations. `scope` is the path of the body, "" at the root."""
        values = []
        for operation in body:
            values.append((yield from self._perform(ctx, operation, scope)))  # noqa: PERF401  # comprehensions cannot yield
        return values

    def _perform(self, ctx: Any, operation: Operation, scope: str) -> Script:
        match operation:
            case grammar.Step():
                return (yield self._step(ctx.step, operation, scope))
            case grammar.TryStep():
                result = yield self._step(ctx.try_step, operation.step, scope, **_catch(operation.catch))
                return _ok(result.value) if result.ok else _failed(_step_failure(result.failure))
            case grammar.Try():
                return (yield from self._try(ctx, operation, scope))
            case grammar.Loop():
                return (yield from self._loop(ctx, operation, scope))
            case grammar.Join():
                branches = self._branches(operation.branches, _path(scope, operation.name))
                return (yield ctx.join(operation.name, branches))
            case grammar.Race():
                branches = self._branches(operation.branches, _path(scope, operation.name))
                race = yield ctx.race(operation.name, branches)
                return {"winner": race.winner, "value": race.value}
            case grammar.Next():
                return (yield from self._next(ctx, operation))
            case grammar.NextBatch():
                return (yield from self._next_batch(ctx, operation))
            case _:
                return (yield from self._simple(ctx, operation))

    def _simple(self, ctx: Any, operation: Operation) -> Script:
        match operation:
            case grammar.Sleep():
                yield ctx.sleep(operation.name, _duration(operation.ms))
            case grammar.SleepUntil():
                yield ctx.sleep_until(operation.name, START + _duration(operation.at_ms))
            case grammar.Version():
                return (yield ctx.get_version(operation.name, operation.latest))
            case grammar.Removed():
                yield ctx.removed(operation.name, operation.original)
            case grammar.Checkpoint():
                yield ctx.rollback_checkpoint(operation.name)
            case grammar.Raise():
                _fail(operation.kind, operation.message)
            case other:
                raise AssertionError(f"no rule for {other!r}")
        return None

    def _step(self, perform: Any, step: grammar.Step, scope: str, **options: Any) -> Any:
        path = _path(scope, step.name)
        if step.failure_of(self.recorder.next_number(path)) == "timeout":
            options["timeout"] = STEP_TIMEOUT  # of no other call: a busy machine may be slow at any moment
        if step.max_retries is not None:
            options["max_retries"] = step.max_retries
        if step.base_ms is not None:
            options["retry_backoff_base"] = step.base_ms / 1000
        if step.max_ms is not None:
            options["retry_backoff_max"] = step.max_ms / 1000
        if step.ephemeral:
            options["ephemeral"] = True
        if step.retry_on_timeout:
            options["retry_on_timeout"] = True
        if step.rollback:
            options["rollback"] = undo
        return perform(step.name, self.attempt(self.recorder, step), path, **options)

    def _try(self, ctx: Any, operation: grammar.Try, scope: str) -> Script:
        path = _path(scope, operation.name)

        def script(inner: Any) -> Script:
            return self.perform(inner, operation.body, path)

        result = yield ctx.try_block(operation.name, self.bind(script), **_catch(operation.catch))
        return _ok(result.value) if result.ok else _failed(_block_failure(result.failure))

    def _loop(self, ctx: Any, operation: grammar.Loop, scope: str) -> Script:
        path = _path(scope, operation.name)
        options = {}
        if operation.prune is not None:
            options["history_prune_interval"] = operation.prune
        if operation.size is not None:
            options["history_size"] = operation.size

        def script(inner: Any, n: int) -> Script:
            last = yield from self.perform(inner, operation.body, f"{path}/~{n}")
            return Break({"n": n, "last": last}) if n >= operation.until else Continue(n + 1)

        return (yield ctx.loop(operation.name, self.bind(script), state=0, **options))

    def _branches(self, branches: Branches, path: str) -> dict[str, Callable[..., Any]]:
        return {name: self._branch(body, _path(path, name)) for name, body in branches}

    def _branch(self, body: Body, path: str) -> Callable[..., Any]:
        def script(inner: Any) -> Script:
            return self.perform(inner, body, path)

        return self.bind(script)

    def _next(self, ctx: Any, operation: grammar.Next) -> Script:
        message = yield ctx.queue.next(operation.name, **_wait(operation))
        return [(yield from self._received(message, operation.completable))]

    def _next_batch(self, ctx: Any, operation: grammar.NextBatch) -> Script:
        values = []
        for message in (yield ctx.queue.next_batch(operation.name, count=operation.count, **_wait(operation))):
            values.append((yield from self._received(message, operation.completable)))  # noqa: PERF401  # comprehensions cannot yield
        return values

    def _received(self, message: Any, completable: bool) -> Script:
        if completable:
            yield message.complete({"ok": True})
        return {"name": message.name, "body": message.body}


def _wait(operation: grammar.Next | grammar.NextBatch) -> dict[str, Any]:
    options: dict[str, Any] = {"names": operation.names, "completable": operation.completable}
    if operation.timeout_ms is not None:
        options["timeout"] = _duration(operation.timeout_ms)
    return options


def _catch(kinds: tuple[str, ...] | None) -> dict[str, Any]:
    return {} if kinds is None else {"catch": kinds}


def _path(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


def _duration(ms: int) -> timedelta:
    return timedelta(milliseconds=ms)


def _ok(value: Json) -> Json:
    return {"ok": True, "value": value}


def _failed(failure: Json) -> Json:
    return {"ok": False, "failure": failure}


def _step_failure(failure: Any) -> Json:
    return {
        "kind": failure.kind,
        "step": failure.step,
        "attempts": failure.attempts,
        "error": _error(failure.error),
    }


def _block_failure(failure: Any) -> Json:
    value = {"source": failure.source, "name": failure.name, "error": _error(failure.error)}
    if failure.step is not None:
        value["step"] = _step_failure(failure.step)
    return value


def _error(error: Any) -> Json:
    """An error as the traces have it: its message only where the program gave it."""
    name = error_name(error.type)
    return {"name": name, "message": error.message} if name == "Error" else {"name": name}
