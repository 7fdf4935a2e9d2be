"""The formats of histories that this release of durable can read, and the errors for others.

A release that records something which earlier releases would misread gives it a new kind or status, or marks the
entry's data with the `format` needed to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from durable.core.errors import HistoryDivergedError
from durable.core.location import unescape
from durable.core.records import EntryKind, EntryRecord, EntryStatus

#: The newest format of an entry's data that this release reads; an entry without a format has 1. Format 2: children of
#: a map were taken out of its group and are to be replaced (`durable.core.children.rollback`).
FORMAT: Final = 2

_MARK: Final = "format"

_KINDS: Final = frozenset(EntryKind)
_STATUSES: Final = frozenset(EntryStatus)
_ADVICE: Final = (
    "let workers of the release or of the code that recorded it execute the run, or deploy that again, and recover it"
)


def is_readable(entry: EntryRecord) -> bool:
    return (
        entry.kind in _KINDS
        and entry.status in _STATUSES
        and (not entry.data or entry.data.get("format", FORMAT) in range(1, FORMAT + 1))
    )


def marked_as_newer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an entry, marked so that releases before this format refuse it."""
    return {**data, _MARK: FORMAT}


def unmarked(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an entry without that key, so that all releases read it."""
    return {name: value for name, value in data.items() if name != _MARK}


def cannot_read(entries: Sequence[EntryRecord]) -> HistoryDivergedError:
    first = entries[0]
    found = (
        f"format {first.data['format']!r}"
        if "format" in first.data
        else f"kind {first.kind!r}, status {first.status!r}"
    )
    return _error(
        f'"{unescape(first.location)}" was recorded as {found}, which this release of durable does not know (it knows '
        f"format {FORMAT}, the kinds {', '.join(EntryKind)}): a newer release has passed this run",
        [each.location for each in entries],
    )


def named_twice(location: str, other: str) -> HistoryDivergedError:
    """Return the error for two entries that, because of a rename, belong to one operation."""
    return _error(
        f'"{location}" and "{other}" are both recorded, and a migration has made them two names of one operation',
        [location, other],
    )


def unreadable(location: str, what: str, error: Exception) -> HistoryDivergedError:
    """Return the error for a value that the codec cannot decode, recorded at `location` ("" for the run's own)."""
    where = f'{what} at "{unescape(location)}"' if location else what
    return _error(f"{where} cannot be read by this code: {error}", [location])


def _error(problem: str, locations: Sequence[str]) -> HistoryDivergedError:
    error = HistoryDivergedError(f"{problem}; nothing was changed: {_ADVICE}")
    error.locations = tuple(locations)
    return error
