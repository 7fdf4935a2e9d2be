"""Limits: their slots, who holds one and who waits in line, and their rates.

Side tables: a run of a workflow without limits, whose steps have none, has no row in them.

Side tables: a run whose workflow and steps have no rate has no row in them.
"""

from __future__ import annotations

from datetime import datetime

from django.db import models

from durable.core.ids import MAX_ID
from durable.core.limits.rates import LimitClosing, Rate, RefusedStart
from durable.core.limits.slot_records import SlotKind, SlotRow
from durable.models.rows import JSONTextField, MomentField, NameField, Recorded, Row, choices
from durable.models.run import Run


class Limit(Row):
    """A limit: at most `at_once` slots are held for each of its keys.

    Code and settings define it, and the first run that wants a slot inserts it. `override` is an operator's number, or
    NULL.
    """

    name = NameField[str, str](max_length=MAX_ID, primary_key=True)
    at_once = models.IntegerField()
    override = models.IntegerField(null=True, blank=True)

    @property
    def number(self) -> int:
        """The number of slots of each key that may be held."""
        return self.at_once if self.override is None else self.override


class LimitKey(Row):
    """A key of a limit. A transaction that takes, gives up or hands on a slot of the key locks this row."""

    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["limit", "key"], name="durable_limitkey_once")]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key}"


class Slot(Row):
    """A slot that a run holds or waits for, for the operation at `location`, "" for the workflow itself.

    The commit that ends the run, parks it or records the step deletes the row. Waiting rows of a key are a line in the
    order of `place`; a held row has place 0. `wants` are all slots that an operation in a line takes together, as
    (limit, key, kind).
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
            # the slots held longest, and awaited longest
            models.Index(fields=["limit", "is_held", "since"], name="durable_slot_age"),
        ]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key} {self.run_id}"

    record = Recorded(SlotRow, kind=lambda row: SlotKind(row.kind))


class SlotNote(Row):
    """Work for the sweep, if the process that noted it cannot do it: check the line of a key, and wake the run.

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


class RateLimit(Row):
    """A limit's rate: a unit every `spacing` nanoseconds, for each of its keys, and `burst` at once after a pause.

    Code and settings define it, and the first attempt that wants units inserts it. The columns of the override are an
    operator's rate; "" and 0 for none.
    """

    name = NameField[str, str](max_length=MAX_ID, primary_key=True)
    rate = NameField[str, str](max_length=MAX_ID)
    spacing = models.BigIntegerField()
    burst = models.IntegerField(default=1)
    override_rate = NameField[str, str](max_length=MAX_ID, blank=True, default="", db_default="")
    override_spacing = models.BigIntegerField(default=0, db_default=0)
    override_burst = models.IntegerField(default=0, db_default=0)

    @property
    def code_says(self) -> Rate:
        """The rate of code or settings."""
        return Rate(self.rate, self.spacing, self.burst)

    @property
    def override(self) -> Rate | None:
        """The rate that an operator has set; None without one."""
        if not self.override_spacing:
            return None
        return Rate(self.override_rate, self.override_spacing, self.override_burst)

    @property
    def now(self) -> Rate:
        """The rate in force."""
        return self.override or self.code_says


class RateKey(Row):
    """A key of a limit's rate. Each statement that gives an attempt its moment locks this row.

    `reserved`, `begun` and `put_off` are theoretical arrival times in nanoseconds since 1970
    (`durable.core.limits.rates`). Nothing begins before `closed_until`; the row of the key "" closes all keys.
    `refused` counts the starts that found no room; the other columns about them are of the last one. `recent` has the
    units of the last minute (`durable.core.limits.rates`).
    """

    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)
    reserved = models.BigIntegerField(default=0, db_default=0)
    begun = models.BigIntegerField(default=0, db_default=0)
    put_off = models.BigIntegerField(default=0, db_default=0)
    closed_until = MomentField(null=True, blank=True)
    closed_by = NameField[str, str](max_length=MAX_ID + 10, blank=True, default="", db_default="")
    closed_why = models.TextField(blank=True, default="", db_default="")
    recent = models.CharField(max_length=200, blank=True, default="", db_default="")
    refused = models.BigIntegerField(default=0, db_default=0)
    refused_at = models.DateTimeField(null=True, blank=True)
    refused_workflow = NameField[str, str](max_length=MAX_ID, blank=True, default="", db_default="")
    refused_run = NameField[str, str](max_length=MAX_ID, blank=True, default="", db_default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["limit", "key"], name="durable_ratekey_once")]
        indexes = [
            models.Index(
                fields=["refused_run"], name="durable_ratekey_refused", condition=models.Q(refused_at__isnull=False)
            ),
            models.Index(
                fields=["limit"], name="durable_ratekey_closed", condition=models.Q(closed_until__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key}"

    def closing(self, now: datetime) -> LimitClosing | None:
        if self.closed_until is None or self.closed_until <= now:
            return None
        return LimitClosing(until=self.closed_until, by=self.closed_by, reason=self.closed_why)

    @property
    def last_refused(self) -> RefusedStart | None:
        if self.refused_at is None:
            return None
        return RefusedStart(at=self.refused_at, workflow=self.refused_workflow, run_id=self.refused_run)


class Reservation(Row):
    """The reserved moment of a waiting attempt: of the step at `location`, "" for a pass of the workflow.

    The row is deleted when the attempt begins or the run ends.
    """

    # no constraint in the database: no query reads a row without its run
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False)
    location = NameField[str, str](max_length=1024, blank=True)
    limit = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID, blank=True)
    units = models.IntegerField()
    at = MomentField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "location"], name="durable_reservation_once")]
        indexes = [models.Index(fields=["limit", "key", "at"], name="durable_reservation_in_order")]

    def __str__(self) -> str:
        return f"{self.limit}/{self.key} {self.run_id}"
