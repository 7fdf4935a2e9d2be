"""The shapes of the entries' `data`, checked when a history is imported or shown.

Durable always writes these shapes, and pages, replays and the engine rely on them. An import refuses other data. Pages,
plans and listings show a stand-in for it, so that one row changed by hand does not break a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from durable.core.numbers import is_number, is_whole
from durable.core.records import EntryKind, EntryRecord

#: The key in stand-in data of what is wrong with the original.
CANNOT_BE_SHOWN: Final = "cannot_be_shown"

_Shape = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


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
    """Check for an object that has the `needed` names; its other names need the given shape only if present."""

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or not needed.keys() <= value.keys():
            return False
        known = {**needed, **(more or {})}
        return all(known[name](each) for name, each in value.items() if name in known)

    return fits


def _is_failed_child(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 4


_BRANCH: Final = _with(
    {"status": _is_text},
    {"output": _or_none(_is_text), "origins": _listed(_is_text), "error": _or_none(_listed(_or_none(_is_text)))},
)
_RECEIVED: Final = _with({"id": _is_text, "name": _is_text, "body": _is_text, "sent_at": _is_moment})
_POLICY: Final[Mapping[str, _Shape]] = {
    "handler": _is_text,
    "timeout": _or_none(is_number),
    "max_retries": _or_none(is_whole),
    "base": is_number,
    "max": is_number,
    "backoff": _is_text,
}
_PROGRESS: Final[Mapping[str, _Shape]] = {
    "attempts": is_whole,
    "uncounted": is_whole,
    "retry_at": _or_none(_is_moment),
    "jitter": is_number,
}
_OBJECT: Final = _with({})
_WITH_BRANCHES: Final[Mapping[str, _Shape]] = {"branches": _by_name(_BRANCH)}

#: The shape of the data of an entry, by kind.
_NEEDED: Final[Mapping[str, Mapping[str, _Shape]]] = {
    EntryKind.LOOP: {"iteration": is_whole, "state": _or_none(_is_text), "pruned": is_whole},
    EntryKind.SLEEP: {"state": _is_text, "deadline": _is_moment},
    EntryKind.MESSAGE: {"names": _listed(_is_text)},
    EntryKind.SEND: {"queue": _is_text, "to": _is_text, "message_id": _is_text},
    EntryKind.JOIN: _WITH_BRANCHES,
    EntryKind.RACE: _WITH_BRANCHES,
    EntryKind.VERSION_CHECK: {"resolved": is_whole},
    EntryKind.CHILD: {"action": _is_text, "workflow": _is_text},
    EntryKind.MAP: {"size": is_whole},
    EntryKind.LINK: {
        "id": _is_text,
        "queue": _is_text,
        "verify": _or_none(_is_text),
        "expires_at": _or_none(_is_moment),
    },
    EntryKind.PUBLISH: {"as": _is_text},
}
#: The shapes of data that entries of several kinds may have.
_OPTIONAL: Final[Mapping[str, _Shape]] = {
    "rollback": _OBJECT,
    "failure": _with({}, {"kind": _is_text, "first": _listed(_is_failed_child), "said_by": _OBJECT}),
    "given": _with({}, {"at": _is_moment}),
    "held": _with({"reason": _is_text, "since": _is_moment, "failure": _OBJECT}),
    "once": _with(
        {"key": _is_text}, {"verify": _is_text, "retries": is_whole, "timeout": is_number, "asked": is_whole}
    ),
    "reason": _or_none(_is_text),
    "uncounted": is_whole,
    "ended": _by_name(is_whole),
    "again": _with({}, {"of": is_whole, "done": is_whole}),
    "branches": _by_name(_BRANCH),
    "received": _listed(_RECEIVED),
    "winner": _or_none(_is_text),
    "child": _or_none(_is_text),
    "group": _or_none(_is_text),
    "deadline": _or_none(_is_moment),
    "moment": _or_none(_is_moment),
    "tags": _by_name(_is_text),
    "ids": _OBJECT,
    "created": is_whole,
    "generation": is_whole,
    "expires_at": _or_none(_is_moment),
    "link": _is_text,
    "event": _with(
        {"name": _is_text, "key": _is_text, "id": _is_text, "run": _is_text, "after": is_whole}, {"within": is_number}
    ),
    "ask": _with(
        {
            "id": _is_text,
            "run": _is_text,
            "spec": _with({"to_label": _is_text, "permission": _is_text, "form": _or_none(_is_text)}),
        }
    ),
}


#: All checked shapes. `durable.core.tags` checks those of tags.
_KNOWN: Final[Mapping[str, Mapping[str, _Shape]]] = {
    **{kind: {**_OPTIONAL, **needed} for kind, needed in _NEEDED.items()},
    EntryKind.STEP: {**_OPTIONAL, "rollback": _with({}, {**_POLICY, **_PROGRESS}), "summary": _is_text},
    EntryKind.TAG: {name: shape for name, shape in _OPTIONAL.items() if name != "tags"},
}
#: Replaces data of another shape, or missing data.
_STAND_IN: Final[Mapping[str, Mapping[str, Any]]] = {
    EntryKind.LOOP: {"iteration": 0, "state": None, "pruned": 0},
    EntryKind.SLEEP: {"state": "", "deadline": "1970-01-01T00:00:00+00:00"},
    EntryKind.MESSAGE: {"names": []},
    EntryKind.SEND: {"queue": "", "to": "", "message_id": ""},
    EntryKind.JOIN: {"branches": {}},
    EntryKind.RACE: {"branches": {}},
    EntryKind.VERSION_CHECK: {"resolved": 0},
    EntryKind.CHILD: {"action": "", "workflow": ""},
    EntryKind.MAP: {"size": 0},
    EntryKind.LINK: {"id": "", "queue": "", "verify": None, "expires_at": None},
    EntryKind.PUBLISH: {"as": "json"},
}


def readable(kind: str, data: Any) -> dict[str, Any]:
    """Return the data of an entry in the shape that pages need.

    Data of another shape is replaced by a stand-in that says under `CANNOT_BE_SHOWN` what is wrong.
    """
    needed = _STAND_IN.get(kind, {})
    if (wrong := _misfit(kind, data)) is not None:
        return {**needed, CANNOT_BE_SHOWN: wrong}
    found: dict[str, Any] = data if needed.keys() <= data.keys() else {**needed, **data}
    return found


def check_shape(entry: EntryRecord) -> None:
    """Raise ValueError if the entry's `data` does not have the shape that durable writes for its kind."""
    if (wrong := _misfit(entry.kind, entry.data)) is not None:
        raise ValueError(wrong)
    if missing := sorted(_NEEDED.get(entry.kind, {}).keys() - entry.data.keys()):
        raise ValueError(f'its data lacks "{missing[0]}"')
    if entry.kind == EntryKind.STEP and not _POLICY.keys() <= entry.data.get("rollback", _POLICY).keys():
        raise ValueError('its data has another "rollback" than durable writes')


def _misfit(kind: str, data: Any) -> str | None:
    """Describe how the data of an entry differs from the shape that durable writes; None if it does not."""
    if not isinstance(data, dict):
        return "its data is not an object"
    known = _KNOWN.get(kind, _OPTIONAL)
    for name, value in data.items():
        if name in known and not known[name](value):
            return f'its data has another "{name}" than durable writes'
    return None
