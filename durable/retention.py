"""Retention: how long ended runs are kept (`DURABLE["RETENTION"]`), and how expired ones are deleted.

What is deleted: runs with their entries, attempts, messages and failures, and old rows of the audit log, which has its
own retention time because it outlives its runs. The sweep decides when (`durable.worker.timer`), and operators
(`durable.operations.prune`).

A batch is one short transaction that waits for no lock: it locks the rows that it deletes and the rows that refer to
them, and skips rows that others have locked until the next time. So several processes may delete at once. A run that
was started or replayed from a pruned one stays, and its reference to that run is cleared.

Expired runs are at the front of an index range for each state and workflow, so that only deleted rows are read, however
many are kept. One statement for each state finds the oldest of all workflows. A batch takes the runs that have been
expired for longest, from as many ranges as it needs: its transaction costs as much for one run as for fifty.
"""

from __future__ import annotations

import difflib
import heapq
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import IntegrityError, connections, transaction
from django.db.models import Count, Exists, Model, OuterRef, ProtectedError, Q, QuerySet, RestrictedError

from durable.conf import conf
from durable.core.names.renames import names_of_workflow
from durable.core.numbers import is_number
from durable.core.records import ENDED, RunState
from durable.models import (
    Attempt,
    Cause,
    Child,
    ChildReader,
    Entry,
    EntryMetadata,
    Failure,
    OperatorAction,
    QueueMessage,
    RetentionProgress,
    Run,
    Turn,
)
from durable.models.renames import learn_names

STATES = tuple(sorted(str(state) for state in ENDED))
KEYS = (*STATES, "audit", "workflows")

Seconds = float | None  # None: kept for ever


class RetentionError(ValueError):
    """`DURABLE["RETENTION"]` is not valid. `hint` describes the valid forms."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The time for which ended runs are kept, in seconds since their end; None for forever.

    `states` has a time for each final state, `workflows` has the exceptions for workflows, and `audit` is the time for
    rows of the audit log.
    """

    states: Mapping[str, Seconds]
    workflows: Mapping[str, Mapping[str, Seconds]]
    audit: Seconds = None

    @classmethod
    def of(cls, given: object) -> Policy:
        """Parse `DURABLE["RETENTION"]`. Raises RetentionError.

        - None: everything is kept.
        - A duration (seconds or timedelta): for runs of every workflow and for the audit log.
        - A dict with durations or None for "completed", "failed", "cancelled" and "audit" (kept unless named), and with
          "workflows": by name a duration, None, or a dict by state, where a missing state has the general time.
        """
        if not isinstance(given, Mapping):
            kept = _seconds(given, "RETENTION")
            return cls(states=dict.fromkeys(STATES, kept), workflows={}, audit=kept)
        _check_keys(given, KEYS, "RETENTION")
        states = {state: _seconds(given.get(state), f"RETENTION, {state}") for state in STATES}
        workflows = given.get("workflows") or {}
        if not isinstance(workflows, Mapping):
            raise RetentionError(
                f"RETENTION, workflows, must be a dict by name, not {workflows!r}",
                'Write "workflows": {"shop.fulfil": {"completed": 86400}}.',
            )
        return cls(
            states=states,
            workflows={str(name): _of_workflow(name, each, states) for name, each in workflows.items()},
            audit=_seconds(given.get("audit"), "RETENTION, audit"),
        )

    @classmethod
    def older_than(cls, seconds: float, *, states: Sequence[str] = (), workflow: str | None = None) -> Policy:
        """Return a policy for runs that ended `seconds` ago.

        It covers the given states and workflow; without either, all runs and the audit log.
        """
        kept: dict[str, Seconds] = dict.fromkeys(STATES, None)
        times = {**kept, **dict.fromkeys(states or STATES, seconds)}
        if workflow is not None:
            return cls(states=kept, workflows={workflow: times})
        return cls(states=times, workflows={}, audit=None if states else seconds)

    def of_run(self, workflow: str, state: str) -> Seconds:
        """Return how long to keep a run of this workflow that ended in this state.

        An exception for one name of a renamed workflow applies to all of its names.
        """
        named = (workflow, *reversed(names_of_workflow(workflow)))
        return next((self.workflows[each] for each in named if each in self.workflows), self.states)[state]

    def is_bounded(self, state: str) -> bool:
        """Return whether any run that ended in this state is ever deleted."""
        return any(each[state] is not None for each in (self.states, *self.workflows.values()))

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever deleted."""
        return self.audit is None and not any(map(self.is_bounded, STATES))


def _of_workflow(name: object, given: object, states: Mapping[str, Seconds]) -> Mapping[str, Seconds]:
    where = f'RETENTION, workflow "{name}"'
    if not isinstance(given, Mapping):
        return dict.fromkeys(STATES, _seconds(given, where))
    _check_keys(given, STATES, where)
    return {**states, **{str(state): _seconds(each, f"{where}, {state}") for state, each in given.items()}}


def _check_keys(given: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            advice = f'Did you mean "{nearest[0]}"? ' if nearest else ""
            raise RetentionError(f"{where} has the unknown key {key!r}", f"{advice}It may have {', '.join(known)}.")


def _seconds(given: object, where: str) -> Seconds:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if seconds is None:
        return None
    if is_number(seconds) and seconds > 0:
        return float(seconds)
    raise RetentionError(
        f"{where} must be seconds above 0, a timedelta or None, not {given!r}",
        "Write timedelta(days=30) for a time, None for ever.",
    )


logger = logging.getLogger("durable.retention")

BATCH = 200  # the most runs that one transaction deletes
WEIGHT = 10_000  # the most entries that one transaction deletes, unless a single run has more
_NEW_CAUSE = timedelta(days=1)  # the time for which a cause without runs is kept
ACTIONS = 2_000  # the most rows of the audit log that one transaction deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The numbers of deleted rows, or of rows that would be deleted, by kind."""

    runs: int = 0
    entries: int = 0
    attempts: int = 0
    messages: int = 0
    actions: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


_Model = TypeVar("_Model", bound=Model)

#: The errors raised when the application's rows refer to a run and prevent its deletion.
_REFUSALS = (ProtectedError, RestrictedError, IntegrityError)


@dataclass(slots=True, order=True)
class _Range:
    """The runs of a workflow that ended in a state and have not been examined; the first expired at `expired_at`."""

    expired_at: datetime
    state: str
    workflow: str
    kept: timedelta
    last: tuple[datetime, str] | None = None  # the end and the id of the last examined run

    def runs(self, now: datetime, alias: str) -> QuerySet[Run]:
        """Return the expired ones, the oldest first; comparing rows as such allows the use of an index."""
        runs = Run.objects.using(alias).ended_before(self.state, self.workflow, now - self.kept)
        if self.last is not None:
            moment, run_id = self.last
            runs = runs.filter(finished_at__gte=moment).exclude(finished_at=moment, id__lte=run_id)
        return runs.order_by("finished_at", "id")


class Pruner:
    """Deletes the rows that `policy` no longer keeps, in the database `alias`.

    `reached`: runs that expired before this moment have been examined, None before the first. A run that stays, because
    something refers to it or locks it, has been examined.
    """

    def __init__(self, policy: Policy, alias: str) -> None:
        self.policy = policy
        self.alias = alias
        self.reached: datetime | None = None
        features = connections[alias].features
        self._has_row_locks = features.has_select_for_update
        self._skips_locked = features.has_select_for_update_skip_locked

    def batches(self, now: datetime) -> Iterator[Pruned]:
        """Delete the expired rows at `now`, one batch for each item. A protected run is skipped.

        Batches of runs, of causes and of the audit log come in turn, so that none waits for all of another.
        """
        kinds = deque([self._runs(now), self._causes(now), self._actions(now)])
        while kinds:
            kind = kinds.popleft()
            pruned = next(kind, None)
            if pruned is not None:
                kinds.append(kind)
                yield pruned

    def preview(self, now: datetime, most: int) -> Pruned:
        """Return how many runs and rows of the audit log would be deleted; counting stops at `most` of each."""
        runs = 0
        for each in self._expired(now):
            runs += each.runs(now, self.alias).values("id")[: most - runs].count()
        old = self._old_actions(now)
        return Pruned(runs=runs, actions=0 if old is None else old[:most].count())

    def delete(self, ids: Sequence[str], now: datetime) -> Iterator[Pruned]:
        """Delete those of these runs that the policy no longer keeps, one batch for each item.

        A run stays if something refers to it or locks it.
        """
        for start in range(0, len(ids), BATCH):
            for part in self._light(list(ids[start : start + BATCH])):
                yield self._deleted(part, now)

    # -- runs

    def _expired(self, now: datetime) -> list[_Range]:
        """Return the ranges with expired runs, one for each state and workflow: a heap, the longest expired first."""
        if self.policy.workflows:
            learn_names(self.alias)  # an exception may be for another name of a workflow
        ranges = []
        for state in filter(self.policy.is_bounded, STATES):
            for oldest in Run.objects.using(self.alias).oldest_ended(state):
                kept = self.policy.of_run(oldest.workflow, state)
                if kept is None or oldest.finished_at is None:
                    continue
                expired_at = oldest.finished_at + timedelta(seconds=kept)
                if expired_at < now:
                    ranges.append(_Range(expired_at, state, oldest.workflow, timedelta(seconds=kept)))
        heapq.heapify(ranges)
        return ranges

    def _runs(self, now: datetime) -> Iterator[Pruned]:
        ranges = self._expired(now)
        while ranges:
            self.reached = ranges[0].expired_at
            for ids in self._light(self._next(ranges, now)):
                yield self._deleted(ids, now)
        self.reached = now

    def _next(self, ranges: list[_Range], now: datetime) -> list[str]:
        """Take a batch of runs from the front of the ranges, so that those of small ones share a transaction."""
        ids: list[str] = []
        while ranges and len(ids) < BATCH:
            first, most = heapq.heappop(ranges), BATCH - len(ids)
            found = list(first.runs(now, self.alias).values_list("finished_at", "id")[:most])
            ids += [run_id for _, run_id in found]
            if len(found) == most:
                moment, run_id = found[-1]
                assert moment is not None
                first.expired_at, first.last = moment + first.kept, (moment, run_id)
                heapq.heappush(ranges, first)
        return ids

    def _light(self, ids: list[str]) -> Iterator[list[str]]:
        """Yield the runs in as many parts as their entries need, at least one run in each."""
        entries = Entry.objects.using(self.alias).filter(run_id__in=ids).order_by()
        weights = dict(entries.values_list("run_id").annotate(count=Count("pk")))
        part: list[str] = []
        total = 0
        for run_id in ids:
            total += weights.get(run_id, 0)
            if part and total > WEIGHT:
                yield part
                part, total = [], weights.get(run_id, 0)
            part.append(run_id)
        if part:
            yield part

    def _deleted(self, ids: list[str], now: datetime) -> Pruned:
        """Delete these runs. If one is protected, halve them until it is alone, so that it does not keep the others."""
        try:
            with self._transaction():
                return self._delete(self._let_go(self._still_expired(ids, now)))
        except _REFUSALS as error:
            if len(ids) == 1:
                text = 'run "%s" is past its time and stays, because something refers to it: %s'
                logger.warning(text, ids[0], error)
                return Pruned()
        middle = len(ids) // 2
        return self._deleted(ids[:middle], now) + self._deleted(ids[middle:], now)

    def _still_expired(self, ids: list[str], now: datetime) -> list[str]:
        """Lock the runs that nobody else has locked, and return those that have not been recovered meanwhile."""
        ended = self._locked(Run.objects.using(self.alias).filter(id__in=ids).ended().order_by("id"))
        found = ended.values_list("id", "workflow", "state", "finished_at")
        return [run_id for run_id, workflow, state, end in found if end and self._is_expired(workflow, state, end, now)]

    def _is_expired(self, workflow: str, state: str, finished_at: datetime, now: datetime) -> bool:
        kept = self.policy.of_run(workflow, state)
        return kept is not None and finished_at + timedelta(seconds=kept) < now

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            if not self._has_row_locks:  # a transaction that reads first could no longer write beside another writer
                Run.objects.using(self.alias).lock_table()
            yield

    def _locked(self, rows: QuerySet[_Model]) -> QuerySet[_Model]:
        return rows.select_for_update(skip_locked=self._skips_locked)

    def _let_go(self, ids: list[str]) -> list[str]:
        """Clear the references to these runs in other runs. Return the ids for which all references could be locked.

        A child stays too while its parent, or a replay of that, may still read its output: until that run has ended and
        cannot be recovered. A parent stays while children of a group of its own, which go on after its end, wait for
        their turns: the group gives them.
        """
        children = Child.objects.using(self.alias).filter(_may_read("parent"), run_id__in=ids)
        readers = ChildReader.objects.using(self.alias).filter(_may_read("run"), child_id__in=ids)
        turns = Turn.objects.using(self.alias).filter(group__parent_id__in=ids)
        awaited = {
            *children.values_list("run_id", flat=True),
            *readers.values_list("child_id", flat=True),
            *turns.values_list("group__parent_id", flat=True).distinct(),
        }
        ids = [each for each in ids if each not in awaited]
        runs = Run.objects.using(self.alias)
        for field in ("parent_id", "replay_of_id"):
            referring = runs.filter(**{f"{field}__in": ids})
            free = list(self._locked(referring.order_by("id")).values_list("id", flat=True))
            if free:
                runs.filter(id__in=free).update(**{field: None})
            held = set(referring.values_list(field, flat=True))
            ids = [each for each in ids if each not in held]
        return ids

    def _delete(self, ids: list[str]) -> Pruned:
        if not ids:
            return Pruned()
        entries = Entry.objects.using(self.alias).filter(run_id__in=ids)
        EntryMetadata.objects.using(self.alias).of_runs(*ids).delete()
        # not delete(): it would fetch each entry to look for its metadata, which is deleted already
        gone = entries._raw_delete(self.alias)
        attempts, _ = Attempt.objects.using(self.alias).filter(run_id__in=ids).delete()
        messages, _ = QueueMessage.objects.using(self.alias).filter(run_id__in=ids).delete()
        # through Django, which handles failures and the application's models that refer to runs
        _, by_model = Run.objects.using(self.alias).filter(id__in=ids).only("id").delete()
        runs = by_model.get(Run._meta.label, 0)
        return Pruned(runs=runs, entries=gone, attempts=attempts, messages=messages)

    # -- causes

    def _causes(self, now: datetime) -> Iterator[Pruned]:
        """Delete causes that no run has any more, except muted ones, in transactions of their own."""
        causes = Cause.objects.using(self.alias)
        without = ~Exists(Failure.objects.using(self.alias).filter(cause=OuterRef("pk")))
        idle = causes.filter(without, muted_at__isnull=True, first_seen_at__lt=now - _NEW_CAUSE).order_by("pk")
        while True:
            with self._transaction():
                locked = list(self._locked(idle).values_list("pk", flat=True)[:BATCH])
                # A run may have got one of them before it was locked, so that it is looked at again.
                deleted, _ = idle.filter(pk__in=locked).delete()
            if deleted < BATCH:
                return
            yield Pruned()

    # -- the audit log

    def _old_actions(self, now: datetime) -> QuerySet[OperatorAction] | None:
        if self.policy.audit is None:
            return None
        before = now - timedelta(seconds=self.policy.audit)
        return OperatorAction.objects.using(self.alias).filter(created_at__lt=before).order_by("created_at", "id")

    def _actions(self, now: datetime) -> Iterator[Pruned]:
        old = self._old_actions(now)
        while old is not None:
            with self._transaction():
                ids = list(self._locked(old).values_list("pk", flat=True)[:ACTIONS])
                gone, _ = OperatorAction.objects.using(self.alias).filter(pk__in=ids).delete()
            if not ids:
                return
            yield Pruned(actions=gone)


_ONLY = 1  # the key of the row with the progress
#: Seconds for which expired runs may wait until this needs attention: a round begins each minute.
LATE = 3600.0


def note_progress(until: datetime) -> None:
    """Write that runs that expired before this moment have been examined, by the setting."""
    RetentionProgress.objects.using(conf.DATABASE).update_or_create(pk=_ONLY, defaults={"until": until})


def waiting_since(alias: str | None = None) -> datetime | None:
    """Return since when expired runs wait to be deleted, in the worst case; none that may go expired before.

    `alias` names the database to read, if not durable's own.

    None if the setting keeps every run or cannot be read, and before the first round.
    """
    try:
        policy = Policy.of(conf.RETENTION)
    except RetentionError:
        return None
    if not any(map(policy.is_bounded, STATES)):
        return None
    return RetentionProgress.objects.using(alias or conf.DATABASE).values_list("until", flat=True).first()


def _may_read(run: str) -> Q:
    """Return the condition that the run in this column has not ended, or has failed."""
    return Q(**{f"{run}__finished_at__isnull": True}) | Q(**{f"{run}__state": RunState.FAILED.value})
