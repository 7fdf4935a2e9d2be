"""Joins and races: how each branch ended, and in which entries a failure began.

The row of a join is completed once all its branches have settled. Its data says whether it gave the code a value or an
error. The data is read without the values of the branches, in batches of a bounded size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.entry_shapes import readable
from durable.core.errors import ErrorInfo
from durable.core.location import escape
from durable.core.records import EntryKind, EntryStatus, RunState
from durable.inspection.reading import read_alias
from durable.inspection.wording import display_location
from durable.models import Entry, Run
from durable.models.rows import ByteLength, in_batches, load_json
from durable.store.tables.surveys import short_data

FORKS: Final = (EntryKind.JOIN.value, EntryKind.RACE.value)
FAILED: Final = "failed"  # the status of a branch, and of a join or race that has raised an error
_DEEPEST: Final = 20  # joins in joins that are followed to a failed step


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The recorded end of a branch, and the locations of the failures behind it.

    `error` is None unless it was requested.
    """

    status: str
    origins: Sequence[str] = ()
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class ForkOutcome:
    """The outcome of the join or race at `location`: its branches by name, and the winner of a race."""

    location: str
    branches: Mapping[str, BranchEnd]
    winner: str | None = None

    @property
    def failed(self) -> Mapping[str, BranchEnd]:
        """The failed branches that matter: none once a race has a winner."""
        if self.winner is not None:
            return {}
        return {name: each for name, each in self.branches.items() if each.status == FAILED}

    @property
    def note(self) -> str:
        """The number of failed branches, in words; "" if none matters."""
        if not self.failed:
            return ""
        text = ngettext(
            "%(failed)d of %(number)d branches failed", "%(failed)d of %(number)d branches failed", len(self.branches)
        )
        return text % {"failed": len(self.failed), "number": len(self.branches)}

    def status(self, recorded: str) -> str:
        """Return the status to show: that of the outcome once there is one, else the recorded one."""
        return FAILED if recorded == EntryStatus.COMPLETED and self.failed else recorded

    def location_of(self, branch: str) -> str:
        return f"{self.location}/{escape(branch)}"


def read_outcomes(run_id: str, locations: Sequence[str] | None = None) -> dict[int, ForkOutcome]:
    """Return the outcomes of a run's joins and races (at `locations`, or all) by the keys of their entries.

    One statement, and one more for each batch of long ones.
    """
    found = Entry.objects.using(read_alias()).filter(run=run_id, kind__in=FORKS)
    if locations is not None:
        found = found.filter(location__in=locations)
    return dict(_read(found, with_errors=False))


def fatal_locations(origins: Iterable[str], outcomes: Iterable[ForkOutcome]) -> set[str]:
    """Return the locations of the failures that made a run fail, given the `origins` of its row.

    They include the failed branches of a join or race, and the failures behind these. Any other failure was caught.
    """
    by_location = {outcome.location: outcome for outcome in outcomes}
    fatal: set[str] = set()
    left = list(origins)
    while left:
        location = left.pop()
        if location in fatal:
            continue
        fatal.add(location)
        if location in by_location:
            for name, end in by_location[location].failed.items():
                fatal.add(by_location[location].location_of(name))
                left += end.origins
    return fatal


def read_fatal(run_id: str, origins: Sequence[str]) -> set[str]:
    """Return `fatal_locations`, reading the outcomes: one statement for each level of nested joins."""
    outcomes: dict[str, ForkOutcome] = {}
    found = fatal_locations(origins, ())
    for _depth in range(_DEEPEST):
        read = read_outcomes(run_id, sorted(found - outcomes.keys())).values()
        if not read:
            break
        outcomes |= {outcome.location: outcome for outcome in read}
        found = fatal_locations(origins, outcomes.values())
    return found


def outcome_of(run_id: str, location: str, *, with_errors: bool = False) -> ForkOutcome | None:
    """Return the outcome of the join or race at a location; None if there is none."""
    found = Entry.objects.using(read_alias()).filter(run=run_id, location=location, kind__in=FORKS)
    return next((outcome for _, outcome in _read(found, with_errors=with_errors)), None)


def innermost_failures(run_id: str, locations: Sequence[str]) -> dict[str, str]:
    """Return for each location the step whose failure its join or race passed on; the location itself if it is not one.

    Of several branches the first one that failed counts. A branch whose own code failed has no step. One statement for
    each level of joins around the steps.
    """
    innermost = {location: location for location in locations}
    for _depth in range(_DEEPEST):
        found = Entry.objects.using(read_alias()).filter(
            run=run_id, kind__in=FORKS, location__in=set(innermost.values())
        )
        inside: dict[str, str] = {}
        for _location, outcome in _read(found, with_errors=False):
            origins = next((each.origins for each in outcome.failed.values() if each.origins), ())
            if origins:
                inside[outcome.location] = origins[0]
        if not inside:
            break
        innermost = {location: inside.get(at, at) for location, at in innermost.items()}
    return innermost


def _read(found: QuerySet[Entry], *, with_errors: bool) -> Iterator[tuple[int, ForkOutcome]]:
    long: list[tuple[int, int]] = []
    rows = found.order_by().values_list("pk", "location", ByteLength("data"), short_data())
    for key, location, weight, text in rows:
        if text is None:
            long.append((key, weight))
        else:
            yield key, _outcome(location, load_json(text), with_errors=with_errors)
    for keys in in_batches(long):
        batch = Entry.objects.using(read_alias()).filter(pk__in=keys).order_by()
        for key, location, data in batch.values_list("pk", "location", "data"):
            yield key, _outcome(location, data, with_errors=with_errors)


def _outcome(location: str, data: Mapping[str, Any], *, with_errors: bool) -> ForkOutcome:
    data = readable(EntryKind.JOIN, data)
    branches = {
        name: BranchEnd(
            status=each["status"],
            origins=tuple(each.get("origins", ())),
            error=ErrorInfo(*each["error"]) if with_errors and each.get("error") else None,
        )
        for name, each in data.get("branches", {}).items()
    }
    return ForkOutcome(location, branches, data.get("winner"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBranch:
    """A branch of the join or race at `fork`. `location` is that of the failed step in it, "" for its own code.

    `is_first`: other branches failed too, all of them later.
    """

    name: str
    fork: str
    location: str
    note: str
    is_first: bool

    @property
    def text(self) -> str:
        if self.is_first:
            text = _('Branch "%(name)s" of "%(fork)s" failed first (%(note)s)')
        else:
            text = _('Branch "%(name)s" of "%(fork)s" failed (%(note)s)')
        return text % {"name": self.name, "fork": display_location(self.fork), "note": self.note}


def first_failed_branch(run: Run) -> FailedBranch | None:
    """Return the branch that failed first; None for a run that did not fail in a join or race.

    One statement for a failed run, none for others. Branches without a failed step come last, because the time of their
    failure is not recorded.
    """
    if run.state != RunState.FAILED or not run.origins:
        return None
    outcome = outcome_of(run.id, run.origins[0])
    if outcome is None or not outcome.failed:
        return None
    origin = None if run.error is None else run.error.origin
    inside = "" if origin is None else origin.place.removeprefix(f"{outcome.location}/").partition("/")[0]
    is_of_step = origin is not None and origin.location != outcome.location
    name = next((each for each in outcome.failed if escape(each) == inside), next(iter(outcome.failed)))
    return FailedBranch(
        name=name,
        fork=outcome.location,
        location=origin.location if origin is not None and is_of_step else "",
        note=outcome.note,
        is_first=is_of_step and len(outcome.failed) > 1,
    )
