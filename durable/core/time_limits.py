"""The time limits of a run: by when it must have ended, and for how long workers may work on it.

Owns the limits and what remains of them. Plain data: `durable.core.run_pass` ends the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from durable.core.duration import later
from durable.core.errors import RunDeadlineError
from durable.core.records import EntryRecord, SavedDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The time limits of a run; None for no limit.

    `deadline` is `length` seconds after the start or the recovery. `work_limit` is in seconds. `worked` is the time
    that ended passes have worked on the run since then. `in_doubt` is not a limit, but stored with them: since when the
    run may have done more than is recorded (`durable.core.scope.Doubt`).
    """

    deadline: datetime | None = None
    length: float | None = None
    work_limit: float | None = None
    worked: float = 0.0
    in_doubt: datetime | None = None

    @classmethod
    def of(cls, now: datetime, deadline: timedelta | datetime | None, work_limit: float | None) -> RunLimits | None:
        """Return the limits of a run that starts now; None without any. `deadline` is a length or a moment."""
        if deadline is None and work_limit is None:
            return None
        if isinstance(deadline, datetime):
            length = max(0.0, (deadline - now).total_seconds())
            return cls(deadline=deadline, length=length, work_limit=work_limit)
        if deadline is None:
            return cls(work_limit=work_limit)
        ends_at = later(now, deadline, "a deadline")
        return cls(deadline=ends_at, length=deadline.total_seconds(), work_limit=work_limit)

    def renewed(self, now: datetime) -> RunLimits:
        """Return the same limits, counted from now, for a run that starts or continues."""
        return replace(self, deadline=None if self.length is None else _after(now, self.length), worked=0.0)

    def excess(self, now: datetime, worked: float) -> RunDeadlineError | None:
        """Return the error of a run that is past a limit after `worked` seconds; None while it is within them."""
        if self.deadline is not None and now >= self.deadline:
            return RunDeadlineError.of_deadline(self.deadline, self.length)
        if self.work_limit is not None and worked >= self.work_limit:
            return RunDeadlineError.of_work(self.work_limit)
        return None

    def wake_at(self, wanted: datetime | None) -> datetime | None:
        """Return when a run that wants to wait until `wanted` is due: at its deadline at the latest."""
        if self.deadline is None:
            return wanted
        return self.deadline if wanted is None else min(wanted, self.deadline)


def _after(now: datetime, length: float) -> datetime | None:
    try:
        return now + timedelta(seconds=length)
    except OverflowError:  # past the year 9999
        return None


class History(list[EntryRecord]):
    """What a pass loads of a run: its entries, its limits and, by location, the saved details of its steps."""

    def __init__(
        self,
        entries: Iterable[EntryRecord] = (),
        limits: RunLimits | None = None,
        saved: Iterable[SavedDetails] = (),
    ) -> None:
        super().__init__(entries)
        self.limits = limits
        self.saved = {each.location: each for each in saved}
