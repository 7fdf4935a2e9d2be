"""Runs whose steps were undone at their end, and the steps that were undone or could not be.

A recovery repeats the undone steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.records import EntryKind, RunState
from durable.core.summary import Summary, SummaryKind, steps_undone
from durable.inspection.entry_detail import whole_data
from durable.inspection.held import waits_for_person
from durable.inspection.humanize import quoted, thousands
from durable.inspection.reading import read_alias
from durable.inspection.wording import LOCAL, display_location, state_in_words
from durable.models import Entry, Run

MOST: Final = 1_000  # undone steps to examine
_NAMED: Final = 5

#: The states in which a compensation at the end leaves a run.
UNDONE_STATES: Final = frozenset({RunState.FAILED.value, RunState.CANCELLED.value})

#: The condition of `is_undone` on rows.
UNDONE: Final = Q(state__in=sorted(UNDONE_STATES), summary__startswith=f'{{"kind":"{SummaryKind.COMPENSATED.value}"')


def is_undone(run: Run) -> bool:
    """Whether the run has ended as failed or cancelled, and a compensation at its end has undone its steps."""
    return run.state in UNDONE_STATES and Summary.load(run.summary).kind is SummaryKind.COMPENSATED


def is_diverging(run: Run) -> bool:
    """Return whether the run waits for code that fits its history or has no mistake."""
    return run.state in (RunState.SLEEPING, RunState.ROLLING_BACK) and run.diverged_at is not None


def state_word(run: Run) -> str:
    """Return the run's state for display.

    That is "failed, undone" if its steps were undone, "code does not fit" if it waits for other code, "held" if it
    waits for a person, and else the state.
    """
    if is_diverging(run):
        return state_in_words("diverging")
    if waits_for_person(run):
        return state_in_words("held")
    word = state_in_words(run.state)
    return _("%(state)s, undone") % {"state": word} if is_undone(run) else word


def stuck_step(run: Run) -> Entry | None:
    """Return the step whose rollback handler has stopped the run's compensation, with its metadata; None for none.

    One statement for a failed run, without payloads; none for any other.
    """
    is_stopped = run.state_after_rollback or Summary.load(run.summary).kind is SummaryKind.HANDLER_FAILED
    if run.state != RunState.FAILED or not is_stopped:
        return None
    failed = Q(rollback_error__isnull=False, rollback_completed_at__isnull=True)
    stuck = Entry.objects.using(read_alias()).few_of(run.id, failed).select_related("metadata")
    return stuck.defer("output", "arguments").order_by("-ordinal").first()


def handler_attempts(step: Entry) -> int:
    """Return how many attempts the rollback handler of a step has made since it began or was recovered."""
    return int(whole_data(step).get("rollback", {}).get("attempts", 0))


@dataclass(frozen=True, slots=True)
class Undone:
    """`locations` of the undone steps, in the order in which they began; `start` is the place where a recovery begins.

    Steps undone by the code (`ctx.compensate`) are not included: a recovery keeps them undone.
    """

    locations: Sequence[str]
    start: str

    @property
    def text(self) -> str:
        """The number of undone steps, their names, and from where a recovery does them again."""
        names = ", ".join(quoted(display_location(each)) for each in self.locations[:_NAMED])
        others = len(self.locations) - _NAMED
        if others > 0:
            more = ngettext("%(names)s and %(number)s more", "%(names)s and %(number)s more", others)
            names = more % {"names": names, "number": thousands(others)}
        return _(
            "%(steps)s (%(names)s). Recovering the run does what was undone AGAIN, and all that followed, from "
            '"%(start)s" on: its effects outside, a charge for example, happen a second time'
        ) % {
            "steps": steps_undone(len(self.locations), LOCAL),
            "names": names,
            "start": display_location(self.start),
        }


def read_undone(run_id: str) -> tuple[Undone | None, int]:
    """Return the steps that the end of a run has undone (None for none), and how many its code had undone before.

    Reads at most `MOST` steps: one query, two for steps in scopes. None for a run whose compensation has stopped: a
    recovery continues that.
    """
    found = Entry.objects.using(read_alias()).few_of(run_id, Q(rollback_completed_at__isnull=False))
    found = found.filter(
        run__state_after_rollback="", kind__in=[EntryKind.STEP.value, EntryKind.CHILD.value, EntryKind.MAP.value]
    )
    rows: list[Any] = list(found.order_by("ordinal").values_list("location", "data")[:MOST])  # the field decodes data
    locations = [location for location, data in rows if data["rollback"].get("by") is None]
    undone = Undone(locations, _start(run_id, locations[0])) if locations else None
    return undone, len(rows) - len(locations)


def _start(run_id: str, location: str) -> str:
    """Return the outermost loop or race around the location, which starts again whole; else the location."""
    segments = location.split("/")
    around = ["/".join(segments[:depth]) for depth in range(1, len(segments))]
    if not around:
        return location
    whole = Entry.objects.using(read_alias()).filter(
        run=run_id, location__in=around, kind__in=[EntryKind.LOOP.value, EntryKind.RACE.value]
    )
    return whole.order_by("ordinal").values_list("location", flat=True).first() or location
