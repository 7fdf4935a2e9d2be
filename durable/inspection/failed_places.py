"""The places at which joins and races have made runs fail, for lists: their rows name the fork and its branch alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from durable.conf import conf
from durable.core.causes import numberless, place_of
from durable.core.records import RunState
from durable.inspection.wording import display_location, display_place
from durable.models import Failure, Run

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
