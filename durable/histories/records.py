"""The lines of a file of histories, and the records that they stand for.

A history is a line with `durable_history`, the number of the format, and the run's row; a line for each entry in the
order of their ordinals; one for each message in its order; and a last line with the numbers of both, so that a file
that was cut is noticed. The first line of a run with tags has them too. Times are ISO 8601 text, errors are objects,
and values are codec text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from durable.core.errors import DurableError, ErrorInfo
from durable.core.records import EntryRecord, Message, RunRecord
from durable.core.summary import Summary

#: The number of the format that this release writes, and the only one that it reads.
FORMAT: Final = 1

T = TypeVar("T")

_NUMBERS: Final = range(-(2**63), 2**63)  # what a database's largest whole number holds
_YEARS: Final = range(1900, 9999)  # in any time zone


class HistoryFileError(DurableError):
    """A file is no file of histories that this release can read. The text names the file, the line and what to do."""


class Kind:
    """One kind of record: its fields as JSON data, and back."""

    def __init__(self, record: type[Any]) -> None:
        self._record = record
        self._hints = hints = get_type_hints(record)
        self._names = [each.name for each in fields(record)]
        self._moments = [name for name in self._names if hints[name] in (datetime, datetime | None)]
        self._errors = [name for name in self._names if hints[name] == ErrorInfo | None]

    def data(self, record: Any) -> dict[str, Any]:
        """Return the record as JSON data."""
        data = {name: getattr(record, name) for name in self._names}
        for name in self._moments:
            data[name] = None if data[name] is None else data[name].isoformat()
        for name in self._errors:
            error = data[name]
            data[name] = error and {"type": error.type, "message": error.message, "traceback": error.traceback}
        if isinstance(data.get("summary"), Summary):
            data["summary"] = data["summary"].stored
        return data

    def load(self, data: Mapping[str, Any]) -> Any:
        """Return the record. Raises ValueError, TypeError or LookupError for other data."""
        if set(data) != set(self._names):
            raise ValueError(f"expected the fields {', '.join(self._names)}")
        loaded = dict(data)
        for name in self._moments:
            loaded[name] = _or_none(datetime.fromisoformat, data[name])
        for name in self._errors:
            loaded[name] = _or_none(lambda error: ErrorInfo(**error), data[name])
        if "summary" in loaded:
            _check("summary", str, loaded["summary"])
            loaded["summary"] = Summary.load(loaded["summary"]) if loaded["summary"] else ""
        for name in self._names:
            _check(name, self._hints[name], loaded[name])
        return self._record(**loaded)


def _check(name: str, hint: Any, value: Any) -> None:
    """Raise TypeError or ValueError for a value that the field cannot have, or that a database cannot hold."""
    if isinstance(hint, UnionType):
        if value is None:
            return
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    kind = get_origin(hint) or hint
    if kind is not Any and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise TypeError(f"{name} is of the type {kind.__name__}, not {value!r:.100}")
    if kind is int and value not in _NUMBERS:
        raise ValueError(f"{name} is larger than a database holds")
    if kind is datetime and (value.utcoffset() is None or value.year not in _YEARS):
        raise ValueError(f"{name} is a time with its offset from UTC, of a year from 1900 on, not {value.isoformat()}")
    if kind is ErrorInfo:
        for each in (value.type, value.message, value.traceback):
            _check(name, str, each)
    if kind is list:
        (inner,) = get_args(hint)
        for each in value:
            _check(name, inner, each)
    if kind is dict:
        inner = get_args(hint)[1]
        for each in value.values():
            _check(name, inner, each)


def _or_none(convert: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else convert(value)


RUN: Final = Kind(RunRecord)
ENTRY: Final = Kind(EntryRecord)
MESSAGE: Final = Kind(Message)
