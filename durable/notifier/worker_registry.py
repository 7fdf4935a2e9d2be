"""The workers that RQ has registered in a Redis.

Owns how RQ's records of its workers are read. Must not decide anything by them: a record may be old, or missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Worker
from rq.worker_registration import REDIS_WORKER_KEYS

logger = logging.getLogger("durable.inspection")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWorker:
    """RQ's record of one worker. `state` is RQ's ("busy", "idle", ...). Both times are aware, or None if unknown."""

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    state: str
    last_heartbeat: datetime | None
    started_at: datetime | None


def registered_workers(redis: Redis, most: int) -> list[RegisteredWorker]:
    """Return at most `most` workers, in the order of their names, with a Redis command for each. Raises RedisError.

    A record that cannot be read is left out, and the log names it.
    """
    names: Any = redis.smembers(REDIS_WORKER_KEYS)
    keys = sorted(each if isinstance(each, str) else each.decode(errors="replace") for each in names)
    found = []
    for key in keys[:most]:
        try:
            worker = Worker.find_by_key(key, connection=redis)
            if worker is not None:
                found.append(_read(worker))
        except (RedisError, OSError):
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # other programs write to Redis too
            logger.warning("the record %r of an RQ worker cannot be read: %s", key, error)
    return found


def _read(worker: Any) -> RegisteredWorker:
    return RegisteredWorker(
        name=worker.name,
        host=worker.hostname or "",
        pid=worker.pid or 0,
        queues=tuple(worker.queue_names()),
        state=str(getattr(worker.get_state(), "value", worker.get_state())),
        last_heartbeat=_aware(worker.last_heartbeat),
        started_at=_aware(worker.birth_date),
    )


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
