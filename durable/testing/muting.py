"""Keep what durable logs of a test's own doing off the terminal.

The expected failures of a test are warnings and errors of the engine. Handlers of Python's, Django's and rich that
print them, write them to a file or send them are muted. Those that collect records for assertions get them all the
same: pytest's `caplog`, unittest's `assertLogs`, a stream in memory, a class of the test's own.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ROOT: Final = "durable"
_OF_WORKFLOWS: Final = "durable.workflow"  # what the test's own code logs
_COLLECTING: Final = frozenset({"_pytest", "unittest"})
_PRINTING: Final = frozenset({"logging", "django", "rich"})


@contextmanager
def muted(*, wholly: bool = False) -> Iterator[None]:
    """Within the block no handler prints what durable's loggers say.

    With `wholly` none collects it either, and what workflows log with `ctx.logger` counts as well.
    """
    mute = _Mute(wholly)
    handlers = [each for each in _handlers() if wholly or _prints(each)]
    for each in handlers:
        each.addFilter(mute)
    try:
        yield
    finally:
        for each in handlers:
            each.removeFilter(mute)


class _Mute(logging.Filter):
    def __init__(self, wholly: bool) -> None:
        super().__init__()
        self._is_spared = frozenset() if wholly else frozenset({_OF_WORKFLOWS})

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is let through."""
        name = record.name
        return name in self._is_spared or not _is_of_durable(name)


def _is_of_durable(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


def _handlers() -> list[logging.Handler]:
    """Every handler that a record of durable's may come to."""
    loggers: list[logging.Logger] = [logging.root]
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(_ROOT) and isinstance(logger, logging.Logger) and _is_of_durable(name):
            loggers.append(logger)
    found = [handler for logger in loggers for handler in logger.handlers]
    return found if logging.lastResort is None else [*found, logging.lastResort]


def _prints(handler: logging.Handler) -> bool:
    owner = type(handler).__module__.partition(".")[0]
    if isinstance(handler, logging.StreamHandler):
        return owner not in _COLLECTING and not isinstance(handler.stream, io.StringIO)
    return owner in _PRINTING
