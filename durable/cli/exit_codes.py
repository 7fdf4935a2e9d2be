"""The exit statuses."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """0 and 1 are results; the others say why there is none."""

    OK = 0
    REFUSED = 1  # a run was not found, did not allow the verb, or failed; or the doctor found a problem
    USAGE = 2  # invalid usage
    TIMEOUT = 3  # the wait has timed out
    UNREACHABLE = 4  # the database does not answer, or lacks migrations
    INTERRUPTED = 130  # Ctrl-C
    PIPE = 141  # the reader of the output has closed it
