"""The steps of a run that its compensation has undone, and that a recovery does again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from durable.conf import conf
from durable.core.location import display_location
from durable.core.records import EntryKind
from durable.core.summary import steps_undone
from durable.models import Entry

__all__ = ["Undone", "read_undone", "undone_steps"]

MOST: Final = 1_000  # undone steps that are looked at
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Undone:
    """`locations` of the undone steps, in the order in which they began; `start` is the place where a recovery begins.

    What the code has undone by `ctx.compensate` is not among them: a recovery keeps it undone.
    """

    locations: Sequence[str]
    start: str

    @property
    def text(self) -> str:
        """How many steps were undone, which, and from where a recovery does them again."""
        names = ", ".join(f'"{display_location(each)}"' for each in self.locations[:_NAMED])
        others = len(self.locations) - _NAMED
        more = f" and {others:,} more" if others > 0 else ""
        return (
            f"{steps_undone(len(self.locations))} ({names}{more}). Recovering the run does what was undone AGAIN, and all that followed, "
            f'from "{display_location(self.start)}" on: its effects outside, a charge for example, happen a second time'
        )


def undone_steps(run_id: str) -> Undone | None:
    """Return the first part of `read_undone`."""
    return read_undone(run_id)[0]


def read_undone(run_id: str) -> tuple[Undone | None, int]:
    """Return the steps that the end of a run has undone, None without any, and how many its code has undone before.

    Reads at most `MOST` steps: one query, two for steps in scopes. Of a run whose compensation has stopped there are
    none: a recovery goes on with it.
    """
    recorded = Entry.objects.using(conf.DATABASE).with_metadata_of(run_id)
    found = recorded.filter(
        run__state_after_rollback="", kind=EntryKind.STEP.value, metadata__rollback_completed_at__isnull=False
    )
    rows: list[Any] = list(found.order_by("ordinal").values_list("location", "data")[:MOST])  # the field decodes data
    locations = [location for location, data in rows if data["rollback"].get("by") is None]
    undone = Undone(locations, _start(run_id, locations[0])) if locations else None
    return undone, len(rows) - len(locations)


def _start(run_id: str, location: str) -> str:
    """The outermost loop or race around the location, which starts again whole, or else the location."""
    segments = location.split("/")
    around = ["/".join(segments[:depth]) for depth in range(1, len(segments))]
    if not around:
        return location
    whole = Entry.objects.using(conf.DATABASE).filter(
        run=run_id, location__in=around, kind__in=[EntryKind.LOOP.value, EntryKind.RACE.value]
    )
    return whole.order_by("ordinal").values_list("location", flat=True).first() or location
