"""The rewriting of recorded locations: batches of whole runs, each in a transaction under the locks of its runs.

Owns which runs a batch takes, which it skips, and the treatment of leased runs. A batch can be repeated: a rewritten
run has nothing under the old name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from django.db import connections, transaction
from django.db.models import Count, F, Model, Q

from durable import runtime
from durable.core import clock
from durable.core.causes import ROLLBACK, numberless, place_of
from durable.core.errors import PayloadError
from durable.core.location import (
    ITERATION_PATTERN,
    MAX_LOCATION,
    MAX_LOCATION_BYTES,
    display_location,
    parent,
    unescape,
)
from durable.core.names.renames import Alias, Aliases, AliasKind, Names, Rename
from durable.core.places import Place, values_of, with_values
from durable.core.records import EntryKind, EntryStatus, is_leased
from durable.core.summary import Summary, SummaryKind
from durable.models import (
    Activity,
    Attempt,
    Cause,
    Child,
    ChildGroup,
    Entry,
    EventWait,
    Failure,
    Link,
    LogLine,
    Question,
    QueueMessage,
    RenamedName,
    RenamedStep,
    Reservation,
    Run,
    Slot,
    StepSave,
)
from durable.models.causes import names_of
from durable.models.rows import dump_summary
from durable.models.run import RunQuerySet


class Renaming:
    """A rename of the locations at or below the pattern `old` to those at or below `new`."""

    def __init__(self, old: str, new: str) -> None:
        self.old = old
        self.new = new
        self._name = new.rpartition("/")[2]
        scope = parent(old)
        self._scope = _regex(scope)
        self._new = _regex(new)
        inner = _regex(scope).pattern
        before = f"{inner}/" if scope else ""
        self._place = re.compile(f"({before}){re.escape(old.rpartition('/')[2])}(?=/|$)")
        self._old_place, self._new_place = place_of(old), place_of(new)

    def has(self, location: str) -> bool:
        """Return True for a location of the operation, or below it, under the old name."""
        return self._place.match(location) is not None

    def is_new(self, location: str) -> bool:
        """Return True for a location at or below the new name."""
        return re.match(f"{self._new.pattern}(?=/|$)", location) is not None

    def is_scope(self, location: str) -> bool:
        """Return True for the location around the operation."""
        return self._scope.fullmatch(location) is not None

    def of(self, location: str) -> str:
        """Return the location under the new name; other locations unchanged."""
        found = self._place.match(location)
        return location if found is None else f"{found.group(1)}{self._name}{location[found.end() :]}"

    def shown(self, location: str) -> str:
        """Return a location, or a displayed one, under the new name."""
        if self.has(location):
            return self.of(location)
        return display_location(self.new) if location == display_location(self.old) else location

    def of_place(self, place: str) -> str:
        """Return the place of a cause (`durable.core.causes.place_of`) under the new name, without numbers.

        A place without numbers may also belong to other operations (`is_shared`).
        """
        for old in (self._old_place, numberless(self._old_place)):
            if place.removesuffix(f" {ROLLBACK}") == old or place.startswith(f"{old} / "):
                return numberless(self._new_place + place[len(old) :])
        return place

    def is_shared(self, place: str) -> bool:
        """Return True for a place shared by operations with other numbers in their names."""
        old = self._old_place
        return old != numberless(old) and not (place == old or place.startswith((f"{old} / ", f"{old} {ROLLBACK}")))

    def in_column(self, column: str, pattern: str | None = None) -> Q:
        """Return a condition that rows with the old name meet, and perhaps a few others."""
        pattern = self.old if pattern is None else pattern
        literal, tilde, _ = pattern.partition(ITERATION_PATTERN)
        if tilde:
            return Q(**{f"{column}__startswith": f"{literal}{ITERATION_PATTERN}"})
        return Q(**{column: pattern}) | Q(**{f"{column}__startswith": f"{pattern}/"})

    @staticmethod
    def is_too_long(location: str) -> bool:
        """Return True for a location that cannot be recorded."""
        return len(location) > MAX_LOCATION or len(location.encode()) > MAX_LOCATION_BYTES


def _regex(pattern: str) -> re.Pattern[Any]:
    return re.compile(
        "/".join("~[0-9]+" if each == ITERATION_PATTERN else re.escape(each) for each in pattern.split("/"))
    )


#: Re-encodes codec text of the first place for the second.
Copied: TypeAlias = Callable[[str, Place, Place], str]


def renamed_data(data: dict[str, Any], renaming: Renaming) -> dict[str, Any]:
    """Return the engine's data of an entry with its locations renamed."""
    changed = dict(data)
    if "branches" in data:
        changed["branches"] = {
            name: {**each, "origins": [renaming.of(origin) for origin in each["origins"]]}
            if each.get("origins")
            else each
            for name, each in data["branches"].items()
        }
    if "link" in data:
        changed["link"] = renaming.of(data["link"])
    if "received" in data:
        changed["received"] = [
            {**each, "completed_in": renaming.of(each["completed_in"])} if each.get("completed_in") else each
            for each in data["received"]
        ]
    return changed


def rebind(entry: Entry, location: str, copied: Copied) -> None:
    """Move an entry to the new location, and bind its codec text to it. Raises PayloadError."""
    places = iter([each.place for each in values_of(entry.run_id, entry) if each.text is not None])
    entry.location = location

    def moved(text: str, new: Place) -> str:
        old = next(places)
        return text if old == new else copied(text, old, new)

    entry.arguments, entry.output, entry.data = with_values(entry.run_id, entry, moved)


def renamed_generations(generations: dict[str, int], renaming: Renaming) -> dict[str, int]:
    """Return how often each location was begun again, under the new name."""
    found: dict[str, int] = {}
    for location, number in generations.items():
        new = renaming.of(location)
        found[new] = found.get(new, 0) + number
    return found


def renamed_summary(summary: str, renaming: Renaming) -> str:
    """Return a summary with the locations in its data under the new name."""
    stored = dump_summary(summary)
    found = Summary.load(stored)
    if found.kind is SummaryKind.TEXT:
        return summary
    facts = json.loads(json.dumps(dict(found.facts)))
    for each in (facts, *(facts.get("doing") or ())):
        if isinstance(each.get("location"), str):
            each["location"] = renaming.shown(each["location"])
    return Summary(found.kind, **facts) if facts != dict(found.facts) else summary


class RenameRefused(Exception):
    """A recorded name cannot be changed. The text says what prevents it, why, and what to do."""


def recorded_names(alias: str, kind: AliasKind) -> Aliases:
    """Return the renames recorded by migrations so far."""
    rows = RenamedName.objects.using(alias).filter(kind=kind.value).order_by("id")
    return Aliases(Alias(kind, *each) for each in rows.values_list("old", "new"))


def is_recorded(alias: str, name: Alias) -> bool:
    """Return True if both names already stand for one thing. Raises RenameRefused if no migration can achieve that."""
    names = recorded_names(alias, name.kind)
    if names.is_same(name.old, name.new):
        return True
    try:
        names.add(name)
    except ValueError as error:
        raise RenameRefused(f"{error}. Nothing was written.") from error
    return False


def check_names(alias: str, rename: Rename, workflows: Sequence[str]) -> None:
    """Raise RenameRefused for a name used by another rename; `workflows` are all names of the rename's workflow."""
    before = RenamedStep.objects.using(alias).filter(workflow__in=workflows).order_by("id")
    try:
        Names([*(Rename(*each) for each in before.values_list("workflow", "old", "new")), rename])
    except ValueError as error:
        raise RenameRefused(f"{error}. Nothing was written.") from error


def check_runs(alias: str, run_ids: Sequence[str], renaming: Renaming) -> None:
    """Raise RenameRefused for a run that already uses the new name, or that cannot be rewritten."""
    entries = Entry.objects.using(alias).filter(run__in=run_ids).order_by()
    taken = entries.filter(renaming.in_column("location", renaming.new)).values_list("run_id", "location")
    for run_id, location in taken.iterator():
        if renaming.is_new(location):
            raise RenameRefused(
                f'the run "{run_id}" has a record "{location}" already: "{renaming.new}" is the name of another operation, '
                "or code that uses it runs before the migration does. Choose another name, or migrate before the new "
                "code runs. Nothing was written."
            )
    scope, name = parent(renaming.old), unescape(renaming.old.rpartition("/")[2])
    if scope:
        forks = entries.filter(renaming.in_column("location", scope), kind__in=[EntryKind.JOIN, EntryKind.RACE])
        for run_id, location, data in forks.values_list("run_id", "location", "data").iterator():
            if renaming.is_scope(location) and name in data.get("branches", ()):
                raise RenameRefused(
                    f'in the run "{run_id}", "{name}" is a branch of "{location}": a branch cannot be renamed. '
                    "Keep its name, or let these runs go the old way with ctx.get_version. Nothing was written."
                )
    if len(renaming.new.encode()) > len(renaming.old):
        named = entries.filter(renaming.in_column("location")).values_list("run_id", "location")
        for run_id, location in named.iterator():
            if renaming.has(location) and renaming.is_too_long(renaming.of(location)):
                raise RenameRefused(
                    f'in the run "{run_id}", the location "{renaming.of(location)[:80]}..." would be too long: choose a '
                    "shorter name. Nothing was written."
                )


#: Runs to examine in one batch, and the most that an atomic migration may have to examine.
MOST_ATOMIC: Final = 500
TRY_EVERY: Final = 0.5  # seconds between two tries to rewrite runs that workers have or other transactions have locked


def check_atomic(alias: str, *workflows: str) -> None:
    """Raise RenameRefused for an atomic migration of workflows with many runs."""
    refuse_atomic(alias, workflows[-1], Run.objects.using(alias).filter(workflow__in=workflows))


def refuse_atomic(alias: str, name: str, runs: RunQuerySet) -> None:
    """Raise RenameRefused for an atomic migration that would rewrite many runs."""
    if connections[alias].in_atomic_block and runs.order_by()[: MOST_ATOMIC + 1].count() > MOST_ATOMIC:
        raise RenameRefused(
            f'"{name}" has more than {MOST_ATOMIC} runs, and the migration is atomic: it would keep all of them '
            "locked until its end. Write `atomic = False` into the migration. Nothing was written."
        )


def runs_of(alias: str, workflows: Iterable[str], until: datetime) -> Iterator[list[str]]:
    """Yield the ids of the workflows' runs created until then, in batches, for each workflow the oldest first."""
    for workflow in workflows:
        yield from in_batches(Run.objects.using(alias).filter(workflow=workflow, created_at__lte=until))


def in_batches(runs: RunQuerySet) -> Iterator[list[str]]:
    """Yield the ids of the runs in batches, the oldest first."""
    runs = runs.order_by("created_at", "id")
    rows = list(runs.values_list("created_at", "id")[:MOST_ATOMIC])
    while rows:
        yield [run_id for _, run_id in rows]
        at, last = rows[-1]
        after = Q(created_at__gt=at) | Q(created_at=at, id__gt=last)
        rows = list(runs.filter(after, created_at__gte=at).values_list("created_at", "id")[:MOST_ATOMIC])


def rewrite_runs(
    alias: str,
    batches: Iterable[Sequence[str]],
    rewrite: Callable[[Sequence[str]], object],
    *,
    wait: float,
    say: Callable[[str], object],
) -> None:
    """Call `rewrite` with the runs of each batch, locked, in a transaction of its own.

    Runs that other transactions have locked are tried again for `wait` seconds; `say` gets a message about the rest.
    """
    locked: set[str] = set()
    for run_ids in batches:
        locked = locked.difference(run_ids).union(_rewritten(alias, run_ids, rewrite))
    left = sorted(locked)
    deadline = time.monotonic() + wait
    while left and time.monotonic() < deadline:
        time.sleep(TRY_EVERY)
        left = [each for part in _parts(left) for each in _rewritten(alias, part, rewrite)]
    if left:
        keep = "keeps" if len(left) == 1 else "keep"
        say(
            f"{counted(len(left))} that other transactions have locked {keep} the old name, which goes on to fit; the same "
            "operation in a later migration rewrites the name"
        )


def _rewritten(alias: str, run_ids: Sequence[str], rewrite: Callable[[Sequence[str]], object]) -> list[str]:
    """Rewrite the runs in one transaction; return those whose rows another transaction has locked."""
    with transaction.atomic(using=alias):
        locked = list(_locked(alias, run_ids).values_list("id", flat=True))
        rewrite(locked)
    return sorted({*run_ids} - {*locked}) if len(locked) < len(run_ids) else []


def _locked(alias: str, run_ids: Sequence[str]) -> RunQuerySet:
    """Return the runs, to be read with their rows locked, without those that another transaction has locked."""
    features, runs = connections[alias].features, Run.objects.using(alias)
    if features.has_select_for_update:
        return runs.with_ids(run_ids).select_for_update(skip_locked=features.has_select_for_update_skip_locked)
    runs.lock_table()
    return runs.with_ids(run_ids)


def _parts(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(run_ids), MOST_ATOMIC):
        yield run_ids[first : first + MOST_ATOMIC]


def counted(number: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if number == 1 else f"{number:,} runs"


_RECORDS: Final = 2_000  # entries of one transaction, if several runs have them
_ROWS: Final = 500  # rows of one statement
_SHOWN: Final = 5  # ids of runs to name in a line
_SAY_EVERY: Final = 2.0  # seconds between two lines of progress

_WITH_DATA: Final = (EntryKind.JOIN, EntryKind.RACE, EntryKind.MESSAGE)
#: Models with locations besides the entries: the model, its column of the run, and its column of the location.
_COLUMNS: Final[tuple[tuple[type[Model], str, str], ...]] = (
    (Attempt, "run", "location"),
    (StepSave, "run", "location"),
    (LogLine, "run", "location"),
    (Slot, "run", "location"),
    (Reservation, "run", "location"),
    (Activity, "run", "location"),
    (QueueMessage, "run", "received_by"),
    (Link, "run", "location"),
    (EventWait, "run", "location"),
    (Question, "run", "location"),
    (Child, "parent", "location"),
    (Child, "parent", "group"),
    (ChildGroup, "parent", "location"),
)
#: Models with one row for each location of a run.
_UNIQUE: Final = (StepSave, Reservation, Activity)


def rename_step(alias: str, rename: Rename, *, is_back: bool, wait: float, say: Callable[[str], object]) -> None:
    """Rewrite the records of a workflow's operation to the new name; with `is_back`, to the old one.

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
    """Return the text bound to the new place. Raises PayloadError, also for text that no key of this process can
    decrypt.
    """
    at = runtime.current()
    moved = at.copied(text, old, new)
    if moved == text:  # it was not bound to a place, or it is unchanged because it cannot be read
        at.decode(text, old)
    return moved


class _Rewriting:
    def __init__(self, alias: str, renaming: Renaming, say: Callable[[str], object]) -> None:
        self.alias = alias
        self.renaming = renaming
        self.say = say
        #: None for a codec that does not bind values to places.
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
        """Yield the runs that have records under the old name, as many as one transaction takes."""
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
        """Rewrite the runs in one transaction. Return the others, which workers have or other transactions have
        locked.
        """
        rewritten: list[str] = []
        columns = ("id", "origins", "generations", "summary", "fence", "lease_expires_at", "workflow")
        with transaction.atomic(using=self.alias):
            rows, now = _locked(self.alias, run_ids), clock.now()
            for run in rows.only(*columns):
                if is_leased(run, now):
                    continue
                self._rewrite_row(run)
                rewritten.append(run.id)
            if rewritten:
                self._rewrite_records(rewritten)
                # counts of the histories, and plans shown to operators, have the old name
                Run.objects.using(self.alias).with_ids(rewritten).update(change_seq=F("change_seq") + 1)
        self.rewritten += len(rewritten)
        return [each for each in run_ids if each not in set(rewritten)] if len(rewritten) < len(run_ids) else []

    def _rewrite_row(self, run: Run) -> None:
        changed: dict[str, Any] = {
            "origins": [self.renaming.of(each) for each in run.origins],
            "generations": renamed_generations(run.generations, self.renaming),
            "summary": renamed_summary(run.summary, self.renaming),
        }
        changed = {name: value for name, value in changed.items() if value != getattr(run, name)}
        if run.lease_expires_at is not None:  # of a worker that may be late: its writes are then refused
            changed["fence"] = run.fence + 1
        if changed:
            Run.objects.using(self.alias).filter(id=run.id).update(**changed)

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
                else:
                    each.location = new
            Entry.objects.using(self.alias).bulk_update(rows, columns, batch_size=_ROWS)

    def _rewrite_data(self, run_ids: Sequence[str]) -> None:
        """Rewrite the locations in the data of forks and waits, which may be anywhere in the runs."""
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
        """Yield the runs' rows under the old name, in batches, by run and `column`."""
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
        """Return whether all failed operations of the rewritten run have the new name."""
        failed = Q(status__in=(EntryStatus.FAILED, EntryStatus.UNKNOWN, EntryStatus.HELD, EntryStatus.EXHAUSTED)) | Q(
            rollback_error__isnull=False
        )
        found = Entry.objects.using(self.alias).few_of(run_id, failed).values_list("location", flat=True)
        return all(map(self.renaming.is_new, found))
