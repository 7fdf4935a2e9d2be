"""`run_changed` of runs that a pass changes although they are not its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from durable import Context, CriticalError, RollbackContext, get_run, signals, workflow
from durable.testing import Harness

SEEN: list[tuple[str, str, str]] = []


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    def note(sender: object, run: str, previous: str, state: str, **_: object) -> None:
        SEEN.append((run, previous, state))

    SEEN.clear()
    signals.run_changed.connect(note)
    yield
    signals.run_changed.disconnect(note)


def undo(_: RollbackContext, _output: str) -> None:
    """Undo nothing."""


def fail() -> None:
    raise CriticalError("no")


@workflow(name="told.one")
def one(ctx: Context, seconds: float = 0) -> str:
    ctx.rollback_checkpoint("undo")
    done = ctx.step("do", str, "a", rollback=undo)
    if seconds:
        ctx.sleep("s", seconds)
    return done


@workflow(name="told.parent")
def parent(ctx: Context) -> Any:
    ctx.rollback_checkpoint("undo")
    ctx.child("a", one.using(rollback=True, key="k", if_open="replace"))
    return ctx.step("end", fail)


def test_a_child_that_is_compensated_and_a_run_that_gives_its_key_up() -> None:
    with Harness() as h:
        h.run(one.using(key="k", id="first").start(600))
        run = h.start(parent.using(id="p"))
        assert h.finish(run).state == "failed"
        assert ("first", "sleeping", "cancelled") in SEEN
        of_child = [(previous, state) for run_id, previous, state in SEEN if run_id == "p:a"]
        assert of_child[-2:] == [("completed", "rolling_back"), ("rolling_back", "cancelled")]
        assert get_run("p:a").state == "cancelled"
