"""Starts that a rate may refuse: `using(when_full="drop")`.

A start that makes a run takes a unit of the rate, in the transaction that creates the run. If the rate has no room now,
the start is refused and nothing is created. What is rolled back gives its unit back. A start that finds a run, by its
id or by its key, takes nothing and is never refused.

A workflow's own rate limits the starts of passes too: there the start reserves the moment of the first pass, which
begins with that unit. So one run costs one unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from durable.core.errors import StartRefusedError
from durable.core.rates import RateWant, RefusedStart, rate_wanted
from durable.core.records import RunRecord
from durable.core.workflow_limits import WorkflowLimits
from durable.declared_limits import with_rate
from durable.instrumentation import observers
from durable.runtime import Runtime

WhenFull = Literal["drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRate:
    """The rate of which a start takes a unit: the one that the start names, or else that of its workflow's limit."""

    named: RateWant | None
    limits: WorkflowLimits | None

    def wanted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[RateWant, bool]:
        """Return the unit that a start with these arguments takes, and whether its first pass takes the same one."""
        own = [] if self.limits is None else self.limits.rates(args, kwargs)
        if self.named is None:
            return own[0], True
        is_own = any((each.limit, each.key) == (self.named.limit, self.named.key) for each in own)
        return self.named, is_own


def start_rate(rate: str | None, when_full: WhenFull | None, limits: WorkflowLimits | None) -> StartRate | None:
    """Return what these arguments of `Workflow.using` ask for, None for a start that no rate refuses.

    Raises TypeError for one that needs another, and ValueError for what is none.
    """
    if when_full not in (None, "drop"):
        raise ValueError(f'when_full is "drop", not {when_full!r}: leave it out to let runs wait')
    if when_full is None:
        if rate is not None:
            raise TypeError(
                'using(rate=...) needs when_full="drop" too: runs that shall wait are those of a workflow with '
                "limit=Limit(..., rate=...)"
            )
        return None
    if rate is None and (limits is None or all(each.rate is None for each in limits.limits)):
        raise TypeError(
            'using(when_full="drop") needs rate="...", the name of a limit with a rate, or a workflow with '
            "limit=Limit(..., rate=...)"
        )
    return StartRate(named=None if rate is None else rate_wanted(rate), limits=limits)


def take_units(at: Runtime, runs: Sequence[tuple[RunRecord, RateWant, bool]]) -> None:
    """Take a unit for each of these new runs, in the transaction that has created them, all of them or none.

    Raises StartRefusedError, and UnknownLimitError for a limit without a rate.
    """
    now = at.now()
    for run, want, is_own in sorted(runs, key=lambda each: (each[1].limit, each[1].key)):  # keys are locked in order
        answer = at.store.reserve(run.id, run.fence, "", with_rate(want), now, may_begin=not is_own)
        if not answer.begins:
            raise StartRefusedError(run.workflow, run.id, want.limit, want.key, retry_at=answer.at)


def note_refused(at: Runtime, refusal: StartRefusedError) -> None:
    """Record a refused start, after the transaction that would have created its run."""
    start = RefusedStart(at=at.now(), workflow=refusal.workflow, run_id=refusal.run_id)
    at.store.note_refused(refusal.limit, refusal.key, start)
    observers.start_refused(refusal.limit)
