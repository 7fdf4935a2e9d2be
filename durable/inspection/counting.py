"""Queries that pages may make of growing tables: capped counts, names in an index, many keys at once, pages that fit.

A count reads at most `cap` entries of an index and then says "more"; several counts are one statement.

The sizes of rows are queried before the rows are read, so that a page ends before it would take too much memory.

An `OfEach` stands for one queryset for each of its keys, which is compiled once: compiling takes Python longer than
PostgreSQL needs to execute it, and a page of fifty causes queries the same for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import BigIntegerField, Expression, IntegerField, QuerySet, Subquery

from durable.inspection.humanize import thousands
from durable.inspection.reading import read_alias
from durable.models.rows import pack, unpack


class Key(Expression):
    """A placeholder for the key in the queryset of an `OfEach`: `failures.filter(cause=Key())`."""

    output_field = BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ARG002
        """Return this object as a parameter, which `OfEach` replaces by the keys."""
        return "%s", (self,)


@dataclass(frozen=True, slots=True)
class OfEach:
    """Stands for a sequence of querysets, one for each key: `queryset`, with its `Key` replaced by the key."""

    queryset: QuerySet[Any]
    keys: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> OfEach:
        """Return an OfEach whose querysets are cut to these rows."""
        return replace(self, queryset=self.queryset[rows])

    def values(self, *columns: str) -> OfEach:
        """Return an OfEach whose querysets have these columns."""
        return replace(self, queryset=self.queryset.values(*columns))

    def compiled(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield SQL and parameters for each key. Raises EmptyResultSet if the queryset is known to be empty."""
        sql, given = self.queryset.query.get_compiler(using=read_alias()).as_sql()
        for key in self.keys:
            yield sql, [key if isinstance(each, Key) else each for each in given]


# Each step looks up where the next name begins. Parameters: after, most.
_SCAN: Final = """
WITH RECURSIVE names(name, number) AS (
  SELECT (SELECT {column} FROM durable_run WHERE {column} > %s{served} ORDER BY {column} LIMIT 1), 1
  UNION ALL
  SELECT (SELECT {column} FROM durable_run WHERE {column} > names.name{served} ORDER BY {column} LIMIT 1), number + 1
  FROM names WHERE name IS NOT NULL AND number < %s
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_WORKFLOWS: Final = _SCAN.format(column="workflow", served="")
_QUEUES: Final = _SCAN.format(column="queue", served=" AND wake_at IS NOT NULL AND NOT (state = 'paused')")

_KEYS: Final = """
WITH RECURSIVE names(name, number) AS (
  SELECT (SELECT key FROM {table} WHERE "limit" = %s ORDER BY "limit", key LIMIT 1), 1
  UNION ALL
  SELECT (SELECT key FROM {table} WHERE "limit" = %s AND key > names.name ORDER BY "limit", key LIMIT 1), number + 1
  FROM names WHERE name IS NOT NULL AND number < %s
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_AWAITED: Final = _KEYS.format(table="durable_reservation")
_WITH_SLOTS: Final = _KEYS.format(table="durable_slot")


def workflows_of_runs(after: str, most: int) -> list[str]:
    """Return up to `most` workflows of runs after the name `after`, in their order; one statement."""
    return _scanned(_WORKFLOWS, pack(after), most)


def queues_of_due_runs(after: str, most: int) -> list[str]:
    """Return up to `most` queues of runs that will wake or are held, after the name `after`; one statement."""
    return _scanned(_QUEUES, pack(after), most)


def keys_awaited(limit: str, most: int) -> list[str]:
    """Return up to `most` keys of a limit's rate for which attempts wait, in order; one statement."""
    return _scanned(_AWAITED, pack(limit), pack(limit), most)


def keys_with_slots(limit: str, most: int) -> list[str]:
    """Return up to `most` keys of a limit whose slots are held or awaited, in order; one statement."""
    return _scanned(_WITH_SLOTS, pack(limit), pack(limit), most)


def _scanned(scan: str, *given: Any) -> list[str]:
    with connections[read_alias()].cursor() as cursor:
        cursor.execute(scan, given)
        return [unpack(name) for (name,) in cursor.fetchall()]


_EVERY: Final = 1_000_000_000  # rows

_Source = QuerySet[Any] | OfEach


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of rows; with `is_capped` there are more."""

    number: int
    is_capped: bool = False

    @classmethod
    def up_to(cls, cap: int, number: int) -> Self:
        """Return the count of up to `cap` rows, of which this `number` was found."""
        return cls(number=min(number, cap), is_capped=number > cap)

    def __str__(self) -> str:
        return f"{thousands(self.number)}{'+' if self.is_capped else ''}"

    def __bool__(self) -> bool:
        return self.number > 0


class CappedCount(Subquery):
    """For `annotate`: the number of rows of a queryset with `OuterRef`, counted up to `most`.

    Give the queryset the order of an index that serves it, as for `count_capped`.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()

    def __init__(self, queryset: QuerySet[Any], most: int) -> None:
        super().__init__(queryset.values("pk")[:most])


def count_capped(querysets: Sequence[_Source], cap: int) -> list[Count]:
    """Count the rows of each queryset, in order, up to `cap`; one statement.

    Give each queryset the order of an index that serves it: the order keeps the count from reading anything else.
    """
    found = dict(_together("COUNT(*)", [queryset.values("pk")[: cap + 1] for queryset in querysets]))
    numbers = [found.get(each, 0) for each in range(_number_of(querysets))]
    return [Count.up_to(cap, number) for number in numbers]


def added(counts: Iterable[Count], cap: int) -> Count:
    found = list(counts)
    number = sum(each.number for each in found)
    return Count(number=min(number, cap), is_capped=number > cap or any(each.is_capped for each in found))


def tally(querysets: Sequence[_Source], column: str, most: int) -> list[dict[Any, int]]:
    """Count the first `most` rows of each queryset by the values of `column`; one statement.

    Give each queryset the order of an index that serves it, as for `count_capped`.
    """
    found: list[dict[Any, int]] = [{} for _ in range(_number_of(querysets))]
    grouped = [queryset.values(column)[:most] for queryset in querysets]
    for number, value, count in _together(f"{column}, COUNT(*)", grouped, f" GROUP BY {column}"):
        found[number][value] = count
    return found


def cross_tally(queryset: QuerySet[Any], columns: Sequence[str], most: int) -> list[tuple[Any, ...]]:
    """Count the first `most` rows by combinations of values of `columns`; one statement.

    Each row of the result has the values as the database returns them, and the number. `columns` may be annotations.
    """
    names = ", ".join(columns)
    return [
        tuple(values)
        for _number, *values in _together(
            f"{names}, COUNT(*)", [queryset.values(*columns)[:most]], f" GROUP BY {names}"
        )
    ]


def grouped(queryset: QuerySet[Any], columns: Sequence[str], by: int, found: str, most: int) -> list[tuple[Any, ...]]:
    """Group the first `most` rows by the first `by` of `columns`; return these values and `found`. One statement.

    `found` is SQL of aggregates over the columns by name. Values are as the database returns them. A limit that is
    never reached makes the database expect few groups, so that it does not sort the rows.
    """
    names = ", ".join(columns[:by])
    rows = queryset.values(*columns)[:_EVERY]
    return [
        tuple(values) for _number, *values in _together(f"{names}, {found}", [rows], f" GROUP BY {names} LIMIT {most}")
    ]


def sample_rows(querysets: Sequence[_Source], columns: Sequence[str], size: int) -> list[list[tuple[Any, ...]]]:
    """Return the values of `columns` in the first `size` rows of each queryset; one statement.

    A column may be an annotation. The values are as the database returns them. Give each queryset the order of an index
    that serves it, as for capped counts.
    """
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(_number_of(querysets))]
    for number, *values in _together(", ".join(columns), [each.values(*columns)[:size] for each in querysets]):
        found[number].append(tuple(values))
    return found


def newest_rows(querysets: Sequence[QuerySet[Any]], columns: Sequence[str], size: int) -> list[tuple[Any, ...]]:
    """Return the values of `columns` in the first `size` rows of all querysets together; one statement.

    The first column is a time by which each queryset is ordered, the newest first.
    """
    rows = [row for sample in sample_rows(querysets, columns, size) for row in sample]
    if len(querysets) > 1:
        rows.sort(key=lambda row: moment_of(row[0]), reverse=True)
    return rows[:size]


def moment_of(value: datetime | str) -> datetime:
    """Convert a time from a sample: databases without the type return text in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _number_of(querysets: Sequence[_Source]) -> int:
    return sum(len(each) if isinstance(each, OfEach) else 1 for each in querysets)


def _compiled(queryset: _Source) -> Iterable[tuple[str, Sequence[Any]]]:
    if isinstance(queryset, OfEach):
        return queryset.compiled()
    return [queryset.query.get_compiler(using=read_alias()).as_sql()]


def _together(what: str, querysets: Sequence[_Source], group: str = "") -> list[tuple[Any, ...]]:
    """Select `what` from the rows of each queryset, with the queryset's number. One statement; none if all are known to
    be empty.
    """
    selects, parameters, first = list[str](), list[Any](), 0
    for queryset in querysets:
        with suppress(EmptyResultSet):
            for number, (sql, given) in enumerate(_compiled(queryset), first):
                selects.append(f"SELECT {number}, {what} FROM ({sql}) AS t{number}{group}")  # noqa: S608  # Django's SQL
                parameters += given
        first += _number_of([queryset])
    if not selects:
        return []
    with connections[read_alias()].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects), parameters)
        return list(cursor.fetchall())


MAX_BYTES: Final = 8 * 1024 * 1024  # bytes of one page; a larger row is a page by itself

T = TypeVar("T")


def fitting(sizes: Iterable[tuple[T, int]], most: int = MAX_BYTES) -> tuple[list[T], int]:
    """Return the items from the first on that together fit into `most` bytes, at least one, and their total size."""
    found: list[T] = []
    taken = 0
    for each, size in sizes:
        if found and taken + size > most:
            break
        found.append(each)
        taken += size
    return found, taken
