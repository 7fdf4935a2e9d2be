"""The reads of a timeline besides its places: failed attempts, and what loops say of their iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from django.db.models import Count

from durable.conf import conf
from durable.core.records import EntryKind, EntryStatus
from durable.inspection.activities import RunningStep
from durable.inspection.loop_note import loop_note
from durable.inspection.place_tree import PlaceNode, stands_for
from durable.inspection.places import Masked, Place, Record, masked
from durable.inspection.time_axis import Work
from durable.models import Attempt, Entry
from durable.store.tables.surveys import long_data

MOST_ATTEMPTS: Final = 400  # failed ones that are drawn
_BEHIND_ALL: Final = 10**15  # the ordinal of what is not recorded yet
_MOST_LOOPS: Final = 50  # whose iterations are shown


class AttemptSpan(NamedTuple):
    """The span of a failed attempt.

    Its `number` counts from 1, and again from 1 after a recovery of its step.
    """

    begins_at: datetime
    ends_at: datetime
    number: int


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The newest failed attempts of a run by location, in order, and the number of all by location.

    In a long history the numbers are by masked location. `left_out` is the number of those that are not here.
    """

    _attempts: Mapping[str, Sequence[AttemptSpan]]
    _numbers: Mapping[str, int]
    _is_exact: bool
    left_out: int
    _folded: Mapping[str, Sequence[str]]  # the locations by masked location

    def at(self, location: str) -> Sequence[AttemptSpan]:
        """Return the failed attempts at a location."""
        return self._attempts.get(location, ())

    def spans(self, node: PlaceNode) -> Iterator[Work]:
        """Yield when those of a node's own entries began and ended."""
        if node.is_folded and not self._is_exact:
            locations = self._drawn(node)
        else:
            locations = {record.location for record in node.records}
        for location in locations:
            for attempt in self.at(location):
                yield attempt.begins_at, attempt.ends_at

    def of(self, node: PlaceNode) -> int:
        """Return the number of failed attempts of a node's own entries."""
        if self._is_exact:
            return sum(self._numbers.get(location, 0) for location in {each.location for each in node.records})
        if masked(node.location) == node.location:
            return self._numbers.get(node.location, 0)
        if node.is_folded:  # inside a member that is opened
            return sum(len(self.at(location)) for location in self._drawn(node))
        return sum(len(self.at(record.location)) for record in node.records)

    def _drawn(self, node: PlaceNode) -> set[str]:
        """Return the locations of a folded node at which attempts are drawn."""
        return {each for each in self._folded.get(masked(node.location), ()) if stands_for(node.location, each)}


def read_attempts(run_id: str, *, is_exact: bool) -> FailedAttempts:
    """Return a run's failed attempts: one statement, two if there are more than `MOST_ATTEMPTS`."""
    found = Attempt.objects.using(conf.DATABASE).filter(run=run_id).order_by()
    newest = found.order_by("-id").values_list("location", "started_at", "finished_at", "number")
    drawn = list(newest[: MOST_ATTEMPTS + 1])[:MOST_ATTEMPTS]
    attempts: dict[str, list[AttemptSpan]] = {}
    for location, begin, end, number in reversed(drawn):
        attempts.setdefault(location, []).append(AttemptSpan(begin, end, number))
    key = "location" if is_exact else "masked"
    if len(drawn) < MOST_ATTEMPTS:
        numbers = Counter(location if is_exact else masked(location) for location, *_ in drawn)
    else:
        grouped = found.annotate(masked=Masked("location")).values_list(key).annotate(number=Count("id"))
        numbers = Counter(dict(grouped))
    folded: dict[str, list[str]] = {}
    for location in attempts:
        folded.setdefault(masked(location), []).append(location)
    return FailedAttempts(attempts, numbers, is_exact, numbers.total() - len(drawn), folded)


def add_running(places: list[Place], steps: Iterable[RunningStep], *, is_exact: bool) -> None:
    """Add the attempts that run now to the places: a step is recorded only at the end of its first attempt."""
    by_location = {place.location: place for place in places}
    for number, step in enumerate(steps):
        if step.is_rollback:
            continue
        new = Record(
            ordinal=_BEHIND_ALL + number,
            location=step.location,
            kind=EntryKind.STEP.value,
            status=EntryStatus.RUNNING.value,
            attempts=step.attempt,
            created_at=step.began_at,
            last_attempt_at=step.began_at,
            next_attempt_at=None,
            completed_at=None,
            rollback_completed_at=None,
            has_failed_to_undo=False,
        )
        place = by_location.get(step.location) or (None if is_exact else by_location.get(masked(step.location)))
        if place is None:
            places.append(Place(location=new.location, kind=new.kind, ordinal=new.ordinal, records=[new]))
            continue
        known = next((each for each in place.records if each.location == new.location), None)
        if known is None:
            place.count += 1
        else:
            place.records.remove(known)
            new = new._replace(ordinal=known.ordinal, created_at=known.created_at)
        place.records.append(new)


def read_iterations(run_id: str, top: Iterable[PlaceNode]) -> dict[str, str]:
    """Return what loops say of their iterations, by location; one statement if there are loops."""
    loops = [node.first for each in top for node in each.walk() if node.kind == EntryKind.LOOP and not node.is_folded]
    if not loops:
        return {}
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id, location__in=loops[:_MOST_LOOPS])
    rows = found.order_by().values_list("pk", "location", "metadata__status")
    at = {key: (location, status) for key, location, status in rows}
    data = long_data(conf.DATABASE, [(key, 0) for key in at])
    return {at[key][0]: loop_note(at[key][1], each) for key, each in data}
