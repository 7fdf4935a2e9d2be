"""The treatment of recorded values in an export: written as stored, decrypted, or redacted.

A redacted value keeps its type, so that today's classes read it and code finds its fields. With `DURABLE["REDACT"]`
what the hook leaves as it is stays; without a hook, everything is replaced. What is replaced becomes a placeholder of
its type: text "(redacted)", number 0, no bytes. None, True, False, members of enums and the lengths of lists stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from copy import copy
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Final
from uuid import UUID

from durable import runtime
from durable.codec import JsonCodec
from durable.codec.classes import is_named_tuple_type, is_pydantic_type
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.places import Place, queue_of
from durable.core.records import LINK_SECRET, EntryKind, EntryRecord, Message, RunRecord
from durable.core.rewind.replay import moved_entry, moved_message
from durable.core.steps import SUMMARY
from durable.core.tags import MAX_VALUE, with_new_values
from durable.inspection.payloads import redacted, to_plain

#: The codec that reads decrypted or redacted values.
PLAIN: Final = JsonCodec().unlimited
REDACTED: Final = "(redacted)"
_KEPT: Final = (type(None), bool, Enum)
_NOTHING: Final = object()  # in place of what is shown of a value: nothing of it
_PLACEHOLDERS: Final[Mapping[type, Any]] = {
    str: REDACTED,
    int: 0,
    float: 0.0,
    complex: 0j,
    bytes: b"",
    Decimal: Decimal(0),
    UUID: UUID(int=0),
    date: date(2000, 1, 1),
    time: time(0),
    timedelta: timedelta(0),
}


class Values(StrEnum):
    """The form in which values are written. The names are stored in files."""

    STORED = "stored"
    DECRYPTED = "decrypted"
    REDACTED = "redacted"


def converted_run(run: RunRecord, values: Values) -> RunRecord:
    """Return the run with its values in the form `values`. Raises PayloadError for an unreadable one."""
    if values is Values.STORED:
        return run
    change = _Change(run.workflow, values)
    converted = dataclasses.replace(
        run,
        input=change.text(run.input, Place(run.id, "input")),
        output=None if run.output is None else change.text(run.output, Place(run.id, "output")),
    )
    if values is Values.REDACTED:
        converted.error = change.error(run.error)
        converted.summary = ""  # it may name what the run waits for, or quote an error
        converted.request_reason = change.prose(run.request_reason)
        converted.worker = ""
        converted.carried = None  # what a carrier restores has to be what it has saved, or nothing
    return converted


def converted_entry(run: RunRecord, entry: EntryRecord, values: Values) -> EntryRecord:
    """Return the entry of the run with its values in the form `values`. Raises PayloadError."""
    if entry.kind == EntryKind.LINK:  # a copy has an address of its own, whoever has the key of the original
        data = {name: value for name, value in entry.data.items() if name not in LINK_SECRET}
        entry = dataclasses.replace(entry, data=data)
    if values is Values.STORED:
        return entry
    change = _Change(run.workflow, values)
    converted = moved_entry(entry, run.id, run.id, {}, change.copied)
    if values is Values.REDACTED:
        converted.error = change.error(entry.error)
        converted.rollback_error = change.error(entry.rollback_error)
        converted.data = change.data(converted.data)
    return converted


def converted_message(run: RunRecord, message: Message, values: Values) -> Message:
    """Return the message of the run with its values in the form `values`. Raises PayloadError."""
    if values is Values.STORED:
        return message
    return moved_message(message, run.id, message.id, _Change(run.workflow, values).copied)


def converted_tags(run: RunRecord, tags: Mapping[str, str], values: Values) -> dict[str, str]:
    """Return the run's tags in the form `values`; unlike other values, they are not codec text."""
    return dict(tags) if values is not Values.REDACTED else _Change(run.workflow, values).tags(tags)


class _Change:
    """Converts the values of one run."""

    def __init__(self, workflow: str, values: Values) -> None:
        self._workflow = workflow
        self._values = values

    def copied(self, text: str, place: Place, _new: Place) -> str:
        return self.text(text, place)

    def text(self, text: str, place: Place) -> str:
        """Return codec text of `place`, converted for PLAIN."""
        value = runtime.current().decode(text, place)
        if self._values is Values.REDACTED:
            value = self._redacted(value, place)
        return PLAIN.encode(value, what=f"the {place.field} to export")

    def _redacted(self, value: Any, place: Place) -> Any:
        return _merged(value, redacted(self._workflow, _field(place), value) if conf.REDACT else _NOTHING)

    def error(self, error: ErrorInfo | None) -> ErrorInfo | None:
        return None if error is None else ErrorInfo(error.type, self.prose(error.message), "")

    def prose(self, text: str, field: str = "error") -> str:
        """Convert the text of an error or of a person, or the line of a step."""
        if not text:
            return ""
        return str(redacted(self._workflow, field, text)) if conf.REDACT else REDACTED

    def data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's data of an entry, with the lines of steps and texts of errors and people removed."""
        found = dict(data)
        if "branches" in found:
            found["branches"] = {name: self._branch(each) for name, each in found["branches"].items()}
        if isinstance(failure := found.get("failure"), dict):
            failure = dict(failure)
            if "reason" in failure:
                failure["reason"] = self.prose(failure["reason"] or "")
            if "first" in failure:
                failure["first"] = [
                    [place, child, kind, self.prose(text), ""] for place, child, kind, text, *_ in failure["first"]
                ]
            found["failure"] = failure
        if isinstance(found.get(SUMMARY), str):
            found[SUMMARY] = self.prose(found[SUMMARY], SUMMARY)
        if isinstance(found.get("reason"), str):
            found["reason"] = self.prose(found["reason"])
        if isinstance(found.get("given"), dict):
            found["given"] = {name: REDACTED if name != "at" else each for name, each in found["given"].items()}
        return with_new_values(found, self.tags)

    def tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags without their values, or with the values that the hook shows."""
        if not conf.REDACT:
            return dict.fromkeys(tags, REDACTED)
        shown = {name: str(redacted(self._workflow, f"tag:{name}", value)) for name, value in tags.items()}
        return {name: value[:MAX_VALUE] or REDACTED for name, value in shown.items()}

    def _branch(self, branch: dict[str, Any]) -> dict[str, Any]:
        if not branch.get("error"):
            return branch
        kind, text, *_ = branch["error"]
        return {**branch, "error": [kind, self.prose(text), ""]}


def _field(place: Place) -> str:
    """Return the project hook's name for the value."""
    if place.field in ("message", "response"):
        return f"{place.field}:{queue_of(place.where)}"
    return f"{place.field}:{place.where}" if place.where else place.field


def _merged(value: Any, shown: Any) -> Any:
    """Return the value with placeholders for the parts that `shown` changes, or that are missing from it.

    `shown` is plain data of the same shape; `_NOTHING` has no part.
    """
    if isinstance(value, _KEPT):
        return value
    if (names := _fields_of(value)) is not None:
        parts = {name: _merged(getattr(value, name), _part(shown, name)) for name in names}
        if isinstance(value, tuple):
            return type(value)(**parts)
        changed = copy(value)
        for name, part in parts.items():
            object.__setattr__(changed, name, part)
        if extra := getattr(changed, "__pydantic_extra__", None):
            kept = {name: _merged(each, _part(shown, name)) for name, each in extra.items()}
            object.__setattr__(changed, "__pydantic_extra__", kept)
        return changed
    if isinstance(value, dict):
        return {key: _merged(each, _part(shown, to_plain(key))) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_merged(each, _part(shown, number)) for number, each in enumerate(value))
    if isinstance(value, set | frozenset):
        return type(value)(_merged(each, _NOTHING) for each in value)
    # A part is compared by itself: of a class that does not show a field, the whole looks the same.
    if shown is not _NOTHING and to_plain(value) == shown and type(to_plain(value)) is type(shown):
        return value
    if isinstance(value, str) and isinstance(shown, str):
        return shown
    if isinstance(value, datetime):
        return datetime(2000, 1, 1, tzinfo=None if value.tzinfo is None else UTC)
    return next((each for kind, each in _PLACEHOLDERS.items() if isinstance(value, kind)), None)


def _part(shown: Any, key: Any) -> Any:
    if isinstance(shown, Mapping):
        return shown[key] if key in shown else shown.get(str(key), _NOTHING)
    if isinstance(shown, list) and isinstance(key, int) and key < len(shown):
        return shown[key]
    return _NOTHING


def _fields_of(value: Any) -> list[str] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    if is_named_tuple_type(kind):
        return list(kind._fields)
    if is_pydantic_type(kind):
        return [name for name in kind.model_fields if name in value.__dict__]
    return None
