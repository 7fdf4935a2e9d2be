"""Names for suggestions: of workflows, queues and workers, those included that only rows know.

No search reads the table. The names of workflows are read along their index, one look-up for each name. No index begins
with the queues of all runs: those of open runs are read along the index of due runs, and beside them those of the
newest `NEWEST` runs and those that the settings and the code name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from durable.conf import conf
from durable.core import registry
from durable.inspection.loose_scans import queues_of_due_runs, workflows_of_runs
from durable.models import Run, WorkerProcess
from durable.notifier import redis_clients

KINDS: Final = ("workflow", "queue", "worker")
MOST: Final = 20  # names of a page
LOOKS: Final = 500  # names that are looked at for a page
NEWEST: Final = 1_000  # runs whose queues are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class NameList:
    """Some names in their order. More may follow after `next`; None: there are no more."""

    names: Sequence[str]
    next: str | None = None


def find_names(kind: str, text: str = "", after: str = "") -> NameList:
    """Return up to `MOST` names of this kind (one of `KINDS`) that contain `text`, ignoring case.

    They come after the name `after`. At most `LOOKS` names are looked at: the list may be short, or empty, and more
    names may follow at `next`. At most two statements. Raises KeyError for an unknown kind.
    """
    scanned = _SCANS[kind](after, LOOKS)
    others = (name for name in _others(kind) if name > after)
    names = sorted({*scanned, *others})
    bound = scanned[-1] if len(scanned) == LOOKS else None
    if bound is not None:
        names = [name for name in names if name <= bound]
    matching = [name for name in names if text.casefold() in name.casefold()]
    if len(matching) > MOST:
        return NameList(names=matching[:MOST], next=matching[MOST - 1])
    return NameList(names=matching, next=bound)


def _others(kind: str) -> Iterable[str]:
    """Return names that the rows may lack, or that no index has."""
    if kind == "worker":
        return []
    workflows = registry.all()
    if kind == "workflow":
        return [each.name for each in workflows]
    newest = Run.objects.using(conf.DATABASE).newest_first().values_list("queue", flat=True)[:NEWEST]
    return {*redis_clients.queue_names(), *(each.queue for each in workflows), *newest}


def _workers(after: str, most: int) -> list[str]:
    workers = WorkerProcess.objects.using(conf.DATABASE).filter(name__gt=after).order_by("name")
    return list(workers.values_list("name", flat=True)[:most])


_SCANS: Final = {"workflow": workflows_of_runs, "queue": queues_of_due_runs, "worker": _workers}
