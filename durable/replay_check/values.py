"""Decode each recorded value of a history with today's classes, whether or not a replay comes to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from durable.codec import Codec
from durable.codec.binding import binding, decode_at
from durable.core.errors import PayloadError
from durable.core.places import Place
from durable.core.records import EntryRecord, RunRecord, RunState
from durable.core.replay import moved_entry

_MOST_KNOWN: Final = 10_000
_LONGEST_KNOWN: Final = 500  # characters of a text that is remembered

#: Where a value cannot be read, which field it is, and why.
UnreadableValue = tuple[str, str, PayloadError]


def unreadable_value(run: RunRecord, entries: Iterable[EntryRecord], codec: Codec) -> UnreadableValue | None:
    """Return the first recorded value that this code cannot read, None if it can read all."""
    looker = _Looker(codec)
    for each in entries:
        looker.location = each.location
        if each.data:
            moved_entry(each, run.id, run.id, {}, looker.look)
        else:
            if each.output is not None:
                looker.look(each.output, Place(run.id, "output", each.location), None)
            if each.arguments is not None:
                looker.look(each.arguments, Place(run.id, "arguments", each.location), None)
        if looker.found is not None:
            return looker.found
    looker.location = ""
    if run.output is not None and run.state == RunState.COMPLETED:
        looker.look(run.output, Place(run.id, "output"), None)
    return looker.found


class _Looker:
    """Decodes texts, those that are the same once; keeps the first that cannot be decoded."""

    def __init__(self, codec: Codec) -> None:
        self.location = ""
        self.found: UnreadableValue | None = None
        self._codec = codec
        self._is_bound = binding(codec) is not None
        self._known: set[str] = set()

    def look(self, text: str, old: Place, _new: Place | None) -> str:
        """Decode the text, which stays as it is."""
        if text in self._known or self.found is not None:
            return text
        try:
            decode_at(self._codec, text, old)
        except PayloadError as error:
            self.found = (self.location, old.field, error)
            return text
        if not self._is_bound and len(text) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
            self._known.add(text)
        return text
