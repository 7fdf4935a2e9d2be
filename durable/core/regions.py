"""Regions of a history: what a step back deletes, said without looking at each entry.

`durable.core.rewind` deletes entry by entry, and notes the regions that it has deleted. A database counts what is in
them (`durable.store.tables.surveys`). Both read the rule here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from durable.core.location import is_within


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

    def has_all_of(self, location: str) -> bool:
        """Return True if every entry at the location and below is in the region, whenever it began."""
        return self.after < 0 and not self.beside and (not self.within or is_within(location, self.within))


def simplified(regions: Iterable[Region]) -> list[Region]:
    """Return regions that have the same entries together, with fewer conditions; those that compare ordinals first.

    What one region leaves out need not be left out where another one has all of it.
    """
    every = list(dict.fromkeys(regions))
    found = [
        region._replace(beside="")
        if region.beside and any(each.has_all_of(region.beside) for each in every)
        else region
        for region in every
    ]
    return sorted(dict.fromkeys(found), key=lambda region: (bool(region.within), bool(region.beside)))
