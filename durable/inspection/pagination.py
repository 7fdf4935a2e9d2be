"""Keys of lists: where a page ended, as text for the next request and as a condition for the next query."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import BooleanField, DateTimeField, F, Func, Value

from durable.core.clock import to_utc
from durable.models import Run
from durable.models.fields import SafeTextField

__all__ = ["FAILURE_KEY", "RUN_KEY", "Behind", "Cursor", "InvalidCursorError", "UpTo"]

#: The columns that have a run's key: its own, and those of its failure.
RUN_KEY: Final = ("created_at", "id")
FAILURE_KEY: Final = ("failure__run_created_at", "failure__run_id")

_MAX_TEXT = 1_200  # characters: an id of 200, in any script, and a time


class InvalidCursorError(ValueError):
    """The text is not a cursor of this list."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text[:40]!r} is not a cursor of this list: begin at its first page and follow its links")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The key of a run in a list: `created_at` and id in newest-first lists, the id alone in lists by id."""

    created_at: datetime | None
    id: str

    @classmethod
    def of(cls, run: Run, *, by_id: bool) -> Cursor:
        """Return the run's key."""
        return cls(None if by_id else run.created_at, run.id)

    @classmethod
    def parsed(cls, text: str, *, by_id: bool) -> Cursor:
        """Parse the text of a cursor. Raises InvalidCursorError."""
        try:
            if len(text) > _MAX_TEXT:
                raise ValueError
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            moment, run_id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            created_at = None if moment is None else datetime.fromisoformat(moment)
            is_key = isinstance(run_id, str) and (created_at is None) == by_id
            if not is_key or (created_at is not None and created_at.tzinfo is None):
                raise ValueError
            created_at = None if created_at is None else to_utc(created_at)
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise InvalidCursorError(text) from None
        return cls(created_at, run_id)

    @property
    def text(self) -> str:
        """The cursor for a link."""
        moment = None if self.created_at is None else self.created_at.isoformat()
        return base64.urlsafe_b64encode(json.dumps([moment, self.id]).encode()).decode().rstrip("=")

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """The key for Python's ascending sort, in the database's order: it compares ids by their bytes."""
        encoded = self.id.encode(errors="surrogatepass")
        return (encoded,) if self.created_at is None else (self.created_at, encoded)

    def is_behind(self, other: Cursor) -> bool:
        """Return whether a list reaches this key after the other."""
        if self.created_at is None:
            return self.sort_key > other.sort_key
        return self.sort_key < other.sort_key


class _Key(Func):
    """A comparison of the key (created_at, id) of a run with a cursor's, as one comparison of rows.

    `key` names the columns that have it.

    An index serves this comparison even if thousands of runs were created at the same moment.
    """

    output_field = BooleanField()
    operator = "<"

    def __init__(self, cursor: Cursor, key: tuple[str, str] = RUN_KEY, **extra: Any) -> None:
        moment = Value(cursor.created_at, output_field=DateTimeField())
        run_id = Value(cursor.id, output_field=SafeTextField())
        super().__init__(*map(F, key), moment, run_id, **extra)

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ARG002
        """Return the SQL of `(created_at, id) < (moment, id)`."""
        compiled = [compiler.compile(each) for each in self.get_source_expressions()]
        one, two, three, four = (sql for sql, _ in compiled)
        return f"({one}, {two}) {self.operator} ({three}, {four})", tuple(
            each for _, given in compiled for each in given
        )


class Behind(_Key):
    """True for a run after the cursor in a newest-first list."""


class UpTo(_Key):
    """True for a run before the cursor in a newest-first list, or at the cursor."""

    operator = ">="
