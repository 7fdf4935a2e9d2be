"""What a background bulk has done so far: numbers, and the runs for which its verb was refused, by reason."""

from __future__ import annotations

from dataclasses import dataclass

from durable.conf import conf
from durable.core.places import Place
from durable.inspection import payload
from durable.models import Entry, Run
from durable.operations.common import BULK

__all__ = ["BulkProgress", "Refused", "progress_of_bulk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The runs of a bulk with one outcome other than "done": (run id, reason) of the first ones."""

    outcome: str
    runs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """The numbers as text, and the refused runs that the bulk has kept (its first 100), by outcome."""

    numbers: str
    refused: tuple[Refused, ...] = ()

    def __str__(self) -> str:
        return self.numbers


def progress_of_bulk(run: Run) -> BulkProgress | None:
    """Return the progress of a background bulk; None for any other run. At most one statement."""
    if run.workflow != BULK:
        return None
    found = payload(run.workflow, "output", run.output, Place(run.id, "output"))
    if found is None:
        entries = Entry.objects.using(conf.DATABASE).filter(run=run, location="runs")
        loop = entries.values_list("data", flat=True).first()
        found = payload(run.workflow, "state:runs", (loop or {}).get("state"), Place(run.id, "state", "runs"))
    if not isinstance(found, dict):
        return BulkProgress(numbers="No run has been processed yet")
    counts = [f"{found[name]:,} {name}" for name in ("done", "refused", "left") if isinstance(found.get(name), int)]
    return BulkProgress(numbers=", ".join(counts), refused=_by_outcome(found.get("refusals")))


def _by_outcome(refusals: object) -> tuple[Refused, ...]:
    """Group [run id, outcome, reason] by outcome; a redaction hook may have put anything in their place."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for each in refusals if isinstance(refusals, list) else []:
        match each:
            case [str(run_id), str(outcome), str(reason)]:
                groups.setdefault(outcome, []).append((run_id, reason))
    return tuple(Refused(outcome=outcome, runs=tuple(runs)) for outcome, runs in groups.items())
