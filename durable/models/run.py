"""The run: one execution of a workflow.

Owns the named queries about runs, and the updates that claim, renew and release them. Each update names its conditions
and returns how many rows it changed; no update reads before it writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Final, Protocol, Self, cast

from django.db import models
from django.db.models import Case, Exists, F, FilteredRelation, OuterRef, Q, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from durable.core import clock
from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, Request, RunState
from durable.core.tags import TagValue
from durable.core.transitions import TRANSITIONS
from durable.core.witnesses import FIRST
from durable.models.rows import (
    ErrorField,
    JSONTextField,
    MomentField,
    NameField,
    Row,
    SafeTextField,
    SummaryField,
    choices,
)
from durable.tag_hashes import sought

#: The columns of `tagged` runs, and of runs `about` something, that copy their key by creation; the index has them.
TAG_KEY: Final = ("tag_created_at", "tag_run_id")
#: The same in rows of tags and of subjects.
KEY_OF_ROW: Final = ("created_at", "run_id")

_ENDED = sorted(ENDED)


_OLDEST_ENDED: Final = """
WITH RECURSIVE oldest(id) AS (
  SELECT (SELECT id FROM "durable_run" WHERE state = %s AND finished_at IS NOT NULL
    ORDER BY workflow, finished_at, id LIMIT 1)
  UNION ALL
  SELECT (SELECT id FROM "durable_run" WHERE state = %s AND finished_at IS NOT NULL AND workflow > run.workflow
    ORDER BY workflow, finished_at, id LIMIT 1)
  FROM oldest JOIN "durable_run" AS run ON run.id = oldest.id
)
SELECT run.id, run.workflow, run.finished_at FROM oldest JOIN "durable_run" AS run ON run.id = oldest.id
"""


class Named(Protocol):
    """An object with a workflow's name."""

    @property
    def name(self) -> str:
        """The name under which its runs are recorded."""


def _led(transition: str) -> Case:
    """Return the state to which the transition leads a row."""
    others = {start: end for start, end in TRANSITIONS[transition].items() if start != end}
    whens = (When(state=start, then=Value(end.value)) for start, end in others.items())
    return Case(*whens, default=F("state"), output_field=models.CharField())


def _name_of_join(name: str, stored: Sequence[str]) -> str:
    """Return the name of the join with a tag or a subject: each has another, so that a queryset may have several."""
    text = "\0".join([name, *stored]).encode(errors="surrogatepass")
    return f"tag_{hashlib.sha256(text).hexdigest()[:16]}"


def _among(keys: Mapping[str, Sequence[str]], prefix: str = "") -> Q:
    """Return the condition for rows of subjects that are one of these instances: keys by the labels of models."""
    parts = [Q(**{f"{prefix}model": model, f"{prefix}object_pk__among": each}) for model, each in keys.items()]
    return reduce(or_, parts)


def _is_tagged(runs: models.QuerySet[Run]) -> bool:
    return TAG_KEY[0] in runs.query.annotations


def _keys(runs: models.QuerySet[Run]) -> models.QuerySet[Run, Any]:
    return (runs if runs.query.is_sliced else runs.order_by()).values("pk")


class RunQuerySet(models.QuerySet["Run"]):
    """Runs. The filters down to `due` are public; the methods after it are for the stores."""

    def newest_first(self) -> Self:
        """Return the runs in the order of lists."""
        return self.order_by("-created_at", "-id")

    def in_state(self, *states: str) -> Self:
        """Return the runs in one of these states: `in_state("sleeping", "paused")`.

        Raises ValueError for an unknown state.
        """
        return self.filter(state__in=[RunState(each).value for each in states])

    def open(self) -> Self:
        """Return the runs that have not ended."""
        return self.exclude(state__in=[state.value for state in ENDED])

    def ended(self) -> Self:
        """Return the runs that are completed, failed or cancelled."""
        return self.filter(state__in=[state.value for state in ENDED])

    def completed(self) -> Self:
        """Return the runs whose workflow has returned."""
        return self.in_state(RunState.COMPLETED)

    def failed(self) -> Self:
        """Return the runs that have failed."""
        return self.in_state(RunState.FAILED)

    def cancelled(self) -> Self:
        """Return the runs that were cancelled."""
        return self.in_state(RunState.CANCELLED)

    def of_workflow(self, *workflows: str | Named) -> Self:
        """Return the runs of these workflows, given as workflow objects or by name."""
        return self.filter(workflow__in=[each if isinstance(each, str) else each.name for each in workflows])

    def tagged(self, /, **tags: TagValue) -> Self:
        """Return the runs that have all of these tags, newest first: `tagged(tenant="acme", order=42)`.

        Reads a range of the index over tags, in its order: a page is as fast among many runs as among few, unless it is
        sorted differently. Raises TypeError without a tag and for a value of another type, and ValueError for an
        invalid name or value.
        """
        if not tags:
            raise TypeError('tagged() takes at least one tag: tagged(tenant="acme")')
        found = self
        for name, value in reversed(tags.items()):
            stored = sought(name, value)
            is_it = Q(tags__name=name) & (Q(tags__value=stored[0]) if len(stored) == 1 else Q(tags__value__in=stored))
            found = found._along("tags", is_it, _name_of_join(name, stored))
        return found.order_by(*(f"-{column}" for column in TAG_KEY))

    def about(self, what: models.Model | Iterable[models.Model], /) -> Self:
        """Return the runs about a model's instance, or about any of several, newest first: `about(order)`.

        Of one instance it reads a range of the index over subjects, in its order, as `tagged` does. Several, which may
        be a queryset, are read first, for their primary keys; the instances may be in another database than the runs.
        Raises TypeError for anything else, and ValueError for an instance that is not saved.
        """
        from durable.models.subjects import subjects_of  # few processes need it

        subjects = subjects_of(what)
        if len(subjects) == 1:
            return self.about_key(subjects[0].model, subjects[0].key)
        if not subjects:
            return self.none()
        keys: dict[str, list[str]] = {}
        for each in subjects:
            keys.setdefault(each.model, []).append(each.key)
        join = _name_of_join("", list(map(str, subjects)))
        found = self._along("subjects", _among(keys, "subjects__"), join).alias(**{f"{join}_row": F(f"{join}__id")})
        rows = cast(Any, self.model._meta.get_field("subjects").related_model)._default_manager
        # a run about several of them has several rows, of which the first one counts
        earlier = rows.filter(_among(keys), run=OuterRef("pk"), pk__lt=OuterRef(f"{join}_row"))
        return found.filter(~Exists(earlier)).order_by(*(f"-{column}" for column in TAG_KEY))

    def about_key(self, model: str, key: str) -> Self:
        """Return the runs about the instance of the model with this label, "shop.order", by its key, newest first."""
        is_it = Q(subjects__model=model, subjects__object_pk=key)
        found = self._along("subjects", is_it, _name_of_join(model, [key]))
        return found.order_by(*(f"-{column}" for column in TAG_KEY))

    def _along(self, relation: str, is_it: Q, join: str) -> Self:
        """Return the runs that have such a row in a side table, with the key of its index as an alias."""
        key = {column: F(f"{join}__{of_row}") for column, of_row in zip(TAG_KEY, KEY_OF_ROW, strict=True)}
        with_row = self.alias(**{join: FilteredRelation(relation, condition=is_it)})
        return with_row.filter(**{f"{join}__isnull": False}).alias(**key)

    # Django's own operators cannot combine the joins of two querysets with tags or subjects.

    def __and__(self, other: models.QuerySet[Run]) -> Self:
        if _is_tagged(self):
            return self.filter(pk__in=_keys(other))
        return super().__and__(self._every().filter(pk__in=_keys(other)) if _is_tagged(other) else other)

    def __or__(self, other: models.QuerySet[Run]) -> Self:
        """Return the runs in either queryset; newest first if one has tags."""
        if not (_is_tagged(self) or _is_tagged(other)):
            return super().__or__(other)
        return self._every().filter(Q(pk__in=_keys(self)) | Q(pk__in=_keys(other))).newest_first()

    def __xor__(self, other: models.QuerySet[Run]) -> Self:
        """Return the runs in only one of the querysets; newest first if one has tags."""
        if not (_is_tagged(self) or _is_tagged(other)):
            return super().__xor__(other)
        return self._every().filter(Q(pk__in=_keys(self)) ^ Q(pk__in=_keys(other))).newest_first()

    def _every(self) -> Self:
        return type(self)(self.model, using=cast(Any, self)._db)  # not `db`, which the router chooses for reading

    def ended_in(self, state: str) -> Self:
        """Return the runs that ended in this state; written so that the index over ended runs serves it."""
        return self.filter(state=state, finished_at__isnull=False)

    def ended_before(self, state: str, workflow: str, moment: datetime) -> Self:
        return self.ended_in(state).filter(workflow=workflow, finished_at__lt=moment)

    def oldest_ended(self, state: str) -> models.query.RawQuerySet[Run]:
        """Return, of each workflow, the run that was the first of those left to end in this state; only three columns.

        One statement, which looks up where the runs of the next workflow begin in the index over ended runs.
        """
        return self.raw(_OLDEST_ENDED, [state, state])

    def unheld(self, now: datetime) -> Self:
        return self.filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now))

    def due(self, now: datetime | None = None) -> Self:
        """Return the runs that a worker may claim now, or at the moment `now`. An ended run has no `wake_at`."""
        now = now or clock.now()
        return self.unheld(now).exclude(state=RunState.PAUSED.value).filter(wake_at__isnull=False, wake_at__lte=now)

    def with_side_rows(self) -> Self:
        """Return the runs with the rows of side tables that describe a run's state, for pages about one run."""
        return self.select_related("limit", "key", "cascade", "history_count", "shown")

    def due_since(self, moment: datetime, run_id: str) -> Self:
        """Return the runs from this point of the order of due runs on."""
        return self.filter(Q(wake_at__gt=moment) | Q(wake_at=moment, id__gte=run_id))

    def held_with(self, run_id: str, fence: int) -> Self:
        """Return the run, if this fence may still write it."""
        return self.filter(id=run_id, fence=fence)

    def waking_after(self, moment: datetime, queues: Sequence[str]) -> Self:
        return self.filter(queue__in=queues, wake_at__gt=moment).exclude(state=RunState.PAUSED.value)

    def lock_table(self) -> None:
        """Take the write lock of a database that has no row locks, by a write that changes nothing."""
        self.filter(id="").update(fence=F("fence"))

    def claim(self, *, now: datetime, lease_until: datetime, worker: str, drawn: int) -> int:
        """Claim the rows for a worker: a new fence, a lease, and one more crash if a lease expired."""
        return self.update(
            fence=F("fence") + Case(When(fence=0, then=Value(FIRST)), default=Value(2 * FIRST)) + drawn,
            crashes=F("crashes") + Case(When(lease_expires_at__isnull=True, then=Value(0)), default=Value(1)),
            lease_expires_at=lease_until,
            worker=worker,
            started_at=Coalesce(F("started_at"), Value(now, output_field=models.DateTimeField())),
            state=_led("claimed"),
            wake_at=Case(
                When(wake_at__lte=now, then=F("wake_at")), default=Value(now), output_field=models.DateTimeField()
            ),
            start_tag=None,
        )

    def renew(self, lease_until: datetime) -> int:
        """Extend the leases. A run that was released meanwhile stays released."""
        return self.filter(lease_expires_at__isnull=False).update(lease_expires_at=lease_until)

    def release(self, now: datetime, *, due_at: datetime | None = None) -> int:
        """Undo `claim` for runs that were not begun: no lease, due now or at `due_at`, the crashes unchanged."""
        now_or_before = Case(
            When(wake_at__lte=now, then=F("wake_at")), default=Value(now), output_field=models.DateTimeField()
        )
        return self.filter(lease_expires_at__isnull=False).update(
            lease_expires_at=None,
            worker="",
            state=_led("released"),
            wake_at=now_or_before if due_at is None else due_at,
        )

    def with_ids(self, ids: Sequence[str]) -> Self:
        """Return the runs with these ids, in the order in which rows of runs are locked: the youngest first.

        So a child, which is younger than its parent, is locked before it, as the end of a child does.
        """
        return self.filter(id__in=ids).order_by("-created_at", "id")


class Run(Row):
    """One execution of a workflow, identified by an id that the caller may choose.

    The row has the run's state and says which worker may change it. The run is due when `wake_at` has come and there is
    no live lease (`lease_expires_at`). Each claim raises `fence`, and only the worker with the newest fence may write.
    Everything that is done to the run from outside raises `change_seq`, so that a pass which is about to park learns of
    it. `message_count` counts the messages ever sent to the run. The columns are those of
    `durable.core.records.RunRecord`, and the two of a rank.
    """

    id = NameField[str, str]("id", primary_key=True, max_length=200)
    workflow = NameField[str, str](max_length=200)
    queue = NameField[str, str](max_length=200)
    state = NameField[str, str](max_length=16, choices=choices(RunState), default=RunState.PENDING.value)
    input = SafeTextField[str, str]()
    output = SafeTextField[str | None, str | None](null=True, blank=True)
    error = ErrorField[ErrorInfo | None, ErrorInfo | None](null=True, blank=True)
    origins = JSONTextField[list[str], list[str]](default=list, blank=True)

    wake_at = MomentField(null=True, blank=True)
    waiting_for = SafeTextField[str, str](default="", blank=True)
    summary = SummaryField[str, str](default="", blank=True)

    fence = models.BigIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    worker = SafeTextField[str, str](default="", blank=True)
    crashes = models.IntegerField(default=0)
    change_seq = models.BigIntegerField(default=0)
    message_count = models.BigIntegerField(default=0)

    pending_request = NameField[str, str](
        max_length=16, choices=choices(Request), default=Request.NONE.value, blank=True
    )
    request_reason = SafeTextField[str, str](default="", blank=True)
    state_after_rollback = NameField[str, str](max_length=16, default="", blank=True)
    diverged_at = models.DateTimeField(null=True, blank=True)

    generations = JSONTextField[dict[str, int], dict[str, int]](default=dict, blank=True)

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    parent = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children", db_index=False
    )
    replay_of = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="replays", db_index=False
    )
    seed = NameField[str, str](max_length=200, default="", db_default="", blank=True)
    began_at = models.DateTimeField(null=True, blank=True)
    carried = SafeTextField[str | None, str | None](null=True, blank=True)
    # of a run with a priority or a share (`durable.core.limits.ranks`); claims read them, and no RunRecord has them
    head_start = models.IntegerField(null=True, blank=True)
    start_tag = MomentField(null=True, blank=True)

    #: A manager with the methods of the queryset, typed so that type checkers without Django's plugin know them.
    objects: ClassVar[RunQuerySet] = cast("Any", RunQuerySet.as_manager())

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        permissions = [
            ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
            ("start_run", "Can start runs"),
            ("operate_run", "Can send to, wake, move, pause, resume, cancel and recover runs, and abandon attempts"),
            ("replay_run", "Can replay runs"),
            ("give_output", "Can give the output of a step by hand"),
            ("settle_step", "Can settle steps that wait for a person"),
            ("edit_input", "Can start runs again with another input"),
            ("pause_queue", "Can pause and resume queues"),
            ("hold_workflow", "Can hold and release the new starts of workflows"),
            ("view_source", "Can view the source code of workflows"),
        ]
        indexes = [
            # due runs, in the order in which they are claimed; a paused run is never due
            models.Index(
                fields=["queue", "wake_at", "id"],
                condition=Q(wake_at__isnull=False) & ~Q(state=RunState.PAUSED.value),
                name="durable_run_due",
            ),
            # the same for runs with a priority or a share: by head start, tagged ones first, by tag, others by
            # `wake_at`
            models.Index(
                fields=["queue", "head_start", "start_tag", "wake_at", "id"],
                condition=Q(head_start__isnull=False, wake_at__isnull=False) & ~Q(state=RunState.PAUSED.value),
                name="durable_run_ranked",
            ),
            models.Index(
                fields=["lease_expires_at"], condition=Q(lease_expires_at__isnull=False), name="durable_run_leased"
            ),
            # lists, newest first, paged by key
            models.Index(fields=["created_at", "id"], name="durable_run_newest"),
            models.Index(fields=["state", "created_at", "id"], name="durable_run_by_state"),
            models.Index(fields=["workflow", "created_at", "id"], name="durable_run_by_workflow"),
            # ended runs, the oldest of each kind first, for retention; a run enters it once, at its end
            models.Index(
                fields=["state", "workflow", "finished_at", "id"],
                condition=Q(finished_at__isnull=False),
                name="durable_run_ended",
            ),
            # ended runs by time, for throughput; a run enters it once as well
            models.Index(fields=["finished_at"], condition=Q(finished_at__isnull=False), name="durable_run_finished"),
            # diverged runs: hardly ever any
            models.Index(fields=["diverged_at"], condition=Q(diverged_at__isnull=False), name="durable_run_diverged"),
            models.Index(fields=["parent"], condition=Q(parent__isnull=False), name="durable_run_children"),
            models.Index(fields=["replay_of"], condition=Q(replay_of__isnull=False), name="durable_run_replays"),
        ]
        constraints = [
            models.CheckConstraint(condition=~Q(id=""), name="durable_run_has_an_id"),
            models.CheckConstraint(
                condition=Q(state__in=[state.value for state in RunState]), name="durable_run_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(pending_request__in=[request.value for request in Request]),
                name="durable_run_pending_request_is_known",
            ),
            models.CheckConstraint(
                condition=Q(state_after_rollback__in=["", *(state.value for state in _ENDED)]),
                name="durable_run_state_after_rollback_is_an_end",
            ),
            models.CheckConstraint(
                condition=Q(fence__gte=0, crashes__gte=0, change_seq__gte=0, message_count__gte=0),
                name="durable_run_counts_from_zero",
            ),
            # an ended run has `finished_at`, no `wake_at` and no lease
            models.CheckConstraint(
                condition=~Q(state__in=[state.value for state in _ENDED])
                | Q(finished_at__isnull=False, wake_at__isnull=True, lease_expires_at__isnull=True),
                name="durable_run_end_is_final",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[state.value for state in _ENDED]) | Q(finished_at__isnull=True),
                name="durable_run_finished_means_ended",
            ),
            models.CheckConstraint(
                condition=Q(parent__isnull=True) | ~Q(parent=F("id")), name="durable_run_is_not_its_own_parent"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"
