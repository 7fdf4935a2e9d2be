"""The columns and the orders of the list of runs, as its address has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import QueryDict
from django.utils.translation import gettext, gettext_lazy

from durable.admin.filter_form import query_of
from durable.inspection.pagination import RunOrder

ORDERS: Final[Mapping[RunOrder, Any]] = {
    RunOrder.NEWEST: gettext_lazy("newest first"),
    RunOrder.OLDEST: gettext_lazy("oldest first"),
    RunOrder.LAST_FINISHED: gettext_lazy("last ended first"),
    RunOrder.FIRST_FINISHED: gettext_lazy("first ended first"),
    RunOrder.NEXT: gettext_lazy("next to go on first"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name in the address, its title, and the orders that a click on its head leads to in turn."""

    name: str
    title: Any
    orders: Sequence[RunOrder] = ()
    is_default: bool = True
    is_number: bool = False


COLUMNS: Final = (
    Column(name="state", title=gettext_lazy("State")),
    Column(name="workflow", title=gettext_lazy("Workflow")),
    Column(name="queue", title=gettext_lazy("Queue"), is_default=False),
    Column(name="what", title=gettext_lazy("What it does")),
    Column(name="failed", title=gettext_lazy("Failed attempts"), is_number=True),
    Column(
        name="created",
        title=gettext_lazy("Created"),
        orders=(RunOrder.NEWEST, RunOrder.OLDEST),
        is_number=True,
    ),
    Column(
        name="finished",
        title=gettext_lazy("Ended"),
        orders=(RunOrder.LAST_FINISHED, RunOrder.FIRST_FINISHED),
        is_default=False,
        is_number=True,
    ),
    Column(name="wakes", title=gettext_lazy("Goes on"), orders=(RunOrder.NEXT,), is_default=False, is_number=True),
    Column(name="took", title=gettext_lazy("Took"), is_number=True),
    Column(name="worker", title=gettext_lazy("Worker"), is_default=False),
    Column(name="tags", title=gettext_lazy("Tags"), is_default=False),
    Column(name="parent", title=gettext_lazy("Started by"), is_default=False),
)
_DEFAULTS: Final = [each.name for each in COLUMNS if each.is_default]
#: The column that an order is about, and that a list in this order therefore has.
_SORTED: Final = {order: each.name for each in COLUMNS for order in each.orders}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A column of one list. `query` is the address in the other order, "" if no index has one."""

    column: Column
    query: str
    aria_sort: str


def order_of(given: QueryDict) -> RunOrder:
    """Return the order that the address names. Raises ValueError for one that no index serves."""
    name = given.get("sort", "")
    if not name:
        return RunOrder.NEWEST
    order = next((each for each in ORDERS if each.value == name), None)
    if order is None:
        orders = ", ".join(each.value for each in ORDERS)
        raise ValueError(
            gettext("The list cannot be sorted by “%(name)s”. The orders that an index serves are %(orders)s.")
            % {"name": name[:40], "orders": orders}
        )
    return order


def order_choices(order: RunOrder) -> list[tuple[str, Any, bool]]:
    """Return every order as a value, a title, and whether it is the list's."""
    return [(each.value, title, each is order) for each, title in ORDERS.items()]


def columns_of(given: QueryDict, order: RunOrder) -> list[Head]:
    """Return the columns that the address names, in their own order; unknown names are ignored."""
    names = {*(given.getlist("columns") or _DEFAULTS), *([_SORTED[order]] if given.get("sort") else [])}
    chosen = [each for each in COLUMNS if each.name in names]
    return [_head(given, each, order) for each in chosen]


def _head(given: QueryDict, column: Column, order: RunOrder) -> Head:
    is_sorted = order in column.orders
    others = [each for each in column.orders if each is not order] if is_sorted else list(column.orders[:1])
    direction = "descending" if order.is_descending else "ascending"
    return Head(
        column=column,
        query=query_of(given, sort=others[0].value) if others else "",
        aria_sort=direction if is_sorted else "",
    )
