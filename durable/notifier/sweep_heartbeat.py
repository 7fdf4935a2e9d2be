"""The sign of life of sweeps: a key in each Redis that says when one has last looked, and where.

For people who want to know whether there is a sweep. Nothing is decided by it: it may be lost, late or wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from redis.exceptions import RedisError

from durable.conf import conf
from durable.notifier import redis_clients

__all__ = ["KEPT", "LastSweep", "last_sweep", "record"]

KEY = "durable:sweep"
KEPT = 86_400  # seconds that it can be told how long ago the last one was


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSweep:
    """When a sweep last looked, its interval in seconds, and the name of its process."""

    at: datetime
    interval: float
    by: str

    def is_overdue(self, now: datetime) -> bool:
        """Whether the next one should have been there long ago."""
        return (now - self.at).total_seconds() > 3 * self.interval + 10


def record(now: datetime, name: str) -> None:
    """Note that a sweep has looked at `now`. Raises nothing if Redis is away."""
    text = json.dumps({"at": now.isoformat(), "interval": conf.SWEEP_INTERVAL, "by": name})
    try:
        for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
            redis.set(KEY, text, ex=KEPT)
    except (RedisError, OSError):
        return  # the bell has said so already


def last_sweep() -> LastSweep | None:
    """The newest sign of life, in any Redis; None if there is none. Raises RedisError or OSError if one is away."""
    found = []
    for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
        text = redis.get(KEY)
        if text is not None:
            found.append(_read(text))
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.at) if known else None


def _read(text: object) -> LastSweep | None:
    try:
        data = json.loads(text)  # type: ignore[arg-type]  # bytes, unless somebody else wrote there
        return LastSweep(at=datetime.fromisoformat(data["at"]), interval=float(data["interval"]), by=str(data["by"]))
    except (ValueError, KeyError, TypeError):
        return None
