"""Ids of runs and messages: what may be one, and how one is made."""

from __future__ import annotations

import time
import uuid

__all__ = ["MAX_ID", "check_id", "new_id"]

MAX_ID = 200  # characters


def check_id(run_id: str) -> str:
    """`run_id`, if it can be one: 1 to 200 printable characters without "/"; else TypeError or ValueError."""
    if not isinstance(run_id, str):
        raise TypeError(f"a run's id is text, not {run_id!r}: write id=str(...)")
    if not 1 <= len(run_id) <= MAX_ID:
        raise ValueError(f"a run's id has 1 to {MAX_ID} characters, this one has {len(run_id)}")
    if "/" in run_id or not run_id.isprintable():
        raise ValueError(f'a run\'s id is made of printable characters without "/": {run_id!r}')
    return run_id


def new_id() -> str:
    """An id that sorts by time: a UUID of version 7 (RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    random = uuid.uuid4().int
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 64 & 0xFFF) << 64 | 0b10 << 62
    return str(uuid.UUID(int=value | random & (1 << 62) - 1))
