"""The counting of ended runs, as the sweep does it, to its end."""

from __future__ import annotations

from datetime import datetime

from durable.models import RollupProgress
from durable.rollups import MARGIN, roll_up
from tests.support.waiting import eventually


def settle(now: datetime) -> datetime:
    """Look until all that can be counted at `now` is; how far it is counted.

    Transactions of other tests on the same server hold the figures back for a while.
    """
    for _ in range(3):
        roll_up(now)
    end = (now - MARGIN).replace(second=0, microsecond=0)

    def is_counted() -> bool:
        roll_up(now)
        return RollupProgress.objects.get().until >= end

    eventually(is_counted)
    return RollupProgress.objects.get().until
