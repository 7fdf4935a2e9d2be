"""A rule of one hour whose moments are far away, whatever time it is."""

from __future__ import annotations

from datetime import datetime, timedelta

from durable import every


def hourly_at(moment: datetime) -> str:
    """Return the rule whose moments are `moment` and whole hours before and after it."""
    since_the_hour = moment - moment.replace(minute=0, second=0, microsecond=0)
    return every("1 hour", offset=since_the_hour).text


def hourly_half_an_hour_from(now: datetime) -> str:
    """Return the rule that has no moment in the half hours before and after `now`."""
    return hourly_at(now.replace(microsecond=0) - timedelta(minutes=30))
