"""The log of a run, as kept by `durable.logs.RunLogHandler`: by key, with levels and places, redacted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.inspection.payloads import redacted
from durable.inspection.reading import read_alias
from durable.models import LogLine, Run

#: The levels that a filter may name, by name.
LEVELS: Final = {
    name: logging.getLevelNamesMapping()[name] for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLine:
    """A line of a run's log; `text` is redacted as the field "log". `id` is its key, greater for later lines."""

    id: int
    at: datetime
    level: str
    logger: str
    location: str
    text: str


def read_logs(
    run: Run,
    *,
    level: str = "",
    place: str = "",
    before: int | None = None,
    after: int | None = None,
    limit: int = 200,
) -> list[LoggedLine]:
    """Return up to `limit` lines in the order in which they were written; one statement over the lines of one run.

    `level` omits lines below it; `place`, a location or its beginning, omits lines of other steps. Without `after` they
    are the newest ones, or the newest before `before`; with `after` the first ones after it.
    """
    lines = LogLine.objects.using(read_alias()).filter(run=run)
    if level:
        lines = lines.filter(level__gte=LEVELS[level])
    if place:
        lines = lines.filter(location=place) | lines.filter(location__startswith=f"{place}/")
    if before is not None:
        lines = lines.filter(id__lt=before)
    found: Sequence[LogLine]
    if after is not None:
        found = list(lines.filter(id__gt=after).order_by("id")[:limit])
    else:
        found = list(lines.order_by("-id")[:limit])[::-1]
    return [
        LoggedLine(
            id=each.pk,
            at=each.at,
            level=logging.getLevelName(each.level),
            logger=each.logger,
            location=each.location,
            text=str(redacted(run.workflow, "log", each.text)),
        )
        for each in found
    ]


def newest_line(run: Run) -> int | None:
    """Return the key of the newest line of a run's log, or None."""
    lines = LogLine.objects.using(read_alias()).filter(run=run).order_by("-id")
    return lines.values_list("id", flat=True).first()


def is_kept() -> bool:
    """Whether the settings have a handler that keeps the logs of runs."""
    from django.conf import settings

    handlers: Any = (settings.LOGGING or {}).get("handlers", {})
    return any("RunLogHandler" in str(each.get("class", each.get("()", ""))) for each in handlers.values())
