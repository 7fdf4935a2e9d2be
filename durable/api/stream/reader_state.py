"""The state of a reader of a history: its entries and their progress, in a few bytes for each.

An entry has a key and a mark, a number that identifies the state that was sent. Its location is stored compressed: it
is needed only after the entry was deleted.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple

UNKNOWN: Final = -1  # the mark of an entry that the reader has in an unknown state
_PACK: Final = 256  # locations that are compressed together


class KnownEntry(NamedTuple):
    """An entry that the reader has."""

    key: int
    mark: int
    location: str


class Marks:
    """Keys with their marks, in the order in which they were added: 16 bytes for each."""

    __slots__ = ("keys", "marks")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.keys, self.marks = array("q"), array("q")
        for key, mark in pairs:
            self.keys.append(key)
            self.marks.append(mark)

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, number: int) -> list[tuple[int, int]]:
        """Return up to `number` pairs."""
        return list(zip(self.keys[:number], self.marks[:number], strict=True))

    def drop(self, number: int) -> None:
        """Drop the first pairs."""
        del self.keys[:number], self.marks[:number]


class ReaderState:
    """The entries that a reader has, by key."""

    __slots__ = ("_known", "_loose", "_packed")

    def __init__(self) -> None:
        self._known = Marks()  # ascending
        self._packed: list[bytes] = []  # the locations, `_PACK` in each element
        self._loose: list[str] = []  # locations that do not fill an element yet

    def __len__(self) -> int:
        return len(self._known)

    @property
    def newest(self) -> int:
        """The largest key; 0 for none."""
        return self._known.keys[-1] if len(self._known) else 0

    @property
    def marks(self) -> Iterator[tuple[int, int]]:
        """Yield all keys with their marks, ascending."""
        return zip(self._known.keys, self._known.marks, strict=True)

    def mark(self, key: int) -> int | None:
        """Return the mark of the entry; None if the reader does not have the entry."""
        at = self._find(key)
        return None if at is None else self._known.marks[at]

    def put(self, key: int, mark: int, location: str) -> None:
        """Record that the reader now has this entry."""
        at = self._find(key)
        if at is not None:
            self._known.marks[at] = mark
        elif key > self.newest:
            self._append(key, mark, location)
        else:
            self._fill(sorted([*self._all(), KnownEntry(key, mark, location)]))

    def keep(self, keys: Set[int]) -> list[KnownEntry]:
        """Drop all other entries, and return them."""
        gone = [each for each in self._all() if each.key not in keys]
        if gone:
            self._fill([each for each in self._all() if each.key in keys])
        return gone

    def _find(self, key: int) -> int | None:
        at = bisect_left(self._known.keys, key)
        return at if at < len(self._known) and self._known.keys[at] == key else None

    def _append(self, key: int, mark: int, location: str) -> None:
        self._known.keys.append(key)
        self._known.marks.append(mark)
        self._loose.append(location)
        if len(self._loose) == _PACK:
            self._packed.append(zlib.compress(json.dumps(self._loose).encode("ascii")))
            self._loose = []

    def _fill(self, known: Iterable[KnownEntry]) -> None:
        self._known, self._packed, self._loose = Marks(), [], []
        for each in known:
            self._append(*each)

    def _all(self) -> Iterator[KnownEntry]:
        locations = self._locations()
        for (key, mark), location in zip(self.marks, locations, strict=True):
            yield KnownEntry(key, mark, location)

    def _locations(self) -> Iterator[str]:
        for pack in self._packed:
            yield from json.loads(zlib.decompress(pack))
        yield from self._loose
