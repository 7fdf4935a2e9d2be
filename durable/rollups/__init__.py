"""Rollups: how many runs ended in each minute and half hour, counted once each by the sweep.

`sweep` decides up to when the ended runs can be counted, and counts them; `durations` classes their durations. Nothing
here changes a run.
"""

from __future__ import annotations

from durable.rollups.sweep import HALF_HOUR, MINUTE, Roller

__all__ = ["HALF_HOUR", "MINUTE", "Roller"]
