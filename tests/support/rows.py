"""What audits ask the database for, by SQL alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connection


def rows(statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def broken(never: Mapping[str, str]) -> Iterator[str]:
    """Yield the first rows of each statement that may have none, with what is wrong with them."""
    for what, statement in never.items():
        yield from (f"{what}: {', '.join(map(str, row))}" for row in rows(statement)[:10])
