"""Counts that stop: what a page may ask of a table that grows.

A count reads at most `cap` entries of an index and then says "more"; several counts are one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet

from durable.conf import conf

__all__ = ["Count", "capped_counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of rows; with `is_capped` there are more than that."""

    number: int
    is_capped: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_capped else ''}"

    def __bool__(self) -> bool:
        return self.number > 0


def capped_counts(querysets: Sequence[QuerySet[Any]], cap: int) -> list[Count]:
    """How many rows each has, in their order, counting no further than `cap`; one statement for all of them.

    Give each the order of an index that serves it: that is what keeps the count from reading anything else.
    """
    selects, parameters = [], []
    for number, queryset in enumerate(querysets):
        try:
            sql, given = queryset.values("pk")[: cap + 1].query.get_compiler(using=conf.DATABASE).as_sql()
        except EmptyResultSet:
            continue
        selects.append(f"SELECT {number}, COUNT(*) FROM ({sql}) AS t{number}")  # noqa: S608  # Django's SQL
        parameters += given
    if not selects:
        return [Count(number=0) for _ in querysets]
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects), parameters)
        found = dict(cursor.fetchall())
    return [
        Count(number=min(found.get(each, 0), cap), is_capped=found.get(each, 0) > cap) for each in range(len(querysets))
    ]
