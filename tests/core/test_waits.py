"""What a wait for messages waits for, and until when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import durable
from durable.errors import MessageTimeoutError
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.support.errors import error_of

HOUR = timedelta(hours=1)


async def next_one(queue: Any, *args: Any, **options: Any) -> list[Any]:
    try:
        return [(await queue.next(*args, **options)).body]
    except MessageTimeoutError:
        return []


async def next_batch(queue: Any, *args: Any, **options: Any) -> list[Any]:
    return [each.body for each in await queue.next_batch(*args, **options)]


@pytest.fixture(params=[next_one, next_batch])
def receive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    found: Callable[..., Any] = request.param
    return found


# -- which queues


def test_without_names_it_waits_for_the_queue_of_its_name(h: Harness, flavour: Flavour, receive: Any) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "approved")

    run = h.start(flavour(ship))
    h.send(run, "rejected", "no")
    assert h.run(run).waiting_for == ["approved"]
    assert run.summary == "waiting for a message in approved"
    h.send(run, "approved", "yes")
    h.settle()
    assert run.output == ["yes"]
    assert run.history()[0].data["names"] == ["approved"]


@pytest.mark.parametrize("names", [[], (), durable.ANY])
def test_with_no_queues_in_names_it_waits_for_any(h: Harness, flavour: Flavour, receive: Any, names: Any) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "approved", names=names)

    run = h.start(flavour(ship))
    assert h.run(run).waiting_for == []
    h.send(run, "rejected", "no")
    h.settle()
    assert run.output == ["no"]


def test_the_error_of_the_timeout_names_the_queue(h: Harness, flavour: Flavour) -> None:
    ended = h.finish(h.start(flavour.calling(lambda ctx: ctx.queue.next("approved", timeout=60))))
    assert 'wait "approved" received no message from approved before its deadline' in error_of(ended).message


def test_a_wait_recorded_as_one_for_any_queue_stays_that(h: Harness, flavour: Flavour, receive: Any) -> None:
    """As a wait without names was, before its name became the queue."""
    names: dict[str, Any] = {"names": []}

    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "approved", **names), await receive(ctx.queue, "shipped", **names)

    run = h.start(flavour(ship))
    h.run(run)
    names.clear()
    assert h.run(run).waiting_for == []
    h.send(run, "rejected", "no")
    h.settle()
    assert run.waiting_for == ["shipped"], "a wait that begins now waits for the queue of its name"
    h.send(run, "shipped", "yes")
    h.settle()
    assert run.output == (["no"], ["yes"])


def test_queues_that_the_code_names_now_win_over_recorded_ones(h: Harness, flavour: Flavour, receive: Any) -> None:
    names = ["aproved"]

    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "wait", names)

    run = h.start(flavour(ship))
    h.run(run)
    names[0] = "approved"
    h.send(run, "approved", "yes")
    assert h.run(run).output == ["yes"]


# -- until when


@pytest.mark.parametrize("over", [0, -1, timedelta(days=-42), 0.0])
def test_a_timeout_that_is_over_takes_what_is_there(h: Harness, flavour: Flavour, receive: Any, over: Any) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", timeout=over), await receive(ctx.queue, "post", timeout=over)

    run = h.start(flavour(ship))
    h.send(run, "mail", 1)
    assert h.run(run).output == ([1], [])


def test_it_waits_until_a_moment(h: Harness, flavour: Flavour, receive: Any) -> None:
    moment = (NOW + HOUR).astimezone(timezone(timedelta(hours=5)))

    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", until=moment)

    run = h.start(flavour(ship))
    assert h.run(run).wake_at == NOW + HOUR
    h.advance(HOUR - timedelta(seconds=1))
    assert h.run_due() == 0
    h.advance(1)
    assert h.run(run).output == []


@pytest.mark.parametrize("late", [False, True])
def test_until_a_moment_a_late_worker_receives_what_came_in_time(
    h: Harness, flavour: Flavour, receive: Any, late: bool
) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", until=NOW + HOUR)

    run = h.start(flavour(ship))
    h.run(run)
    h.advance(HOUR if late else HOUR / 2)
    h.send(run, "mail", "in time?")
    h.advance("1 day")
    assert h.run(run).output == ([] if late else ["in time?"])


@pytest.mark.parametrize("moment", [NOW - timedelta(days=42), datetime(1, 1, 1, tzinfo=UTC), NOW])
def test_a_moment_that_has_passed_is_a_timeout_of_zero(
    h: Harness, flavour: Flavour, receive: Any, moment: datetime
) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", until=moment), await receive(ctx.queue, "post", until=moment)

    run = h.start(flavour(ship))
    h.send(run, "mail", 1)
    assert h.run(run).output == ([1], [])
    assert run.history()[0].data["deadline"] == NOW.isoformat()


@pytest.mark.parametrize(("timeout", "until"), [("30 minutes", NOW + HOUR), ("2 hours", NOW + HOUR / 2)])
def test_of_timeout_and_until_the_earlier_counts(
    h: Harness, flavour: Flavour, receive: Any, timeout: Any, until: Any
) -> None:
    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", timeout=timeout, until=until)

    run = h.start(flavour(ship))
    assert h.run(run).wake_at == NOW + HOUR / 2


def test_the_deadline_of_a_wait_is_recorded_when_it_begins(h: Harness, flavour: Flavour, receive: Any) -> None:
    moments = [NOW + HOUR, NOW + 2 * HOUR]

    async def ship(ctx: Any) -> Any:
        return await receive(ctx.queue, "mail", until=moments[0])

    run = h.start(flavour(ship))
    h.run(run)
    del moments[0]
    assert h.run(run).wake_at == NOW + HOUR


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2027, 1, 1), "until must be an aware datetime"),  # noqa: DTZ001
        ("tomorrow", "until is an aware datetime, not 'tomorrow'"),
        (60, "until is an aware datetime, not 60"),
    ],
)
def test_it_refuses_what_is_no_moment(h: Harness, flavour: Flavour, receive: Any, moment: Any, text: str) -> None:
    async def ship(ctx: Any) -> Any:
        await receive(ctx.queue, "mail", until=moment)

    assert text in error_of(h.run(h.start(flavour(ship)))).message


def test_what_is_left_of_a_day_after_an_outage_is_nothing(h: Harness, flavour: Flavour, receive: Any) -> None:
    """`deadline - ctx.now()`, and the workers were away for longer."""

    async def ship(ctx: Any) -> Any:
        await ctx.sleep("a while", "1 hour")
        found = await receive(ctx.queue, "mail", timeout=NOW + timedelta(days=1) - ctx.now())
        await ctx.sleep("the rest", NOW + timedelta(days=1) - ctx.now())
        return found

    run = h.start(flavour(ship))
    h.run(run)
    h.advance("42 days")
    h.settle()
    assert (run.state, run.output) == ("completed", [])
