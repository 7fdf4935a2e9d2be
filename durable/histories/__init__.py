"""Recorded runs as files: a run's row, its entries and its messages, as a replay needs them.

Owns the numbered format, and the treatment of values in an export. A file has the histories of any number of runs, one
after the other, as lines of JSON; files can be joined. Starts nothing and writes no row.
"""

from __future__ import annotations

from durable.histories.records import (
    FORMAT,
    HistoryFileError,
    StoredHistory,
    digest_of,
    moved_history,
    read_files,
    read_histories,
    written_history,
)
from durable.histories.values import Values

__all__ = [
    "FORMAT",
    "HistoryFileError",
    "StoredHistory",
    "Values",
    "digest_of",
    "moved_history",
    "read_files",
    "read_histories",
    "written_history",
]
