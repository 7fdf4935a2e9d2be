"""What the exit status says."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


class Exit(IntEnum):
    """0 and 1 are the answer, the others say why there is none."""

    OK = 0
    REFUSED = 1  # a run was not found, did not allow it, has failed; or the doctor found what needs a person
    USAGE = 2  # the command line cannot be meant like this
    TIMEOUT = 3  # what was waited for has not come
    UNREACHABLE = 4  # the database does not answer, or lacks migrations
    INTERRUPTED = 130  # Ctrl-C
    PIPE = 141  # whoever read the output is gone
