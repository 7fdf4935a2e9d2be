"""What tests of right workflows do, and a harness's second replay says nothing of: mocks, counts, seeds, rows, logs."""

from __future__ import annotations

import datetime
import logging
import random
import sys
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from durable import AsyncContext, Context, workflow
from durable.core import registry
from durable.testing import Harness


def charge(order: int) -> str:
    return f"charged {order}"


def buys(ctx: Context, order: int) -> str:
    charged = ctx.step("charge", lambda: charge(order))
    ctx.logger.info("charged")
    ctx.sleep("a nap", 60)
    return ctx.step("again", charge, order) + charged


@pytest.fixture
def twice() -> Any:
    @workflow(name="second_replay.twice")
    def doubles(ctx: Context, number: int) -> int:
        return ctx.step("twice", lambda: number * 2)

    yield doubles
    registry.registry.unregister(doubles)


class TestMocks:
    def test_a_mock_is_called_once_for_each_step(self, h: Harness) -> None:
        with mock.patch.object(sys.modules[__name__], "charge", side_effect=["first", "second"]) as charging:
            assert h.finish(h.start(buys, 7)).output == "secondfirst"
        assert charging.call_args_list == [mock.call(7), mock.call(7)]

    @pytest.mark.parametrize("kind", [mock.Mock, mock.MagicMock])
    def test_a_mock_as_the_steps_function(self, h: Harness, kind: type[mock.Mock]) -> None:
        service = kind(return_value="sent")
        assert h.run(h.start(lambda ctx: ctx.step("send", service, 1))).output == "sent"
        service.assert_called_once_with(1)

    def test_an_async_mock(self, h: Harness) -> None:
        service = mock.AsyncMock(return_value="sent")

        async def sends(ctx: AsyncContext) -> Any:
            return await ctx.step("send", service, 1)

        assert h.run(h.start(sends)).output == "sent"
        service.assert_awaited_once_with(1)

    def test_a_replaced_function(self, h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[__name__], "charge", lambda order: f"pretended {order}")
        assert h.finish(h.start(buys, 7)).output == "pretended 7pretended 7"

    def test_a_service_that_fails_first(self, h: Harness) -> None:
        service = mock.MagicMock(side_effect=[ConnectionError("503"), ConnectionError("503"), "done"])
        assert h.finish(h.start(lambda ctx: ctx.step("send", service))).output == "done"
        assert service.call_count == 3


class TestWhatTestsCollect:
    def test_a_list_that_steps_fill_for_the_test(self, h: Harness) -> None:
        sent: list[str] = []

        def mails(ctx: Context) -> None:
            for name in ("ada", "ben"):
                ctx.step(f"mail {name}", sent.append, name)

        h.finish(h.start(mails))
        assert sent == ["ada", "ben"]

    def test_lines_of_the_log_are_written_once(self, h: Harness, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, logger="durable.workflow"):
            h.finish(h.start(buys, 7))
        assert [each.message for each in caplog.records if each.name == "durable.workflow"] == ["charged"]

    def test_a_moment_of_the_test_is_the_tests(self, h: Harness) -> None:
        deadline = timezone.now() + datetime.timedelta(hours=1)

        def waits(ctx: Context) -> str:
            ctx.sleep_until("the deadline", deadline)
            return deadline.isoformat()

        assert h.finish(h.start(waits)).output == deadline.isoformat()

    def test_a_clock_that_the_test_has_stopped(self, h: Harness) -> None:
        moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        with mock.patch("django.utils.timezone.now", return_value=moment):
            assert h.finish(h.start(buys, 7)).state == "completed"

    def test_dice_that_the_test_has_seeded(self, h: Harness) -> None:
        random.seed(3)

        def draws(ctx: Context) -> list[float]:
            return [ctx.step("draw", random.random), ctx.step("draw again", random.random)]

        found = h.finish(h.start(draws)).output
        random.seed(3)
        assert found == [random.random(), random.random()]


@pytest.mark.django_db
class TestRows:
    def test_rows_that_steps_read_and_write(self, h: Harness) -> None:
        def saves(ctx: Context, name: str) -> str:
            key = ctx.step("save", lambda: Group.objects.create(name=name).pk, atomic=True)
            ctx.sleep("a nap", 60)
            return ctx.step("read", lambda: Group.objects.get(pk=key).name)

        assert h.finish(h.start(saves, "ada")).output == "ada"
        assert Group.objects.count() == 1


class TestOtherRuns:
    def test_a_step_may_wait_for_another_run(self, h: Harness, twice: Any) -> None:
        def waits(ctx: Context) -> int:
            doubled: int = ctx.step("wait", lambda: twice.start(4).result(timeout=60))
            return doubled + ctx.step("count", int, "1")

        assert h.finish(h.start(waits)).output == 9

    def test_so_may_an_async_one(self, h: Harness, twice: Any) -> None:
        async def waits(ctx: AsyncContext) -> int:
            async def wait() -> int:
                run = await twice.astart(4)
                return int(await run.aresult(timeout=60))

            doubled = await ctx.step("wait", wait)
            return doubled + await ctx.step("count", int, "1")

        assert h.finish(h.start(waits)).output == 9

    def test_it_is_replayed_after_each_commit_too(self, h: Harness, twice: Any) -> None:
        def waits(ctx: Context) -> int:
            return int(ctx.step("wait", lambda: twice.start(4).result(timeout=60))) + int(ctx.step("one", int, "1"))

        assert h.assert_deterministic(waits) >= 3
