"""`ctx.queue`: next, next_batch, send, message.complete and message.refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import Break
from durable.core.records import MessageState
from durable.errors import InvalidTransitionError, MessageRefusedError, MessageTimeoutError
from durable.testing import Harness, SimulatedCrash
from tests.core.answers import responses, sends
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


def states(h: Harness, run_id: str) -> list[str]:
    return [each.state for each in h._store.messages(run_id)]


# -- next


def test_receives_what_is_sent_while_it_waits(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("wait", names=["approved", "rejected"])
        return message.name, message.body, message.sent_at, message.id

    run = h.start(flavour(ship), id="run")
    parked = h.run(run)
    assert (parked.state, parked.wake_at, parked.waiting_for) == ("sleeping", None, ["approved", "rejected"])
    assert run.history()[0].status == "pending"
    assert h.run_due() == 0
    h.send(run, "other", 1)
    assert h.run_due() == 0
    h.advance(5)
    sent = h.send(run, "approved", {"by": 7})
    assert h.run_due() == 1
    assert run.output == ("approved", {"by": 7}, h.now, sent)
    assert states(h, "run") == ["pending", "received"]


def test_is_first_in_first_out(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = [(await ctx.queue.next(f"wait {i}", ["b"])).body for i in range(2)]
        found += [(await ctx.queue.next(f"rest {i}", names=[])).body for i in range(3)]
        return found

    run = h.start(flavour(ship))
    for number, queue in enumerate(["a", "b", "a", "b", "b"]):
        h.send(run, queue, number)
    assert h.run(run).output == [1, 3, 0, 2, 4]


def test_is_received_once_whatever_crashes(h: Harness, flavour: Flavour) -> None:
    """Fault 7: receiving and recording are one commit."""

    async def ship(ctx: Any) -> Any:
        first = await ctx.queue.next("first", names=[])
        batch = await ctx.queue.next_batch("batch", names=[], count=2)
        await ctx.step("a", lambda: 1)
        last = await ctx.queue.next("last", names=[])
        return [first.body, *(each.body for each in batch), last.body]

    def drive(harness: Harness, handle: Any) -> None:
        for number in range(4):
            harness.send(handle, "q", number, id=f"message {number}")
        harness.finish(handle)

    assert h.crash_everywhere(flavour(ship), drive=drive) >= 8


def test_past_its_timeout_it_raises(h: Harness, flavour: Flavour) -> None:
    caught = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.queue.next("wait", ["a", "b"], timeout="1 hour")
        except MessageTimeoutError as error:
            caught.append((error.wait, error.names, str(error)))
        await ctx.sleep("rest", 60)
        return "gone on"

    run = h.start(flavour(ship))
    parked = h.run(run)
    assert parked.wake_at == h.now + timedelta(hours=1)
    assert h.finish(run).output == "gone on"
    assert caught == [("wait", ("a", "b"), caught[0][2])] * 2
    assert 'wait "wait" received no message from a, b before its deadline' in caught[0][2]


def test_next_batch_returns_as_soon_as_there_is_one(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return [[each.body for each in await ctx.queue.next_batch(f"wait {i}", ["q"], count=3)] for i in range(3)]

    run = h.start(flavour(ship))
    h.run(run)
    h.send(run, "q", 0)
    h.settle()
    for number in range(1, 5):
        h.send(run, "q", number)
    h.settle()
    assert run.output == [[0], [1, 2, 3], [4]]


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda queue: queue.next("a", "approved"), "names is a list of queues, not text: write names=['approved']"),
        (lambda queue: queue.next("a", [""]), "a name must not be empty"),
        (lambda queue: queue.next("a", names=[], timeout=float("inf")), "must be finite"),
        (lambda queue: queue.next_batch("a", names=[], count=0), "count must be a whole number of at least 1"),
        (lambda queue: queue.next_batch("a", names=[], count=1.5), "count must be a whole number of at least 1"),
        (lambda queue: queue.send("", 1), "a name must not be empty"),
        (lambda queue: queue.send("q", 1, to=5), "to is a run's id or handle, not 5"),
    ],
)
def test_says_what_is_wrong_with_a_call(h: Harness, flavour: Flavour, act: Any, text: str) -> None:
    async def ship(ctx: Any) -> Any:
        await act(ctx.queue)

    assert text in error_of(h.run(h.start(flavour(ship)))).message


def test_queues_of_any_name(h: Harness, flavour: Flavour) -> None:
    names = ["a/b", "*", "~0", "nul\0", "\N{ROCKET}", "lone\ud800"]

    async def ship(ctx: Any) -> Any:
        return [(await ctx.queue.next(name)).name for name in names]

    run = h.start(flavour(ship))
    for name in names:
        assert h.run(run).waiting_for == [name]
        h.send(run, "b", 0)
        assert h.run_due() == 0
        h.send(run, name, 0)
        assert h.run_due() == 1
    assert run.output == names


# -- sending


def test_a_send_happens_once(h: Harness, flavour: Flavour) -> None:
    """Fault 7: not again on replay."""

    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("q", 1)
        await ctx.queue.send("q", 2)
        found = [(await ctx.queue.next(f"wait {i}", names=[])).body for i in range(2)]
        await ctx.sleep("rest", 60)
        return found

    run = h.start(flavour(ship), id="run")
    assert h.finish(run).output == [1, 2]
    assert states(h, "run") == ["received"] * 2
    assert [each.location for each in run.history()][:2] == ["send~0", "send~1"]


def test_sends_are_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def receiver(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names=[])).body

    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("q", "one", to="receiver")
        await ctx.queue.send("own", "two")
        return (await ctx.queue.next("wait", names=[])).body

    def drive(harness: Harness, handle: Any) -> None:
        harness.start(flavour(receiver), id="receiver")
        harness.finish(handle)
        harness.settle()
        assert len(harness._store.messages("receiver")) == 1
        assert len(harness._store.messages(handle.id)) == 1

    h.crash_everywhere(flavour(ship), drive=drive)


def test_a_send_to_another_run_wakes_it(h: Harness, flavour: Flavour) -> None:
    async def receiver(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", ["q"])).body

    async def ship(ctx: Any, to: Any) -> Any:
        await ctx.queue.send("q", "hello", to=to)

    one = h.start(flavour(receiver))
    h.settle()
    h.start(flavour(ship), one.id)
    h.settle()
    assert one.output == "hello"


@pytest.mark.parametrize("ended", [False, True])
def test_a_send_to_a_run_that_cannot_receive_is_refused_the_same_way_each_time(
    h: Harness, flavour: Flavour, ended: bool
) -> None:
    seen = []

    async def nothing(ctx: Any) -> Any:
        return None

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.queue.send("q", "hello", to="other")
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
        await ctx.sleep("rest", 60)

    if ended:
        h.run(h.start(flavour(nothing), id="other"))
    run = h.start(flavour(ship))
    h.run(run)
    if not ended:
        h.start(flavour(nothing), id="other")
    h.finish(run)
    assert [name for name, _ in seen] == ["InvalidTransitionError" if ended else "RunNotFoundError"] * 2
    assert seen[0] == seen[1]


def test_a_message_sent_while_the_run_parks_is_not_missed(h: Harness, flavour: Flavour) -> None:
    """A run parks in a commit that looks for what came meanwhile."""

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: 1)
        return (await ctx.queue.next("wait", ["q"])).body

    run = h.start(flavour(ship))
    receive = h._store.inbox

    def looked(*args: Any, **kwargs: Any) -> Any:
        found = receive(*args, **kwargs)
        if not h._store.messages(run.id):
            h.send(run, "q", "just then")
        return found

    h._store.inbox = looked  # type: ignore[method-assign]
    h.run(run)
    assert h.run_due() == 1
    assert run.output == "just then"


# -- from outside


def test_ask_returns_the_response(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("quote", names=[], completable=True)
        await message.complete(message.body["sku"] + 1)

    assert h.start(flavour(ship)).ask("quote", {"sku": 1}) == 2


def test_ask_times_out_without_an_answer(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.next("quote", names=[])
        await ctx.queue.next("never", names=[])

    with pytest.raises(TimeoutError):
        h.start(flavour(ship)).ask("quote", timeout=5)


def test_a_crash_between_two_receipts_keeps_their_order(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return [(await ctx.queue.next(f"wait {i}", names=[])).body for i in range(3)]

    run = h.start(flavour(ship))
    for number in range(3):
        h.send(run, "q", number)
    with h.crash_at(2, "after"), pytest.raises(SimulatedCrash):
        h.run(run)
    assert states(h, run.id) == [MessageState.RECEIVED, MessageState.RECEIVED, MessageState.PENDING]
    assert h.finish(run).output == [0, 1, 2]


def test_a_send_with_an_id_is_idempotent_also_after_the_end(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names=[])).body

    run = h.start(flavour(ship))
    first = run.send("q", 1, id="only")
    assert h.send(run, "q", 1, id="only") == first
    assert h.run(run).output == 1
    assert run.send("q", 1, id="only") == first
    for another in ("another", None):
        with pytest.raises(InvalidTransitionError, match="cannot send to a run that is completed"):
            run.send("q", 1, id=another)


# -- `message.refuse`: what the asker gets, where it may be called, and what is recorded of it


async def shop(ctx: Any) -> Any:
    message = await ctx.queue.next("order", completable=True)
    if message.body > 3:
        await message.refuse("out of stock")
    else:
        await message.complete("on its way")
    return message.is_completed


def test_ask_raises_the_reason(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(shop), id="run")
    with pytest.raises(MessageRefusedError) as refused:
        run.ask("order", 4)
    assert refused.value.reason == "out of stock"
    assert refused.value.run_id == "run"
    assert str(refused.value) == 'run "run" refused the message: out of stock'
    assert h.peek(run).output is True


async def test_aask_raises_the_reason() -> None:
    with Harness() as h:
        run = await h.astart(shop)
        with pytest.raises(MessageRefusedError, match="out of stock"):
            await run.aask("order", 4)


def test_an_ask_with_the_same_id_is_refused_again(h: Harness) -> None:
    run = h.start(Flavour("sync")(shop))
    for _ in range(2):
        with pytest.raises(MessageRefusedError, match="out of stock"):
            run.ask("order", 4, id="order-7")
    assert run.state == "completed"


def test_is_recorded_and_replayed(h: Harness, flavour: Flavour) -> None:
    async def slow(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse("out of stock")
        await ctx.sleep("rest", 60)
        return message.is_completed

    run = h.start(flavour(slow), id="run")
    h.send(run, "order", 1)
    assert h.finish(run).output is True
    assert [each.state for each in h._store.messages("run")] == ["refused"]
    (received,) = run.history()[0].data["received"]
    assert (received["body"], received["refused"], received["completed"]) == (1, "out of stock", True)


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def picky(ctx: Any) -> Any:
        batch = [await ctx.queue.next(f"order {n}", ["order"], completable=True) for n in range(4)]
        for message in reversed(batch):
            if message.body % 2:
                await message.refuse(f"odd: {message.body}")
            else:
                await message.complete(message.body)
            await ctx.sleep(f"rest {message.body}", 1)

    def drive(harness: Harness, run: Any) -> None:
        sends("order", "order", "order", "order")(harness, run)
        assert responses(harness, run.id) == [0, "odd: 1", 2, "odd: 3"]
        states = [str(each.state) for each in harness._store.messages(run.id)]
        assert states == ["completed", "refused", "completed", "refused"]

    assert h.crash_everywhere(flavour(picky), drive=drive) >= 20


# -- one answer each


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [("refuse", "complete", "refused"), ("complete", "refuse", "completed"), ("refuse", "refuse", "refused")],
)
def test_a_message_has_one_answer(h: Harness, flavour: Flavour, first: str, second: str, found: str) -> None:
    async def twice(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await getattr(message, first)("once")
        await ctx.sleep("rest", 60)
        try:
            await getattr(message, second)("twice")
        except ValueError as error:
            return str(error)

    run = h.start(flavour(twice))
    h.send(run, "order")
    output = h.finish(run).output
    assert f"has been {found} already; complete or refuse each message once" in output
    assert responses(h, run.id) == ["once"]


def test_code_that_now_completes_what_was_refused_has_diverged(h: Harness, flavour: Flavour) -> None:
    refuses = True

    async def changed(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await (message.refuse("no") if refuses else message.complete("yes"))
        await ctx.sleep("rest", 60)

    run = h.start(flavour(changed))
    h.send(run, "order")
    h.settle()
    refuses = False
    check_failed(
        h.finish(run),
        "HistoryDivergedError",
        'a message of "order" is recorded as refused, but the code has it completed',
    )
    refuses = True
    run.recover()
    assert h.finish(run).state == "completed"


# -- where


def test_in_an_inner_scope(h: Harness, flavour: Flavour) -> None:
    async def nested(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)

        async def branch(c: Any) -> Any:
            async def body(inner: Any) -> Any:
                await message.refuse("not here")
                return Break()

            await c.loop("loop", body)

        await ctx.join("join", {"one": branch})
        return message.is_completed

    run = h.start(flavour(nested))
    h.send(run, "order")
    assert h.finish(run).output is True
    assert responses(h, run.id) == ["not here"]


def test_after_the_block_that_completed_it_there_is_nothing_to_refuse(h: Harness, flavour: Flavour) -> None:
    async def nested(ctx: Any) -> Any:
        kept: list[Any] = []

        async def body(c: Any) -> Any:
            kept.append(await c.queue.next("order", completable=True))
            await kept[0].complete()

        await ctx.try_block("block", body)
        await kept[0].refuse("late")

    run = h.start(flavour(nested))
    h.send(run, "order")
    assert "has been completed already" in error_of(h.finish(run)).message


@pytest.mark.parametrize(
    ("reason", "kind", "text"),
    [
        ("", "ValueError", "a refusal needs a reason"),
        (" \n", "ValueError", "a refusal needs a reason"),
        (None, "TypeError", "the reason of a refusal is text for the sender, not None"),
        ({"why": 1}, "TypeError", "the reason of a refusal is text"),
    ],
)
def test_the_reason_is_checked(h: Harness, flavour: Flavour, reason: Any, kind: str, text: str) -> None:
    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse(reason)

    run = h.start(flavour(refuses))
    h.send(run, "order")
    check_failed(h.finish(run), kind, text)


def test_a_message_that_is_not_completable_cannot_be_refused(h: Harness, flavour: Flavour) -> None:
    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order")
        await message.refuse("no")

    run = h.start(flavour(refuses))
    h.send(run, "order")
    assert "was not received with completable=True, so it cannot be refused" in error_of(h.finish(run)).message


def test_hostile_reasons_arrive_as_they_were_given(h: Harness, flavour: Flavour) -> None:
    reason = "\x00\ud800 \u202e<b>'\"\\ \U0001f600" + "x" * 10_000

    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse(reason)

    with pytest.raises(MessageRefusedError) as refused:
        h.start(flavour(refuses)).ask("order")
    assert refused.value.reason == reason
