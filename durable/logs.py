"""A logging filter that adds the current run to each record, and a handler that keeps the log of each run.

    LOGGING = {
        "filters": {"durable": {"()": "durable.logs.RunFilter"}},
        "formatters": {"plain": {"format": "%(levelname)s %(name)s [%(run_id)s %(location)s] %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["durable"], "formatter": "plain"}},
    }

The handler shows what a run has logged on its page, over REST and with `durable logs` (`durable.log_capture`):

    "handlers": {"runs": {"class": "durable.logs.RunLogHandler", "level": "INFO"}},
    "root": {"handlers": ["console", "runs"], "level": "INFO"},

`ctx.logger` adds the same attributes by itself, and logs nothing while a run replays.

Durable's own records contain names of runs and steps and texts of errors, which come from elsewhere: a line break in
one would forge a record, and the terminal that shows the log would obey an escape sequence. So each of these records is
one line, with such characters escaped, and a traceback below the line is indented. Records of `ctx.logger` belong to
the workflow and are not changed.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

from durable.core.current import running_place
from durable.core.words import safe
from durable.log_capture import RunLogHandler

__all__ = ["LOGGERS", "OneLine", "RunFilter", "RunLogHandler", "guard"]

#: The loggers that durable's own modules write to.
LOGGERS: Final = (
    "durable",
    *(
        f"durable.{name}"
        for name in (
            "admin",
            "alerts",
            "api",
            "audit",
            "bell",
            "guard",
            "hooks",
            "inspection",
            "marks",
            "metrics",
            "operations",
            "pass",
            "retention",
            "store",
            "streams",
        )
    ),
    *(f"durable.{name}" for name in ("timer", "worker")),
)


def guard() -> None:
    """Install the filter that keeps each record of durable's own loggers on one line."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ONE_LINE)  # once: logging does not add the same filter again


class OneLine(logging.Filter):
    """Escape control characters in a record's texts, and indent its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; every record passes."""
        record.msg = safe(record.msg)
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_shown, record.args))
        for name in ("run_id", "workflow", "location"):
            if name in vars(record):
                setattr(record, name, safe(getattr(record, name)))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # the formatter uses this text instead of formatting the exception; record.exc_info stays for other handlers
            frames = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n").split("\n")
            record.exc_text = "\n".join(f"  {safe(line)}" for line in frames)
        return True


_ONE_LINE: Final = OneLine()


def _shown(value: Any) -> Any:
    """Convert an argument of a record: numbers stay as they are, for %d and %g; everything else becomes its text."""
    return value if value is None or isinstance(value, int | float) else _Text(safe(value))


class _Text(str):
    """A text that is its own `repr`: the %r of an object is already this text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class RunFilter(logging.Filter):
    """Add `run_id`, `workflow` and `location` to each record: "" outside a pass. Existing values are kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the missing attributes; every record passes."""
        for name, value in zip(("run_id", "workflow", "location"), running_place(), strict=True):
            if not hasattr(record, name):
                setattr(record, name, safe(value))
        return True
