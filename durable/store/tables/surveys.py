"""Surveys and outlines of a run's history in a database (`durable.store.surveys`), without reading all of it.

For a survey, regions become conditions, and the database counts. Statements return about as many rows as a page shows,
except for the entries of children. Without landmarks, the numbers come from one scan of the run's entries, the lists
from another. Metadata is looked up only for steps and children with a rollback. An outline does not read columns of
values. An entry's `data` may contain values too: if long, it is read in batches of bounded size, and unneeded parts are
dropped before the next batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import (
    BooleanField,
    Case,
    Count,
    Exists,
    ExpressionWrapper,
    F,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest, StrIndex, Substr
from django.db.models.lookups import Contains, Exact, LessThanOrEqual

from durable.core.records import EntryKind, EntryRecord, EntryStatus, Message, MessageState, RunRecord
from durable.core.rewind.rewinding import Region, simplified
from durable.models import Child, Entry, EntryMetadata, HistoryCount, QueueMessage
from durable.models.history import EntryQuerySet
from durable.models.rows import ByteLength, dump_json, in_batches, load_json
from durable.store.surveys import (
    BARE_KINDS,
    Landmarks,
    Listed,
    Revision,
    Sort,
    Stretch,
    Survey,
    bare_data,
    batches,
    numbers_of,
    together,
)
from durable.store.tables.rows import ENTRY, MESSAGE

_HANDLER: Final = '"rollback":{'  # a key of an entry's data; in a text inside it the quotes are escaped
_COMPENSATED: Final = (EntryKind.STEP, EntryKind.CHILD, EntryKind.MAP)

#: How far to search for the entries of a list, in multiples of its length: where they are expected, and if some are
#: missing.
_WIDE: Final = (16, 64)
_MOST_BESIDE: Final = 2_000  # entries of the scopes around a replay's place that are read beside the landmarks
_MOST_SCOPES: Final = 50  # of these scopes
#: The statuses of an entry that runs, is asked about or waits for a person.
UNFINISHED: Final = (EntryStatus.RUNNING, EntryStatus.UNKNOWN, EntryStatus.HELD)


class RowSurveyor:
    """Reads parts of one run's history, without values. Each method is one statement or two.

    With `landmarks` it reads a bounded number of entries where it would search the whole history.
    """

    def __init__(self, alias: str, run_id: str) -> None:
        self.alias = alias
        self.run_id = run_id
        self.landmarks: Landmarks | None = None

    def find_landmarks(self, run: RunRecord) -> None:
        """Read the landmarks of the history, if they were counted in this state of the run, which rests."""
        row = HistoryCount.objects.using(self.alias).filter(run=run.id).first()
        self.landmarks = None if row is None else Landmarks.load(row.counts_of(run))

    def short_history(self, most: int) -> list[EntryRecord]:
        """Return all entries in the order in which they began; none if they are more than `most`."""
        return entries_of(self.run_id, self._rows.if_at_most(most, self.run_id))

    def messages(self) -> list[Message]:
        return messages_of(self._inbox.order_by("order"))

    def revision(self) -> Revision:
        metadata = EntryMetadata.objects.using(self.alias).of_runs(self.run_id)
        ended = metadata.aggregate(
            attempts=Coalesce(Sum("attempts"), 0),
            running=Count("entry_id", filter=Q(status=EntryStatus.RUNNING.value)),
            ends=Count("finished_ordinal"),
            last=Coalesce(Max("finished_ordinal"), 0),
            undone=Count("rollback_completed_at"),
        )
        begun = self._rows.aggregate(number=Count("id"), newest=Coalesce(Max("ordinal"), 0))
        return Revision((begun["number"], begun["newest"], *ended.values()))

    def entries(self, locations: Collection[str]) -> list[EntryRecord]:
        return entries_of(self.run_id, self._rows.filter(location__in=sorted(locations)))

    def first_within(self, location: str) -> EntryRecord | None:
        """Return the entry that began first below this location."""
        first = self._rows.filter(_below(location)).order_by("ordinal").values_list("pk", flat=True)[:1]
        found = entries_of(self.run_id, self._rows.filter(pk__in=list(first)))
        return found[0] if found else None

    def first_locations(self, most: int) -> list[str]:
        """Return the locations of the first entries, in the order in which they began."""
        return list(self._rows.order_by("ordinal").values_list("location", flat=True)[:most])

    def compensated(self, gone: Sequence[Region], most: int) -> list[EntryRecord]:
        """Return at most `most` compensated steps and starts of children outside of these regions.

        They are in the order in which they began.
        """
        if self.landmarks is not None and not self.landmarks.is_undone:
            return []
        handled = self._rows.filter(_has_handler()).exclude(_in_any(gone))
        done = EntryMetadata.objects.using(self.alias).filter(entry=OuterRef("pk"))
        undone = Subquery(done.values("rollback_completed_at")[:1])
        keys = handled.annotate(undone_at=undone).filter(undone_at__isnull=False).order_by("ordinal")
        found = self._rows.filter(pk__in=list(keys.values_list("pk", flat=True)[:most]))
        return entries_of(self.run_id, found)

    def running_steps(self, gone: Sequence[Region]) -> list[str]:
        """Return the locations of the steps outside of these regions with the status "running"."""
        running = Entry.objects.using(self.alias).few_of(self.run_id, Q(status=EntryStatus.RUNNING.value))
        staying = running.filter(kind=EntryKind.STEP.value).exclude(_in_any(gone))
        return list(staying.order_by("ordinal").values_list("location", flat=True))

    def unfinished_steps(self) -> list[EntryRecord]:
        """Return the steps that run, are asked about or wait for a person."""
        if self.landmarks is not None and self.landmarks.unfinished is not None:
            found = self._rows.filter(pk__in=self.landmarks.unfinished)
        else:
            found = Entry.objects.using(self.alias).few_of(
                self.run_id, Q(status__in=[each.value for each in UNFINISHED])
            )
        return entries_of(self.run_id, found.filter(kind=EntryKind.STEP.value))

    def survey(self, gone: Sequence[Region], *, kept: str | None, most: int) -> Survey:
        """Return the survey of these regions and of the rest, with at most `most` locations of each.

        The entry at `kept` always stays.
        """
        along = None if self.landmarks is None else self._survey_along(self.landmarks, gone, kept, most)
        return along or self._survey_whole(gone, kept, most)

    def _survey_along(self, landmarks: Landmarks, gone: Sequence[Region], kept: str | None, most: int) -> Survey | None:
        """Return the survey from landmarks; None if the scopes around the regions have too many entries.

        Entries outside of these scopes are deleted if they began after an ordinal. The landmarks say how many there
        are. The entries inside are read.
        """
        regions = simplified(gone)
        scopes = {each.partition("/")[0] for region in regions for each in (region.within, region.beside) if each}
        if len(scopes) > _MOST_SCOPES:
            return None
        in_scopes = reduce(or_, (Q(location=each) | _below(each) for each in sorted(scopes)), Q(pk__in=[]))
        columns = ("ordinal", "location", "kind", "is_handled", "is_compensable")
        rows = self._rows.annotate(is_handled=is_handled(), is_compensable=is_compensable()).filter(in_scopes)
        read = list(rows.order_by("location").values_list(*columns)[: _MOST_BESIDE + 1])  # along the index
        if len(read) > _MOST_BESIDE:
            return None
        inside = sorted(
            _Inside(
                ordinal,
                location,
                Sort(kind, bool(handled), bool(compensable)),
                is_gone=location != kept and any(each.covers(location, ordinal) for each in regions),
            )
            for ordinal, location, kind, handled, compensable in read
        )
        after = min((each.after for each in regions if not each.within), default=None)
        return _Along(self._rows, landmarks, inside, after, ~in_scopes if scopes else Q()).survey(most)

    def _survey_whole(self, gone: Sequence[Region], kept: str | None, most: int) -> Survey:
        is_gone = _in_any(gone) if kept is None else _in_any(gone) & ~Q(location=kept)
        groups = self._groups(is_gone)
        stays, steps, sends, races = (
            ~is_gone,
            *(is_gone & Q(kind=kind.value) for kind in (EntryKind.STEP, EntryKind.SEND, EntryKind.RACE)),
        )
        spans = {
            "deleted": (is_gone, _Span.of(each for each in groups if each.is_gone)),
            "steps": (steps, _Span.of(each for each in groups if each.is_gone and each.kind == EntryKind.STEP)),
            "sends": (sends, _Span.of(each for each in groups if each.is_gone and each.kind == EntryKind.SEND)),
            "races": (races, _Span.of(each for each in groups if each.is_gone and each.kind == EntryKind.RACE)),
            "kept": (stays, _Span.of(each for each in groups if not each.is_gone)),
        }
        lists = self._lists(spans, most)
        return Survey(
            **lists,
            compensable=self._compensable(is_gone, most)
            if any(g.is_gone and g.is_handled for g in groups)
            else Listed(),
            has_receipts=any(
                g.is_gone and g.kind in (EntryKind.MESSAGE, EntryKind.LOOP, EntryKind.RACE) for g in groups
            ),
            has_loops=any(g.is_gone and g.kind == EntryKind.LOOP for g in groups),
            has_handlers=any(g.is_handled and not g.is_gone for g in groups),
            has_children=any(g.kind in (EntryKind.CHILD, EntryKind.MAP) for g in groups),
        )

    def _groups(self, is_gone: Q) -> list[_Group]:
        rows = self._rows.annotate(is_gone=_flag(is_gone), is_handled=_flag(_has_handler()))
        grouped = rows.values("kind", "is_gone", "is_handled").annotate(
            number=Count("id"), first=Min("ordinal"), last=Max("ordinal")
        )
        names = ("kind", "is_gone", "is_handled", "number", "first", "last")
        return [
            _Group(kind, bool(gone), bool(handled), *span) for kind, gone, handled, *span in grouped.values_list(*names)
        ]

    def _lists(self, spans: Mapping[str, tuple[Q, _Span]], most: int) -> dict[str, Listed]:
        """Return the first entries of each kind.

        One statement if they are evenly spread; a second one searches further; one more for each kind that is still
        incomplete.
        """
        found: dict[str, list[str]] = {name: [] for name, (_, span) in spans.items() if span.number}

        def missing() -> list[str]:
            return [name for name, each in found.items() if len(each) < min(most, spans[name][1].number)]

        for wide in _WIDE:
            if names := missing():
                found |= self._within({name: spans[name] for name in names}, most, wide)
        for name in missing():
            in_order = self._rows.filter(spans[name][0]).order_by("ordinal")
            found[name] = list(in_order.values_list("location", flat=True)[:most])
        return {name: Listed(tuple(each), spans[name][1].number) for name, each in found.items()}

    def _within(self, spans: Mapping[str, tuple[Q, _Span]], most: int, wide: int) -> dict[str, list[str]]:
        """Return the first entries of each kind within the range where they are expected; one statement."""
        wanted = {
            name: Case(When(span.begins_within(most * wide) & condition, then=Value(1)), default=Value(0))
            for name, (condition, span) in spans.items()
        }
        rows = self._rows.annotate(**wanted).filter(reduce(or_, (Q(**{name: 1}) for name in wanted)))
        found: dict[str, list[str]] = {name: [] for name in wanted}
        for location, _ordinal, *flags in rows.order_by("ordinal").values_list("location", "ordinal", *wanted):
            for name, flag in zip(wanted, flags, strict=True):
                if flag and len(found[name]) < most:
                    found[name].append(location)
        return found

    def _compensable(self, is_gone: Q, most: int) -> Listed:
        undone = EntryMetadata.objects.filter(entry=OuterRef("pk"), rollback_completed_at__isnull=False)
        rows = self._rows.filter(is_gone, _has_handler()).filter(_has_done_something()).exclude(Exists(undone))
        first = list(rows.order_by("ordinal").values_list("location", flat=True)[: most + 1])
        return Listed(tuple(first[:most]), len(first) if len(first) <= most else rows.count())

    def own_sends(self, gone: Sequence[Region]) -> list[EntryRecord]:
        """Return the run's sends to itself in these regions."""
        to_itself = f'"to":{dump_json(self.run_id)}'
        sends = self._rows.filter(_in_any(gone), _data_contains(to_itself), kind=EntryKind.SEND.value)
        found = entries_of(self.run_id, sends)
        return [each for each in found if each.data["to"] == self.run_id]

    def returned(
        self, gone: Sequence[Region], races: Sequence[str], without: Collection[str], most: int
    ) -> tuple[list[Message], int]:
        """Return the first messages whose receipts are in these regions, and their total number; without the given ids.

        `races` are all races in the regions.
        """
        received = self._inbox.exclude(state=MessageState.PENDING.value)
        received = received.filter(self._is_returned(_in_any(gone), races))
        found = received.exclude(id__in=sorted(without)).order_by("order")
        first = messages_of(found[: most + 1])
        return first[:most], len(first) if len(first) <= most else found.count()

    def loops(self, gone: Sequence[Region]) -> list[EntryRecord]:
        return entries_of(self.run_id, self._rows.filter(_in_any(gone), kind=EntryKind.LOOP.value))

    def has_children(self) -> bool:
        """Return True if the run has started children, even if no entry mentions them any more."""
        return Child.objects.using(self.alias).filter(parent_id=self.run_id).exists()

    def child_entries(self) -> list[EntryRecord]:
        """Return all entries of children and maps, in the order in which they began."""
        return entries_of(self.run_id, self._rows.filter(kind__in=[EntryKind.CHILD.value, EntryKind.MAP.value]))

    @property
    def _rows(self) -> EntryQuerySet:
        return Entry.objects.using(self.alias).filter(run_id=self.run_id).order_by()

    @property
    def _inbox(self) -> QuerySet[QueueMessage]:
        return QueueMessage.objects.using(self.alias).filter(run_id=self.run_id)

    def _is_returned(self, is_gone: Q, races: Sequence[str]) -> Q:
        """Return the condition that the receipt of a message is deleted, itself or with the loop or race that pruned
        it.
        """
        own = self._rows.filter(location=OuterRef("received_by"))
        length = Greatest(
            StrIndex(OuterRef("received_by"), Value("/~")) - 1, Value(0)
        )  # of the outermost loop around it
        loop = self._rows.filter(location=Substr(OuterRef("received_by"), 1, length))
        pruned = reduce(or_, (_below(each, "received_by") for each in races), Q(Exists(loop.filter(is_gone))))
        return Exists(own.filter(is_gone)) | (~Exists(own) & pruned)


class _Inside(NamedTuple):
    """An entry of the scopes around a replay's place."""

    ordinal: int
    location: str
    sort: Sort
    is_gone: bool


class _Along:
    """Makes a survey from landmarks.

    `inside` are the entries of the scopes around the replay's place, and `outside` is the condition of all others, of
    which those are deleted that began after the ordinal `after`.
    """

    def __init__(
        self, rows: EntryQuerySet, landmarks: Landmarks, inside: Sequence[_Inside], after: int | None, outside: Q
    ) -> None:
        self._rows = rows
        self._inside = inside
        self._outside = outside
        self._after = after
        before, amid, behind = landmarks.divided(after)
        self._stretches = {False: before, True: behind}
        if amid is not None:
            self._stretches = {False: [*before, amid], True: [amid, *behind]}
        early, late = numbers_of(before), numbers_of(behind)
        if amid is not None:
            begun = self._early_of(amid)
            early += begun
            late += Counter(amid.numbers) - begun
        for each in inside:
            (early if after is None or each.ordinal <= after else late)[each.sort] -= 1
            (late if each.is_gone else early)[each.sort] += 1
        self._numbers = {False: +early, True: +late}

    def survey(self, most: int) -> Survey:
        gone, kept = self._numbers[True], self._numbers[False]
        kinds = {sort.kind for sort in gone}

        def of_kind(kind: EntryKind) -> Listed:
            return self._listed([each for each in gone if each.kind == kind], most, Q(kind=kind.value), is_gone=True)

        return Survey(
            deleted=self._listed(gone, most, Q(), is_gone=True),
            steps=of_kind(EntryKind.STEP),
            sends=of_kind(EntryKind.SEND),
            compensable=self._listed(
                [each for each in gone if each.is_compensable], most, Q(_is_compensable()), is_gone=True
            ),
            kept=self._listed(kept, most, Q(), is_gone=False),
            races=of_kind(EntryKind.RACE),
            has_receipts=not kinds.isdisjoint([EntryKind.MESSAGE, EntryKind.LOOP, EntryKind.RACE]),
            has_loops=EntryKind.LOOP in kinds,
            has_handlers=any(each.is_handled for each in kept),
            has_children=any(each.kind in (EntryKind.CHILD, EntryKind.MAP) for each in (*gone, *kept)),
        )

    def _early_of(self, amid: Stretch) -> Counter[Sort]:
        """Count the entries of the stretch that began at the ordinal `after` or before; one statement."""
        rows = self._rows.filter(in_stretches([amid]), ordinal__lte=self._after)
        sorted_ = rows.annotate(is_handled=is_handled(), is_compensable=is_compensable())
        numbers = sorted_.values("kind", "is_handled", "is_compensable").annotate(number=Count("id"))
        found = numbers.values_list("kind", "is_handled", "is_compensable", "number")
        return Counter({Sort(kind, bool(handled), bool(done)): number for kind, handled, done, number in found})

    def _listed(self, sorts: Collection[Sort], most: int, condition: Q, *, is_gone: bool) -> Listed:
        """Return the first entries of these sorts, which meet the condition; one statement for most lists."""
        number = sum(self._numbers[is_gone][each] for each in sorts)
        inside = [
            (each.ordinal, each.location) for each in self._inside if each.is_gone == is_gone and each.sort in sorts
        ]
        outside = self._first_outside(sorts, min(most, number - len(inside)), condition, is_gone=is_gone)
        in_order = sorted([*inside[:most], *outside])[:most]
        return Listed(tuple(location for _, location in in_order), number)

    def _first_outside(
        self, sorts: Collection[Sort], most: int, condition: Q, *, is_gone: bool
    ) -> list[tuple[int, str]]:
        if self._after is not None:
            condition &= Q(ordinal__gt=self._after) if is_gone else Q(ordinal__lte=self._after)
        rows = self._rows.filter(condition, self._outside).order_by("ordinal").values_list("ordinal", "location")
        found: list[tuple[int, str]] = []
        for batch in batches(self._stretches[is_gone], sorts, most):
            if len(found) >= most:
                break
            found += rows.filter(in_stretches(batch))[: most - len(found)]
        return found


class _Group(NamedTuple):
    """Entries of one kind: their number, and the ordinals of the first and the last."""

    kind: str
    is_gone: bool
    is_handled: bool
    number: int
    first: int
    last: int


class _Span(NamedTuple):
    """The number of entries, and the range of their ordinals."""

    number: int
    first: int
    last: int

    @classmethod
    def of(cls, groups: Iterable[_Group]) -> _Span:
        found = list(groups)
        numbers = sum(each.number for each in found)
        return cls(numbers, min((g.first for g in found), default=0), max((g.last for g in found), default=0))

    def begins_within(self, most: int) -> Q:
        """Return the condition for the ordinals of the first `most` entries, if all were evenly spread."""
        end = self.first + (self.last - self.first + 1) * most // self.number
        return Q(ordinal__gte=self.first, ordinal__lte=end)


def in_stretches(stretches: Sequence[Stretch]) -> Q:
    """Return the condition that an entry of the run is in one of these stretches."""
    each_in = (
        Q(pk__gte=each.low, pk__lte=each.high, ordinal__gte=each.first, ordinal__lt=each.end)
        for each in together(stretches)
    )
    return reduce(or_, each_in, Q(pk__in=[]))


def is_handled() -> ExpressionWrapper[Any]:
    """Return an expression: whether an entry has a rollback."""
    return _flag(_has_handler())


def is_compensable() -> ExpressionWrapper[Any]:
    """Return an expression: whether a rollback has something to undo there, see `EntryRecord.is_compensable`."""
    return _flag(_is_compensable())


def _is_compensable() -> Q:
    # A look-up for each entry with a rollback: for EXISTS, PostgreSQL may read the whole table instead.
    metadata = EntryMetadata.objects.filter(entry=OuterRef("pk"), rollback_completed_at__isnull=True)
    status = Coalesce(Subquery(metadata.values("status")[:1]), Value(""))
    is_done = Q(Exact(status, Value(EntryStatus.COMPLETED.value)), kind=EntryKind.STEP.value)
    has_started = Q(_data_contains('"child":"'), kind=EntryKind.CHILD.value)
    has_started |= Q(_data_contains('"group":"'), kind=EntryKind.MAP.value)
    return _has_handler() & (is_done | (has_started & ~Q(Exact(status, Value("")))))


def _has_handler() -> Q:
    """Return the condition for entries with a rollback: steps, and starts of children.

    Only some can be compensated, see `_has_done_something`.
    """
    return Q(_data_contains(_HANDLER), kind__in=[kind.value for kind in _COMPENSATED])


def _has_done_something() -> Q:
    """Return the condition that an entry with a rollback can be compensated, see `EntryRecord.is_compensable`.

    A start of children counts from its first commit on, whatever the children's state.
    """
    done = EntryMetadata.objects.filter(entry=OuterRef("pk"), status=EntryStatus.COMPLETED.value)
    return (
        Q(Exists(done), kind=EntryKind.STEP.value)
        | Q(_data_contains('"child":"'), kind=EntryKind.CHILD.value)
        | Q(_data_contains('"group":"'), kind=EntryKind.MAP.value)
    )


def _data_contains(text: str) -> Contains:
    return Contains(ExpressionWrapper(F("data"), TextField()), text)


def _flag(condition: Q) -> ExpressionWrapper[Any]:
    return ExpressionWrapper(condition, BooleanField())


def _in_any(regions: Sequence[Region]) -> Q:
    """Return the condition that an entry is in one of these regions."""
    return reduce(or_, (_in(each) for each in simplified(regions)), Q(pk__in=[]))


def _in(region: Region) -> Q:
    found = Q(ordinal__gt=region.after) if region.after >= 0 else Q()
    if region.within:
        found &= Q(location=region.within) | _below(region.within)
    if region.beside:
        found &= ~(Q(location=region.beside) | _below(region.beside))
    return found


def _below(location: str, column: str = "location") -> Q:
    """Return the condition that a location is inside of this one. "0" is the character after "/"."""
    return Q(**{f"{column}__gt": f"{location}/", f"{column}__lt": f"{location}0"})


_SHORT: Final = 1_000  # characters of data that are read with the entry

_VALUES: Final = frozenset({"output", "arguments", "data", "error", "rollback_error"})
_NAMES: Final = [each.name for each in fields(EntryRecord) if each.name not in _VALUES]
_COLUMNS: Final = [name if name in ENTRY.names else f"metadata__{name}" for name in _NAMES]
_MESSAGE_NAMES: Final = [name for name in MESSAGE.names if name not in ("body", "response")]


def read_outline(alias: str, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
    """Return the run's entries by ordinal and its messages in order, without values."""
    entries = entries_of(run_id, Entry.objects.using(alias).filter(run=run_id))
    return entries, messages_of(QueueMessage.objects.using(alias).filter(run_id=run_id).order_by("order"))


def messages_of(rows: QuerySet[QueueMessage]) -> list[Message]:
    """Return these messages without values."""
    return [Message(**row, body="") for row in rows.values(*_MESSAGE_NAMES)]


def short_data(column: str = "data") -> Case:
    """Return an expression for the text of an entry's data; NULL if it is long, to be read with `long_data`."""
    return Case(When(LessThanOrEqual(ByteLength(column), _SHORT), then=F(column)), output_field=TextField())


def long_data(alias: str, run_id: str, weighed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the data of a run's entries by key, without values. `weighed` has the length of each."""
    for keys in in_batches(weighed):
        rows = Entry.objects.using(alias).filter(run=run_id, pk__in=keys).order_by()
        for key, kind, data in rows.values_list("pk", "kind", "data"):
            yield key, bare_data(kind, data)


def entries_of(run_id: str, rows: EntryQuerySet) -> list[EntryRecord]:
    """Return these entries of the run by ordinal, without values."""
    found = rows.with_metadata().order_by("ordinal")
    entries: list[EntryRecord] = []
    long: dict[int, EntryRecord] = {}
    weighed: list[tuple[int, int]] = []
    for key, weight, data, *row in found.values_list("pk", ByteLength("data"), short_data(), *_COLUMNS):
        entry = EntryRecord(**dict(zip(_NAMES, row, strict=True)))
        entries.append(entry)
        if data is not None:
            entry.data = bare_data(entry.kind, load_json(data))
        elif entry.kind not in BARE_KINDS:
            long[key] = entry
            weighed.append((key, weight))
    for key, bare in long_data(rows.db, run_id, weighed):
        long[key].data = bare
    return entries
