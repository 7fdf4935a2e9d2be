"""Schedules, and the ticks of each: what was started, skipped, missed, merged or refused, and why.

Side tables: no run has a column for them. `durable.operations.schedules` fills in the columns derived from the rule
before a row is written (`pre_save`), and is the only place that changes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.db import models
from django.db.models import Q

from durable.core.duration import Duration
from durable.models.rows import JSONTextField, NameField, Row, SafeTextField
from durable.schedules import CATCH_UPS, OVERLAPS, CatchUp, Overlap, RuleLike, Rules, read_rules


def _choices(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(each, each) for each in words]


#: Columns that only ticks write.
_OF_TICKS: Final = frozenset({"waiting_at", "waiting_number", "last_at", "last_run_id", "open_runs", "tick_count"})
#: Columns from which the next moment is computed.
_TIMING: Final = frozenset({"rule", "zone", "override_rule", "override_zone", "jitter", "paused"})


class ScheduleManager(models.Manager["Schedule"]):
    """`Schedule.objects`."""

    def create(  # type: ignore[override]  # its parameters are named, so that a type checker knows them
        self,
        *,
        name: str,
        workflow: str,
        rule: RuleLike,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: str = "",
        zone: str | None = None,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        window: Duration | None = None,
        jitter: Duration | None = None,
        paused: bool = False,
        **columns: Any,
    ) -> Schedule:
        """Create a schedule. Omitted options come from the rule (`cron(..., zone=...)`), or else are defaults.

        Raises TypeError and ValueError, and IntegrityError for a name that is taken.
        """
        said: dict[str, Any] = {"args": args, "kwargs": kwargs, "zone": zone, "overlap": overlap, "catch_up": catch_up}
        said |= {"window": window, "jitter": jitter}
        columns |= {name: value for name, value in said.items() if value is not None}
        created: Schedule = super().create(
            name=name,
            workflow=workflow,
            rule=rule,
            queue=queue,
            paused=paused,
            **columns,
        )
        return created


class Schedule(Row):
    """When which workflow is started: `Schedule.objects.create(name=..., workflow=..., rule=every("6 hours"))`.

    `rule` is `cron(...)`, `every(...)`, a list of them or their text; as an attribute it is the text. `args` and
    `kwargs` are the workflow's. `window` and `jitter` are durations ("12 hours"). `next_at` follows from the rule and
    the clock.

    `overlap` says what happens while the run of an earlier tick has not ended: "skip", "queue" (one tick waits),
    "allow", or "replace" (that run is cancelled). `catch_up` says which of the moments without a timer are made up for,
    if they are not longer ago than `window`: the "last", "none" or "all". `jitter` puts each tick off by a time below
    it.

    Raises TypeError and ValueError for what cannot be a schedule.
    """

    #: Arguments to write with the next save; None keeps those of the row.
    given_args: tuple[Any, ...] | None = None
    given_kwargs: dict[str, Any] | None = None

    #: The options with which this object was created: those of a rule do not replace them.
    said: frozenset[str] = frozenset()

    objects: ClassVar[ScheduleManager] = ScheduleManager()

    class Origin(models.TextChoices):
        """Who owns the row: the workflow's decorator, or operators and code that creates rows."""

        CODE = "code", "code"
        ADMIN = "admin", "admin"

    name = NameField[str, str](max_length=200, unique=True)
    workflow = NameField[str, str](max_length=200)
    queue = NameField[str, str](max_length=200, default="", blank=True)
    input = SafeTextField[str, str](default="", blank=True)
    rule = SafeTextField[RuleLike, str]()
    zone = NameField[str, str](max_length=100, default="UTC")
    override_rule = SafeTextField[str, str](default="", blank=True)
    override_zone = NameField[str, str](max_length=100, default="", blank=True)
    overlap = NameField[str, str](max_length=16, choices=_choices(OVERLAPS), default="skip")
    catch_up = NameField[str, str](max_length=16, choices=_choices(CATCH_UPS), default="last")
    window: models.DurationField[Duration | None, timedelta | None] = models.DurationField(null=True, blank=True)
    jitter: models.DurationField[Duration, timedelta] = models.DurationField(default=timedelta(0), blank=True)
    origin = NameField[str, str](max_length=16, choices=Origin.choices, default=Origin.ADMIN)
    paused = models.BooleanField(default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = SafeTextField[str, str](default="", blank=True)
    pause_reason = SafeTextField[str, str](default="", blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    waiting_at = models.DateTimeField(null=True, blank=True)
    waiting_number = models.BigIntegerField(null=True, blank=True)
    last_at = models.DateTimeField(null=True, blank=True)
    last_run_id = NameField[str, str](max_length=200, default="", blank=True)
    open_runs = JSONTextField[list[str], list[str]](default=list, blank=True)
    tick_count = models.BigIntegerField(default=0)
    changes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(null=True, blank=True)
    carried = SafeTextField[str | None, str | None](null=True, blank=True)

    class Meta:
        permissions = [("operate_schedule", "Can pause, resume, run now and backfill schedules")]
        constraints = [
            models.CheckConstraint(condition=Q(overlap__in=list(OVERLAPS)), name="durable_schedule_overlap_is_known"),
            models.CheckConstraint(
                condition=Q(catch_up__in=list(CATCH_UPS)), name="durable_schedule_catch_up_is_known"
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="durable_schedule_due"),
            models.Index(fields=["waiting_at"], condition=Q(waiting_at__isnull=False), name="durable_schedule_waiting"),
            models.Index(fields=["workflow", "name"], name="durable_schedule_by_workflow"),
        ]

    def __init__(self, *values: Any, **columns: Any) -> None:
        super().__init__(*values, **columns)
        if columns:
            self.said = frozenset(columns)

    def __str__(self) -> str:
        return self.name

    def save(self, *, update_fields: Iterable[str] | None = None, **how: Any) -> None:
        """Write the row, except the columns that only ticks write: this object may be older than the newest tick.

        Raises TypeError and ValueError for an invalid schedule.
        """
        if not self._state.adding and not how.get("force_insert"):
            if update_fields is None:
                update_fields = {each.name for each in self._meta.concrete_fields if not each.primary_key} - _OF_TICKS
            elif _TIMING.intersection(update_fields):
                update_fields = {*update_fields, "next_at", "due_at"}
        super().save(update_fields=update_fields, **how)

    @property
    def args(self) -> Sequence[Any]:
        """The positional arguments given to this object since it was created or loaded.

        To read the stored ones: `durable.operations.schedules.rows.arguments_of`.
        """
        return self.given_args or ()

    @args.setter
    def args(self, args: Sequence[Any]) -> None:
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise TypeError(f"the arguments of a schedule are a list, not {args!r}")
        self.given_args = tuple(args)

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, as `args`."""
        return self.given_kwargs or {}

    @kwargs.setter
    def kwargs(self, kwargs: Mapping[str, Any]) -> None:
        if not isinstance(kwargs, Mapping):
            raise TypeError(f"the keyword arguments of a schedule are a dict, not {kwargs!r}")
        self.given_kwargs = dict(kwargs)

    @property
    def rules(self) -> Rules:
        """The rules in force: the operator's if there are, else the row's own."""
        return read_rules(self.override_rule or self.rule)

    @property
    def zone_in_force(self) -> str:
        """The zone of the rules in force."""
        return (self.override_zone or self.zone) if self.override_rule else self.zone

    @property
    def is_overridden(self) -> bool:
        """True if an operator's rule is in force instead of the code's."""
        return bool(self.override_rule)


class Tick(Row):
    """The outcome of one moment of a schedule. `number` counts the ticks of a schedule from 1; the newest 200 are kept.

    `run_id` is "" if there is no run; the run may have been pruned. `kind` is "tick", "catch_up", "run_now" or
    "backfill".
    """

    class Outcome(models.TextChoices):
        """The outcome of the moment."""

        STARTED = "started", "started"
        WAITING = "waiting", "waiting"
        SKIPPED = "skipped", "skipped"
        MISSED = "missed", "missed"
        MERGED = "merged", "merged"
        REFUSED = "refused", "refused"

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    number = models.BigIntegerField()
    moment = models.DateTimeField()
    kind = NameField[str, str](max_length=16, default="tick")
    outcome = NameField[str, str](max_length=16, choices=Outcome.choices)
    run_id = NameField[str, str](max_length=200, default="", blank=True)
    why = SafeTextField[str, str](default="", blank=True)
    decided_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["schedule", "number"], name="durable_tick_once"),
            models.CheckConstraint(
                condition=Q(outcome__in=["started", "waiting", "skipped", "missed", "merged", "refused"]),
                name="durable_tick_outcome_is_known",
            ),
        ]
        indexes = [
            models.Index(fields=["run_id"], condition=~Q(run_id=""), name="durable_tick_by_run"),
            models.Index(fields=["outcome", "decided_at"], name="durable_tick_by_outcome"),
        ]

    @property
    def why_now(self) -> str:
        """`why`, or for a tick that waits while its schedule is paused, what it waits for. Reads its `schedule`."""
        if self.outcome == Tick.Outcome.WAITING and self.schedule.paused:
            return "the schedule is paused: this tick begins when it is resumed and the earlier run has ended"
        return self.why

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.moment} {self.outcome}"
