"""`try_step` and `try_block`: which terminal failures are caught, as what, and that they stay what they are."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable import Break, CriticalError, RollbackError
from durable.errors import JoinError, RaceError
from durable.testing import Harness
from tests.core.flavours import Flavour
from tests.support.errors import check_failed


def raising(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


FAILS: dict[str, tuple[Any, dict[str, Any]]] = {
    "critical": (raising(CriticalError("critical")), {}),
    "exhausted": (raising(ValueError("exhausted")), {"max_retries": 0}),
    "rollback": (raising(RollbackError("rollback")), {}),
    "refused by retry_if": (raising(ValueError("no")), {"retry_if": lambda error: False}),
}
KINDS = {"refused by retry_if": "critical"}


def tried(h: Harness, workflow: Any) -> Any:
    """The output of a run that sleeps once after the trial, so that it is replayed."""
    ended = h.finish(h.start(workflow))
    assert ended.error is None, ended.error.traceback
    return ended.output


@pytest.mark.parametrize("fails", FAILS)
def test_try_step_catches_each_kind_when_asked(h: Harness, flavour: Flavour, fails: str) -> None:
    function, options = FAILS[fails]
    kind = KINDS.get(fails, fails)

    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("a", function, catch=[kind], **options)
        await ctx.sleep("wait", 60)
        failure = result.failure
        return result.ok, result.value, failure.kind, failure.step, failure.attempts, failure.error.type

    error = {"critical": "CriticalError", "rollback": "RollbackError"}.get(fails, "ValueError")
    assert tried(h, flavour(ship)) == (False, None, kind, "a", 1, error)


@pytest.mark.parametrize("fails", FAILS)
def test_try_step_catches_all_but_rollback_by_default(h: Harness, flavour: Flavour, fails: str) -> None:
    function, options = FAILS[fails]

    async def ship(ctx: Any) -> Any:
        return (await ctx.try_step("a", function, **options)).ok

    ended = h.run(h.start(flavour(ship)))
    assert ended.state == ("failed" if fails == "rollback" else "completed")


@pytest.mark.parametrize("fails", FAILS)
def test_try_step_catches_nothing_that_catch_does_not_name(h: Harness, flavour: Flavour, fails: str) -> None:
    function, options = FAILS[fails]
    others = {"critical", "timeout", "exhausted", "rollback"} - {KINDS.get(fails, fails)}

    async def ship(ctx: Any) -> Any:
        await ctx.try_step("a", function, catch=others, **options)

    assert h.run(h.start(flavour(ship))).state == "failed"


def test_try_step_that_succeeds(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("a", lambda given: given, 5)
        return result.ok, result.value, result.failure

    assert tried(h, flavour(ship)) == (True, 5, None)


def test_try_step_parks_between_attempts(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("a", raising(ValueError("x")))
        return result.failure.kind, result.failure.attempts

    run = h.start(flavour(ship))
    assert h.run(run).state == "sleeping"
    assert h.finish(run).output == ("exhausted", 4)


def test_try_step_does_not_catch_contract_errors(h: Harness, flavour: Flavour) -> None:
    every = ("critical", "timeout", "exhausted", "rollback")

    async def ship(ctx: Any) -> Any:
        await ctx.try_step("a", object, catch=every)

    async def twice(ctx: Any) -> Any:
        await ctx.try_step("a", lambda: 1, catch=every)
        await ctx.try_step("a", lambda: 1, catch=every)

    for workflow, expected in ((ship, "PayloadError"), (twice, "HistoryDivergedError")):
        check_failed(h.run(h.start(flavour(workflow))), expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.try_step("a", lambda: 1, catch=["join"]),
        lambda ctx: ctx.try_step("a", lambda: 1, catch="everything"),
        lambda ctx: ctx.try_block("a", None, catch=["critical"]),
    ],
)
def test_an_unknown_kind_is_refused(h: Harness, call: Any) -> None:
    check_failed(h.run(h.start(lambda ctx: call(ctx))), "ValueError", "catch knows the kinds")


# -- blocks


async def of_step(ctx: Any) -> Any:
    await ctx.step("a", raising(ValueError("x")), max_retries=0)


async def of_critical_step(ctx: Any) -> Any:
    await ctx.step("a", raising(CriticalError("x")))


async def of_rollback_step(ctx: Any) -> Any:
    await ctx.step("a", raising(RollbackError("x")))


async def of_join(ctx: Any) -> Any:
    await ctx.join("j", {"b": of_step})


async def of_race(ctx: Any) -> Any:
    await ctx.race("r", {"b": of_step})


async def of_rollback(ctx: Any) -> Any:
    raise RollbackError("mine")


async def of_loop(ctx: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await of_step(ctx)
        return Break(1)

    await ctx.loop("l", body)


async def of_inner_block(ctx: Any) -> Any:
    await ctx.try_block("inner", of_join, catch=["step"])


SOURCES = [
    (of_step, "step", "step", "a"),
    (of_critical_step, "step", "step", "a"),
    (of_rollback_step, "rollback", "step", "a"),
    (of_join, "join", "join", "j"),
    (of_race, "race", "race", "r"),
    (of_rollback, "rollback", "block", "block"),
    (of_loop, "step", "step", "a"),
    (of_inner_block, "join", "join", "j"),
]


@pytest.mark.parametrize(("body", "kind", "source", "name"), SOURCES)
def test_try_block_says_which_operation_failed(
    h: Harness, flavour: Flavour, body: Any, kind: str, source: str, name: str
) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_block("block", body, catch=[kind])
        await ctx.sleep("wait", 60)
        return result.ok, result.value, result.failure.source, result.failure.name, bool(result.failure.step)

    assert tried(h, flavour(ship)) == (False, None, source, name, source == "step")


@pytest.mark.parametrize(("body", "kind", "source", "name"), SOURCES)
def test_try_block_lets_other_kinds_pass(
    h: Harness, flavour: Flavour, body: Any, kind: str, source: str, name: str
) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.try_block("block", body, catch={"step", "join", "race", "rollback"} - {kind})

    assert h.run(h.start(flavour(ship))).state == "failed"


@pytest.mark.parametrize(("body", "kind", "source", "name"), SOURCES)
def test_try_block_catches_all_but_rollback_by_default(
    h: Harness, flavour: Flavour, body: Any, kind: str, source: str, name: str
) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.try_block("block", body)

    assert h.run(h.start(flavour(ship))).state == ("failed" if kind == "rollback" else "completed")


@pytest.mark.parametrize("error", [ValueError("bug"), CriticalError("mine"), KeyError("k")])
def test_try_block_does_not_catch_errors_of_the_bodys_own_code(h: Harness, flavour: Flavour, error: Exception) -> None:
    async def body(ctx: Any) -> Any:
        raise error

    async def ship(ctx: Any) -> Any:
        await ctx.try_block("block", body, catch=["step", "join", "race", "rollback"])

    found = h.run(h.start(flavour(ship))).error
    assert found is not None
    assert found.type == type(error).__name__


def test_try_block_returns_the_bodys_value_and_has_names_of_its_own(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.step("a", lambda: 2)

    async def ship(ctx: Any) -> Any:
        one = await ctx.step("a", lambda: 1)
        result = await ctx.try_block("block", body)
        await ctx.sleep("wait", 60)
        return one, result.ok, result.value, result.failure

    assert tried(h, flavour(ship)) == (1, True, 2, None)


def test_a_block_that_records_nothing(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        return 3

    async def ship(ctx: Any) -> Any:
        found = [(await ctx.try_block("block", body)).value, await ctx.step("a", lambda: 1)]
        await ctx.sleep("wait", 60)
        return found

    assert tried(h, flavour(ship)) == [3, 1]


def test_failures_are_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = [
            (await ctx.try_block(f"block {source}-{name}-{i}", body, catch=[kind])).failure.source
            for i, (body, kind, source, name) in enumerate(SOURCES)
        ]
        return [*found, (await ctx.try_step("last", raising(CriticalError("x")))).failure.kind]

    h.crash_everywhere(flavour(ship))


def test_join_and_race_errors_say_what_failed(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def two(ctx: Any) -> Any:
        raise ValueError("own code")

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.join("j", {"one": of_step, "two": two})
        except JoinError as error:
            seen.append(({name: each.type for name, each in error.errors.items()}, str(error)))
        try:
            await ctx.race("r", {"one": of_step, "two": two})
        except RaceError as error:
            seen.append(({name: each.type for name, each in error.errors.items()}, str(error)))
        await ctx.sleep("wait", 60)

    assert h.finish(h.start(flavour(ship))).error is None
    assert seen[:2] == seen[2:]
    types, text = seen[0]
    assert types == {"one": "StepExhaustedError", "two": "ValueError"}
    assert text.startswith('join failed: branch "one": StepExhaustedError: step "a" failed on its last attempt')
    assert seen[1][1].startswith("all branches of the race failed: ")


def test_errors_that_are_the_cause_of_each_other_end_the_run(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> None:
        try:
            await ctx.step("a", raising(CriticalError("no")))
        except CriticalError as error:
            try:
                raise KeyError("while reporting it") from error
            except KeyError as another:
                raise error from another

    run = h.start(flavour(ship))
    with deadline():
        ended = h.run(run)
    assert ended.error is not None
    assert ended.error.message == "no"
    run.recover()
    assert [each.status for each in run.history()] == ["pending"]


@contextmanager
def deadline() -> Iterator[None]:
    """Raise where the block is caught in a circle."""

    def end(_signal: int, _frame: object) -> None:
        raise AssertionError("it goes round in a circle")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_workflow_that_calls_sys_exit_fails_and_takes_no_worker_along(h: Harness, flavour: Flavour) -> None:
    async def branch(ctx: Any) -> Any:
        sys.exit("enough")

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: 1)
        await ctx.join("both", {"b": branch})

    async def leave(ctx: Any) -> Any:
        sys.exit(3)

    check_failed(h.run(h.start(flavour(leave))), "RuntimeError", "sys.exit(3)")
    check_failed(h.run(h.start(flavour(ship))), "JoinError", "sys.exit('enough')")
