"""A logging filter that says on each record which run it is about, whoever logged it.

    LOGGING = {
        "filters": {"durable": {"()": "durable.logs.RunFilter"}},
        "formatters": {"plain": {"format": "%(levelname)s %(name)s [%(run_id)s %(location)s] %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["durable"], "formatter": "plain"}},
    }

`ctx.logger` says the same by itself, and is silent while a run repeats what it has done before.
"""

from __future__ import annotations

import logging

from durable.core.current import running_place

__all__ = ["RunFilter"]


class RunFilter(logging.Filter):
    """Gives each record `run_id`, `workflow` and `location`: "" outside a pass, and what the record says itself first."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing; every record passes."""
        for name, value in zip(("run_id", "workflow", "location"), running_place(), strict=True):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
