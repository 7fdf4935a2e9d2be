"""The logger of a scope's code: it names run, workflow and location, and is silent while the code replays."""

from __future__ import annotations

import logging
from typing import Final

from durable.core.scope import Scope

#: A logger that says nothing, for code that only goes through its record. No name leads to it: logging.config would
#: enable a logger that has one.
SILENT: Final = logging.Logger("silent")  # noqa: LOG001  # it is to have no place among the others
SILENT.disabled = True


class ReplayLogger(logging.LoggerAdapter[logging.Logger]):
    """`logger` for the code of one scope."""

    def __init__(self, logger: logging.Logger, scope: Scope) -> None:
        run = scope.journal.run
        super().__init__(logger, {"run_id": run.id, "workflow": run.workflow, "location": scope.location})
        self._cursor = scope.cursor

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's name
        """Return False while recorded entries are left that the code has not reached."""
        return not self._cursor.unvisited() and super().isEnabledFor(level)
