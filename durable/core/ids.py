"""Ids of runs and messages, names of workers' queues, reasons: validation, and the making of ids."""

from __future__ import annotations

import time
import uuid

MAX_ID = 200  # characters
MAX_REASON = 10_000


def check_id(run_id: str) -> str:
    """Return `run_id` if it is valid: 1 to 200 printable characters without "/"; else raise TypeError or ValueError."""
    if not isinstance(run_id, str):
        raise TypeError(f"a run's id is text, not {run_id!r}: write id=str(...)")
    if not 1 <= len(run_id) <= MAX_ID:
        raise ValueError(f"a run's id has 1 to {MAX_ID} characters, this one has {len(run_id)}")
    if "/" in run_id or not run_id.isprintable():
        raise ValueError(f'a run\'s id is made of printable characters without "/": {run_id!r}')
    return str.__str__(run_id)


def check_key(key: str) -> str:
    """Return `key` if a run can be started with it: 1 to 200 printable characters.

    Raises TypeError and ValueError for any other.
    """
    if not isinstance(key, str):
        raise TypeError(f"a run's key is text, not {key!r}: write key=str(...)")
    if not (1 <= len(key) <= MAX_ID and key.isprintable()):
        raise ValueError(f"a run's key is made of 1 to {MAX_ID} printable characters: {key[:64]!r}")
    return str.__str__(key)


def check_limit(name: str) -> str:
    """Return `name` if a limit can have it: 1 to 200 printable characters without "/".

    Raises TypeError and ValueError for any other.
    """
    if not isinstance(name, str):
        raise TypeError(f"a limit's name is text, not {name!r}")
    if not (1 <= len(name) <= MAX_ID and name.isprintable()) or "/" in name:
        raise ValueError(f'a limit\'s name is made of 1 to {MAX_ID} printable characters without "/": {name[:64]!r}')
    return str.__str__(name)


def check_queue(queue: str) -> str:
    """Return `queue` if an RQ queue can have that name; else raise TypeError or ValueError."""
    if not isinstance(queue, str):
        raise TypeError(f"a queue is text, one of the names in RQ_QUEUES, not {queue!r}")
    if not (1 <= len(queue) <= MAX_ID and queue.isprintable()):
        raise ValueError(
            f"a queue is one of the names in RQ_QUEUES, of 1 to {MAX_ID} printable characters, not {queue[:64]!r}"
        )
    return str.__str__(queue)


def check_reason(reason: str) -> str:
    """Return `reason` if it is text that a page can show; else raise TypeError or ValueError."""
    if not isinstance(reason, str):
        raise TypeError(f'a reason is text ("" for none), not {reason!r}')
    if len(reason) > MAX_REASON:
        raise ValueError(f"a reason has at most {MAX_REASON:,} characters, this one has {len(reason):,}")
    return reason


_SECOND = 1_000 << 12  # in the steps of new_id: 4,096 of each millisecond
_newest = 0


def new_id() -> str:
    """Return an id that sorts by time: a UUID of version 7 (RFC 9562, method 3: fractions of a millisecond).

    Ids that one thread makes are in the order in which it makes them, so runs that are due at one moment begin in the
    order of their starts. Two threads at the same moment may share the part that sorts; the 62 random bits differ.
    """
    global _newest
    moment = time.time_ns() * 4_096 // 1_000_000
    if moment <= _newest < moment + _SECOND:  # further ahead: the clock was set back
        moment = _newest + 1
    _newest = moment
    value = (moment >> 12 & (1 << 48) - 1) << 80 | 0x7 << 76 | (moment & 0xFFF) << 64 | 0b10 << 62
    return str(uuid.UUID(int=value | uuid.uuid4().int & (1 << 62) - 1))
