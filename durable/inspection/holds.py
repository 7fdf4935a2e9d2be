"""Paused queues, and workflows whose new starts are held: by whom, since when and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from durable.conf import conf
from durable.core.records import Hold, HoldKind
from durable.inspection.capped_counts import Count, count_capped
from durable.models import HeldStart, Run
from durable.models import Hold as HoldModel
from durable.models.run import RunQuerySet

MOST: Final = 200  # holds that are read
CAP: Final = 10_000  # runs that are counted


def paused_queues() -> dict[str, Hold]:
    """Return the paused queues by name; one statement."""
    return _holds(HoldKind.QUEUE)


def paused_of(runs: Iterable[Run], now: datetime) -> dict[str, Hold]:
    """Return the paused queues by name if one of the runs is due, else {}; at most one statement."""
    return paused_queues() if any(each.wake_at is not None and each.wake_at <= now for each in runs) else {}


def all_holds() -> tuple[dict[str, Hold], dict[str, Hold]]:
    """Return the paused queues and the workflows whose new starts are held, by name; one statement."""
    queues: dict[str, Hold] = {}
    workflows: dict[str, Hold] = {}
    for each in HoldModel.objects.using(conf.DATABASE).order_by("kind", "name")[: 2 * MOST]:
        found = queues if each.kind == HoldKind.QUEUE else workflows
        found[each.name] = each.record
    return queues, workflows


def held_workflows() -> dict[str, Hold]:
    """Return the workflows whose new starts are held, by name; one statement."""
    return _holds(HoldKind.WORKFLOW)


def find_hold(kind: HoldKind, name: str) -> Hold | None:
    """Return the hold of this queue or workflow; None if there is none."""
    found = HoldModel.objects.using(conf.DATABASE).filter(kind=kind.value, name=name).first()
    return None if found is None else found.record


def count_held_starts(workflows: Iterable[str], within: RunQuerySet | None = None) -> dict[str, Count]:
    """Return how many runs of each of these workflows a hold has paused, at most `CAP`; one statement.

    `within` limits the runs, for example to those that a user may see.
    """
    rows = HeldStart.objects.using(conf.DATABASE).order_by("workflow", "run_id")
    if within is not None:
        rows = rows.filter(run__in=within.order_by().values("pk"))
    names = list(workflows)
    counts = count_capped([rows.filter(workflow=name) for name in names], CAP) if names else []
    return dict(zip(names, counts, strict=True))


def _holds(kind: HoldKind) -> dict[str, Hold]:
    found = HoldModel.objects.using(conf.DATABASE).filter(kind=kind.value).order_by("name")
    return {each.name: each.record for each in found[:MOST]}
