"""The newest failed runs, with what findings need of each.

Reads the newest `NEWEST` failed runs and says so if there are more.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Exists, OuterRef, Value
from django.db.models.functions import Substr

from durable.conf import conf
from durable.core.records import RunState
from durable.core.summary import KIND_LENGTH, SummaryKind, kind_of_stored
from durable.inspection.humanize import printable
from durable.inspection.payloads import redacted
from durable.models import Run
from durable.models.run import RunQuerySet

NEWEST: Final = 1_000  # failed runs that are read
_BEGINNING = 400  # characters of an error's column, without its traceback: the type, and most messages
# A JSON text, possibly incomplete: the column may be cut off within the text, even in the middle of an escape.
_TEXT = r'"((?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*)'
_TYPE = re.compile(rf'^\{{"type": {_TEXT}')
_MESSAGE = re.compile(rf'"message": {_TEXT}')
_WHOLE_MESSAGE = re.compile(rf'"message": {_TEXT}"')
_TOO_LONG = "(a long message: see the run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """The columns of a failed run that findings need.

    `is_stuck`: the run stopped in the middle of its compensation. `is_mistake`: a mistake in its workflow's code
    stopped it. `is_compensated`: its steps were undone. `is_repeated`: another run repeats it, where
    that was asked.
    """

    id: str
    workflow: str
    location: str
    error_type: str
    message: str
    is_stuck: bool
    is_mistake: bool
    is_compensated: bool
    is_repeated: bool
    created_at: datetime
    finished_at: datetime
    change_seq: int
    pending_request: str
    state_after_rollback: str

    @property
    def state(self) -> str:
        """The run's state."""
        return RunState.FAILED


def failed_runs(within: RunQuerySet | None = None, *, with_repeated: bool = False) -> list[FailedRun]:
    """Return the newest failed runs, at most `NEWEST`; one statement.

    `with_repeated`: look for runs that repeat them.
    """
    repeats = Run.objects.using(conf.DATABASE).filter(replay_of=OuterRef("pk"))
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    found = runs.filter(state=RunState.FAILED.value).newest_first()
    columns = (
        *("id", "workflow", "origins", "state_after_rollback", "created_at", "finished_at"),
        *("change_seq", "pending_request"),
    )
    read = {
        "is_repeated": Exists(repeats) if with_repeated else Value(value=False),
        "stored_summary": Substr("summary", 1, KIND_LENGTH),
        "beginning": Substr("error", 1, _BEGINNING),
    }
    rows = found.annotate(**read).values_list(*columns, *read)[:NEWEST]
    return [
        FailedRun(
            id=run_id,
            workflow=workflow,
            location=origins[0] if origins else "",
            error_type=_read(_TYPE, beginning),
            message=_message(workflow, beginning),
            is_stuck=bool(ends_in) or kind_of_stored(summary) is SummaryKind.HANDLER_FAILED,
            is_mistake=kind_of_stored(summary) is SummaryKind.STOPPED_BY_MISTAKE,
            is_compensated=kind_of_stored(summary) is SummaryKind.COMPENSATED,
            is_repeated=is_repeated,
            created_at=created_at,
            finished_at=finished_at,
            change_seq=change_seq,
            pending_request=request,
            state_after_rollback=ends_in,
        )
        for run_id, workflow, origins, ends_in, created_at, finished_at, *seen, is_repeated, summary, beginning in rows
        for change_seq, request in [seen]
    ]


def _message(workflow: str, beginning: str | None) -> str:
    """Return the message, redacted.

    The hook gets whole messages: a part may not contain the text that shows what to hide.
    """
    if conf.REDACT and beginning is not None and _WHOLE_MESSAGE.search(beginning) is None:
        return _TOO_LONG
    return str(redacted(workflow, "error", _read(_MESSAGE, beginning)))


def _read(pattern: re.Pattern[str], beginning: object) -> str:
    """Return one text of an error's column, or ""."""
    match = pattern.search(beginning) if isinstance(beginning, str) else None
    return "" if match is None else printable(json.loads(f'"{match.group(1)}"'))
