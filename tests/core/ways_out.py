"""The ways out of a pass: it parks, ends, is paused, is evicted, diverges, and so on, while it compensates too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from durable import Context, CriticalError, get_run
from durable.core.records import EntryRecord
from durable.testing import Harness
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.driving import evicted_pass

Workflow = Callable[[Context], Any]
Way = Callable[[Harness], Any]


def pause_the_run(rollback: Any, _output: object) -> None:
    """A rollback handler during which an operator pauses the run."""
    get_run(rollback.run_id).pause()


def charged(then: Workflow, *, handler: Any = undoing.undo) -> Workflow:
    """A workflow with two steps to compensate."""

    def ship(ctx: Context) -> Any:
        ctx.rollback_checkpoint("from here")
        ctx.step("reserve", lambda: "reserved", rollback=undoing.undo)
        ctx.step("charge", lambda: "charged", rollback=handler)
        return then(ctx)

    return ship


def raises(_ctx: Context) -> None:
    raise ValueError("why")


def sleeps(ctx: Context) -> None:
    ctx.sleep("s", 60)


def one_pass(workflow: Workflow) -> Way:
    return lambda h: h.run(h.start(workflow))


def asks(verb: Callable[[Any], None]) -> Workflow:
    """A workflow during which an operator does this to its run."""

    def ship(ctx: Context) -> None:
        ctx.step("a", lambda: verb(get_run(ctx.run_id)))
        ctx.step("b", int)

    return ship


def thinking_better(workflow: Workflow) -> Way:
    """The operator takes the pause back just before the pass writes it."""

    def way(h: Harness) -> None:
        run, commit = h.start(workflow), h._store.commit

        def before(batch: Any) -> Any:
            if (batch.run or {}).get("state") == "paused":
                run.resume()
            return commit(batch)

        h._store.commit = before  # type: ignore[method-assign]
        h.run(run)

    return way


def evicted(h: Harness) -> None:
    calls: list[int] = []

    def ship(ctx: Context) -> None:
        ctx.step("a", lambda: calls.append(1))
        ctx.step("b", int)

    evicted_pass(h, h.start(ship).id, when=lambda: bool(calls))


def to_compensate(h: Harness) -> Any:
    """A run whose compensation has not begun to run."""
    run = h.start(charged(sleeps))
    h.run(run)
    run.cancel(rollback=True)
    return run


def evicted_while_compensating(h: Harness) -> None:
    evicted_pass(h, to_compensate(h).id, when=lambda: True)


def diverges(h: Harness) -> None:
    names = iter("ab")

    def ship(ctx: Context) -> None:
        ctx.step(next(names), int)
        ctx.sleep("s", 60)

    run = h.start(ship)
    h.run(run)
    h.advance(60)
    h.run(run)


def diverges_while_compensating(h: Harness) -> None:
    run = to_compensate(h)
    h._store._entries[run.id]["note"] = EntryRecord("note", "teleport", 9, NOW, status="completed")
    h.run(run)


def is_unknown(h: Harness) -> None:
    run = h.start(sleeps)
    h._local.clear()
    h.run(run)


def mistakes(_ctx: Context) -> None:
    print(undefined_name)  # type: ignore[name-defined]  # noqa: F821


def crash(h: Harness, run: Any) -> None:
    """Let as many workers die with the run as are too many, and execute the next pass."""
    for _ in range(6):
        h._store.claim_run(run.id, now=h.now, lease_until=h.now + timedelta(seconds=1), worker="dies")
        h.advance(2)
    h.run(run)


def crashes(h: Harness) -> None:
    crash(h, h.start(sleeps))


def crashes_while_compensating(h: Harness) -> None:
    crash(h, to_compensate(h))


def failing(error: BaseException, way: Way) -> Way:
    """A rollback handler raises this first."""

    def broken(h: Harness) -> Any:
        undoing.fails_left.append(error)
        return way(h)

    return broken


PARKED, PAUSED, FAILS = ("parked", "running"), ("paused", "running"), ("rollback_begun", "running")
#: By what happens: the way, the grace period for other code, and the transitions.
WAYS: dict[str, tuple[Way, int, list[tuple[str, str]]]] = {
    "returns": (one_pass(lambda ctx: 1), 0, [("completed", "running")]),
    "waits": (one_pass(sleeps), 0, [PARKED]),
    "raises": (one_pass(raises), 0, [("failed", "running")]),
    "raises after steps": (one_pass(charged(raises)), 0, [FAILS, ("rolled_back", "rolling_back")]),
    "a rollback handler is to be tried again": (
        failing(ConnectionError(), one_pass(charged(raises))),
        0,
        [FAILS, ("parked", "rolling_back")],
    ),
    "a rollback handler fails": (
        failing(CriticalError("no"), one_pass(charged(raises))),
        0,
        [FAILS, ("rollback_stopped", "rolling_back")],
    ),
    "a rollback handler fails that the code has called": (
        failing(CriticalError("no"), one_pass(charged(lambda ctx: ctx.compensate("enough")))),
        0,
        [("rollback_stopped", "running")],
    ),
    "is paused": (one_pass(asks(lambda run: run.pause())), 0, [PAUSED]),
    "is paused while it compensates": (
        one_pass(charged(raises, handler=pause_the_run)),
        0,
        [FAILS, ("paused", "rolling_back")],
    ),
    "is paused, but not any more": (
        thinking_better(asks(lambda run: run.pause())),
        0,
        [PAUSED, ("pause_dropped", "running")],
    ),
    "is paused while it compensates, but not any more": (
        thinking_better(charged(raises, handler=pause_the_run)),
        0,
        [FAILS, ("paused", "rolling_back"), ("pause_dropped", "rolling_back")],
    ),
    "is cancelled": (one_pass(asks(lambda run: run.cancel())), 0, [("cancelled", "running")]),
    "is cancelled, with nothing to compensate": (
        one_pass(asks(lambda run: run.cancel(rollback=True))),
        0,
        [("cancelled", "running")],
    ),
    "is cancelled with its rollback": (
        one_pass(charged(asks(lambda run: run.cancel(rollback=True)))),
        0,
        [("cancel_rollback_begun", "running"), ("cancel_rolled_back", "rolling_back")],
    ),
    "is evicted": (evicted, 0, [("handed_over", "running")]),
    "is evicted while it compensates": (evicted_while_compensating, 0, [PARKED, ("handed_over", "rolling_back")]),
    "diverges": (diverges, 600, [PARKED, ("diverging", "running")]),
    "diverges for too long": (diverges, 0, [PARKED, ("failed", "running")]),
    "diverges while it compensates": (diverges_while_compensating, 600, [PARKED, ("diverging", "rolling_back")]),
    "diverges for too long while it compensates": (
        diverges_while_compensating,
        0,
        [PARKED, ("rollback_stopped", "rolling_back")],
    ),
    "has no code": (is_unknown, 0, [("diverging", "running")]),
    "has a mistake": (one_pass(mistakes), 600, [("diverging", "running")]),
    "has a mistake for too long": (one_pass(mistakes), 0, [("stopped", "running")]),
    "crashes its workers": (crashes, 0, [("crash_limit_reached", "running"), ("progressed", "running")]),
    "crashes its workers while it compensates": (
        crashes_while_compensating,
        0,
        [PARKED, ("crash_limit_reached", "rolling_back"), ("progressed", "rolling_back")],
    ),
}
