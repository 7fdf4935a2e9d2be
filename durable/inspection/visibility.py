"""The runs that a user may see, as a condition on rows about runs, and whether an index of runs serves it."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.expressions import Col
from django.db.models.lookups import (
    Exact,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Range,
    StartsWith,
)
from django.db.models.sql.where import AND, WhereNode

from durable.models import Run
from durable.models.run import RunQuerySet

RowsT = TypeVar("RowsT", bound=QuerySet[Any])

_WINDOW: Final = 10_000  # rows that are looked through, if no index serves the condition on their runs

#: Columns that an index of the runs begins with, and which few of all runs may have in common.
_COLUMNS: Final = frozenset({"id", "workflow"})
_LOOKUPS: Final = (Exact, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, Range, StartsWith)


def on_visible(rows: RowsT, within: RunQuerySet) -> RowsT:
    """Return those of the rows whose run is one of these runs.

    The run is looked up for each row. With a join or IN the database may read all runs first, if no index serves the
    condition on them. So the rows must be few, or the caller must read a few of them.
    """
    seen = Subquery(within.order_by().filter(pk=OuterRef("run_id")).values("pk")[:1])
    return rows.alias(seen_run=seen).filter(seen_run__isnull=False)


def first_visible(rows: RowsT, within: RunQuerySet) -> RowsT:
    """Return those of many ordered rows whose run is one of these runs, in their order.

    Where no index serves the condition on the runs, only the first `_WINDOW` rows are looked through.
    """
    if has_own_index(within):
        return rows.filter(run__in=within.order_by().values("pk"))
    return on_visible(rows.filter(pk__in=rows.values("pk")[:_WINDOW]), within)


def has_own_index(within: RunQuerySet) -> bool:
    """Return whether all these runs meet a condition on an indexed column, their id or their workflow, or are none."""
    return within.query.is_empty() or _narrows(within.query.where)


def _narrows(condition: Any) -> bool:
    if isinstance(condition, WhereNode):
        return not condition.negated and condition.connector == AND and any(map(_narrows, condition.children))
    if not isinstance(condition, _LOOKUPS):
        return False
    column = condition.lhs
    return isinstance(column, Col) and column.target.model is Run and column.target.column in _COLUMNS
