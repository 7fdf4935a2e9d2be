"""Look up the metadata of histories entry by entry, whatever PostgreSQL's statistics say about their number.

A run's entries are scattered among those of all other runs, and so is their metadata. Where a long history is joined
with its metadata, PostgreSQL takes one scan of the whole table for cheaper than ten thousand look-ups, and the scan
takes longer as the table grows. The statistics may be older than most of the table's rows. Other databases get Django's
own clauses.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import BooleanField, F, Func, Subquery
from django.db.models.sql.datastructures import Join

_Rows = TypeVar("_Rows", bound="models.QuerySet[Any]")


def join_by_lookup(rows: _Rows, joined: type[models.Model]) -> _Rows:
    """Return `rows` with a look-up for each row in place of every join with the table of `joined`."""
    joins = rows.query.alias_map
    for alias, join in joins.items():
        if isinstance(join, Join) and join.table_name == joined._meta.db_table:
            joins[alias] = _LookUp.of(join)
    return rows


class _LookUp(Join):
    """A join that is a look-up for each row on PostgreSQL.

    `OFFSET 0` keeps the planner from turning it into another join.
    """

    @classmethod
    def of(cls, join: Join) -> Self:
        """Return a look-up that replaces this join."""
        fields = (join.table_name, join.parent_alias, join.table_alias, join.join_type, join.join_field, join.nullable)
        return cls(*fields, filtered_relation=join.filtered_relation)

    @property
    def identity(self) -> tuple[Any, ...]:
        """The identity of the replaced join, so that Django reuses this one for it."""
        return (Join, *super().identity[1:])

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return the join's clause; Django's own for other databases."""
        if connection.vendor != "postgresql":
            return super().as_sql(compiler, connection)
        quote = connection.ops.quote_name
        # Django 6.1 quotes aliases as well. Its compiler has the second name for one release of Django more, and warns.
        quote_alias = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias
        field: Any = self.join_field
        [(key, reference)] = field.get_joining_fields()
        sql = (
            f"CROSS JOIN LATERAL (SELECT * FROM {quote(self.table_name)} "  # noqa: S608 - names alone
            f"WHERE {quote(reference.column)} = {quote_alias(self.parent_alias)}.{quote(key.column)} OFFSET 0) "
            f"AS {quote_alias(self.table_alias)}"
        )
        return sql, []


class _Keys(Subquery):
    """A subquery that Django does not replace with NULL if it is known to have no rows.

    Then no row meets the condition.
    """

    empty_result_set_value = NotImplemented


class KeyIn(Func):
    """A condition that a column has one of the keys; on PostgreSQL as an array, whose keys are looked up."""

    output_field = BooleanField()
    template = "%(expressions)s"
    arg_joiner = " IN "

    def __init__(self, column: str, keys: models.QuerySet[Any, Any], **extra: Any) -> None:
        super().__init__(F(column), _Keys(keys), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return `column = ANY(ARRAY(SELECT ...))`."""
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **context)
