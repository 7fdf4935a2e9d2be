"""Values without parts: the form of each type in the text, its writer beside its reader.

A writer gets a value of exactly its type. A reader gets any value that follows its tag: it may raise any exception for
a value that its writer cannot have written, and must build nothing but its type.

Readers of dates keep a reference to the method of the real class, because a clock-freezing test tool may replace
`datetime` by a fake class while it decodes.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from durable.codec.notation import MARK, SURROGATE_PAIR, Refused

# Fewer digits than the lowest limit that Python can be given (640), so that any process can read this text.
_PLAIN_INT_BITS: Final = 2_048

_MINUTE: Final = 60_000_000
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_ODD_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _same(value: Any) -> Any:
    return value


def _text(node: object) -> str:
    if type(node) is not str:
        raise Refused(f"it is {type(node).__name__} where text was recorded")
    return node


# str, int, float, complex, bytes ---------------------------------------------------------------------------------


def has_surrogate_pair(value: str) -> bool:
    """Return whether JSON would join two lone surrogates of `value` into one character."""
    return not value.isascii() and SURROGATE_PAIR.search(value) is not None


def write_str(value: str) -> Any:
    if not has_surrogate_pair(value):
        return value
    return {MARK + "str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}


def _read_str(node: object) -> str:
    return base64.b64decode(_text(node), validate=True).decode("utf-8", "surrogatepass")


def _write_int(value: int) -> Any:
    return value if value.bit_length() <= _PLAIN_INT_BITS else {MARK + "int": hex(value)}


def _read_int(node: object) -> int:
    return int(_text(node), 16)


def _write_float(value: float) -> Any:
    return value if math.isfinite(value) else {MARK + "float": str(value)}


def _read_float(node: object) -> float:
    return _ODD_FLOATS[_text(node)]


def _write_complex(value: complex) -> Any:
    return {MARK + "complex": [repr(value.real), repr(value.imag)]}


def _read_complex(node: Any) -> complex:
    real, imaginary = node
    return complex(float(_text(real)), float(_text(imaginary)))


def _write_bytes(value: bytes) -> Any:
    return {MARK + "bytes": base64.b64encode(value).decode("ascii")}


def _read_bytes(node: object) -> bytes:
    return base64.b64decode(_text(node), validate=True)


# Decimal, UUID ---------------------------------------------------------------------------------------------------


def _write_decimal(value: Decimal) -> Any:
    return {MARK + "decimal": str(value)}


def _read_decimal(node: object) -> Decimal:
    return Decimal(_text(node))


def _write_uuid(value: UUID) -> Any:
    return {MARK + "uuid": str(value)}


def _read_uuid(node: object) -> UUID:
    return UUID(_text(node))


# Moments ---------------------------------------------------------------------------------------------------------
# ISO text where that says it all; else [naive ISO text, zone, fold], the zone being the key of a ZoneInfo or
# [offset in microseconds, name] or null.

_read_iso_datetime: Final = dt.datetime.fromisoformat
_read_iso_time: Final = dt.time.fromisoformat
_read_iso_date: Final = dt.date.fromisoformat


def write_datetime(value: dt.datetime) -> Any:
    return {MARK + "datetime": _moment(value)}


def _write_time(value: dt.time) -> Any:
    return {MARK + "time": _moment(value)}


def _moment(value: dt.datetime | dt.time) -> Any:
    zone = value.tzinfo
    if not value.fold and (zone is None or zone is dt.UTC):
        return value.isoformat()
    form = _zone(zone)
    # Whole minutes only: fromisoformat() takes an offset of less than a second for UTC.
    if not value.fold and type(form) is list and form[1] is None and form[0] % _MINUTE == 0:
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), form, value.fold]


def _zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        unnamed = dt.timezone(offset).tzname(None)
        return [offset // _MICROSECOND, None if name == unnamed else write_str(name)]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise Refused(
        f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}, which the codec does not know",
        "use `zoneinfo.ZoneInfo` or `datetime.timezone`, or pass `value.astimezone(datetime.UTC)`",
    )


def _read_datetime(node: Any) -> dt.datetime:
    if type(node) is str:
        return _read_iso_datetime(node)
    text, zone, fold = node
    return _read_iso_datetime(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _read_time(node: Any) -> dt.time:
    if type(node) is str:
        return _read_iso_time(node)
    text, zone, fold = node
    return _read_iso_time(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _read_zone(node: Any) -> dt.tzinfo | None:
    if node is None:
        return None
    if type(node) is str:
        try:
            return ZoneInfo(node)
        except Exception as error:
            raise Refused(
                f"this machine has no time zone {ascii(node)[:80]}", "install the tzdata package, or update it"
            ) from error
    microseconds, name = node
    offset = microseconds * _MICROSECOND
    if name is None:
        return dt.timezone(offset)
    return dt.timezone(offset, name if type(name) is str else _read_str(name[MARK + "str"]))


def write_date(value: dt.date) -> Any:
    return {MARK + "date": value.isoformat()}


def _read_date(node: object) -> dt.date:
    return _read_iso_date(_text(node))


def _write_timedelta(value: dt.timedelta) -> Any:
    return {MARK + "timedelta": [value.days, value.seconds, value.microseconds]}


def _read_timedelta(node: Any) -> dt.timedelta:
    days, seconds, microseconds = node
    return dt.timedelta(days=days, seconds=seconds, microseconds=microseconds)


WRITERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: write_str,
    bool: _same,
    type(None): _same,
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    bytes: _write_bytes,
    Decimal: _write_decimal,
    UUID: _write_uuid,
    dt.datetime: write_datetime,
    dt.date: write_date,
    dt.time: _write_time,
    dt.timedelta: _write_timedelta,
}

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    MARK + "str": _read_str,
    MARK + "int": _read_int,
    MARK + "float": _read_float,
    MARK + "complex": _read_complex,
    MARK + "bytes": _read_bytes,
    MARK + "decimal": _read_decimal,
    MARK + "uuid": _read_uuid,
    MARK + "datetime": _read_datetime,
    MARK + "date": _read_date,
    MARK + "time": _read_time,
    MARK + "timedelta": _read_timedelta,
}
