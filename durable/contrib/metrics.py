"""Metrics of a project's own workflow code, which a replay does not count again.

    REFUSED = live(Counter("shop_refused", "Orders that were refused", ["reason"]))

    @workflow
    def fulfil(ctx, order_id):
        if not ctx.step("check", check, order_id):
            REFUSED.labels("sold out").inc()

Owns the decision whether code is executed for the first time. The instruments are the project's: of prometheus_client,
of OpenTelemetry, or anything else that asks `is_live()`. Needs no extra and imports neither.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from durable.core.current import current_scope, is_in_step
from durable.core.records import RunRecord
from durable.instrumentation import observers
from durable.instrumentation.observers import Observer, PassEnds

__all__ = ["is_live", "live"]

T = TypeVar("T")

#: What records something: in prometheus_client, and in OpenTelemetry's meters.
RECORDING: Final = frozenset({"inc", "dec", "set", "observe", "info", "state", "add", "record"})

#: The run whose pass is executed here. A replay in a test, or of `durable replay-check`, is not a pass.
_passed: ContextVar[str] = ContextVar("durable_contrib_metrics_passed", default="")


class _Passes(Observer):
    """An observer that notes the pass in its context, which ends with it. Observes nothing else of the pass."""

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        """Note the run, and return None: calls are of no interest."""
        _passed.set(run.id)
        return None


observers.install(_Passes())


def is_live() -> bool:
    """Return False in code of a workflow that an earlier pass has executed already, so that its metrics are recorded.

    True in new code of a workflow, in the functions of steps, which no replay calls, and outside of workflows. False
    in the replays that check code: of a `Harness`, and of `durable replay-check`.
    """
    scope = current_scope()
    if scope is None or is_in_step():
        return True
    return _passed.get() == scope.journal.run.id and not scope.cursor.unvisited()


class _Live:
    """An instrument whose recording methods do nothing unless `is_live()`."""

    __slots__ = ("_instrument",)

    def __init__(self, instrument: Any) -> None:
        self._instrument = instrument

    def __repr__(self) -> str:
        return f"live({self._instrument!r})"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._instrument, name)
        if name == "labels":
            return lambda *values, **labels: _Live(found(*values, **labels))
        if name in RECORDING:
            return lambda *args, **kwargs: found(*args, **kwargs) if is_live() else None
        raise AttributeError(
            f"live() has the methods {', '.join(sorted(RECORDING))} and labels of an instrument, not {name!r}: use the "
            "instrument itself, and ask is_live() where workflow code records something"
        )


def live(instrument: T) -> T:
    """Return the instrument, with methods that record nothing while code of a workflow is replayed.

    It has `labels` and what records: `inc`, `dec`, `set`, `observe`, `info` and `state` of prometheus_client, `add`,
    `record` and `set` of OpenTelemetry. Other attributes raise AttributeError.
    """
    return cast("T", _Live(instrument))
