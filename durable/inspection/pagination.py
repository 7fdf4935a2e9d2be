"""Orders and keys of lists, and the runs and failures that a user may see in them.

A key says where a page ended: as text for the next request, and as a condition for the next query.

The causes of a limited user are searched in one window of the newest failed runs of all users. With a window for each
cause, a search would take longer with each failed run that the user may not see.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from django.db.models import BooleanField, DateTimeField, F, Func, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.expressions import Col, Combinable
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

from durable.core.clock import to_utc
from durable.core.records import RunState
from durable.core.words import Sentence, gettext_noop
from durable.inspection.reading import read_alias
from durable.models import Failure, Run
from durable.models.history import KeyIn
from durable.models.rows import SafeTextField
from durable.models.run import RunQuerySet

RowsT = TypeVar("RowsT", bound=QuerySet[Any])

_WINDOW: Final = 10_000  # rows to examine if no index serves the condition on their runs
_LARGEST: Final = 2**63 - 1

#: Indexed columns of the runs whose values may be shared by few of all runs.
_COLUMNS: Final = frozenset({"id", "workflow"})
_LOOKUPS: Final = (Exact, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, Range, StartsWith)


def on_visible(rows: RowsT, within: RunQuerySet) -> RowsT:
    """Return the rows whose run is one of these runs.

    The run is looked up for each row. With a join or IN the database may read all runs first, if no index serves the
    condition on them. So the rows must be few, or the caller must read a few of them.
    """
    seen = Subquery(within.order_by().filter(pk=OuterRef("run_id")).values("pk")[:1])
    return rows.alias(seen_run=seen).filter(seen_run__isnull=False)


def first_visible(rows: RowsT, within: RunQuerySet) -> RowsT:
    """Return, in order, those of many rows whose run is one of these runs.

    Where no index serves the condition on the runs, only the first `_WINDOW` rows are looked through.
    """
    if has_own_index(within):
        return rows.filter(run__in=within.order_by().values("pk"))
    return on_visible(rows.filter(pk__in=rows.values("pk")[:_WINDOW]), within)


def has_own_index(within: RunQuerySet) -> bool:
    """Return whether a condition on an indexed column (id or workflow) limits these runs, or there are none."""
    return within.query.is_empty() or _narrows(within.query.where)


def _narrows(condition: Any) -> bool:
    if isinstance(condition, WhereNode):
        return not condition.negated and condition.connector == AND and any(map(_narrows, condition.children))
    if not isinstance(condition, _LOOKUPS):
        return False
    column = condition.lhs
    return isinstance(column, Col) and column.target.model is Run and column.target.column in _COLUMNS


#: The columns of a failure that copy its run's key by creation.
FAILURE_KEY: Final = ("failure__run_created_at", "failure__run_id")
#: The same in rows of failures.
KEY_OF_FAILURE: Final = ("run_created_at", "run_id")

_MAX_TEXT = 1_200  # characters: an id of 200, in any script, and a time


class RunOrder(StrEnum):
    """The orders of lists of runs, each with an index. A minus sign means the latest first.

    Only ended runs have a `finished_at`, and only runs that continue by themselves a `wake_at`: a list in such an order
    has no other runs.
    """

    NEWEST = "-created_at"
    OLDEST = "created_at"
    LAST_FINISHED = "-finished_at"
    FIRST_FINISHED = "finished_at"
    NEXT = "wake_at"
    BY_ID = "id"

    @property
    def column(self) -> str:
        """The column with the moment; "id" for lists by id."""
        return self.value.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.value.startswith("-")

    @property
    def key(self) -> tuple[str, ...]:
        return ("id",) if self is RunOrder.BY_ID else (self.column, "id")

    def sorted_by(self, key: tuple[str, ...]) -> list[str]:
        return [f"-{name}" if self.is_descending else name for name in key]


class InvalidCursorError(ValueError):
    """The text is not a cursor of this list."""

    def __init__(self, text: str) -> None:
        words = gettext_noop("{cursor} is not a cursor of this list: begin at its first page and follow its links")
        super().__init__(Sentence(words, cursor=repr(text[:40])))


@dataclass(frozen=True, slots=True)
class Cursor:
    """The key of a run in a list: the moment in the order's column and the id; only the id in lists by id."""

    moment: datetime | None
    id: str
    order: RunOrder = RunOrder.NEWEST

    @classmethod
    def of(cls, run: Run, order: RunOrder) -> Cursor:
        return cls(None if order is RunOrder.BY_ID else getattr(run, order.column), run.id, order)

    @classmethod
    def at_second(cls, moment: datetime, order: RunOrder) -> Cursor:
        """Return the key between two seconds that comes after `moment` in the list, so that it reveals no run."""
        second = moment.replace(microsecond=0)
        return cls(second if order.is_descending else second + timedelta(seconds=1), "", order)

    @classmethod
    def parsed(cls, text: str, order: RunOrder) -> Cursor:
        """Parse the text of a cursor. Raises InvalidCursorError."""
        try:
            if len(text) > _MAX_TEXT:
                raise ValueError
            moment, run_id, *others = _decoded(text)
            then = None if moment is None else datetime.fromisoformat(moment)
            is_key = isinstance(run_id, str) and (then is None) == (order is RunOrder.BY_ID)
            if not is_key or others != _named(order) or (then is not None and then.tzinfo is None):
                raise ValueError
            then = None if then is None else to_utc(then)
        except (ValueError, TypeError, RecursionError):
            raise InvalidCursorError(text) from None
        return cls(then, run_id, order)

    @property
    def text(self) -> str:
        """The cursor for a link."""
        moment = None if self.moment is None else self.moment.isoformat()
        return cursor_of(moment, self.id, *_named(self.order))

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """The key for Python's ascending sort, in the database's order: it compares ids by their bytes."""
        encoded = self.id.encode(errors="surrogatepass")
        return (encoded,) if self.moment is None else (self.moment, encoded)

    def is_behind(self, other: Cursor) -> bool:
        """Return whether this key comes after the other in a list."""
        if self.order.is_descending:
            return self.sort_key < other.sort_key
        return self.sort_key > other.sort_key

    def behind(self, key: tuple[str, ...], *, is_bounded: bool = False) -> Q:
        """Return the condition for runs after this one; `key` names the columns of their keys.

        `is_bounded`: the query has other bounds of the moment too.
        """
        return self._compared("<" if self.order.is_descending else ">", key, is_bounded=is_bounded)

    def up_to(self, key: tuple[str, ...], *, is_bounded: bool = False) -> Q:
        """Return the condition for runs before this one, and for this one; `key` and `is_bounded` as for `behind`."""
        return self._compared(">=" if self.order.is_descending else "<=", key, is_bounded=is_bounded)

    def _compared(self, operator: str, key: tuple[str, ...], *, is_bounded: bool) -> Q:
        if self.moment is None:
            return Q(id__gt=self.id) if operator == ">" else Q(id__lte=self.id)
        if self.order.column != "finished_at" and not is_bounded:
            return Q(_Key(self, key, operator=operator))
        # The index of ended runs has only the moment, so it does not serve the comparison of rows. Of a comparison of
        # rows and a bound of the moment before it, PostgreSQL 18 follows the bound alone, to the end of the index.
        bound = {f"{key[0]}__{'lte' if operator[0] == '<' else 'gte'}": self.moment}
        return Q(**bound) & Q(_Key(self, key, operator=operator))


def _named(order: RunOrder) -> list[str]:
    """Return the part of a cursor that names its order; "" for the original orders."""
    return [] if order in (RunOrder.NEWEST, RunOrder.BY_ID) else [order.value]


class _Key(Func):
    """A comparison of the key (moment, id) of a run with a cursor's, as one comparison of rows.

    `key` names the columns.

    An index serves this comparison even if thousands of runs were created at the same moment.
    """

    output_field = BooleanField()

    def __init__(self, cursor: Cursor, key: tuple[str, ...], *, operator: str, **extra: Any) -> None:
        moment = Value(cursor.moment, output_field=DateTimeField())
        run_id = Value(cursor.id, output_field=SafeTextField())
        self.operator = operator
        columns: list[Combinable] = [F(each) for each in key]
        super().__init__(*columns, moment, run_id, **extra)

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ARG002
        """Return the SQL of `(created_at, id) < (moment, id)`."""
        compiled = [compiler.compile(each) for each in self.get_source_expressions()]
        one, two, three, four = (sql for sql, _ in compiled)
        return f"({one}, {two}) {self.operator} ({three}, {four})", tuple(
            each for _, given in compiled for each in given
        )


def cursor_of(*key: int | str | None) -> str:
    """Return the text for the next request: everything after `key`."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decoded(text: str) -> Any:
    """Return the JSON data of a cursor. Raises ValueError, or RecursionError for data that is nested too deeply."""
    padded = text.encode("ascii") + b"=" * (-len(text) % 4)
    return json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))


def key_of(text: str | None, *kinds: type) -> Sequence[Any] | None:
    """Parse a cursor into a key with values of these types; None for no cursor. Raises InvalidCursorError."""
    if text is None:
        return None
    try:
        key = _decoded(text)
    except (ValueError, RecursionError):
        raise InvalidCursorError(text) from None
    if not isinstance(key, list) or [type(each) for each in key] != list(kinds):
        raise InvalidCursorError(text)
    if any(isinstance(each, int) and abs(each) > _LARGEST for each in key):
        raise InvalidCursorError(text)
    return key


def moment_key_of(text: str | None, kind: type) -> tuple[datetime, Any] | None:
    """Parse the cursor of a list by a moment and a key of this type; None for no cursor. Raises InvalidCursorError."""
    key = key_of(text, str, kind)
    if key is None:
        return None
    try:
        moment = datetime.fromisoformat(key[0])
        if moment.tzinfo is None:
            raise ValueError
        return to_utc(moment), key[1]
    except ValueError:
        raise InvalidCursorError(str(text)) from None


def end_of_window(index: QuerySet[Any], within: RunQuerySet, order: RunOrder, size: int, moment: str) -> Cursor | None:
    """Return the key at which a search for runs ends, None for no end; at most two statements.

    `index` are everybody's runs along the index, or rows that stand for runs, in the order of the list, which is not
    the one by id; their column `moment` has the moment of the order. Up to `size` of them are looked through. There is
    no end where the runs `within` are no more than that, and have an index of their own
    (`durable.inspection.pagination`).
    """
    last = index.values_list(moment)[size - 1 : size].first()
    if last is None or (has_own_index(within) and are_few(within, size)):
        return None
    return Cursor.at_second(last[0], order)


def are_few(runs: RunQuerySet, size: int) -> bool:
    """Return whether there are at most `size` runs; one statement, which reads no more along their own index."""
    return not runs.order_by().values_list("pk")[size : size + 1]


class VisibleFailure(NamedTuple):
    """The failure of a run. `is_held`: the run is open, and a step of it waits for a person."""

    cause_id: int
    run_id: str
    workflow: str
    failed_at: datetime
    is_held: bool


def visible_failures(within: RunQuerySet, size: int) -> tuple[Mapping[int, Sequence[VisibleFailure]], bool]:
    """Return the failures of these runs, failed or held, by the key of their cause, the newest first, and whether there
    may be more, of older runs; at most four statements.

    Only runs among the newest `size` failed runs count; all, if these runs are few. So do runs among the newest `size`
    held ones.
    """
    everyone: RunQuerySet = Run.objects.using(read_alias())
    end = end_of_window(_failed(everyone), within, RunOrder.NEWEST, size, "created_at")
    runs = _failed(within) if end is None else _failed(within).filter(end.up_to(RunOrder.NEWEST.key))
    failures = Failure.objects.using(read_alias())
    held = failures.filter(is_held=True).order_by("-run_created_at", "-run_id").values("run_id")[:size]
    of_failed = failures.filter(KeyIn("run", runs.order_by().values("pk")), is_open=True, is_held=False)
    of_held = failures.filter(KeyIn("run", within.filter(KeyIn("id", held)).order_by().values("pk")), is_held=True)
    rows = [VisibleFailure(*row) for each in (of_failed, of_held) for row in each.values_list(*VisibleFailure._fields)]
    by_cause: dict[int, list[VisibleFailure]] = {}
    for row in sorted(rows, key=lambda each: (each.failed_at, each.run_id), reverse=True):
        by_cause.setdefault(row.cause_id, []).append(row)
    return by_cause, end is not None


def _failed(runs: RunQuerySet) -> RunQuerySet:
    return runs.filter(state=RunState.FAILED.value).newest_first()
