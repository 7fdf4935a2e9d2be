"""Counts of the units of a key in each five seconds of the last minute, as text in the key's row.

The text is the number of the newest five seconds since 1970, and behind it the counts, the newest first. It is bounded,
and written by the statement that lets an attempt begin. The function in `durable/store/routines/rates.sql` does what
`counted` does.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 12
SECONDS: Final = 5
_LENGTH: Final = SECONDS * 1_000_000_000


def counted(recent: str, at: int, units: int) -> str:
    """Return the text with the units of an attempt that begins at `at`, in nanoseconds since 1970."""
    newest, counts = _read(recent)
    bucket = max(newest, at // _LENGTH)
    counts = _moved(counts, bucket - newest)
    counts[0] += units
    return " ".join(map(str, [bucket, *counts]))


def counts_of(recent: str, now: int) -> list[int]:
    """Return the counts of the last minute, the oldest first; the last one is of the five seconds of `now`."""
    newest, counts = _read(recent)
    return _moved(counts, max(0, now // _LENGTH - newest))[::-1]


def _read(recent: str) -> tuple[int, list[int]]:
    if not recent:
        return 0, [0] * BUCKETS
    newest, *counts = map(int, recent.split())
    return newest, counts


def _moved(counts: list[int], by: int) -> list[int]:
    empty = [0] * min(by, BUCKETS)
    return [*empty, *counts][:BUCKETS]
