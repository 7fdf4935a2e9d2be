"""Errors that people meet first say what was expected, what was found, and what to do."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from durable import AsyncContext, Context, InvalidTransitionError, PayloadError, Workflow
from durable.codec import JsonCodec
from durable.core.records import RunState
from durable.testing import Harness


def waits(ctx: Context) -> None:
    ctx.queue.next("wait", names=["go"])


def ends(ctx: Context) -> None:
    """Nothing to do."""


class TestAVerbThatIsNotAllowed:
    def test_it_names_the_run_and_a_way_out(self) -> None:
        with Harness() as h:
            run = h.start(ends, id="order-42")
            h.finish(run)
            with pytest.raises(InvalidTransitionError) as refused:
                run.pause()
        assert str(refused.value).startswith("cannot pause a run that is completed; allowed when it is ")
        assert 'Run "order-42" has ended: restart() begins a new one' in str(refused.value)
        assert refused.value.run_id == "order-42"

    def test_a_paused_run_is_to_be_resumed_first(self) -> None:
        with Harness() as h:
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
    def test_the_error_says_how_to_write_it(self, operation: str, keywords: dict[str, Any]) -> None:
        def misspelt(ctx: Context) -> None:
            getattr(ctx.queue, operation)("wait", **keywords)

        async def awaited(ctx: AsyncContext) -> None:
            await getattr(ctx.queue, operation)("wait", **keywords)

        with Harness() as h:
            for workflow in (misspelt, awaited):
                error = h.finish(h.start(workflow)).error
                assert error is not None
                assert error.type == "TypeError"
                assert next(iter(keywords)) in error.message
                assert error.message.endswith("names are the queues it waits for")

    @pytest.mark.parametrize("operation", ["next", "next_batch"])
    @pytest.mark.parametrize(("misspelt", "meant"), [("time_out", "timeout"), ("completeable", "completable")])
    def test_a_misspelt_option_is_answered_with_the_nearest(self, operation: str, misspelt: str, meant: str) -> None:
        def wait(ctx: Context) -> None:
            getattr(ctx.queue, operation)("approved", **{misspelt: 5})

        async def awaited(ctx: AsyncContext) -> None:
            await getattr(ctx.queue, operation)("approved", **{misspelt: 5})

        with Harness() as h:
            for workflow in (wait, awaited):
                error = h.finish(h.start(workflow)).error
                assert error is not None
                assert re.search(f"[Dd]id you mean ['\"]{meant}['\"]", error.message)

    def test_what_the_operation_itself_refuses_is_left_as_it_is(self) -> None:
        def text(ctx: Context) -> None:
            ctx.queue.next("wait", names="go")

        with Harness() as h:
            error = h.finish(h.start(text)).error
        assert error is not None
        assert error.message.endswith("write names=['go']")


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
