"""The shapes of what entries have in `data`, to be checked where a history comes from elsewhere.

What durable writes has them. Pages, replays and the engine rely on them, and read nothing else of `data` that is not
guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from durable.core.records import EntryKind, EntryRecord

__all__ = ["check_shape"]

_Shape = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _or_none(shape: _Shape) -> _Shape:
    return lambda value: value is None or shape(value)


def _listed(shape: _Shape) -> _Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _by_name(shape: _Shape) -> _Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def _with(needed: Mapping[str, _Shape], more: Mapping[str, _Shape] | None = None) -> _Shape:
    """An object that has the needed names, and of the others only what has its shape."""

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or not needed.keys() <= value.keys():
            return False
        known = {**needed, **(more or {})}
        return all(known[name](each) for name, each in value.items() if name in known)

    return fits


_BRANCH: Final = _with(
    {"status": _is_text},
    {"output": _or_none(_is_text), "origins": _listed(_is_text), "error": _or_none(_listed(_or_none(_is_text)))},
)
_RECEIVED: Final = _with({"id": _is_text, "name": _is_text, "body": _is_text, "sent_at": _is_moment})
_POLICY: Final = _with(
    {
        "handler": _is_text,
        "timeout": _or_none(_is_number),
        "max_retries": _or_none(_is_whole),
        "base": _is_number,
        "max": _is_number,
        "backoff": _is_text,
    },
    {"attempts": _is_whole, "uncounted": _is_whole, "retry_at": _or_none(_is_moment), "jitter": _is_number},
)
_OBJECT: Final = _with({})
_WITH_BRANCHES: Final[Mapping[str, _Shape]] = {"branches": _by_name(_BRANCH)}

#: What the data of an entry of this kind has.
_NEEDED: Final[Mapping[str, Mapping[str, _Shape]]] = {
    EntryKind.LOOP: {"iteration": _is_whole, "state": _or_none(_is_text), "pruned": _is_whole},
    EntryKind.SLEEP: {"state": _is_text, "deadline": _is_moment},
    EntryKind.MESSAGE: {"names": _listed(_is_text)},
    EntryKind.SEND: {"queue": _is_text, "to": _is_text, "message_id": _is_text},
    EntryKind.JOIN: _WITH_BRANCHES,
    EntryKind.RACE: _WITH_BRANCHES,
    EntryKind.VERSION_CHECK: {"resolved": _is_whole},
    EntryKind.CHILD: {"action": _is_text, "workflow": _is_text},
    EntryKind.MAP: {"size": _is_whole},
}
#: The shapes of what may be in the data of entries of several kinds.
_OPTIONAL: Final[Mapping[str, _Shape]] = {
    "rollback": _OBJECT,
    "failure": _OBJECT,
    "branches": _by_name(_BRANCH),
    "received": _listed(_RECEIVED),
    "winner": _or_none(_is_text),
    "child": _or_none(_is_text),
    "group": _or_none(_is_text),
    "deadline": _or_none(_is_moment),
    "moment": _or_none(_is_moment),
    "tags": _by_name(_is_text),
    "ids": _OBJECT,
    "created": _is_whole,
    "generation": _is_whole,
}


def check_shape(entry: EntryRecord) -> None:
    """Raise ValueError if what the entry has in `data` is not what durable writes for its kind."""
    data, needed = entry.data, _NEEDED.get(entry.kind, {})
    if not isinstance(data, dict):
        raise ValueError("its data is no object")
    if missing := sorted(needed.keys() - data.keys()):
        raise ValueError(f'its data lacks "{missing[0]}"')
    known = {**_OPTIONAL, **needed}
    if entry.kind == EntryKind.STEP:
        known["rollback"] = _POLICY
    elif entry.kind == EntryKind.TAG:
        del known["tags"]  # `durable.core.tag_entries` says what is wrong with them
    for name, value in data.items():
        if name in known and not known[name](value):
            raise ValueError(f'its data has another "{name}" than durable writes')
