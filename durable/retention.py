"""Retention: how long ended runs are kept (`DURABLE["RETENTION"]`), and how expired ones are deleted.

What is deleted: runs with their entries, attempts, messages and failures, and old rows of the audit log, which has its
own retention time because it outlives its runs. The sweep decides when (`durable.worker.timer`), and operators
(`durable.operations.prune`).

A batch is one short transaction that waits for no lock: it locks the rows that it deletes and the rows that refer to
them, and skips rows that others have locked until the next time. A run that was started or replayed from a pruned one
stays, and its reference to that run is cleared. Expired runs are at the front of an index range for each state and
workflow, so that only deleted rows are read, however many are kept.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import Count, Exists, OuterRef, ProtectedError, Q, QuerySet, RestrictedError

from durable.core.names.renames import names_of_workflow
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
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
        return float(seconds)
    raise RetentionError(
        f"{where} must be seconds above 0, a timedelta or None, not {given!r}",
        "Write timedelta(days=30) for a time, None for ever.",
    )


logger = logging.getLogger("durable.retention")

BATCH = 200  # the most runs that one transaction deletes
WEIGHT = 10_000  # the most entries that one transaction deletes, unless a single run has more
_NEW_CAUSE = timedelta(days=1)  # seconds for which a cause without runs is kept
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


Key = tuple[datetime, str]

#: The errors raised when the application's rows refer to a run and prevent its deletion.
_REFUSALS = (ProtectedError, RestrictedError, IntegrityError)


class Pruner:
    """Deletes the rows that `policy` no longer keeps, in the database `alias`."""

    def __init__(self, policy: Policy, alias: str) -> None:
        self.policy = policy
        self.alias = alias
        features = connections[alias].features
        self._has_row_locks = features.has_select_for_update
        self._skips_locked = features.has_select_for_update_skip_locked

    def batches(self, now: datetime) -> Iterator[Pruned]:
        """Delete the expired rows at `now`, one batch for each item. A protected run is skipped."""
        for ended in self._ended(now):
            yield from self._runs(ended)
        yield from self._causes(now)
        yield from self._actions(now)

    def preview(self, now: datetime, most: int) -> Pruned:
        """Return how many runs and rows of the audit log would be deleted; counting stops at `most` of each."""
        runs = 0
        for ended in self._ended(now):
            # In the order of the index that finds them, which is not the order of lists.
            runs += ended.order_by("finished_at", "id").values("id")[: most - runs].count()
        old = self._old_actions(now)
        return Pruned(runs=runs, actions=0 if old is None else old[:most].count())

    # -- runs

    def _ended(self, now: datetime) -> Iterator[QuerySet[Run]]:
        """Yield the expired runs: for each state and workflow the oldest first."""
        runs = Run.objects.using(self.alias)
        for state in filter(self.policy.is_bounded, STATES):
            workflow = ""
            while True:  # from one workflow to the next along the index, past any number of runs
                later = runs.ended_in(state).filter(workflow__gt=workflow).order_by("workflow")
                found = later.values_list("workflow", flat=True).first()
                if found is None:
                    break
                workflow = found
                if self.policy.workflows and workflow not in self.policy.workflows:
                    learn_names(self.alias)  # the exception may be for another name of it
                if (kept := self.policy.of_run(workflow, state)) is not None:
                    yield runs.ended_before(state, workflow, now - timedelta(seconds=kept))

    def _runs(self, ended: QuerySet[Run]) -> Iterator[Pruned]:
        last: Key | None = None
        while True:
            try:
                pruned, last = self._batch(ended, last, BATCH)
            except _REFUSALS:
                pruned, last = self._one_by_one(ended, last)
            if last is None:
                return
            yield pruned

    def _one_by_one(self, ended: QuerySet[Run], last: Key | None) -> tuple[Pruned, Key | None]:
        """Delete a batch in transactions of one run each, so that a protected run does not keep the others."""
        total, seen = Pruned(), None
        for finished_at, run_id in _after(ended, last).values_list("finished_at", "id")[:BATCH]:
            assert finished_at is not None
            seen = (finished_at, run_id)
            try:
                total += self._batch(ended.filter(id=run_id), None, 1)[0]
            except _REFUSALS as error:
                logger.warning('run "%s" is past its time and stays, because something refers to it: %s', run_id, error)
        return total, seen

    def _batch(self, ended: QuerySet[Run], last: Key | None, size: int) -> tuple[Pruned, Key | None]:
        """Delete up to `size` runs after `last`; return the counts, and the last examined run, None past the end."""
        with transaction.atomic(using=self.alias):
            if not self._has_row_locks:  # a transaction that reads first could no longer write beside another writer
                Run.objects.using(self.alias).lock_table()
            rows = self._locked(_after(ended, last)).values_list("finished_at", "id")[:size]
            found = self._light([(moment, run_id) for moment, run_id in rows if moment is not None])
            if not found:
                return Pruned(), None
            ids = self._let_go([run_id for _, run_id in found])
            return self._delete(ids), found[-1]

    def _locked(self, runs: QuerySet[Run]) -> QuerySet[Run]:
        return runs.select_for_update(skip_locked=self._skips_locked)

    def _light(self, found: list[Key]) -> list[Key]:
        """Return the first runs, as many as one transaction may delete; at least one."""
        counts = (
            Entry.objects.using(self.alias)
            .filter(run_id__in=[run_id for _, run_id in found])
            .values_list("run_id")
            .annotate(count=Count("pk"))
            .order_by()
        )
        weights = dict(counts)
        total = 0
        for number, (_, run_id) in enumerate(found):
            total += weights.get(run_id, 0)
            if total > WEIGHT and number:
                return found[:number]
        return found

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
            with transaction.atomic(using=self.alias):
                if not self._has_row_locks:
                    Run.objects.using(self.alias).lock_table()
                chosen = idle[:BATCH].values_list("pk", flat=True)
                locked = chosen.select_for_update(skip_locked=self._skips_locked) if self._has_row_locks else chosen
                # A run may have got one of them before it was locked, so that it is looked at again.
                deleted, _ = idle.filter(pk__in=list(locked)).delete()
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
            ids = list(old.values_list("pk", flat=True)[:ACTIONS])
            if not ids:
                return
            gone, _ = OperatorAction.objects.using(self.alias).filter(pk__in=ids).delete()
            yield Pruned(actions=gone)


def _may_read(run: str) -> Q:
    """Return the condition that the run in this column has not ended, or has failed."""
    return Q(**{f"{run}__finished_at__isnull": True}) | Q(**{f"{run}__state": RunState.FAILED.value})


def _after(ended: QuerySet[Run], last: Key | None) -> QuerySet[Run]:
    """Return the runs after `last`, in their order; comparing rows as such allows the use of an index."""
    ordered = ended.order_by("finished_at", "id")
    if last is None:
        return ordered
    moment, run_id = last
    return ordered.filter(finished_at__gte=moment).exclude(finished_at=moment, id__lte=run_id)
