"""A run whose history grows without an end is told of in the log while it grows; one that loops is not."""

from __future__ import annotations

from collections import deque

import pytest

from durable import Break, Context, Continue
from durable.execution import commits, environment, passes
from durable.testing import Harness

MANY = 50


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commits, environment, passes):
        monkeypatch.setattr(module, "TOO_LONG_HISTORY", MANY)
    monkeypatch.setattr(passes, "LONG_HISTORY", MANY // 2)
    monkeypatch.setattr(commits, "LOOK_EVERY", 10)
    monkeypatch.setattr(environment, "_told_of_length", deque(maxlen=10))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "durable.pass"]


def test_the_pass_that_grows_tells_of_it_once_and_at_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def stepping(ctx: Context) -> None:
        for number in range(3 * MANY):
            ctx.step(f"step {number}", int)
            told.append(len(warnings(caplog)))

    with Harness() as h:
        h.start(stepping, id="long")
        h.settle()
    [text] = warnings(caplog)
    assert "run long of" in text
    assert "more than 50 entries" in text
    assert "ctx.loop" in text
    assert told.index(1) < MANY + 20  # not when the pass is over


def test_a_history_that_grows_by_an_entry_in_each_pass(caplog: pytest.LogCaptureFixture) -> None:
    def napping(ctx: Context) -> None:
        for number in range(MANY + 5):
            ctx.sleep(f"nap {number}", 3600)

    with Harness() as h:
        handle = h.start(napping, id="naps")
        h.settle()
        for _ in range(MANY + 5):
            h.advance(3600)
            h.settle()
        assert handle.state == "completed"
    assert len(warnings(caplog)) == 1


def test_a_loop_grows_as_long_as_it_likes(caplog: pytest.LogCaptureFixture) -> None:
    def one(ctx: Context, state: int) -> Break[int] | Continue[int]:
        ctx.step("do", int)
        return Break(state) if state == 4 * MANY else Continue(state + 1)

    def looping(ctx: Context) -> int:
        return ctx.loop("numbers", one, state=1)

    with Harness() as h:
        handle = h.start(looping)
        h.settle()
        assert handle.output == 4 * MANY
    assert warnings(caplog) == []
