"""Joins and races: how each branch ended, in which entries a failure began, and its innermost error.

The text is what `durable.core.errors` makes of the errors: each wrapper begins with its own words. A text that does not
begin so, a redacted one for example, stays as it is.

The row of a join is completed once all its branches have settled. What it handed on to the code, a value or an error,
is in its data. The data is read without the values of the branches, in batches of a bounded size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Max, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.causes import numberless, place_of
from durable.core.entry_shapes import readable
from durable.core.errors import ErrorInfo
from durable.core.location import escape
from durable.core.records import EntryKind, EntryStatus, RunState
from durable.inspection.wording import display_location, display_place
from durable.models import Attempt, Entry, Failure, Run
from durable.models.rows import ByteLength, in_batches, load_json
from durable.store.tables.surveys import short_data

_FORK: Final = re.compile(r"(?:JoinError: join failed|RaceError: all branches of the race failed): (?=branch \")")
_BRANCH: Final = re.compile(r'(?:^|; )branch "(.{1,128}?)": (?=[A-Za-z_][\w.]*)')
_LAST_ATTEMPT: Final = re.compile(r"StepExhaustedError: step .*? failed on its last attempt: ")


def innermost_error(location: str, text: str) -> tuple[str, str]:
    """Return where a run failed, as precisely as it is known, and the error that was raised there.

    `location` is a fork or what failed inside it: the error is that of the branch on its way, of the first failed
    branch if it ends at the fork. Then the branch's name is added to the location.
    """
    names = location.split("/") if location else []
    depth = 0
    while fork := _FORK.match(text):
        inside = text[fork.end() :]
        branches = list(_BRANCH.finditer(inside))
        if not branches:
            break
        on_way = [each for each in branches if escape(each[1]) in names[depth:]]
        chosen = (on_way or branches)[0]
        following = branches[branches.index(chosen) + 1 :]
        is_last = not following or _FORK.match(inside, chosen.end()) is not None  # a fork's branches are its own
        text = inside[chosen.end() :] if is_last else inside[chosen.end() : following[0].start()]
        name = escape(chosen[1])
        if not on_way:
            names.append(name)
        depth = names.index(name, depth) + 1
    return "/".join(names), _LAST_ATTEMPT.sub("", text, count=1) if _LAST_ATTEMPT.match(text) else text


FORKS: Final = (EntryKind.JOIN.value, EntryKind.RACE.value)
FAILED: Final = "failed"  # the status of a branch, and of a join or race that has raised an error
_DEEPEST: Final = 20  # joins in joins that are followed to a failed step


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The recorded status of a branch, and the locations of the failures that it comes from.

    `error` is None unless it was asked for.
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
        """The branches that have failed and count: none once a race has a winner."""
        if self.winner is not None:
            return {}
        return {name: each for name, each in self.branches.items() if each.status == FAILED}

    @property
    def note(self) -> str:
        """The number of failed branches, in words; "" if none counts."""
        if not self.failed:
            return ""
        text = ngettext(
            "%(failed)d of %(number)d branches failed", "%(failed)d of %(number)d branches failed", len(self.branches)
        )
        return text % {"failed": len(self.failed), "number": len(self.branches)}

    def status(self, recorded: str) -> str:
        """Return the status to show for the recorded one: that of the outcome, once there is one."""
        return FAILED if recorded == EntryStatus.COMPLETED and self.failed else recorded

    def location_of(self, branch: str) -> str:
        """Return the location of a branch."""
        return f"{self.location}/{escape(branch)}"


def read_outcomes(run_id: str, locations: Sequence[str] | None = None) -> dict[int, ForkOutcome]:
    """Return the outcomes of a run's joins and races by the keys of their entries: those at `locations`, or all.

    One statement, and one more for each batch of long ones.
    """
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id, kind__in=FORKS)
    if locations is not None:
        found = found.filter(location__in=locations)
    return dict(_read(found, with_errors=False))


def fatal_locations(origins: Iterable[str], outcomes: Iterable[ForkOutcome]) -> set[str]:
    """Return the locations of the failures that made a run fail, given the `origins` of its row.

    Of a join or race its failed branches are among them, and what these failed of. Any other failure was caught.
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
    """Return `fatal_locations` of a history whose outcomes were not read: one statement for each level of joins."""
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
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id, location=location, kind__in=FORKS)
    return next((outcome for _, outcome in _read(found, with_errors=with_errors)), None)


def innermost_failures(run_id: str, locations: Sequence[str]) -> dict[str, str]:
    """Return, for each location, that of the step whose failure the join or race there handed on; else the location.

    Of several branches the first one that failed counts. A branch whose own code failed has no step. One statement for
    each level of joins around the steps.
    """
    innermost = {location: location for location in locations}
    for _depth in range(_DEEPEST):
        found = Entry.objects.using(conf.DATABASE).filter(
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
        batch = Entry.objects.using(conf.DATABASE).filter(pk__in=keys).order_by()
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


_MOST: Final = 200  # failed branches that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBranch:
    """A branch of the join or race at `fork`. `location` is that of the step in it that failed, "" for its own code.

    `is_first`: other branches have failed too, all of them later.
    """

    name: str
    fork: str
    location: str
    note: str
    is_first: bool

    @property
    def text(self) -> str:
        """The failed branch and their number: 'Branch "mail" of "ship" failed first (2 of 3 branches failed)'."""
        if self.is_first:
            text = _('Branch "%(name)s" of "%(fork)s" failed first (%(note)s)')
        else:
            text = _('Branch "%(name)s" of "%(fork)s" failed (%(note)s)')
        return text % {"name": self.name, "fork": display_location(self.fork), "note": self.note}


def first_failed_branch(run: Run) -> FailedBranch | None:
    """Return the branch with which a failed run began to fail; None for a run that failed in no join or race.

    A few statements for a failed run, none for any other. Branches without a failed step come last: when their code
    failed is not recorded.
    """
    if run.state != RunState.FAILED or not run.origins:
        return None
    outcome = outcome_of(run.id, run.origins[0])
    if outcome is None or not outcome.failed:
        return None
    origins = {name: each.origins[0] for name, each in list(outcome.failed.items())[:_MOST] if each.origins}
    innermost = innermost_failures(run.id, list(origins.values())) if origins else {}
    attempts = Attempt.objects.using(conf.DATABASE).filter(run=run, location__in=list(innermost.values())).order_by()
    ended = dict(attempts.values_list("location").annotate(at=Max("finished_at")))
    timed = {name: ended[innermost[origin]] for name, origin in origins.items() if innermost[origin] in ended}
    name = min(timed, key=timed.__getitem__, default=next(iter(outcome.failed)))
    return FailedBranch(
        name=name,
        fork=outcome.location,
        location=innermost.get(origins.get(name, ""), ""),
        note=outcome.note,
        is_first=name in timed and len(outcome.failed) > 1,
    )


_OF_FORKS: Final = ("JoinError", "RaceError")


def failed_places(runs: Iterable[Run]) -> dict[str, str]:
    """Return the places of the causes of those runs that a fork has made fail, by id.

    One statement; none if there is no such run.
    """
    forked = [
        run.id for run in runs if run.state == RunState.FAILED and run.error is not None and run.error.type in _OF_FORKS
    ]
    if not forked:
        return {}
    found = Failure.objects.using(conf.DATABASE).filter(run__in=forked, is_open=True)
    return dict(found.values_list("run_id", "cause__place"))


def with_step(location: str, place: str) -> str:
    """Return a location for people, with what the `place` of its cause has between its names and behind them.

    An error names the branches of joins inside each other, and neither these joins nor the step.
    """
    known = location.split("/") if location else []
    told = []
    for each in place.split(" / "):
        is_known = bool(known) and numberless(place_of(known[0])) == each
        told.append(display_location(known.pop(0)) if is_known else display_place(each))
    return display_location(location) if known or not location else " / ".join(told)
