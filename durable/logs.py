"""A logging filter that says on each record which run it is about, whoever logged it.

    LOGGING = {
        "filters": {"durable": {"()": "durable.logs.RunFilter"}},
        "formatters": {"plain": {"format": "%(levelname)s %(name)s [%(run_id)s %(location)s] %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["durable"], "formatter": "plain"}},
    }

`ctx.logger` says the same by itself, and is silent while a run repeats what it has done before.

What durable itself logs names runs, steps and errors, which are texts of others: a line break in one would forge a record,
an escape sequence would be obeyed by the terminal that shows the log. So each of its records is one line, with such
characters as escapes, and a traceback below it is indented. Records of `ctx.logger` are the workflow's own, and stay as they
are.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

from durable.core.current import running_place
from durable.core.printable import safe

__all__ = ["LOGGERS", "OneLine", "RunFilter", "guard"]

#: The loggers that durable's own modules write to.
LOGGERS: Final = (
    "durable",
    *(
        f"durable.{name}"
        for name in ("api", "audit", "bell", "inspection", "metrics", "operations", "pass", "retention", "store")
    ),
    *(f"durable.{name}" for name in ("timer", "worker")),
)


def guard() -> None:
    """Have each record of durable's own loggers be one line."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ONE_LINE)  # once: the same filter is not added again


class OneLine(logging.Filter):
    """Writes control characters in a record's texts as escapes, and indents its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; every one passes."""
        record.msg = safe(record.msg)
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_shown, record.args))
        for name in ("run_id", "workflow", "location"):
            if name in vars(record):
                setattr(record, name, safe(getattr(record, name)))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # the formatter takes this instead of making its own; whoever wants the exception still has it
            frames = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n").split("\n")
            record.exc_text = "\n".join(f"  {safe(line)}" for line in frames)
        return True


_ONE_LINE: Final = OneLine()


def _shown(value: Any) -> Any:
    """An argument of a record: numbers as they are, for %d and %g, and all else as its text."""
    return value if value is None or isinstance(value, int | float) else _Text(safe(value))


class _Text(str):
    """A text that is its own `repr`: what was %r of an object is told once."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class RunFilter(logging.Filter):
    """Gives each record `run_id`, `workflow` and `location`: "" outside a pass, and what the record says itself first."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing; every record passes."""
        for name, value in zip(("run_id", "workflow", "location"), running_place(), strict=True):
            if not hasattr(record, name):
                setattr(record, name, safe(value))
        return True
