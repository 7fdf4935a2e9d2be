"""Moments at the ends of the calendar: refused where they are given, bounded where they come from outside."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from durable import RetryLater, workflow
from durable.core.clock import LATEST
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.core.flavours import Flavour

WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=9))
LAST, FIRST = datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST)


@workflow(name="moments.nothing")
def nothing(ctx: Any) -> None: ...


@pytest.mark.parametrize("moment", [LAST, FIRST], ids=["last", "first"])
@pytest.mark.parametrize(
    "act",
    [
        lambda ctx, moment: ctx.sleep_until("rest", moment),
        lambda ctx, moment: ctx.queue.next("wait", until=moment),
        lambda ctx, moment: ctx.child("child", nothing.using(deadline=moment)),
    ],
    ids=["sleep", "wait", "child"],
)
def test_a_moment_without_a_date_in_utc_is_refused_where_it_is_given(
    h: Harness, flavour: Flavour, act: Callable[..., Any], moment: datetime
) -> None:
    async def ship(ctx: Any) -> str:
        try:
            await act(ctx, moment)
        except ValueError as error:
            return str(error)
        return "accepted"

    done = h.run(h.start(flavour(ship)))
    assert "In UTC this is before the year 1 or after the year 9999" in str(done.output)


@pytest.mark.parametrize("moment", [LAST, FIRST], ids=["last", "first"])
def test_a_deadline_without_a_date_in_utc_is_refused(h: Harness, moment: datetime) -> None:
    with pytest.raises(ValueError, match="before the year 1 or after the year 9999"):
        nothing.using(deadline=moment)
    with pytest.raises(ValueError, match="before the year 1 or after the year 9999"):
        RetryLater(moment)


@pytest.mark.parametrize("given", ["500000 weeks", timedelta.max])
def test_a_length_that_ends_after_the_calendar_is_refused(h: Harness, given: Any) -> None:
    with pytest.raises(ValueError, match="ends after the year 9999"):
        nothing.using(deadline=given).start()


def test_an_upstream_that_names_a_moment_beyond_the_calendar_is_waited_for_as_long_as_possible(
    h: Harness, flavour: Flavour
) -> None:
    def call() -> None:
        raise RetryLater("Fri, 31 Dec 9999 23:59:59 -0500")

    async def ship(ctx: Any) -> None:
        await ctx.step("call", flavour.function(call))

    assert h.run(h.start(flavour(ship))).wake_at == LATEST


def test_never_may_be_written_as_the_last_moment(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> None:
        await ctx.sleep_until("rest", datetime.max.replace(tzinfo=UTC))

    parked = h.run(h.start(flavour(ship)))
    assert parked.state == "sleeping"
    assert parked.wake_at is not None
    assert parked.wake_at > NOW + timedelta(days=2_900_000)
