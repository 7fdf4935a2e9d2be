"""The counting of ended runs, as the sweep does it, to its end."""

from __future__ import annotations

from datetime import datetime

from durable.models import RollupProgress
from durable.rollups.sweep import roll_up

__all__ = ["settle"]


def settle(now: datetime) -> datetime:
    """Look until all that can be counted at `now` is; how far it is counted."""
    roll_up(now)
    while roll_up(now):
        pass
    return RollupProgress.objects.get().until
