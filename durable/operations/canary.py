"""The canary of a bulk: its first runs, which show whether the verb helps before the bulk applies it to the rest.

Owns the settings of a canary and the state of its runs. Must not apply verbs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable import runtime
from durable.core.duration import Duration, parse_duration
from durable.core.records import ENDED, RunRecord, RunState
from durable.core.summary import Summary, is_held

MAX_FIRST: Final = 100  # runs
WITHIN: Final = timedelta(minutes=10)
MAX_WITHIN: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The trial of a bulk's verb on the `first` runs alone.

    The bulk waits until each of them has ended, is paused, or waits longer than the canary does. If `stop_after` of
    them have failed by then, or if one of them is still under way after `within` seconds, the bulk stops until an
    operator decides. Raises ValueError.
    """

    first: int = 5
    stop_after: int = 1
    within: float = WITHIN.total_seconds()

    def __post_init__(self) -> None:
        if not 1 <= self.first <= MAX_FIRST:
            raise ValueError(f"the canary of a bulk is 1 to {MAX_FIRST} runs, not {self.first}")
        if not 1 <= self.stop_after <= self.first:
            raise ValueError(
                f"a bulk stops after 1 to {self.first} failures of its first {self.first} runs, not after {self.stop_after}"
            )
        if not 1 <= self.within <= MAX_WITHIN.total_seconds():
            raise ValueError(
                f"the canary of a bulk is given one second to {MAX_WITHIN.days} days, not {self.within:g} s"
            )

    @classmethod
    def of(cls, first: int, stop_after: int | None = None, within: Duration | None = None) -> Canary:
        """Return the canary with these settings; None means the default. `stop_after` is at most `first`."""
        return cls(
            first=first,
            stop_after=1 if stop_after is None else stop_after,
            within=(WITHIN if within is None else parse_duration(within)).total_seconds(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLook:
    """The state of a canary's runs: how many are `failed`, and how many are `open`, that is, under way.

    A run with a step that waits for a person again counts as failed.

    `is_over`: the canary's time has passed.
    """

    failed: int
    open: int
    is_over: bool


def look(run_ids: Sequence[str], until: datetime) -> CanaryLook:
    """Query the state of a canary's runs; `until` is the end of its time.

    A deleted run counts as ended. One query.
    """
    at = runtime.current()
    runs: Collection[RunRecord] = at.store.get_many(run_ids).values()
    now = at.now()
    held = {each.id for each in runs if _is_held(each, now)}
    return CanaryLook(
        failed=sum(each.state == RunState.FAILED or each.id in held for each in runs),
        open=sum(not (each.id in held or _is_stable(each, until)) for each in runs),
        is_over=now >= until,
    )


def _is_held(run: RunRecord, now: datetime) -> bool:
    """Return whether the run waits for a person to settle a step of it, and nobody has since its last pass."""
    is_due = run.wake_at is not None and run.wake_at <= now
    return run.state in (RunState.SLEEPING, RunState.ROLLING_BACK) and not is_due and is_held(run.summary)


def _is_stable(run: RunRecord, until: datetime) -> bool:
    """Return whether the run will stay as it is until then, unless an operator acts on it."""
    if run.state in ENDED or run.state == RunState.PAUSED:
        return True
    if run.state != RunState.SLEEPING or run.diverged_at is not None or Summary.load(run.summary).is_trying_again:
        return False
    return run.wake_at is None or run.wake_at > until
