"""The history of a run: its entries, their metadata, the failed attempts of its steps, and the saves of running steps.

Counts of long histories have a side table.

A run's entries are scattered among those of all other runs, and so is their metadata. Where a long history is joined
with its metadata, PostgreSQL takes one scan of the whole table for cheaper than ten thousand look-ups, and the scan
takes longer as the table grows. The statistics may be older than most of the table's rows. Other databases get Django's
own clauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self, TypeVar

from django.db import models
from django.db.models import BooleanField, F, Func, Max, Min, Q, Subquery, Value
from django.db.models.functions import Concat, Left, Reverse, StrIndex, Substr
from django.db.models.sql.datastructures import Join
from django.utils.functional import cached_property

from durable.core.errors import ErrorInfo
from durable.core.location import escape
from durable.core.records import EntryKind, EntryStatus, RunRecord, Status, whole
from durable.models.rows import (
    ErrorField,
    JSONTextField,
    MomentField,
    NameField,
    Row,
    SafeTextField,
    choices,
    load_json,
    pack,
)
from durable.models.run import Run

_Rows = TypeVar("_Rows", bound="models.QuerySet[Any]")


def join_by_lookup(rows: _Rows, joined: type[models.Model]) -> _Rows:
    """Return `rows` with a look-up for each row in place of every join with the table of `joined`."""
    joins = rows.query.alias_map
    for alias, join in joins.items():
        if isinstance(join, Join) and join.table_name == joined._meta.db_table:
            joins[alias] = _LookUp.of(join)
    return rows


class _LookUp(Join):
    """A join that PostgreSQL performs as a look-up for each row.

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
        quote = connection.ops.quote_name
        # Django 6.1 quotes aliases as well. Its compiler has the second name for one release of Django more, and warns.
        quote_alias = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias
        field: Any = self.join_field
        [(key, reference)] = field.get_joining_fields()
        sql = (
            f"CROSS JOIN LATERAL (SELECT * FROM {quote(self.table_name)} "  # noqa: S608 - names alone
            f"WHERE {quote(reference.column)} = {quote_alias(self.parent_alias)}.{quote(key.column)} OFFSET 0) "
            f"AS {quote_alias(self.table_alias)}"
        )
        return sql, []


class _Keys(Subquery):
    """A subquery that Django does not replace with NULL if it is known to have no rows.

    In that case no row meets the condition.
    """

    empty_result_set_value = NotImplemented


class KeyIn(Func):
    """The condition that a column has one of the keys; on PostgreSQL an array, whose keys are looked up."""

    output_field = BooleanField()
    template = "%(expressions)s"
    arg_joiner = " IN "

    def __init__(self, column: str, keys: models.QuerySet[Any, Any], **extra: Any) -> None:
        super().__init__(F(column), _Keys(keys), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return `column = ANY(ARRAY(SELECT ...))`."""
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **context)


#: The name of a published value, backwards: what is behind the last "/" of its location and before "~v", see
#: `value_name`. Backwards, because every database finds the first of something.
_BACKWARDS: Final = Reverse(F("location"), output_field=models.TextField())
_VERSION: Final = Value("v~", output_field=models.TextField())
_NAME_BACKWARDS: Final = Substr(
    Left(_BACKWARDS, StrIndex(Concat(_BACKWARDS, Value("/")), Value("/")) - 1), StrIndex(_BACKWARDS, _VERSION) + 2
)


class EntryQuerySet(models.QuerySet["Entry"]):
    """Entries."""

    def with_metadata_of(self, *run_ids: str) -> Self:
        """Return the runs' entries, for a query that reads their metadata too."""
        return self.filter(run__in=run_ids).with_metadata()

    def with_metadata(self) -> Self:
        """Return these entries, for a query that reads their metadata too. Filter before or after it."""
        return join_by_lookup(self.filter(metadata__isnull=False), EntryMetadata)

    def published(self, run_id: str, name: str = "") -> Self:
        """Return the run's published values, or those of a name, in the order in which they were published."""
        found = self.filter(run=run_id, kind=EntryKind.PUBLISH.value).order_by("ordinal")
        return found.alias(backwards=_NAME_BACKWARDS).filter(backwards=pack(escape(name))[::-1]) if name else found

    def newest_published(self, run_id: str) -> list[int]:
        """Return the ordinal of the newest published value of each name, in the order of their first; one query.

        The database reads the rows of all values, and returns one for each name.
        """
        found = self.published(run_id).order_by().values(backwards=_NAME_BACKWARDS)
        newest = found.annotate(first=Min("ordinal"), newest=Max("ordinal")).order_by("first")
        return list(newest.values_list("newest", flat=True))

    def if_at_most(self, most: int, run_id: str) -> Self:
        """Return these entries if the run has at most `most`, else none; the same statement finds that out.

        It looks along the index. EXISTS would lose the order, and may then read the whole table.
        """
        of_run = Entry.objects.using(self.db).filter(run=run_id).order_by("location")
        beyond = Subquery(of_run.values("pk")[most : most + 1])
        return self.alias(beyond=beyond).filter(beyond__isnull=True)

    def few_of(self, run_id: str, condition: Q) -> Self:
        """Return the entries of a run whose metadata meets a condition that few meet. The condition names columns
        without a prefix.

        In a long history that takes a quarter of the time of a filter behind `with_metadata_of`. The keys are an array:
        a join would read them once for each entry of a run that has grown since the last ANALYZE.
        """
        metadata = EntryMetadata.objects.using(self.db).of_runs(run_id)
        return self.filter(KeyIn("pk", metadata.filter(condition).order_by().values("pk")), run=run_id)


class Entry(Row):
    """The record of one operation of a run: its location, its kind and its result.

    `ordinal` is the order of creation within the run. `output` and `arguments` are codec text, `data` the engine's own.
    `EntryMetadata` has what changes while the operation is under way.
    """

    # without an index of its own: the index of the constraint begins with the run
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="entries", db_index=False)
    location = NameField[str, str](max_length=1024)
    kind = NameField[str, str](max_length=24, choices=choices(EntryKind))
    ordinal = models.BigIntegerField()
    output = SafeTextField[str | None, str | None](null=True, blank=True)
    arguments = SafeTextField[str | None, str | None](null=True, blank=True)
    data = JSONTextField[dict[str, Any], dict[str, Any]](default=dict, blank=True)

    objects = EntryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "entries"
        indexes = [
            models.Index(
                fields=["run", "ordinal"],
                condition=Q(kind=EntryKind.PUBLISH.value),
                name="durable_entry_published",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "location"], name="durable_entry_once_per_location"),
            models.CheckConstraint(
                condition=Q(kind__in=[kind.value for kind in EntryKind]), name="durable_entry_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return self.location


class EntryMetadataQuerySet(models.QuerySet["EntryMetadata"]):
    """Metadata of entries."""

    def of_runs(self, *run_ids: str) -> Self:
        """Return the metadata of the runs' entries; at least one run."""
        keys = Entry.objects.using(self.db).filter(run__in=run_ids).order_by().values("id")
        return self.filter(KeyIn("entry", keys))


class EntryMetadata(Row):
    """The progress of an entry: its attempts, its times, its error, and its compensation.

    `finished_ordinal` is the order of completion within the run; steps are compensated in reverse order of it.
    """

    entry = models.OneToOneField(Entry, on_delete=models.CASCADE, primary_key=True, related_name="metadata")
    status = NameField[str, str](max_length=16, choices=choices(EntryStatus), default=EntryStatus.PENDING.value)
    attempts = models.IntegerField(default=0)
    error = ErrorField[ErrorInfo | None, ErrorInfo | None](null=True, blank=True)
    created_at = models.DateTimeField()
    last_attempt_at = models.DateTimeField(null=True, blank=True)
    next_attempt_at = MomentField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    finished_ordinal = models.BigIntegerField(null=True, blank=True)
    rollback_completed_at = models.DateTimeField(null=True, blank=True)
    rollback_error = ErrorField[ErrorInfo | None, ErrorInfo | None](null=True, blank=True)

    objects = EntryMetadataQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "entry metadata"
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=[status.value for status in EntryStatus]),
                name="durable_metadata_status_is_known",
            ),
            models.CheckConstraint(condition=Q(attempts__gte=0), name="durable_metadata_attempts_from_zero"),
        ]

    def __str__(self) -> str:
        return self.status


class Attempt(Row):
    """A failed attempt of a step.

    It is deleted with the step's entry; the step's newest error is also in its metadata.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    location = NameField[str, str](max_length=1024)
    number = models.IntegerField()
    worker = SafeTextField[str, str](default="", blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    error = ErrorField[ErrorInfo, ErrorInfo]()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["run", "location"], name="durable_attempt_of_entry")]
        constraints = [models.CheckConstraint(condition=Q(number__gte=0), name="durable_attempt_number_from_zero")]

    def __str__(self) -> str:
        return f"{self.location} #{self.number}"


class HistoryCount(Row):
    """The counts of one long history, so that no page has to count it (`durable.inspection.history_counts`).

    `noted_at` is when a worker last ended a pass of the run, None once its history is counted. `counts`, JSON text, is
    valid while the run has the state, fence, `change_seq` and `created_at` in `counted_as`.
    """

    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="history_count", db_constraint=False
    )
    noted_at = models.DateTimeField(null=True, blank=True)
    counted_as = NameField[str, str](max_length=100, default="", blank=True)
    counts = SafeTextField[str, str](default="", blank=True)

    #: What `counts` has as its format; others are not read.
    FORMAT: ClassVar = 3

    class Meta:
        indexes = [
            models.Index(fields=["noted_at"], condition=Q(noted_at__isnull=False), name="durable_historycount_noted")
        ]

    def counts_of(self, run: Run | RunRecord) -> Mapping[str, Any]:
        """Return the counts by their names if they are of the run's present state and of this format, else {}."""
        if self.counted_as != self.state_of(run) or self._loaded["format"] != self.FORMAT:
            return {}
        return self._loaded

    @cached_property
    def _loaded(self) -> Mapping[str, Any]:
        loaded: Mapping[str, Any] = load_json(self.counts)
        return loaded

    @staticmethod
    def state_of(run: Run | RunRecord) -> str:
        """Return the text of `counted_as` for the run's present state."""
        return f"{run.state} {run.fence} {run.change_seq} {run.created_at.isoformat()}"


class StepSave(Row):
    """The newest save of the attempts of one step (`durable.core.records.SavedDetails`); `details` is codec text.

    The commit of the completed step deletes it.
    """

    # no constraint in the database: a worker writes without locking the run, and the row of a deleted run is left over
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="saves", db_index=False, db_constraint=False)
    location = NameField[str, str](max_length=1024)
    generation = models.IntegerField(default=0)
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    number = models.BigIntegerField()
    details = SafeTextField[str, str]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "location"], name="durable_stepsave_once_per_location")]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"


class RunStatus(Row):
    """The newest status of a run (`durable.core.records.StatusRecord`). A run that has set none has no row.

    The table's pages keep room for the next version of a row, which is written often and never indexed.
    """

    # no constraint in the database: a worker writes without locking the run, and the row of a deleted run is left over
    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="shown", db_constraint=False
    )
    fence = models.BigIntegerField()
    number = models.BigIntegerField()
    text = SafeTextField[str, str]()
    done = models.FloatField(null=True, blank=True)
    of = models.FloatField(null=True, blank=True)
    eta = MomentField(null=True, blank=True)
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "run statuses"

    def __str__(self) -> str:
        return f"{self.run_id}: {self.text}"

    @property
    def status(self) -> Status:
        """The status for its readers."""
        return Status(text=self.text, done=whole(self.done), of=whole(self.of), eta=self.eta, at=self.at)
