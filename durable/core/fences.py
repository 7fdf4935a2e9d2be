"""The fence of a run: the number that proves who may write it.

Each claim raises the fence by a step that is drawn at random. A step of 1 would not do: a database can lose a claim,
because a standby that lags is promoted or a backup is restored. The next claim would then give out the same number
again, and two passes would hold it. With a random step, the number that was lost does not come again, and whatever
compares fences compares a token of one claim. The same goes for a pass that raises its own fence. A verb that takes a
run away from its worker gives the number to nobody, and raises it by 1.

A new run has the fence 0, or 1 if its first pass has something to load. The first claim of a run with fence 0 gives a
number from `FIRST` to below twice that. Every later one is higher, so a fence also tells whether the run may have a
history. A fence stays below 2**53, so that JSON has it exactly, for more than five million claims of a run.
"""

from __future__ import annotations

import secrets
from typing import Final

#: The lowest fence that a claim gives, and from how many numbers each draws.
FIRST: Final = 2**29


def draw() -> int:
    """Return the random part of a step. Processes that were forked from one another draw different ones."""
    return secrets.randbelow(FIRST)


def raised(fence: int, drawn: int | None = None) -> int:
    """Return a higher fence. `durable.store.routines.definitions.raised` is the same in SQL."""
    return fence + (2 * FIRST if fence else FIRST) + (draw() if drawn is None else drawn)


def is_of_first_claim(fence: int) -> bool:
    """Return True if no other claim came before the one that gave this fence, and there was nothing to load."""
    return FIRST <= fence < 2 * FIRST
