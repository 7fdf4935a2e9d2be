"""Facts about a history without reading all of it: surveys for the plan of a replay, landmarks, and outlines without
values.

Owns the shapes. `durable.store.tables.surveys` queries a database; `survey_of` and `bare_entry` use a history in
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from durable.core.entry_shapes import readable
from durable.core.records import EntryKind, EntryRecord, EntryStatus, Message
from durable.core.rewind.rewinding import Rewind


@dataclass(frozen=True, slots=True)
class Listed:
    """The first locations of some entries, in the order in which they began, and how many there are in all."""

    first: Sequence[str] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The entries that a replay deletes, and those that stay.

    Of the deleted entries: `steps` and `sends`; `compensable` are completed steps with a rollback handler, and starts
    of children that are compensated with their parent; `races`; `has_receipts` is False if none is of messages, of a
    loop or of a race; `has_loops`. `has_handlers`: a kept step has a rollback handler, or a kept start of children a
    rollback. `has_children`: some entry of the history is of a child.
    """

    deleted: Listed = field(default_factory=Listed)
    steps: Listed = field(default_factory=Listed)
    sends: Listed = field(default_factory=Listed)
    compensable: Listed = field(default_factory=Listed)
    kept: Listed = field(default_factory=Listed)
    races: Listed = field(default_factory=Listed)
    has_receipts: bool = True
    has_loops: bool = False
    has_handlers: bool = False
    has_children: bool = False


class Revision(tuple[int, ...]):
    """Numbers that change whenever an entry of the history begins, ends, fails or is undone."""

    __slots__ = ()


def revision_of(entries: Iterable[EntryRecord]) -> Revision:
    """Return the revision of a history in memory."""
    number = newest = attempts = ends = last = undone = running = 0
    for each in entries:
        number += 1
        newest = max(newest, each.ordinal)
        attempts += each.attempts
        running += each.status == EntryStatus.RUNNING
        undone += each.rollback_completed_at is not None
        if each.finished_ordinal is not None:
            ends += 1
            last = max(last, each.finished_ordinal)
    return Revision((number, newest, attempts, running, ends, last, undone))


def survey_of(history: Rewind, most: int) -> Survey:
    """Return the survey of a whole history in memory, after a rewind."""
    gone, kept = (sorted(each, key=lambda entry: entry.ordinal) for each in (history.deleted.values(), history))
    return Survey(
        deleted=listed(gone, most),
        steps=listed([each for each in gone if each.kind == EntryKind.STEP], most),
        sends=listed([each for each in gone if each.kind == EntryKind.SEND], most),
        compensable=listed([each for each in gone if each.is_compensable], most),
        kept=listed(kept, most),
        has_loops=any(each.kind == EntryKind.LOOP for each in gone),
        has_handlers=any("rollback" in each.data for each in kept),
        has_children=any(each.kind in (EntryKind.CHILD, EntryKind.MAP) for each in (*kept, *gone)),
    )


def listed(entries: Sequence[EntryRecord], most: int) -> Listed:
    """Return the locations of the first of these entries, and their number."""
    return Listed(tuple(each.location for each in entries[:most]), len(entries))


class Sort(NamedTuple):
    """What a plan has to know of an entry: its kind, whether it has a rollback, and whether that has work to do."""

    kind: str
    is_handled: bool = False
    is_compensable: bool = False

    @property
    def text(self) -> str:
        """The sort as a key of JSON."""
        return self.kind + "!" * (self.is_handled + self.is_compensable)

    @classmethod
    def parse(cls, text: str) -> Self:
        kind = text.rstrip("!")
        raised = len(text) - len(kind)
        return cls(kind, is_handled=raised > 0, is_compensable=raised > 1)


class Stretch(NamedTuple):
    """The entries with the ordinals from `first` up to `end`, which is excluded.

    Their keys are in the range from `low` to `high`. `numbers` counts them by their sort.
    """

    first: int
    end: int
    low: int
    high: int
    numbers: Mapping[Sort, int]

    def number(self, sorts: Collection[Sort] | None = None) -> int:
        """Return the number of entries of these sorts, or of all."""
        return sum(number for sort, number in self.numbers.items() if sorts is None or sort in sorts)

    def is_far_from(self, other: Stretch) -> bool:
        """Return whether more keys lie between the two ranges than in them."""
        between = max(self.low, other.low) - min(self.high, other.high)
        return between > (self.high - self.low) + (other.high - other.low) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """Where the entries of a long history are, as counted while its run rested (`durable.inspection.landmarks`).

    No index has the order in which entries began. The keys of a stretch lead to its entries, because rows were written
    in about that order. The stretches are in order, and none is empty. `unfinished` are the keys of the entries that
    run, are asked about or wait for a person; None for too many. `is_undone`: a rollback has undone some entry.
    """

    stretches: Sequence[Stretch]
    unfinished: Sequence[int] | None = None
    is_undone: bool = True

    @classmethod
    def load(cls, counts: Mapping[str, Any]) -> Self | None:
        """Return the landmarks in the stored counts of a history; None if they have none."""
        stored, progress = counts.get("landmarks"), counts.get("progress", {})
        if stored is None:
            return None
        first, width = stored["first"], stored["width"]
        return cls(
            stretches=[
                Stretch(
                    first + position * width,
                    first + (position + 1) * width,
                    low,
                    high,
                    {Sort.parse(text): number for text, number in numbers.items()},
                )
                for position, low, high, numbers in stored["stretches"]
            ],
            unfinished=progress.get("unfinished"),
            is_undone=bool(progress.get("compensated", True)),
        )

    def divided(self, after: int | None) -> tuple[list[Stretch], Stretch | None, list[Stretch]]:
        """Return the stretches before an ordinal, the one that has it if not at its end, and those after it.

        All are before None.
        """
        if after is None:
            return [*self.stretches], None, []
        before = [each for each in self.stretches if each.end <= after + 1]
        behind = [each for each in self.stretches if each.first > after]
        amid = self.stretches[len(before)] if len(before) + len(behind) < len(self.stretches) else None
        return before, amid, behind

    def between(self, first: int, last: int) -> list[Stretch]:
        """Return the stretches that have these ordinals."""
        return [each for each in self.stretches if each.first <= last and first < each.end]

    def with_newest(self, kind: str, most: int) -> list[Stretch]:
        """Return the stretches that have the newest entries of a kind, `most` of them if there are so many."""
        sorts = {sort for each in self.stretches for sort in each.numbers if sort.kind == kind}
        return next(batches(reversed(self.stretches), sorts, most), [])

    def around(self, start: int, end: int) -> tuple[list[Stretch], int]:
        """Return the stretches with the entries from position `start` up to `end`, and where these begin in them."""
        found, passed, begin = list[Stretch](), 0, 0
        for each in self.stretches:
            number = each.number()
            if passed < end and passed + number > start:
                begin = begin if found else start - passed
                found.append(each)
            passed += number
        return found, begin


def batches(stretches: Iterable[Stretch], sorts: Collection[Sort] | None, least: int) -> Iterator[list[Stretch]]:
    """Yield the stretches that have entries of these sorts, in groups with at least so many of them."""
    batch, number = list[Stretch](), 0
    for each in stretches:
        here = each.number(sorts)
        if here:
            batch.append(each)
            number += here
        if number >= least:
            yield batch
            batch, number = [], 0
    if batch:
        yield batch


def together(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the stretches in order, neighbours as one if the keys of both have few others between them."""
    found = list[Stretch]()
    for each in sorted(stretches, key=attrgetter("first")):
        last = found[-1] if found else None
        if last is None or last.end != each.first or each.is_far_from(last):
            found.append(each)
        else:
            low, high = min(last.low, each.low), max(last.high, each.high)
            found[-1] = Stretch(last.first, each.end, low, high, numbers_of([last, each]))
    return found


def numbers_of(stretches: Iterable[Stretch]) -> Counter[Sort]:
    """Return the number of entries of each sort in the stretches."""
    found = Counter[Sort]()
    for each in stretches:
        found.update(each.numbers)
    return found


#: Kinds of entries whose data no plan needs, so that it is not read if it is long.
BARE_KINDS: Final[Collection[str]] = frozenset({EntryKind.MESSAGE})

_FORKS: Final = frozenset({EntryKind.JOIN, EntryKind.RACE})
_OF_A_BRANCH: Final = ("status", "open")


def bare_data(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an entry without states of loops, outputs of branches and bodies of messages."""
    data = readable(kind, data)
    if kind == EntryKind.MESSAGE:
        return {name: value for name, value in data.items() if name != "received"}
    if kind == EntryKind.LOOP:
        return {name: value for name, value in data.items() if name != "state"}
    if kind in _FORKS:
        branches = {
            name: {each: branch[each] for each in _OF_A_BRANCH if each in branch}
            for name, branch in data.get("branches", {}).items()
        }
        return {**data, "branches": branches}
    return dict(data)


def bare_entry(entry: EntryRecord) -> EntryRecord:
    """Return the entry without output, arguments, errors, and the values in its data."""
    data = bare_data(entry.kind, entry.data)
    return replace(entry, output=None, arguments=None, data=data, error=None, rollback_error=None)


def bare_message(message: Message) -> Message:
    """Return the message without its body and its response."""
    return replace(message, body="", response=None)
