"""`ctx.queue`: next, next_batch, send and message.complete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import InvalidTransitionError, MessageTimeoutError
from durable.core.records import MessageState
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour


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


def test_receives_what_was_sent_before(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names=[])).body

    run = h.start(flavour(ship))
    h.send(run, "any", [1, (2,)])
    assert h.run(run).output == [1, (2,)]


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


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_worker_receives_what_came_in_time_and_nothing_else(h: Harness, flavour: Flavour, late: float) -> None:
    """Fault 7: the deadline is that of the message, not that of the worker."""

    async def ship(ctx: Any) -> Any:
        return [each.body for each in await ctx.queue.next_batch("wait", names=[], timeout=60)]

    run = h.start(flavour(ship))
    h.run(run)
    h.advance(59 + late)
    h.send(run, "q", "in time?")
    h.advance("1 day")
    assert h.run(run).output == ([] if late else ["in time?"])


def test_a_timeout_of_zero_takes_what_is_there(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = [[each.body for each in await ctx.queue.next_batch("a", names=[], timeout=0, count=5)]]
        found.append([each.body for each in await ctx.queue.next_batch("b", names=[], timeout=0, count=5)])
        try:
            await ctx.queue.next("c", names=[], timeout=0)
        except MessageTimeoutError:
            found.append(["none"])
        return found

    run = h.start(flavour(ship))
    h.send(run, "q", 1)
    h.send(run, "q", 2)
    assert h.run(run).output == [[1, 2], [], ["none"]]


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

    error = h.run(h.start(flavour(ship))).error
    assert error is not None
    assert text in error.message


def test_queues_of_any_name(h: Harness, flavour: Flavour) -> None:
    names = ["a/b", "*", "~0", "nul\0", "\N{ROCKET}", "lone\ud800"]

    async def ship(ctx: Any) -> Any:
        return [(await ctx.queue.next(f"wait {i}", [name])).name for i, name in enumerate(names)]

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


def test_a_send_with_an_id_is_idempotent(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names=[])).body

    run = h.start(flavour(ship))
    first = h.send(run, "q", 1, id="only")
    assert h.send(run, "q", 1, id="only") == first
    assert h.run(run).output == 1


def test_a_send_to_an_ended_run_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return None

    run = h.start(flavour(ship))
    h.run(run)
    with pytest.raises(InvalidTransitionError, match="cannot send to a run that is completed"):
        run.send("q", 1)


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


def test_a_repeated_send_with_an_id_is_answered_also_after_the_end(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names=[])).body

    run = h.start(flavour(ship))
    first = run.send("q", 1, id="only")
    h.run(run)
    assert run.send("q", 1, id="only") == first
    with pytest.raises(InvalidTransitionError):
        run.send("q", 1, id="another")
