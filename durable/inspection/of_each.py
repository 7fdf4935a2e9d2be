"""One queryset for many keys: it is compiled once, and its SQL is repeated with each of the keys.

To compile a queryset takes Python longer than PostgreSQL needs to execute it, and a page of fifty causes asks the same
of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import BigIntegerField, Expression, QuerySet

from durable.conf import conf


class Key(Expression):
    """Stands for the key in the queryset of an `OfEach`: `failures.filter(cause=Key())`."""

    output_field = BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ARG002
        """Return a parameter: this object, for which `OfEach` puts the keys."""
        return "%s", (self,)


@dataclass(frozen=True, slots=True)
class OfEach:
    """The rows of a queryset with a `Key` for each of these keys, as a sequence of querysets would have them."""

    queryset: QuerySet[Any]
    keys: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> OfEach:
        """Return the same with these rows of each."""
        return replace(self, queryset=self.queryset[rows])

    def values(self, *columns: str) -> OfEach:
        """Return the same with these columns."""
        return replace(self, queryset=self.queryset.values(*columns))

    def compiled(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield SQL and parameters for each key. Raises EmptyResultSet if no key has rows."""
        sql, given = self.queryset.query.get_compiler(using=conf.DATABASE).as_sql()
        for key in self.keys:
            yield sql, [key if isinstance(each, Key) else each for each in given]
