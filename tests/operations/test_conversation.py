"""Messages that stay open over many passes, on the stores of a database: received, asked back about, answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable import AsyncContext, Break, Context, Continue, Handle, QueueMessage, models, runtime, workflow
from durable.runtime import Runtime
from tests.core.flavours import Flavour
from tests.support.stores import passed

pytestmark = pytest.mark.django_db(transaction=True)


FLAVOURS = [Flavour("sync"), Flavour("async")]


async def agent(ctx: AsyncContext) -> list[Any]:
    """Answers a question after it has asked for permission as often as it takes."""
    question = await ctx.queue.next("question", completable=True)

    async def think(c: AsyncContext, turn: int) -> Break | Continue:
        wish = await c.queue.next("permission", completable=True)
        await wish.complete(f"turn {turn}")
        await c.step("tool", lambda: turn)
        if wish.body == "no":
            return Continue(turn + 1)
        await question.complete({"answer": question.body, "turns": turn})
        await c.sleep("cool off", 0)
        return Break(question.is_completed)

    before = question.is_completed
    within: bool = await ctx.loop("think", think, state=1, history_prune_interval=1)
    await ctx.queue.next("end")
    return [before, within, question.is_completed]


def responses(run: Handle) -> list[tuple[str, str | None]]:
    found = models.QueueMessage.objects.filter(run_id=run.id).order_by("order")
    return [(each.state, each.response) for each in found]


@pytest.mark.parametrize(
    "definition", [workflow(name=f"tests.conversation.{each}_agent")(each(agent)) for each in FLAVOURS]
)
def test_a_question_stays_open_while_others_are_asked_and_answered(at: Runtime, definition: Any) -> None:
    run = definition.start()
    run.send("question", 42)
    for permission in ("no", "no", "yes"):
        assert passed(at, run.id).waiting_for == frozenset({"permission"})
        assert responses(run)[0] == ("received", None)
        run.send("permission", permission)
    assert passed(at, run.id).waiting_for == frozenset({"end"})
    assert [state for state, _ in responses(run)] == ["completed"] * 4
    assert responses(run)[0][1] == '{"answer":42,"turns":3}'
    assert passed(at, run.id).waiting_for == frozenset({"end"}), "and in the pass of another worker"
    run.send("end")
    assert passed(at, run.id).output == [False, True, True]
    assert responses(run)[1:4] == [("completed", f'"turn {turn}"') for turn in (1, 2, 3)]


@workflow(name="tests.conversation.forgetful")
def forgetful(ctx: Context) -> None:
    ctx.queue.next("question", completable=True)


def test_one_left_open_stops_the_run(at: Runtime) -> None:
    run = forgetful.start()
    run.send("question", 42)
    error = passed(at, run.id).error
    assert error is not None
    assert error.type == "MessageNotCompletedError"
    assert responses(run) == [("received", None)]


MANY = 24


def answering(message: QueueMessage[Any, Any]) -> Callable[[Any], Any]:
    async def answer(_ctx: Any) -> None:
        await message.complete(message.body)

    return answer


async def several(ctx: AsyncContext) -> bool:
    messages = await ctx.queue.next_batch("question", count=MANY, completable=True)
    await ctx.join("answers", {str(each.body): answering(each) for each in messages})
    return all(each.is_completed for each in messages)


@pytest.mark.parametrize(
    "definition", [workflow(name=f"tests.conversation.{each}_several")(each(several)) for each in FLAVOURS]
)
def test_branches_that_run_at_once_answer_the_messages_of_one_wait(definition: Any) -> None:
    run = definition.start()
    for number in range(MANY):
        run.send("question", number)
    assert passed(runtime.production(), run.id).output is True
    assert responses(run) == [("completed", str(number)) for number in range(MANY)]
    [wait] = [each for each in run.history() if each.kind == "message"]
    assert all(each["completed"] for each in wait.data["received"])
