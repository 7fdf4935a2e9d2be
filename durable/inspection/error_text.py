"""Search in the text of errors, limited to the text that an operator may see, and in bounded time.

An error's column holds its type, its message and its traceback as JSON, up to some 60,000 characters, and a list
searches thousands of them. Without a redaction hook the database compares the first `SEARCHED` characters: PostgreSQL
then reads only the beginning of a long column. With a hook, the text that the hook returns for the whole message is
compared: the database must not compare the text that the hook hides, because the answer would disclose it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db.models import Q, TextField, Value
from django.db.models.functions import Coalesce, NullIf, StrIndex, Substr
from django.db.models.lookups import IContains

from durable.core.errors import ErrorInfo
from durable.inspection.payloads import redacted_error
from durable.models import Run
from durable.models.run import RunQuerySet

SEARCHED: Final = 2_000  # characters of an error's column
LOOKED_THROUGH: Final = 500  # runs whose errors one page passes to the redaction hook

_BEGINS: Final = '{"type": "'
_MESSAGE_ENDS: Final = '", "traceback": '  # inside a message the quote is escaped


def contains(text: str) -> Q:
    """Return a condition for errors whose type or message contains `text`.

    The first `SEARCHED` characters are compared, ignoring case.
    """
    beginning = Substr("error", len(_BEGINS) + 1, SEARCHED, output_field=TextField())
    end = Coalesce(NullIf(StrIndex(beginning, _text(_MESSAGE_ENDS)), Value(0)), Value(SEARCHED))
    part = Substr(beginning, 1, end, output_field=TextField())
    # The column is ASCII JSON, so the text is compared in its JSON form.
    return Q(error__isnull=False) & Q(IContains(part, json.dumps(text)[1:-1]))


def shown_with(text: str, runs: RunQuerySet, most: int) -> tuple[Sequence[Run], Run | None]:
    """Return up to `most` of the runs whose shown error contains `text`, in order, and where the search stopped.

    The second value is the last run that was examined, None if all were. That run depends on which runs have errors and
    on which are returned, never on the text that the hook hides. Two statements.
    """
    end = StrIndex("error", _text(_MESSAGE_ENDS))
    beginning = Substr("error", 1, end, output_field=TextField())
    found = runs.filter(error__isnull=False).annotate(text=beginning)
    rows = list(found.only("id", "created_at", "finished_at", "wake_at", "workflow")[:LOOKED_THROUGH])
    matching = _matching(text, rows)[:most]
    if len(matching) == most:
        last: Run | None = matching[-1]
    else:
        last = rows[-1] if len(rows) == LOOKED_THROUGH else None
    whole = runs.model._default_manager.using(runs.db).defer("input", "output").in_bulk([run.pk for run in matching])
    return [whole[run.pk] for run in matching if run.pk in whole], last


def _matching(text: str, rows: Iterable[Any]) -> list[Run]:
    wanted = text.casefold()
    return [row for row in rows if wanted in redacted_error(row.workflow, _error(row.text)).casefold()]


def _error(beginning: str) -> ErrorInfo | None:
    """Return the type and the message of a column's text that ends with the message's quote."""
    try:
        return ErrorInfo(**json.loads(beginning + "}"))
    except (ValueError, TypeError):
        return None


def _text(value: str) -> Value:
    return Value(value, output_field=TextField())
