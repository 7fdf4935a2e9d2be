"""Limits and their slots: how many may hold one at a time, who does, and who waits in line.

Side tables: a run of a workflow without limits, whose steps have none, has no row in them.
"""

from __future__ import annotations

from django.db import models

from durable.core.ids import MAX_ID
from durable.core.slot_records import SlotKind, SlotRow
from durable.models.fields import JSONTextField, NameField, choices
from durable.models.rows import Row
from durable.models.run import Run


class Limit(Row):
    """A limit: at most `at_once` slots are held for each of its keys.

    Code and settings define it, and the first run that wants a slot inserts it. `override` is what an operator has set
    instead, NULL for nothing.
    """

    name = NameField[str, str](max_length=MAX_ID, primary_key=True)
    at_once = models.IntegerField()
    override = models.IntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def number(self) -> int:
        """The number of slots of each key that may be held."""
        return self.at_once if self.override is None else self.override


class LimitKey(Row):
    """A key of a limit. A transaction that takes, gives up or hands on a slot of the key has this row locked."""

    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["limit", "key"], name="durable_limitkey_once")]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key}"


class Slot(Row):
    """A slot that a run holds or waits for, for the operation at `location`, "" for the workflow itself.

    The row goes with the commit that ends the run, parks it, or records the step. Waiting rows of a key are a line in
    the order of `place`; a row that is held has place 0. `wants` are all slots that an operation in a line takes
    together, as (limit, key, kind).
    """

    # no constraint in the database: the run's row is locked by every statement that inserts one
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="slots", db_constraint=False, db_index=False)
    location = NameField[str, str](max_length=1024, blank=True)
    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)
    kind = NameField[str, str](max_length=8, choices=choices(SlotKind))
    is_held = models.BooleanField()
    place = models.BigIntegerField(default=0)
    since = models.DateTimeField()
    wants = JSONTextField(default=list)

    class Meta:
        indexes = [
            models.Index(fields=["run", "location"], name="durable_slot_of_run"),
            models.Index(fields=["limit", "key", "is_held", "place"], name="durable_slot_in_line"),
            # what is held, and what waits, for longest
            models.Index(fields=["limit", "is_held", "since"], name="durable_slot_age"),
        ]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key} {self.run_id}"

    @property
    def record(self) -> SlotRow:
        """The slot as the engine has it."""
        return SlotRow(
            run_id=self.run_id,
            location=self.location,
            limit=self.limit,
            key=self.key,
            kind=SlotKind(self.kind),
            is_held=self.is_held,
            since=self.since,
        )


class SlotNote(Row):
    """Work for the sweep, if the process that noted it cannot do it: look at the line of a key, and wake the run.

    The end of a run notes the keys of which it has given up slots. A grant notes a run whose row another transaction
    has locked. So does a verb that moves the moment of a run's attempt (`durable.store.tables.rates`).
    """

    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)
    run_id = NameField[str, str](max_length=MAX_ID)

    class Meta:
        indexes = [models.Index(fields=["run_id"], name="durable_slotnote_of_run")]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key}"
