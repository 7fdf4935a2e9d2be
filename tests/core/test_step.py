"""`ctx.step`: result, record, retries, timeout, arguments and names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import anyio
import pytest

from durable import CriticalError, RetryLater, RollbackError, current_step, step
from durable.errors import StepExhaustedError
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour
from tests.support.errors import check_failed


class Counted:
    """A function that fails a number of times, then returns its value; `calls` are the arguments of each call."""

    def __init__(self, value: Any = None, fails: int = 0, error: Callable[[], BaseException] = ValueError) -> None:
        self.value = value
        self.fails = fails
        self.error = error
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args)
        if len(self.calls) <= self.fails:
            raise self.error()
        return self.value


class OutOfStockError(CriticalError):
    pass


class FussyError(CriticalError):
    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(f"{sku}: {left}")


class DeclinedError(CriticalError):
    def __init__(self, code: str) -> None:
        super().__init__(f"declined with code {code}")


class SpokenError(CriticalError):
    def __str__(self) -> str:
        return "spoken"


# -- fresh and replayed


def test_is_not_called_again_on_replay(lenient: Harness, flavour: Flavour) -> None:
    weigh = Counted({"kg": 3})
    seen = []  # of all passes, and the output is all of it

    async def ship(ctx: Any) -> Any:
        seen.append(await ctx.step("weigh", weigh))
        await ctx.sleep("wait", 60)
        return seen

    run = lenient.start(flavour(ship))
    lenient.run(run)
    assert lenient.finish(run).output == [{"kg": 3}, {"kg": 3}]
    assert len(weigh.calls) == 1


def test_an_async_function_is_awaited_in_either_workflow(h: Harness, flavour: Flavour) -> None:
    async def weigh(given: int) -> int:
        return given * 2

    async def ship(ctx: Any) -> Any:
        return [await ctx.step("one", weigh, 2), await ctx.step("two", lambda given: weigh(given), 3)]

    assert h.run(h.start(flavour(ship))).output == [4, 6]


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        first = await ctx.step("one", lambda: 1)
        second = await ctx.step("two", lambda: 2, ephemeral=True)
        return first + second + await ctx.step("three", lambda: 3)

    assert h.crash_everywhere(flavour(ship)) == 6


def test_before_its_commit_a_crash_has_it_called_again_and_after_it_not(h: Harness, flavour: Flavour) -> None:
    weigh = Counted("done")

    run = h.start(flavour.calling(lambda ctx: ctx.step("weigh", weigh)))
    with h.crash_at(1, "before"), pytest.raises(SimulatedCrash):
        h.run(run)
    assert len(weigh.calls) == 1
    with h.crash_at(2, "after"), pytest.raises(SimulatedCrash):  # the first commit is that of the attempt's beginning
        h.run(run)
    assert len(weigh.calls) == 2
    assert h.finish(run).output == "done"
    assert len(weigh.calls) == 2


# -- both forms of the call


@step(name="weigh it", max_retries=0)
def weigh_it(weight: int) -> int:
    if weight < 0:
        raise ValueError("no weight")
    return weight


@step
def plain(value: int) -> int:
    return value


def test_a_decorated_function_brings_name_and_options(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any, weight: int) -> Any:
        await ctx.step(plain, 1)
        await ctx.step("again", plain, 2)
        return await ctx.step(weigh_it, weight)

    run = h.start(flavour(ship), 3)
    assert h.run(run).output == 3
    assert [each.location for each in run.history()] == ["plain", "again", "weigh it"]
    bad = h.start(flavour(ship), -1)
    check_failed(h.run(bad), "StepExhaustedError")


def test_options_of_the_call_win_over_those_of_the_decorator(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour.calling(lambda ctx: ctx.step("other name", weigh_it, -1, max_retries=1)))
    assert h.run(run).state == "sleeping"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ctx: ctx.step("name"), "found none: write ctx.step(name, fn, *args)"),
        (lambda ctx: ctx.step("name", 3), "found 3"),
        (lambda ctx: ctx.step(len), "not decorated with @step"),
        (lambda ctx: ctx.step(3, len), "a name must be text, not int"),
        (lambda ctx: ctx.step("name", len, retries=3), 'has no option "retries"; did you mean "max_retries"?'),
        (lambda ctx: ctx.step("name", len, order_id=3), "arguments of the function are passed by position"),
        (lambda ctx: ctx.step("name", len, max_retries=-1), "max_retries must be a whole number of at least 0"),
        (lambda ctx: ctx.step("name", len, max_retries=1.5), "max_retries must be a whole number"),
        (lambda ctx: ctx.step("name", len, backoff="none"), "exponential, linear, constant"),
        (lambda ctx: ctx.step("name", len, retry_if=True), "retry_if must be a function of the exception"),
        (lambda ctx: ctx.step("name", len, timeout=-1), "timeout must not be negative"),
        (lambda ctx: ctx.step("name", len, timeout=float("inf")), "timeout must be finite"),
        (lambda ctx: ctx.step("name", len, timeout=float("nan")), "timeout must be finite"),
        (lambda ctx: ctx.step("name", len, timeout="soon"), "timeout cannot be read: 'soon'"),
        (lambda ctx: ctx.step("name", len, timeout=[1]), "timeout is given in seconds"),
        (lambda ctx: ctx.step("", len), "a name must not be empty"),
        (lambda ctx: ctx.step("n" * 129, len), "has 129 characters; at most 128 are allowed"),
    ],
)
def test_says_what_is_wrong_with_a_call(h: Harness, flavour: Flavour, call: Callable[[Any], Any], text: str) -> None:
    async def ship(ctx: Any) -> Any:
        await call(ctx)

    ended = h.run(h.start(flavour(ship)))
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error.type in {"TypeError", "ValueError"}
    assert text in ended.error.message


def test_durations_may_be_text_or_timedelta(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: 1, timeout="1 minute", retry_backoff_base=timedelta(seconds=1), retry_backoff_max=5)

    assert h.run(h.start(flavour(ship))).state == "completed"


# -- retries


def delays(h: Harness, flavour: Flavour, failures: int, **options: Any) -> list[float]:
    """Seconds until each next attempt."""
    fails = Counted(fails=failures)

    run = h.start(flavour.calling(lambda ctx: ctx.step("weigh", fails, **options)))
    found = []
    for _ in range(failures):
        parked = h.run(run)
        if parked.wake_at is None:
            break
        found.append((parked.wake_at - h.now).total_seconds())
        h._now = parked.wake_at
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.2, 0.4, 0.8]),
        ({"max_retries": 5, "retry_backoff_max": 1}, [0.2, 0.4, 0.8, 1, 1]),
        ({"backoff": "linear", "max_retries": 4}, [0.1, 0.2, 0.3, 0.4]),
        ({"backoff": "linear", "retry_backoff_max": 0.2}, [0.1, 0.2, 0.2]),
        ({"backoff": "constant", "retry_backoff_base": "7 seconds"}, [7, 7, 7]),
        ({"retry_backoff_base": 0}, [0, 0, 0]),
        ({"max_retries": 0}, []),
        ({"max_retries": 1}, [0.2]),
    ],
)
def test_waits_between_attempts(h: Harness, flavour: Flavour, options: dict[str, Any], expected: list[float]) -> None:
    assert delays(h, flavour, 6, **options) == pytest.approx(expected)


@pytest.mark.slow
def test_retries_without_end_do_not_overflow(h: Harness) -> None:
    fails = Counted(fails=1200)  # a float ends at 2**1024

    def ship(ctx: Any) -> None:
        ctx.step("weigh", fails, max_retries=1100, retry_backoff_base=0.5, retry_backoff_max=1)

    check_failed(h.finish(h.start(ship)), "StepExhaustedError")
    assert len(fails.calls) == 1101


def test_counts_the_wait_from_the_beginning_of_the_attempt_and_parks_until_then(h: Harness, flavour: Flavour) -> None:
    fails = Counted("done", fails=2)

    run = h.start(flavour.calling(lambda ctx: ctx.step("weigh", fails, retry_backoff_base=30, retry_backoff_max=600)))
    parked = h.run(run)
    assert (parked.state, parked.waiting_for) == ("sleeping", None)
    assert h.run(run).wake_at == parked.wake_at  # a pass that comes too early changes nothing
    assert len(fails.calls) == 1
    assert h.finish(run).output == "done"
    assert len(fails.calls) == 3


def test_is_exhausted_after_its_last_attempt_and_stays_so(h: Harness, flavour: Flavour) -> None:
    fails = Counted(fails=99, error=lambda: OSError("no net"))
    caught = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.step("weigh", fails, max_retries=1)
        except StepExhaustedError as error:
            caught.append((error.step, error.last_error.type, error.last_error.message, str(error)))
        await ctx.sleep("wait", 60)

    run = h.start(flavour(ship))
    assert h.finish(run).state == "completed"
    text = 'step "weigh" failed on its last attempt: OSError: no net'
    assert caught == [("weigh", "OSError", "no net", text)] * 2
    assert len(fails.calls) == 2
    entry = run.history()[0]
    assert (entry.status, entry.attempts) == ("exhausted", 2)
    assert entry.error is not None
    assert "Counted" not in entry.error.type
    assert "OSError: no net" in entry.error.traceback


@pytest.mark.parametrize("error", [CriticalError, RollbackError])
def test_a_critical_error_is_not_retried(h: Harness, flavour: Flavour, error: type[Exception]) -> None:
    fails = Counted(fails=99, error=lambda: error("never"))

    ended = h.run(h.start(flavour.calling(lambda ctx: ctx.step("weigh", fails))))
    assert ended.state == "failed"
    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == (error.__name__, "never")
    assert len(fails.calls) == 1


def test_a_subclass_of_critical_error_comes_back_as_itself(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        for name, error in (("one", lambda: OutOfStockError("out")), ("two", lambda: FussyError("a", left=0))):
            try:
                await ctx.step(name, Counted(fails=99, error=error))
            except CriticalError as caught:
                seen.append((type(caught), str(caught)))
        await ctx.sleep("wait", 60)

    assert h.finish(h.start(flavour(ship))).state == "completed"
    assert seen == [(OutOfStockError, "out"), (CriticalError, "a: 0")] * 2


def test_an_error_that_makes_a_sentence_of_its_argument_says_it_once(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.step("a", Counted(fails=99, error=lambda: DeclinedError("51")))
        except DeclinedError as caught:
            seen.append(str(caught))
        await ctx.sleep("wait", 60)
        await ctx.step("b", Counted(fails=99, error=SpokenError))

    ended = h.finish(h.start(flavour(ship)))
    assert seen == ["declined with code 51"] * 2
    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == ("SpokenError", "spoken")


class CodedError(CriticalError):
    """Makes its sentence when it is shown, from an argument that the record does not have."""

    def __str__(self) -> str:
        return f"declined with code {self.args[0]}"


def test_an_error_that_cannot_be_rebuilt_with_its_sentence_is_of_the_class_above(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.step("a", Counted(fails=99, error=lambda: CodedError("51")))
        except CriticalError as caught:
            seen.append((type(caught), str(caught)))
        await ctx.sleep("wait", 60)

    assert h.finish(h.start(flavour(ship))).state == "completed"
    assert seen == [(CriticalError, "declined with code 51")] * 2


def grouped(*errors: Exception) -> Callable[[], BaseException]:
    """What a TaskGroup raises whose tasks have raised these errors, one of them in a TaskGroup of its own."""
    return lambda: ExceptionGroup("outer", [ConnectionError("reset"), ExceptionGroup("inner", list(errors))])


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([OutOfStockError("out")], OutOfStockError),
        ([RollbackError("undo")], RollbackError),
        ([RetryLater(60), CriticalError("never")], CriticalError),
        ([CriticalError("never"), RollbackError("undo")], RollbackError),
    ],
)
def test_what_is_asked_for_in_a_group_is_done(
    h: Harness, flavour: Flavour, errors: list[Exception], raised: type[Exception]
) -> None:
    fails = Counted(fails=99, error=grouped(*errors))
    seen = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.step("a", flavour.function(fails))
        except (CriticalError, RollbackError) as caught:
            seen.append((type(caught), str(caught)))

    assert h.finish(h.start(flavour(ship))).state == "completed"
    assert seen == [(raised, str(errors[-1]))]
    assert len(fails.calls) == 1


def test_the_longest_wait_of_a_group_is_kept(h: Harness, flavour: Flavour) -> None:
    fails = Counted("sent", fails=1, error=grouped(RetryLater("1 minute"), RetryLater("1 hour")))

    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", flavour.function(fails))

    assert h.run(h.start(flavour(ship))).wake_at == h.now + timedelta(hours=1)


def test_retries_may_have_no_end(h: Harness, flavour: Flavour) -> None:
    fails = Counted("sent", fails=50, error=ConnectionError)

    run = h.start(flavour.calling(lambda ctx: ctx.step("send", flavour.function(fails), max_retries=None)))
    h.run(run)
    assert run.summary.startswith('step "send" failed (ConnectionError), attempt 1; goes on at')
    assert h.finish(run).output == "sent"
    assert len(fails.calls) == 51


def test_retry_if_sees_the_errors_of_a_group(h: Harness, flavour: Flavour) -> None:
    fails = Counted(fails=99, error=grouped(KeyError("sku")))
    seen: list[Exception] = []

    def is_transient(error: Exception) -> bool:
        seen.append(error)
        return isinstance(error, OSError)

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", flavour.function(fails), retry_if=is_transient)

    assert h.finish(h.start(flavour(ship))).state == "failed"
    assert [type(each) for each in seen] == [ConnectionError, KeyError]
    assert len(fails.calls) == 1


def in_task_group(kind: str, *errors: Exception) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the function of a step whose tasks raise these errors at once, in a real task group."""

    async def fail(error: Exception, together: asyncio.Barrier) -> None:
        await together.wait()
        raise error

    async def act() -> None:
        together = asyncio.Barrier(len(errors))
        if kind == "asyncio":
            async with asyncio.TaskGroup() as tasks:
                for each in errors:
                    tasks.create_task(fail(each, together))
        else:
            async with anyio.create_task_group() as group:
                for each in errors:
                    group.start_soon(fail, each, together)

    return act


@pytest.mark.parametrize("kind", ["asyncio", "anyio"])
class TestTaskGroups:
    @pytest.mark.parametrize("asked", [CriticalError("never"), RollbackError("undo")], ids=["critical", "rollback"])
    def test_what_a_task_asks_for_is_done(self, h: Harness, flavour: Flavour, kind: str, asked: Exception) -> None:
        async def ship(ctx: Any) -> Any:
            found = await ctx.try_step(
                "a", in_task_group(kind, ConnectionError("reset"), asked), catch=("critical", "rollback", "exhausted")
            )
            return [found.failure.kind, found.failure.attempts, found.failure.error.message]

        wanted = "rollback" if isinstance(asked, RollbackError) else "critical"
        assert h.run(h.start(flavour(ship))).output == [wanted, 1, str(asked)]

    def test_a_task_says_when_to_try_again(self, h: Harness, flavour: Flavour, kind: str) -> None:
        async def ship(ctx: Any) -> Any:
            await ctx.step("a", in_task_group(kind, ConnectionError("reset"), RetryLater("1 hour")))

        assert h.run(h.start(flavour(ship))).wake_at == h.now + timedelta(hours=1)

    def test_retry_if_sees_the_errors_of_the_tasks(self, h: Harness, flavour: Flavour, kind: str) -> None:
        seen: list[type[Exception]] = []

        def is_transient(error: Exception) -> bool:
            seen.append(type(error))
            return isinstance(error, OSError)

        async def ship(ctx: Any) -> Any:
            await ctx.step("a", in_task_group(kind, ConnectionError("reset"), KeyError("sku")), retry_if=is_transient)

        assert h.run(h.start(flavour(ship))).state == "failed"
        assert KeyError in seen


def test_retry_if_decides_which_errors_are_retried(h: Harness, flavour: Flavour) -> None:
    transient = Counted("sent", fails=1, error=ConnectionError)
    final = Counted(fails=99, error=lambda: KeyError("sku"))

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", transient, retry_if=lambda error: isinstance(error, OSError))
        await ctx.step("b", final, retry_if=lambda error: isinstance(error, OSError))

    ended = h.finish(h.start(flavour(ship)))
    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == ("CriticalError", "'sku'")
    assert (len(transient.calls), len(final.calls)) == (2, 1)


def test_a_retry_if_that_fails_makes_the_failure_critical_and_is_recorded(h: Harness, flavour: Flavour) -> None:
    def retry_if(error: Exception) -> bool:
        raise ZeroDivisionError("in retry_if")

    run = h.start(flavour.calling(lambda ctx: ctx.step("a", Counted(fails=99), retry_if=retry_if)))
    ended = h.run(run)
    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == ("CriticalError", "in retry_if")
    assert run.history()[0].status == "exhausted"


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit, lambda: SystemExit(3)])
@pytest.mark.parametrize("of_coroutine", [False, True])
def test_any_error_of_a_function_is_a_failed_attempt(
    h: Harness, flavour: Flavour, error: Callable[[], BaseException], of_coroutine: bool
) -> None:
    """Errors with a meaning of their own to generators and event loops included."""
    fails = Counted("done", fails=1, error=error)

    async def later() -> Any:
        return fails()

    run = h.start(flavour.calling(lambda ctx: ctx.step("a", later if of_coroutine else fails)))
    parked = h.run(run)
    assert (parked.state, run.history()[0].status) == ("sleeping", "failed")
    assert h.finish(run).output == "done"


def test_each_failed_attempt_is_recorded(h: Harness, flavour: Flavour) -> None:
    fails = Counted(3, fails=2, error=lambda: ValueError("bad"))

    run = h.start(flavour.calling(lambda ctx: ctx.step("a", fails)), id="run")
    h.finish(run)
    attempts = h._store.attempts("run")
    assert [(each.location, each.number, each.error.type) for each in attempts] == [
        ("a", 1, "ValueError"),
        ("a", 2, "ValueError"),
    ]
    entry = run.history()[0]
    assert (entry.status, entry.attempts, entry.error) == ("completed", 3, None)


# -- arguments, payloads


def test_its_arguments_are_recorded(h: Harness, flavour: Flavour) -> None:
    class Unknown:
        def __repr__(self) -> str:
            return "<Unknown " + "x" * 300

    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda *_: None, 1, (2, {3}))
        await ctx.step("b", lambda *_: None, Unknown(), 5, Broken())
        await ctx.step("c", lambda: None)

    run = h.start(flavour(ship))
    assert h.run(run).state == "completed"
    first, second, third = run.history()
    assert first.data["args"] == (1, (2, {3}))
    shown = second.data["args"]
    assert shown[0] == ("<Unknown " + "x" * 300)[:200] + "..."
    assert shown[1:] == ("5", "<Broken>")
    assert third.data["args"] is None


def test_an_output_that_the_codec_refuses_fails_the_run_at_once(h: Harness, flavour: Flavour) -> None:
    weigh = Counted(object())

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", weigh)

    check_failed(h.run(h.start(flavour(ship))), "PayloadError", 'the output of step "a"')
    assert len(weigh.calls) == 1


def test_an_output_over_the_limit_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: "x" * (1024 * 1024 + 1))

    check_failed(h.run(h.start(flavour(ship))), "PayloadError")


# -- names and locations


NAMES = ["a/b", "~0", "100%", "send~0", "\N{ROCKET}", "nul\0", "lone\ud800", "two words", "%2F", "n" * 128, "\x7f"]


def test_any_text_can_be_a_name(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = [await ctx.step(name, lambda name=name: name.encode(errors="surrogatepass")) for name in NAMES]
        await ctx.sleep("wait", 60)
        return found

    run = h.start(flavour(ship))
    assert h.finish(run).output == [name.encode(errors="surrogatepass") for name in NAMES]
    for entry in run.history():
        assert "/" not in entry.location
        entry.location.encode()
        assert "\0" not in entry.location


def test_a_location_has_a_limit(h: Harness, flavour: Flavour) -> None:
    async def deeper(ctx: Any) -> Any:
        await ctx.try_block("n" * 128, deeper)

    check_failed(h.run(h.start(flavour(deeper))), "ValueError", "at most 1024", "shorten the names or nest less deeply")


def test_a_name_is_unique_within_its_scope(h: Harness, flavour: Flavour) -> None:
    called = []

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: called.append(1))
        await ctx.step("a", lambda: called.append(2))

    check_failed(
        h.run(h.start(flavour(ship))), "HistoryDivergedError", '"a" is used twice; a name is unique within its scope'
    )
    assert called == [1]


# -- what the function knows


def test_the_function_knows_its_step(h: Harness, flavour: Flavour) -> None:
    seen = []

    def look() -> None:
        info = current_step()
        seen.append((info.run_id, info.location, info.attempt, info.idempotency_key, info.is_evicted()))
        if info.attempt == 1:
            raise ValueError

    async def look_later() -> None:
        look()

    async def inside(ctx: Any) -> Any:
        await ctx.step("look", look)
        await ctx.step("later", look_later)

    h.finish(h.start(flavour.calling(lambda ctx: ctx.try_block("block", inside)), id="run"))
    assert [each[:3] for each in seen] == [
        ("run", "block/look", 1),
        ("run", "block/look", 2),
        ("run", "block/later", 1),
        ("run", "block/later", 2),
    ]
    keys = [each[3] for each in seen]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert not any(each[4] for each in seen)


def test_outside_a_step_there_is_no_current_step(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: 1)
        current_step()

    ended = h.run(h.start(flavour(ship)))
    assert ended.error is not None
    assert (ended.error.type, "can only be called inside a step function" in ended.error.message) == (
        "RuntimeError",
        True,
    )


def test_idempotency_keys_differ_between_runs(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", lambda: current_step().idempotency_key)

    assert h.run(h.start(flavour(ship))).output != h.run(h.start(flavour(ship))).output
