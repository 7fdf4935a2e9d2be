"""Named queries about runs and their histories, and the conditional updates that claim, renew and release runs.

Each update names its conditions and returns how many rows it changed; none reads before it writes.

A run's entries are scattered among those of all other runs, and so is their metadata. Where a long history is joined
with its metadata, PostgreSQL takes one scan of the whole table for cheaper than ten thousand look-ups, and the scan
takes longer as the table grows. So the metadata of histories is looked up here entry by entry, whatever PostgreSQL's
statistics say about their number: these may be older than most of the table's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self

from django.db import models
from django.db.models import BooleanField, Case, F, Func, Q, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.db.models.sql.datastructures import Join

from durable.core import clock
from durable.core.records import ENDED, RunState

if TYPE_CHECKING:
    from durable.models.history import Entry, EntryMetadata  # noqa: F401 - named in the annotation below
    from durable.models.run import Run  # noqa: F401 - likewise

__all__ = ["EntryMetadataQuerySet", "EntryQuerySet", "RunQuerySet"]


class Named(Protocol):
    """A workflow."""

    @property
    def name(self) -> str:
        """The name under which its runs are recorded."""


class RunQuerySet(models.QuerySet["Run"]):
    """Runs. The filters down to `due` are public; the methods after it are for the stores."""

    def newest_first(self) -> Self:
        """Return them in the order of lists."""
        return self.order_by("-created_at", "-id")

    def in_state(self, *states: str) -> Self:
        """Return those in one of these states: `in_state("sleeping", "paused")`.

        Raises ValueError for an unknown state.
        """
        return self.filter(state__in=[RunState(each).value for each in states])

    def open(self) -> Self:
        """Return those that have not ended."""
        return self.exclude(state__in=[state.value for state in ENDED])

    def ended(self) -> Self:
        """Return those that are completed, failed or cancelled."""
        return self.filter(state__in=[state.value for state in ENDED])

    def completed(self) -> Self:
        """Return those whose workflow has returned."""
        return self.in_state(RunState.COMPLETED)

    def failed(self) -> Self:
        """Return those that have failed."""
        return self.in_state(RunState.FAILED)

    def cancelled(self) -> Self:
        """Return those that were cancelled."""
        return self.in_state(RunState.CANCELLED)

    def of_workflow(self, *workflows: str | Named) -> Self:
        """Return those of these workflows, given as workflow objects or by name."""
        return self.filter(workflow__in=[each if isinstance(each, str) else each.name for each in workflows])

    def unended(self) -> Self:
        """Return those that have not ended."""
        return self.open()

    def ended_in(self, state: str) -> Self:
        """Return those that ended in this state; written so that the index over ended runs serves it."""
        return self.filter(state=state, finished_at__isnull=False)

    def ended_before(self, state: str, workflow: str, moment: datetime) -> Self:
        """Return the workflow's runs that ended in this state before the moment."""
        return self.ended_in(state).filter(workflow=workflow, finished_at__lt=moment)

    def unheld(self, now: datetime) -> Self:
        """Return those without a live lease."""
        return self.filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now))

    def due(self, now: datetime | None = None) -> Self:
        """Return those that a worker may claim now, or at the moment `now`. An ended run has no `wake_at`."""
        now = now or clock.now()
        return self.unheld(now).exclude(state=RunState.PAUSED.value).filter(wake_at__isnull=False, wake_at__lte=now)

    def due_since(self, moment: datetime, run_id: str) -> Self:
        """Return those at this point of the order of due runs, or behind it."""
        return self.filter(Q(wake_at__gt=moment) | Q(wake_at=moment, id__gte=run_id))

    def held_with(self, run_id: str, fence: int) -> Self:
        """Return the run, if this fence may still write it."""
        return self.filter(id=run_id, fence=fence)

    def waking_after(self, moment: datetime, queues: Sequence[str]) -> Self:
        """Return the queues' runs that become due after the moment."""
        return self.filter(queue__in=queues, wake_at__gt=moment).exclude(state=RunState.PAUSED.value)

    def lock_table(self) -> None:
        """Take the write lock of a database that has no row locks, by a write that changes nothing."""
        self.filter(id="").update(fence=F("fence"))

    def claim(self, *, now: datetime, lease_until: datetime, worker: str) -> int:
        """Claim the rows for a worker: a new fence, a lease, and one more crash where a lease expired."""
        return self.update(
            fence=F("fence") + 1,
            crashes=F("crashes") + Case(When(lease_expires_at__isnull=True, then=Value(0)), default=Value(1)),
            lease_expires_at=lease_until,
            worker=worker,
            started_at=Coalesce(F("started_at"), Value(now, output_field=models.DateTimeField())),
            state=Case(
                When(state=RunState.ROLLING_BACK.value, then=F("state")),
                default=Value(RunState.RUNNING.value),
                output_field=models.CharField(),
            ),
            wake_at=Case(
                When(wake_at__lte=now, then=F("wake_at")), default=Value(now), output_field=models.DateTimeField()
            ),
        )

    def renew(self, lease_until: datetime) -> int:
        """Extend the leases. A run that was released meanwhile stays released."""
        return self.filter(lease_expires_at__isnull=False).update(lease_expires_at=lease_until)

    def release(self, now: datetime) -> int:
        """Undo `claim` for runs that were not begun: due, without a lease, the counted crashes unchanged."""
        return self.filter(lease_expires_at__isnull=False).update(
            lease_expires_at=None,
            worker="",
            state=Case(
                When(state=RunState.RUNNING.value, then=Value(RunState.PENDING.value)),
                default=F("state"),
                output_field=models.CharField(),
            ),
            wake_at=Case(
                When(wake_at__lte=now, then=F("wake_at")), default=Value(now), output_field=models.DateTimeField()
            ),
        )

    def with_ids(self, ids: Sequence[str]) -> Self:
        """Return those with these ids, in the order in which they are locked."""
        return self.filter(id__in=ids).order_by("id")


class EntryQuerySet(models.QuerySet["Entry"]):
    """Entries."""

    def with_metadata_of(self, *run_ids: str) -> Self:
        """Return those of the runs, for a query that reads their metadata too."""
        found = self.filter(run__in=run_ids, metadata__isnull=False)
        joins = found.query.alias_map
        for alias, join in joins.items():
            if isinstance(join, Join) and join.table_name == "durable_entrymetadata":
                joins[alias] = _LookUp.of(join)
        return found


class EntryMetadataQuerySet(models.QuerySet["EntryMetadata"]):
    """Metadata of entries."""

    def of_runs(self, *run_ids: str) -> Self:
        """Return the metadata of the runs' entries; at least one run."""
        return self.filter(_LookedUp(self.db, run_ids))


class _LookUp(Join):
    """The join of entries with their metadata, on PostgreSQL as a look-up for each entry.

    `OFFSET 0` keeps the planner from turning it into another join.
    """

    @classmethod
    def of(cls, join: Join) -> Self:
        """Return a look-up that replaces this join."""
        fields = (join.table_name, join.parent_alias, join.table_alias, join.join_type, join.join_field, join.nullable)
        return cls(*fields, filtered_relation=join.filtered_relation)

    @property
    def identity(self) -> tuple[Any, ...]:
        """The identity of the replaced join, so that Django reuses this one for it."""
        return (Join, *super().identity[1:])

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return the join's clause; Django's own for other databases."""
        if connection.vendor != "postgresql":
            return super().as_sql(compiler, connection)
        quote, quote_alias = connection.ops.quote_name, compiler.quote_name_unless_alias
        field: Any = self.join_field
        [(key, reference)] = field.get_joining_fields()
        sql = (
            f"CROSS JOIN LATERAL (SELECT * FROM {quote(self.table_name)} "  # noqa: S608 - names alone
            f"WHERE {quote(reference.column)} = {quote_alias(self.parent_alias)}.{quote(key.column)} OFFSET 0) "
            f"AS {quote_alias(self.table_alias)}"
        )
        return sql, []


class _LookedUp(Func):
    """A condition that metadata belongs to an entry of the runs; keys given as an array are looked up."""

    output_field = BooleanField()
    template = "%(expressions)s"
    arg_joiner = " IN "

    def __init__(self, alias: str, run_ids: Sequence[str], **extra: Any) -> None:
        from durable.models import Entry  # imported here: the models are built with these querysets

        keys = Entry.objects.using(alias).filter(run__in=run_ids).order_by().values("id")
        super().__init__(F("entry"), Subquery(keys), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return `entry_id = ANY(ARRAY(SELECT ...))`."""
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **context)
