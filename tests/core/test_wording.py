"""Errors say what was expected, what was found, and what to do; their tree; and what is noticed at once."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, Workflow, errors, get_run, workflow
from durable.codec import JsonCodec
from durable.core.control_flow import ControlFlow, Park
from durable.core.location import display_location, escape
from durable.core.records import RunState
from durable.core.summary import Summary, SummaryKind, asleep
from durable.core.words import Words
from durable.errors import (
    ContractError,
    DurableError,
    HistoryDivergedError,
    InvalidTransitionError,
    OperationDeniedError,
    OperationError,
    OutsideStepError,
    PayloadError,
    RunFailedError,
    RunNotFoundError,
    StaleRunError,
    WorkflowError,
)
from durable.testing import Harness
from tests.support.errors import check_failed, error_of


def waits(ctx: Context) -> None:
    ctx.queue.next("wait", names=["go"])


def ends(ctx: Context) -> None:
    """Nothing to do."""


class TestAVerbThatIsNotAllowed:
    def test_it_names_the_run_and_a_way_out(self, h: Harness) -> None:
        run = h.start(ends, id="order-42")
        h.finish(run)
        with pytest.raises(InvalidTransitionError) as refused:
            run.pause()
        assert str(refused.value).startswith("cannot pause a run that is completed; allowed when it is ")
        assert 'Run "order-42" has ended: restart() begins a new one' in str(refused.value)
        assert refused.value.run_id == "order-42"

    def test_a_paused_run_is_to_be_resumed_first(self, h: Harness) -> None:
        run = h.start(waits)
        h.settle()
        run.pause()
        with pytest.raises(InvalidTransitionError, match=r"resume\(\) it first"):
            run.pause()

    @pytest.mark.parametrize("state", RunState)
    def test_there_is_advice_for_every_state(self, state: RunState) -> None:
        message = str(InvalidTransitionError(state, ["sleeping"], "wake", "order-42"))
        assert message.partition('. Run "order-42" ')[2]

    def test_without_a_run_it_says_no_more_than_it_knows(self) -> None:
        assert (
            str(InvalidTransitionError("failed", ["paused"]))
            == "cannot this a run that is failed; allowed when it is paused"
        )


class TestAReceiveThatIsMisspelt:
    @pytest.mark.parametrize("keywords", [{"name": "go"}, {"queue": "go"}, {"nmaes": ["go"]}])
    @pytest.mark.parametrize("operation", ["next", "next_batch"])
    def test_the_error_says_how_to_write_it(self, h: Harness, operation: str, keywords: dict[str, Any]) -> None:
        def misspelt(ctx: Context) -> None:
            getattr(ctx.queue, operation)("wait", **keywords)

        async def awaited(ctx: AsyncContext) -> None:
            await getattr(ctx.queue, operation)("wait", **keywords)

        for each in (misspelt, awaited):
            error = error_of(h.finish(h.start(each)))
            assert error.type == "TypeError"
            assert next(iter(keywords)) in error.message
            assert error.message.endswith("names are the queues it waits for")

    @pytest.mark.parametrize("operation", ["next", "next_batch"])
    @pytest.mark.parametrize(("misspelt", "meant"), [("time_out", "timeout"), ("completeable", "completable")])
    def test_a_misspelt_option_is_answered_with_the_nearest(
        self, h: Harness, operation: str, misspelt: str, meant: str
    ) -> None:
        def wait(ctx: Context) -> None:
            getattr(ctx.queue, operation)("approved", **{misspelt: 5})

        async def awaited(ctx: AsyncContext) -> None:
            await getattr(ctx.queue, operation)("approved", **{misspelt: 5})

        for each in (wait, awaited):
            told = error_of(h.finish(h.start(each))).message
            assert re.search(f"[Dd]id you mean ['\"]{meant}['\"]", told)

    def test_what_the_operation_itself_refuses_is_left_as_it_is(self, h: Harness) -> None:
        def text(ctx: Context) -> None:
            ctx.queue.next("wait", names="go")

        assert error_of(h.finish(h.start(text))).message.endswith("write names=['go']")


class TestWhatCannotBeRead:
    def test_it_does_not_speak_of_recording(self) -> None:
        with pytest.raises(PayloadError, match=r"^cannot read the input at "):
            JsonCodec().decode("this is no JSON", what="the input")

    def test_a_value_that_is_refused_does(self) -> None:
        with pytest.raises(PayloadError, match=r"^cannot record the input at "):
            JsonCodec().encode(object(), what="the input")


class TestHabitsFromTaskQueues:
    @pytest.mark.parametrize(
        ("habit", "instead"),
        [("delay", r"\.start\("), ("apply_async", r"\.using\(.*\)\.start\("), ("enqueue", r"\.start\(")],
    )
    def test_the_error_says_what_to_write(self, habit: str, instead: str) -> None:
        definition: Workflow[[], None] = Workflow(ends, "wording.fulfil")
        with pytest.raises(AttributeError, match=instead):
            getattr(definition, habit)

    def test_any_other_name_is_just_missing(self) -> None:
        definition: Workflow[[], None] = Workflow(ends, "wording.fulfil")
        assert not hasattr(definition, "nonsense")
        assert copy.copy(definition).name == "wording.fulfil"


# -- what must not be done between the steps of a workflow, and is noticed at once


@workflow(name="tests.misuse.child")
def child(ctx: Context) -> int:
    return 1


def test_a_start_without_an_id_between_steps_is_refused(h: Harness) -> None:
    def ship(ctx: Context) -> None:
        child.start()

    ended = h.run(h.start(ship))
    check_failed(ended, OutsideStepError.__name__, "start it in a step, or with using(id=...)")


def test_a_start_in_a_step_or_with_an_id_is_not(h: Harness) -> None:
    def ship(ctx: Context) -> list[Any]:
        inside = ctx.step("start", lambda: child.start().id)
        named = child.using(id=f"{ctx.run_id}-child").start()
        ctx.sleep("nap", "1 hour")
        return [inside, named.id]

    handle = h.start(ship, id="parent")
    inside, named = h.finish(handle).output
    assert named == "parent-child"
    assert [h.peek(each).state for each in (inside, named)] == ["completed", "completed"]


def test_a_harness_that_is_not_in_force_says_so() -> None:
    with pytest.raises(RuntimeError, match="with Harness"):
        Harness().start(child)


def test_the_mistakes_of_a_first_day_are_explained() -> None:
    with pytest.raises(TypeError, match=r"start a run of it with \.start"):
        child(42)  # type: ignore[call-overload]  # the mistake
    with pytest.raises(TypeError, match=r"get_run\(str"):
        get_run(42)  # type: ignore[call-overload]  # the mistake
    with pytest.raises(TypeError, match="takes no context"):

        @workflow  # type: ignore[arg-type]  # the mistake
        def bare() -> None: ...


def test_a_failure_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def ship(ctx: Context) -> None:
        ctx.step("charge", lambda: 1 / 0, max_retries=0)

    with Harness() as h, caplog.at_level(logging.WARNING, logger="durable"):
        h.run(h.start(ship, id="order-1"))
    texts = [record.getMessage() for record in caplog.records]
    assert any("step charge failed, attempt 1: ZeroDivisionError" in text for text in texts)
    assert any("run order-1 of harness.ship failed: StepExhaustedError" in text for text in texts)


def test_the_log_says_on_which_day_a_step_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def bill(ctx: Context) -> None:
        ctx.step("charge", lambda: 1 / 0, retry_backoff_base="1 day", retry_backoff_max="5 days")

    with Harness(now=datetime(2026, 1, 30, 12, tzinfo=UTC)) as h, caplog.at_level(logging.WARNING, logger="durable"):
        h.run(h.start(bill))
    assert "tried again at 2026-02-01 12:00:00 UTC" in caplog.text


# -- the tree of errors: its middle classes can be caught, and the tree in the module's docstring is the real one


def drawn() -> Iterator[tuple[str, str]]:
    """Each error of the tree in the docstring with its parent."""
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error|RetryLater)\b", line)
        if found is None:
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
        path[depth:] = [found[2]]
        yield found[2], path[depth - 1] if depth else ""


def test_the_docstring_draws_the_tree() -> None:
    public = [getattr(errors, name) for name in errors.__all__]
    real = {
        found.__name__: "" if found is DurableError else found.__mro__[1].__name__
        for found in public
        if isinstance(found, type) and issubclass(found, DurableError)
    }
    assert dict(drawn()) == real


@pytest.mark.parametrize(
    ("error", "middle"),
    [
        (CriticalError, WorkflowError),
        (HistoryDivergedError, ContractError),
        (PayloadError, ContractError),
        (RunNotFoundError, OperationError),
        (StaleRunError, OperationError),
        (OperationDeniedError, OperationError),
    ],
)
def test_an_error_has_one_middle_class(error: type[Exception], middle: type[Exception]) -> None:
    assert [each for each in (WorkflowError, ContractError, OperationError) if issubclass(error, each)] == [middle]


def test_the_end_of_a_run_is_no_refusal_of_a_verb() -> None:
    assert not issubclass(RunFailedError, OperationError)


def test_control_flow_is_no_error() -> None:
    assert not issubclass(ControlFlow, Exception)
    with pytest.raises(Park):
        raise Park(None)


# -- A location has one spelling for people, in sentences, titles and links


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("charge", "charge"),
        ("images/image 057/watermark", "images / image 057 / watermark"),
        ("chunks/~1128/slow chunk", "chunks / iteration 1,128 / slow chunk"),
        (f"{escape('a/b')}/{escape('~3')}", "a/b / ~3"),
        ("send~0", "send~0"),
        ("", ""),
    ],
)
def test_a_location_is_shown_with_its_names(location: str, shown: str) -> None:
    assert display_location(location) == shown


def test_an_iteration_is_told_in_the_language_of_the_page() -> None:
    class German(Words):
        def gettext(self, text: str) -> str:
            return text.replace("iteration", "Durchlauf")

    assert display_location("loop/~2", German()) == "loop / Durchlauf 2"


def test_a_summary_stores_the_location_and_shows_its_names() -> None:
    summary = Summary(SummaryKind.WAITING, doing=[asleep(f"loop/~2/{escape('a/b')}")], queues=None, until=None)
    assert summary == 'asleep in "loop / iteration 2 / a/b"'
    assert Summary.load(summary.stored) == summary
    assert Summary(SummaryKind.REPLAYED, location="loop/~2/poll") == "replayed from loop / iteration 2 / poll"
