"""Whether the database finds the runs that a user may see along an index, as far as the condition on them shows it."""

from __future__ import annotations

from typing import Any, Final

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

__all__ = ["has_own_index"]

#: Columns that an index of the runs begins with, and which few of all runs may have in common.
_COLUMNS: Final = frozenset({"id", "workflow"})
_LOOKUPS: Final = (Exact, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, Range, StartsWith)


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
