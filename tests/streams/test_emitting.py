"""What a step emits, on a virtual clock: to whom it is shown, what is no chunk, and what it costs the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, Found, current_step, workflow
from durable.errors import PayloadError
from durable.testing import Harness


@pytest.fixture
def harness() -> Any:
    with Harness() as h:
        yield h


def settled(harness: Harness, flow: Any, *args: Any) -> Any:
    """A run of the flow that has done what it can."""
    run = harness.start(flow, *args)
    harness.settle()
    return run


def step_of(name: str, function: Callable[[], Any], **options: Any) -> Callable[[Context], Any]:
    """A flow of this one step."""
    return lambda ctx: ctx.step(name, function, **options)


def say(words: list[Any]) -> str:
    for word in words:
        current_step().emit(word)
    return " ".join(str(word) for word in words)


@workflow(name="tests.streams.say")
def saying(ctx: Context, words: list[Any]) -> str:
    return ctx.step("say", say, words)


@workflow(name="tests.streams.say-async")
async def saying_async(ctx: AsyncContext, words: list[Any]) -> str:
    return await ctx.step("say", say, words)


@pytest.mark.parametrize("flow", [saying, saying_async])
def test_a_harness_has_what_a_step_has_emitted(harness: Harness, flow: Any) -> None:
    run = settled(harness, flow, ["one", {"two": [2, None]}, "🙂 <b>"])
    assert harness.emitted(run, "say") == ["one", {"two": [2, None]}, "🙂 <b>"]
    last = list(run.stream("say"))[-1]
    assert (last.event, last.value) == ("result", "one {'two': [2, None]} 🙂 <b>")


def test_a_reader_goes_on_behind_the_chunk_that_it_has(harness: Harness) -> None:
    run = settled(harness, saying, ["one", "two", "three"])
    chunks = list(run.stream("say"))
    for number, chunk in enumerate(chunks[:-1], start=1):
        assert list(run.stream("say", after=chunk.id)) == chunks[number:]


def test_another_attempt_begins_with_a_restart(harness: Harness) -> None:
    def write() -> str:
        current_step().emit(f"attempt {current_step().attempt}")
        if current_step().attempt < 3:
            raise ConnectionError
        return "written"

    run = settled(harness, step_of("write", write, retry_backoff_base=0))
    assert [(chunk.event, chunk.value) for chunk in run.stream("write")] == [
        ("chunk", "attempt 1"),
        ("restart", None),
        ("chunk", "attempt 2"),
        ("restart", None),
        ("chunk", "attempt 3"),
        ("result", "written"),
    ]
    assert harness.emitted(run, "write") == ["attempt 3"]


def test_the_end_of_a_step_that_fails_is_its_error(harness: Harness) -> None:
    def fail() -> None:
        current_step().emit(1)
        raise CriticalError("no paper")

    run = settled(harness, step_of("fail", fail))
    assert [(chunk.event, chunk.value) for chunk in run.stream("fail")] == [
        ("chunk", 1),
        ("failed", "CriticalError: no paper"),
    ]


def test_a_run_that_ended_without_the_step_ends_its_stream(harness: Harness) -> None:
    def flow(ctx: Context) -> None:
        ctx.sleep("long", "1 day")

    run = settled(harness, flow)
    assert list(run.stream("write")) == []
    run.cancel()
    [last] = run.stream("write")
    assert last.event == "failed"
    assert 'is cancelled, and has no result at "write"' in last.value


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [("x" * 65_536, "65,538 bytes as text, and 65,536 are allowed"), (object(), "a chunk of step")],
)
def test_what_is_no_chunk_is_refused(harness: Harness, chunk: Any, problem: str) -> None:
    seen = []

    def emit() -> None:
        try:
            current_step().emit(chunk)
        except PayloadError as error:
            seen.append(str(error))

    settled(harness, step_of("emit", emit))
    assert len(seen) == 1
    assert problem in seen[0]


def emit_in_rollback(_rollback: Any, _output: Any) -> None:
    current_step().emit("too late")


def verify() -> Found[None]:
    current_step().emit("asked")
    return Found(None)


def rolled_back(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("work", lambda: None, rollback=emit_in_rollback)
    ctx.step("fail", fail_at_once)


def fail_at_once() -> None:
    raise CriticalError("over")


def verified(ctx: Context) -> None:
    ctx.step("work", interrupted, once=True, verify=verify, verify_retries=0, when_exhausted="fail")


def interrupted() -> None:
    raise ConnectionError


@pytest.mark.parametrize(("flow", "where"), [(rolled_back, "a rollback handler"), (verified, "a step's verify")])
def test_only_a_step_emits(harness: Harness, flow: Callable[[Context], None], where: str) -> None:
    run = settled(harness, flow)
    said = " ".join(str(entry.rollback_error or entry.error) for entry in run.history())
    assert "emit() cannot be used" in said
    assert where in said


def test_a_chunk_is_a_heartbeat(harness: Harness) -> None:
    signs = []

    def write() -> None:
        progress = current_step().saves()
        signs.append(progress.signed_at)
        current_step().emit("a")
        signs.append(progress.signed_at)

    settled(harness, step_of("write", write, heartbeat="1 minute"))
    assert signs[0] is None
    assert signs[1] is not None
