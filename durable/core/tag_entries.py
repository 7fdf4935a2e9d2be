"""What entries have changed of a run's tags, and what is left of the tags once entries are gone.

Owns what a loop and a race remember of the tags below them whose entries they prune: their data has, by name, the
ordinal of the first change, the value before it, the ordinal of the last change, and its value. So a replay in place
of the loop or the race can still take the tags back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from durable.core.records import EntryKind, EntryRecord
from durable.core.tags import check_stored

PRUNED: Final = "pruned_tags"


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of one tag: where the first and the last stand in the order of the run, and the values around them."""

    first: int
    before: str | None
    last: int
    value: str

    def joined(self, other: _Changes) -> _Changes:
        oldest = self if self.first < other.first else other
        newest = self if self.last > other.last else other
        return _Changes(oldest.first, oldest.before, newest.last, newest.value)

    @property
    def data(self) -> list[Any]:
        return [self.first, self.before, self.last, self.value]


def _changes_in(entry: EntryRecord) -> Iterator[tuple[str, _Changes]]:
    if entry.kind == EntryKind.TAG:
        for name, value in entry.data["tags"].items():
            yield name, _Changes(entry.ordinal, entry.data["before"].get(name), entry.ordinal, value)
    for name, noted in entry.data.get(PRUNED, {}).items():
        yield name, _Changes(*noted)


def _joined(changes: Iterable[tuple[str, _Changes]]) -> dict[str, _Changes]:
    found: dict[str, _Changes] = {}
    for name, each in changes:
        found[name] = found[name].joined(each) if name in found else each
    return found


def with_pruned(data: Mapping[str, Any], pruned: Iterable[EntryRecord]) -> dict[str, Any] | None:
    """Return the data of a loop or a race with what these entries below it have changed of tags; None for nothing."""
    new = [each for entry in pruned for each in _changes_in(entry)]
    if not new:
        return None
    noted = [(name, _Changes(*each)) for name, each in data.get(PRUNED, {}).items()]
    return {**data, PRUNED: {name: each.data for name, each in _joined([*noted, *new]).items()}}


def newest_pruned(data: Mapping[str, Any]) -> int:
    """Return the highest ordinal of pruned entries that the data of a loop or a race remembers, -1 for none.

    The next entry of the run has a higher one: what it does of tags comes after what was pruned.
    """
    return max((last for _first, _before, last, _value in data.get(PRUNED, {}).values()), default=-1)


def with_new_values(
    data: Mapping[str, Any], values: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> dict[str, Any]:
    """Return the data of an entry with the values of its tags as `values` returns them by name."""

    def value(name: str, old: str | None) -> str | None:
        return None if old is None else values({name: old})[name]

    found = dict(data)
    for part in ("tags", "before"):
        if part in data:
            found[part] = {name: value(name, old) for name, old in data[part].items()}
    if PRUNED in data:
        noted = {name: _Changes(*each) for name, each in data[PRUNED].items()}
        found[PRUNED] = {
            name: replace(each, before=value(name, each.before), value=values({name: each.value})[name]).data
            for name, each in noted.items()
        }
    return found


def check_data(entry: EntryRecord) -> None:
    """Check what an entry that was read from elsewhere has of tags.

    Raises TypeError, ValueError, LookupError or AttributeError for data that the functions here cannot read.
    """
    if entry.kind == EntryKind.TAG:
        check_stored(entry.data["tags"])
    for name, changes in _changes_in(entry):
        check_stored({name: changes.value})
        if changes.before is not None:
            check_stored({name: changes.before})
        if type(changes.first) is not int or type(changes.last) is not int:
            raise TypeError(f'the changes of the tag "{name}" have no numbers')


def rewound(kept: Iterable[EntryRecord], gone: Iterable[EntryRecord]) -> dict[str, str | None]:
    """Return what is left of tags once some entries are gone: the values that the kept ones have given.

    A tag that no kept entry has set gets the value that it had before, None if the run did not have it. A tag that a
    kept entry has set last is not returned: it keeps its value.
    """
    going = _joined(each for entry in gone for each in _changes_in(entry))
    if not going:
        return {}
    staying = _joined(each for entry in kept for each in _changes_in(entry))
    return {
        name: changes.before if name not in staying else staying[name].value
        for name, changes in going.items()
        if name not in staying or staying[name].last < changes.last
    }
