"""The sizes of rows, queried before the rows are read: a page ends before it would take too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from django.db.models import F, Func, IntegerField, QuerySet, Value
from django.db.models.functions import Coalesce

MAX_BYTES: Final = 8 * 1024 * 1024  # bytes of one page; a larger row is a page by itself

T = TypeVar("T")


class _Octets(Func):
    """The bytes of a text as it is stored; PostgreSQL returns them without decompressing the text."""

    function = "octet_length"
    arity = 1
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Use another function: older versions of SQLite lack this one."""
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **context)


def sized(rows: QuerySet[Any], *columns: str) -> Iterator[tuple[Any, int]]:
    """Yield the keys of the rows in their order, each with the total bytes of these columns."""
    total: Any = Value(0)
    for each in columns:
        total = total + Coalesce(_Octets(F(each)), 0)
    return iter(rows.annotate(size=total).values_list("pk", "size"))


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
