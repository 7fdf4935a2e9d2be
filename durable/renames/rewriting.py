"""The rewriting of recorded locations: batches of whole runs, each in a transaction under the locks of its runs.

Owns which runs a batch takes, which it passes by, and what follows from a lease. A batch can be repeated: a rewritten
run has nothing under the old name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Count, F, Model, Q

from durable import runtime
from durable.core import clock
from durable.core.errors import PayloadError
from durable.core.places import Place
from durable.core.records import EntryKind, EntryStatus
from durable.core.renames import AliasKind, Rename
from durable.models import (
    Activity,
    Attempt,
    Cause,
    Child,
    ChildGroup,
    Entry,
    Failure,
    LogLine,
    QueueMessage,
    RenamedStep,
    Reservation,
    Run,
    Slot,
    StepSave,
)
from durable.models.causes import names_of
from durable.renames.batches import TRY_EVERY, check_atomic, counted, runs_of
from durable.renames.checking import RenameRefused, check_names, check_runs, recorded_names
from durable.renames.places import Renaming
from durable.renames.records import Copied, rebind, renamed_data, renamed_generations, renamed_summary

_RECORDS: Final = 2_000  # entries of one transaction, if they are of several runs
_ROWS: Final = 500  # rows of one statement
_SHOWN: Final = 5  # ids of runs that a line names
_SAY_EVERY: Final = 2.0  # seconds between two lines of progress

_WITH_DATA: Final = (EntryKind.JOIN, EntryKind.RACE, EntryKind.MESSAGE)
#: What has locations beside the entries: the model, its column of the run, and its column of the location.
_COLUMNS: Final[tuple[tuple[type[Model], str, str], ...]] = (
    (Attempt, "run", "location"),
    (StepSave, "run", "location"),
    (LogLine, "run", "location"),
    (Slot, "run", "location"),
    (Reservation, "run", "location"),
    (Activity, "run", "location"),
    (QueueMessage, "run", "received_by"),
    (Child, "parent", "location"),
    (Child, "parent", "group"),
    (ChildGroup, "parent", "location"),
)
#: Of which a run has one row for each location.
_UNIQUE: Final = (StepSave, Reservation, Activity)


def rename_step(
    alias: str, rename: Rename, *, is_back: bool = False, wait: float, say: Callable[[str], object]
) -> None:
    """Rewrite the records of a workflow's operation; with `is_back`, those of the new name to the old one.

    Runs that workers have are tried again for `wait` seconds. Raises RenameRefused.
    """
    began_at = clock.now()
    known = RenamedStep.objects.using(alias).filter(**rename._asdict())
    renaming = Renaming(rename.new, rename.old) if is_back else Renaming(rename.old, rename.new)
    workflows = recorded_names(alias, AliasKind.WORKFLOW).names(rename.workflow)
    check_atomic(alias, *workflows)
    if not known.exists() and not is_back:
        check_names(alias, rename, workflows)
        for run_ids in runs_of(alias, workflows, began_at):
            check_runs(alias, run_ids, renaming)
        RenamedStep.objects.using(alias).create(**rename._asdict(), recorded_at=began_at)
    _Rewriting(alias, renaming, say).rewrite(runs_of(alias, workflows, began_at), wait)


def _copied(text: str, old: Place, new: Place) -> str:
    """Return the text bound to the new place. Raises PayloadError, for text that no key of this process opens too."""
    at = runtime.current()
    moved = at.copied(text, old, new)
    if moved == text:  # it was bound to no place, or it stays as it is because it cannot be read
        at.decode(text, old)
    return moved


class _Rewriting:
    def __init__(self, alias: str, renaming: Renaming, say: Callable[[str], object]) -> None:
        self.alias = alias
        self.renaming = renaming
        self.say = say
        #: None for a codec that binds no value to its place.
        self.copied: Copied | None = _copied if hasattr(runtime.current().codec, "rebind") else None
        self.looked_at = 0
        self.rewritten = 0
        self._said = time.monotonic()

    def rewrite(self, runs: Iterator[list[str]], wait: float) -> None:
        held: list[str] = []
        for run_ids in runs:
            for group in self._groups(run_ids):
                held += self._rewrite(group)
            self.looked_at += len(run_ids)
            self._tell()
        until = time.monotonic() + wait
        while held and time.monotonic() < until:
            time.sleep(min(TRY_EVERY, wait))
            held = [each for run_id in held for each in self._rewrite([run_id])]
        if self.rewritten or held:
            self.say(f"{counted(self.rewritten)} rewritten: {self.renaming.old} is {self.renaming.new}")
        if held:
            shown = ", ".join(held[:_SHOWN]) + (" and more" if len(held) > _SHOWN else "")
            keep = "keeps" if len(held) == 1 else "keep"
            self.say(f"{counted(len(held))} that workers have {keep} the old name, which goes on to fit: {shown}")

    def _tell(self) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY:
            self._said = time.monotonic()
            self.say(f"{counted(self.looked_at)} looked at, {self.rewritten:,} rewritten")

    def _groups(self, run_ids: Sequence[str]) -> Iterator[list[str]]:
        """Yield those of the runs that have something under the old name, as many as one transaction takes."""
        named = self.renaming.in_column("location")
        entries = Entry.objects.using(self.alias).filter(named, run__in=run_ids).order_by()
        sizes = dict(entries.values_list("run_id").annotate(Count("pk")))
        for model, run, column in _COLUMNS:
            rows = model._default_manager.using(self.alias).filter(
                self.renaming.in_column(column), **{f"{run}__in": run_ids}
            )
            for run_id in rows.order_by().values_list(f"{run}_id", flat=True).distinct():
                sizes.setdefault(run_id, 0)
        again = Run.objects.using(self.alias).filter(id__in=run_ids).exclude(generations={}).order_by()
        for run_id, generations in again.values_list("id", "generations"):
            if any(map(self.renaming.has, generations)):
                sizes.setdefault(run_id, 0)
        group: list[str] = []
        total = 0
        for run_id in (each for each in run_ids if each in sizes):
            if group and total + sizes[run_id] > _RECORDS:
                yield group
                group, total = [], 0
            group.append(run_id)
            total += sizes[run_id]
        if group:
            yield group

    # -- one transaction

    def _rewrite(self, run_ids: Sequence[str]) -> list[str]:
        """Rewrite the runs in one transaction; return the others, which workers have or transactions have locked."""
        connection = connections[self.alias]
        rewritten: list[str] = []
        with transaction.atomic(using=self.alias):
            runs = Run.objects.using(self.alias)
            if connection.features.has_select_for_update:
                rows = runs.with_ids(run_ids).select_for_update(
                    skip_locked=connection.features.has_select_for_update_skip_locked
                )
            else:
                runs.lock_table()
                rows = runs.with_ids(run_ids)
            now = clock.now()
            columns = ("id", "origins", "generations", "summary", "fence", "lease_expires_at", "workflow")
            for run in rows.only(*columns):
                if run.lease_expires_at is not None and run.lease_expires_at > now:
                    continue
                self._rewrite_row(run)
                rewritten.append(run.id)
            if rewritten:
                self._rewrite_records(rewritten)
                self._outdate(rewritten)
        self.rewritten += len(rewritten)
        return [each for each in run_ids if each not in set(rewritten)] if len(rewritten) < len(run_ids) else []

    def _rewrite_row(self, run: Run) -> None:
        changed: dict[str, Any] = {
            "origins": [self.renaming.of(each) for each in run.origins],
            "generations": renamed_generations(run.generations, self.renaming),
            "summary": renamed_summary(run.summary, self.renaming),
        }
        changed = {name: value for name, value in changed.items() if value != getattr(run, name)}
        if run.lease_expires_at is not None:  # of a worker that may be late: what it writes is refused
            changed["fence"] = run.fence + 1
        if changed:
            Run.objects.using(self.alias).filter(id=run.id).update(**changed)

    def _outdate(self, run_ids: Sequence[str]) -> None:
        """Have nothing hold that was counted, or shown to an operator, of the histories under the old name."""
        Run.objects.using(self.alias).with_ids(run_ids).update(change_seq=F("change_seq") + 1)

    def _rewrite_records(self, run_ids: Sequence[str]) -> None:
        try:
            self._rewrite_entries(run_ids)
            self._rewrite_data(run_ids)
            for model, run, column in _COLUMNS:
                self._rewrite_column(model, run, column, run_ids)
        except PayloadError as error:
            raise RenameRefused(
                f'a value of the run "{self._at}" cannot be read, so it cannot be encrypted for its new place: {error}. '
                "The run keeps the old name; apply the migration again when the codec can read it."
            ) from error
        self._rewrite_failures(run_ids)

    _at = ""

    def _rewrite_entries(self, run_ids: Sequence[str]) -> None:
        columns = ["location"] if self.copied is None else ["location", "output", "arguments", "data"]
        entries = Entry.objects.using(self.alias).only("id", "run_id", "kind", *columns)
        for rows in self._rows(entries, "run", "location", run_ids):
            for each in rows:
                self._at, new = each.run_id, self.renaming.of(each.location)
                if self.copied is not None:
                    rebind(each, new, self.copied)
                each.location = new
            Entry.objects.using(self.alias).bulk_update(rows, columns, batch_size=_ROWS)

    def _rewrite_data(self, run_ids: Sequence[str]) -> None:
        """Rewrite the locations in the engine's data of forks and waits, which may be anywhere in the runs."""
        entries = Entry.objects.using(self.alias).filter(run__in=run_ids, kind__in=_WITH_DATA).only("id", "data")
        last = 0
        while rows := list(entries.filter(id__gt=last).order_by("id")[:_ROWS]):
            last = rows[-1].id
            changed = []
            for each in rows:
                if (data := renamed_data(each.data, self.renaming)) != each.data:
                    each.data = data
                    changed.append(each)
            if changed:
                Entry.objects.using(self.alias).bulk_update(changed, ["data"], batch_size=_ROWS)

    def _rewrite_column(self, model: type[Model], run: str, column: str, run_ids: Sequence[str]) -> None:
        manager = model._default_manager.using(self.alias)
        is_bound = model is StepSave and self.copied is not None
        columns = [column, "details"] if is_bound else [column]
        for rows in self._rows(manager.only("pk", f"{run}_id", *columns), run, column, run_ids):
            if model in _UNIQUE:
                new = [self.renaming.of(getattr(each, column)) for each in rows]
                manager.filter(**{f"{run}__in": run_ids, f"{column}__in": new}).delete()
            for each in rows:
                old = getattr(each, column)
                setattr(each, column, self.renaming.of(old))
                if is_bound and self.copied is not None and isinstance(each, StepSave):
                    self._at, before = each.run_id, Place(each.run_id, "saved", old)
                    each.details = self.copied(each.details, before, before._replace(where=each.location))
            manager.bulk_update(rows, columns, batch_size=_ROWS)

    def _rows(self, found: Any, run: str, column: str, run_ids: Sequence[str]) -> Iterator[list[Any]]:
        """Yield the rows of these runs that are under the old name, some at a time, by run and `column`."""
        found = found.filter(self.renaming.in_column(column), **{f"{run}__in": run_ids})
        found = found.order_by(f"{run}_id", column, "pk")
        rows = list(found[:_ROWS])
        while rows:
            at, where, pk = getattr(rows[-1], f"{run}_id"), getattr(rows[-1], column), rows[-1].pk
            if named := [each for each in rows if self.renaming.has(getattr(each, column))]:
                yield named
            if len(rows) < _ROWS:
                return
            here = Q(**{f"{run}_id": at, f"{column}__gt": where}) | Q(**{f"{run}_id": at, column: where, "pk__gt": pk})
            rows = list(found.filter(Q(**{f"{run}_id__gt": at}) | here, **{f"{run}_id__gte": at})[:_ROWS])

    def _rewrite_failures(self, run_ids: Sequence[str]) -> None:
        """Move the failures at the operation to the cause under the new name."""
        failures = Failure.objects.using(self.alias).filter(run__in=run_ids)
        causes_here = Cause.objects.using(self.alias)
        causes = causes_here.filter(pk__in=failures.values("cause")).exclude(place="")
        for cause in causes:
            place = self.renaming.of_place(cause.place)
            if place == cause.place:
                continue
            moved = failures.filter(cause=cause)
            if self.renaming.is_shared(cause.place):
                moved = moved.filter(run__in=[each.run_id for each in moved if self._has_failed_here(each.run_id)])
                if not moved.exists():
                    continue
            record = cause.record
            same = type(record)(place=place, error_type=record.error_type, pattern=record.pattern)
            names = names_of(same)
            known = {each.fingerprint: each for each in causes_here.filter(fingerprint__in=names)}
            new = next((known[each] for each in names if each in known), None)
            if new is None:
                new, _ = causes_here.get_or_create(
                    fingerprint=names[0],
                    defaults={
                        "place": place,
                        "error_type": cause.error_type,
                        "pattern": cause.pattern,
                        "first_seen_at": cause.first_seen_at,
                        "muted_at": cause.muted_at,
                        "muted_by": cause.muted_by,
                    },
                )
            moved.update(cause=new)

    def _has_failed_here(self, run_id: str) -> bool:
        """Return whether the rewritten run has no failed operation but those under the new name."""
        failed = Q(status__in=(EntryStatus.FAILED, EntryStatus.EXHAUSTED)) | Q(rollback_error__isnull=False)
        found = Entry.objects.using(self.alias).few_of(run_id, failed).values_list("location", flat=True)
        return all(map(self.renaming.is_new, found))
