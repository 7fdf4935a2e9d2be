"""The window of a list of the runs that a user may see, where it follows an index that has the runs of everybody."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from durable.inspection.pagination import Cursor, RunOrder
from durable.inspection.visibility import has_own_index
from durable.models.run import RunQuerySet


def end_of_window(index: QuerySet[Any], within: RunQuerySet, order: RunOrder, size: int, moment: str) -> Cursor | None:
    """Return the key up to which runs are looked for, None for no end; at most two statements.

    `index` are everybody's runs along the index, or rows that stand for runs, in the order of the list, which is not
    the one by id; their column `moment` has the moment of the order. Up to `size` of them are looked through. There is
    no end where the runs `within` are no more than that, and have an index of their own
    (`durable.inspection.visibility`).
    """
    last = index.values_list(moment)[size - 1 : size].first()
    if last is None or (has_own_index(within) and are_few(within, size)):
        return None
    return Cursor.at_second(last[0], order)


def are_few(runs: RunQuerySet, size: int) -> bool:
    """Return whether there are no more runs than `size`; one statement, which reads no more along their own index."""
    return not runs.order_by().values_list("pk")[size : size + 1]
