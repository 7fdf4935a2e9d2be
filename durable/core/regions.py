"""Regions of a history: what a step back deletes, said without looking at each entry.

`durable.core.rewind` deletes entry by entry, and notes the regions that it has deleted. A database counts what is in
them (`durable.store.survey_rows`). Both read the rule here.
"""

from __future__ import annotations

from typing import NamedTuple

from durable.core.location import is_within

__all__ = ["Region"]


class Region(NamedTuple):
    """The entries at `within` and below that began after the ordinal `after`, but for those at `beside` and below.

    "" as `within` is the whole history, "" as `beside` nothing.
    """

    within: str
    after: int = -1
    beside: str = ""

    def covers(self, location: str, ordinal: int) -> bool:
        """Return True if the entry is in the region."""
        return (
            ordinal > self.after
            and (not self.within or is_within(location, self.within))
            and not (self.beside and is_within(location, self.beside))
        )
