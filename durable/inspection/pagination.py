"""Keys of lists: where a page ended, as text for the next request and as a condition for the next query."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, DateTimeField, F, Func, Value

from durable.core.clock import to_utc
from durable.models import Run
from durable.models.fields import SafeTextField

__all__ = ["Behind", "Cursor", "InvalidCursorError", "UpTo"]

_MAX_TEXT = 1_200  # characters: an id of 200, in whatever script, and a time


class InvalidCursorError(ValueError):
    """This text is no cursor of this list."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text[:40]!r} is no cursor of this list: begin at its first page and follow its links")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The key of a run in a list: `created_at` and id in the newest-first ones, the id alone in those by id."""

    created_at: datetime | None
    id: str

    @classmethod
    def of(cls, run: Run, *, by_id: bool) -> Cursor:
        """The run's key."""
        return cls(None if by_id else run.created_at, run.id)

    @classmethod
    def parsed(cls, text: str, *, by_id: bool) -> Cursor:
        """The cursor that `text` was made of. Raises InvalidCursorError."""
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
        """Ascending in the database's order: ids compare by their bytes there."""
        encoded = self.id.encode(errors="surrogatepass")
        return (encoded,) if self.created_at is None else (self.created_at, encoded)

    def is_behind(self, other: Cursor) -> bool:
        """Whether a list comes to this key later than to the other."""
        if self.created_at is None:
            return self.sort_key > other.sort_key
        return self.sort_key < other.sort_key


class _Key(Func):
    """A comparison of the key (created_at, id) of a run with a cursor's, as one comparison of rows: an index follows it
    even where thousands of runs were created in one instant."""

    output_field = BooleanField()
    operator = "<"

    def __init__(self, cursor: Cursor, **extra: Any) -> None:
        moment = Value(cursor.created_at, output_field=DateTimeField())
        run_id = Value(cursor.id, output_field=SafeTextField())
        super().__init__(F("created_at"), F("id"), moment, run_id, **extra)

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:  # noqa: ARG002
        """`(created_at, id) < (moment, id)`."""
        compiled = [compiler.compile(each) for each in self.get_source_expressions()]
        one, two, three, four = (sql for sql, _ in compiled)
        return f"({one}, {two}) {self.operator} ({three}, {four})", tuple(
            each for _, given in compiled for each in given
        )


class Behind(_Key):
    """Whether a run comes behind the cursor in a newest-first list."""


class UpTo(_Key):
    """Whether a run comes before the cursor in a newest-first list, or is the one there."""

    operator = ">="
