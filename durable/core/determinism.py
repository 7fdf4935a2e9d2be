"""Time and randomness for a scope's code: the same in each pass, because nothing but the history decides them."""

from __future__ import annotations

import random
import uuid
from datetime import datetime

from durable.core.records import EntryRecord, RunRecord
from durable.core.renames import canonical


class Determinism:
    """The clock and the dice of one scope."""

    __slots__ = ("_location", "_random", "_run", "moment")

    def __init__(self, run: RunRecord, location: str, parent: Determinism | None) -> None:
        self._run = run
        self._location = location
        self._random: random.Random | None = None
        #: The time of the newest record that this scope's code has seen.
        self.moment: datetime = parent.moment if parent is not None else run.began_at or run.created_at

    def observe(self, entry: EntryRecord) -> None:
        """Note that the code has seen this record: the scope's time is not before the record's."""
        moment = entry.completed_at or entry.last_attempt_at or entry.created_at
        self.moment = max(self.moment, moment)

    @property
    def random(self) -> random.Random:
        """A generator seeded by run and location: it draws the same numbers in each pass."""
        if self._random is None:
            oldest = canonical(self._run.workflow, self._location)
            self._random = random.Random(f"{self._run.seed or self._run.id}/{oldest}")  # noqa: S311  # not for secrets
        return self._random

    def uuid4(self) -> uuid.UUID:
        """Return a UUID drawn from `random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)
