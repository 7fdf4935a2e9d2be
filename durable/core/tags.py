"""Tags of a run: names with values, by which runs are found.

Owns which names and values there can be, and the one text by which a value is compared. A number and its text are the
same value, because addresses and command lines have text only: 42, 42.0, Decimal("42.00") and "42" are one tag.

Owns what a loop or a race remembers of tags set by entries that it prunes: by name, the ordinal of the first change,
the value before it, the ordinal of the last change, and its value. So a replay in place can still restore the tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from durable.core.duration import check_moment
from durable.core.ids import MAX_ID
from durable.core.numbers import is_whole
from durable.core.records import EntryKind, EntryRecord

MAX_TAGS: Final = 8  # of one run
MAX_VALUE: Final = 200  # characters

#: The prefix of a value that is stored as its HMAC; no plain value begins with it.
HASHED: Final = "hmac-sha256:"

TagValue = str | int | float | Decimal | datetime | date


def check_tags(tags: Mapping[str, TagValue]) -> dict[str, str]:
    """Return the tags with their values as text, sorted by name.

    Raises TypeError if it is not a dict of names and values, and ValueError for an invalid name or value or more than 8
    tags.
    """
    if not isinstance(tags, Mapping):
        raise TypeError(f'tags are a dict of names and values, such as {{"tenant": "acme"}}, not {tags!r:.64}')
    found = {check_tag_name(name): tag_text(name, value) for name, value in tags.items()}
    check_number(found)
    return dict(sorted(found.items()))


def check_stored(tags: Mapping[str, str]) -> dict[str, str]:
    """Return stored tags that were read from elsewhere. Raises TypeError and ValueError for invalid ones."""
    if not isinstance(tags, Mapping) or not all(isinstance(value, str) for value in tags.values()):
        raise TypeError("tags are texts by name")
    for name, value in tags.items():
        check_tag_name(name)
        if not value.startswith(HASHED):
            tag_text(name, value)
        elif len(value) > MAX_VALUE:
            raise ValueError(f'the hash of the tag "{name}" has {len(value)} characters')
    check_number(tags)
    return dict(tags)


def check_number(names: Iterable[str]) -> None:
    """Raise ValueError for more tags than a run can have."""
    given = sorted(names)
    if len(given) > MAX_TAGS:
        raise ValueError(
            f"a run has at most {MAX_TAGS} tags, and these are {len(given)} ({', '.join(given):.200}): keep those by which "
            "runs are looked for, and the rest in the input or in a table of your own"
        )


def check_tag_name(name: str) -> str:
    """Return `name` if a tag can have it; else raise TypeError or ValueError.

    A name has 1 to 200 printable characters, without spaces, "=" and ":".
    """
    if not isinstance(name, str):
        raise TypeError(f"a tag's name is text, not {name!r:.64}")
    if not (1 <= len(name) <= MAX_ID and name.isprintable()) or any(each in name for each in "=: "):
        raise ValueError(
            f'a tag\'s name is made of 1 to {MAX_ID} printable characters without spaces, "=" and ":", because it is '
            f"written as name=value: {name[:64]!r}"
        )
    return name


def tag_text(name: str, value: TagValue) -> str:
    """Return the text by which a value is compared, of 1 to 200 characters.

    Text stands for itself. A number is written with all its digits, without an exponent and without trailing zeros
    ("42", "0.1"), True and False as "true" and "false". A moment is written in UTC ("2026-11-24T09:30:00Z", with six
    digits of a fraction if it has one), a date as "2026-11-24". Raises TypeError for another type, and ValueError for
    NaN or infinity, a moment without a zone, and a text of another length.
    """
    text = _text(name, value)
    if not 1 <= len(text) <= MAX_VALUE:
        raise ValueError(
            f'the value of the tag "{name}" has {len(text)} characters, and 1 to {MAX_VALUE} are allowed: '
            + ("tag the run with a key of yours, and keep the text elsewhere" if text else "leave the tag out for none")
        )
    if text.startswith(HASHED):
        raise ValueError(
            f'the value of the tag "{name}" begins with "{HASHED}", which only hashed values do: {text[:64]!r}'
        )
    return text


def _text(name: str, value: TagValue) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # also of an enumeration's member
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return _number(name, value)
    if isinstance(value, datetime):
        at = check_moment(value, f'the value of the tag "{name}"').astimezone(UTC)
        return at.replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date):
        return value.isoformat()
    instead = (
        "leave the tag out for none, and give it another value to replace one" if value is None else "write str(...)"
    )
    raise TypeError(
        f'the value of the tag "{name}" is text, a number, a datetime or a date, not {type(value).__name__}: {instead}'
    )


def _number(name: str, value: float | Decimal) -> str:
    exact = Decimal(repr(float(value))) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite():
        raise ValueError(f'the value of the tag "{name}" is {value}, which is not a number: leave the tag out')
    if not exact:
        return "0"
    if max(exact.adjusted(), -exact.adjusted()) > MAX_VALUE:  # before such a text is made
        raise ValueError(
            f'the value of the tag "{name}" is written in more than {MAX_VALUE} digits: tag the run with text'
        )
    text = format(exact, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


PRUNED: Final = "pruned_tags"


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of one tag: the positions of the first and the last in the run's order, and the values around
    them.
    """

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
    """Return the data of a loop or a race, with the tag changes of these pruned entries; None if they changed none."""
    new = [each for entry in pruned for each in _changes_in(entry)]
    if not new:
        return None
    noted = [(name, _Changes(*each)) for name, each in data.get(PRUNED, {}).items()]
    return {**data, PRUNED: {name: each.data for name, each in _joined([*noted, *new]).items()}}


def newest_pruned(data: Mapping[str, Any]) -> int:
    """Return the highest ordinal of pruned tag entries that the data of a loop or a race remembers; -1 for none.

    The next entry of the run gets a higher one, so that its tag changes come after the pruned ones.
    """
    return max((last for _first, _before, last, _value in data.get(PRUNED, {}).values()), default=-1)


def with_new_values(
    data: Mapping[str, Any], values: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> dict[str, Any]:
    """Return the data of an entry with its tag values replaced by `values`, a function of tags by name."""

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
    """Check the tags in an entry's data that was read from elsewhere.

    Raises TypeError, ValueError, LookupError or AttributeError for data that the functions here cannot read.
    """
    if entry.kind == EntryKind.TAG:
        check_stored(entry.data["tags"])
    for name, changes in _changes_in(entry):
        check_stored({name: changes.value})
        if changes.before is not None:
            check_stored({name: changes.before})
        if not is_whole(changes.first) or not is_whole(changes.last):
            raise TypeError(f'the changes of the tag "{name}" have no numbers')


def rewound(kept: Iterable[EntryRecord], gone: Iterable[EntryRecord]) -> dict[str, str | None]:
    """Return the tag values to restore once some entries are deleted.

    A tag that no kept entry has set gets its earlier value; None if the run did not have it. A tag that a kept entry
    has set last keeps its value and is not returned.
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
