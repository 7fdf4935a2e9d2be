"""The conditions for which alerts are sent, found by the overview's functions with bounded statements."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.apps import apps
from django.db.models import Exists, OuterRef
from django.urls import NoReverseMatch, reverse

from durable.conf import conf
from durable.core.causes import ROLLBACK, place_of
from durable.core.own_runs import ALERT
from durable.inspection.activities import RunningStep, hung_steps
from durable.inspection.causes import list_causes
from durable.inspection.humanize import plural, span
from durable.inspection.schedules import count_ticks, late_schedules
from durable.inspection.wording import worker_command
from durable.inspection.workers import worker_overview
from durable.models import Cause, Failure
from durable.retention import LATE, waiting_since

#: Alerts are sent only for causes that have made a run fail within this time.
RECENT: Final = timedelta(hours=1)
_CAUSE: Final = "cause:"
_QUEUE: Final = "queue:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that needs a person; `path` is the part of an address behind the project's, or ""."""

    kind: str
    key: str
    title: str
    text: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The conditions found by one check.

    `conditions` hold. Of those that no longer hold, the keys in `unknown` could not be checked, and those in `silent`
    end without an alert.
    """

    conditions: Sequence[Condition]
    unknown: Collection[str] = ()
    silent: Collection[str] = ()


def look_for(events: frozenset[str], now: datetime, alerted: Collection[str]) -> Found:
    """Return the conditions that hold at `now`; `alerted` are the keys of open conditions with sent alerts."""
    conditions: list[Condition] = []
    unknown: set[str] = set()
    silent: set[str] = set()
    if events & {"cause", "rollback"}:
        conditions += [each for each in _causes(now) if each.kind in events]
        lasting, muted = _lasting([each for each in alerted if each.startswith(_CAUSE)])
        unknown |= lasting
        silent |= muted
    if "hung_step" in events:
        conditions += _hung(now)
    if "queue" in events:
        queues = _queues()
        if queues is None:
            unknown |= {each for each in alerted if each.startswith(_QUEUE)}
        conditions += queues or []
    if "schedule" in events:
        conditions += _schedules(now)
    if "retention" in events:
        conditions += _retention(now)
    return Found(conditions=conditions, unknown=unknown, silent=silent)


def path_of(key: str) -> str:
    """Return the path of the page about a condition that may be over: of a cause or a queue, else ""."""
    if key.startswith(_CAUSE):
        return _path("durable_run_cause", key.removeprefix(_CAUSE))
    return _keyed_path("durable_run_queue", key.removeprefix(_QUEUE)) if key.startswith(_QUEUE) else ""


def _causes(now: datetime) -> Iterator[Condition]:
    for cause in list_causes(now, muted=False):
        if ALERT in cause.workflows or cause.last_at is None or cause.last_at < now - RECENT:
            continue
        is_rollback = cause.place.endswith(ROLLBACK)
        place = f'"{cause.place.removesuffix(ROLLBACK).rstrip()}"' if cause.place else "the workflow's code"
        workflows = ", ".join(cause.workflows[:5])
        what = "A compensation has stopped" if is_rollback else "Runs fail"
        them = "it" if cause.count.number == 1 else "them"
        yield Condition(
            kind="rollback" if is_rollback else "cause",
            key=f"{_CAUSE}{cause.fingerprint}",
            title=f"{what} at {place} of {workflows}: {cause.error_type}",
            text=f"{plural(cause.count.number, 'run')} failed for this cause. `durable recover --cause "
            f"{cause.fingerprint}` recovers {them} once the cause is fixed.",
            path=_path("durable_run_cause", cause.fingerprint),
        )


def _lasting(keys: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return which of the causes still have failed runs, and which were muted; one statement, none for no keys."""
    if not keys:
        return set(), set()
    failed = Failure.objects.using(conf.DATABASE).filter(cause=OuterRef("pk"), is_open=True)
    causes = Cause.objects.using(conf.DATABASE).filter(fingerprint__in=[each.removeprefix(_CAUSE) for each in keys])
    rows = list(causes.annotate(lasts=Exists(failed)).values_list("fingerprint", "muted_at", "lasts"))
    muted = {f"{_CAUSE}{fingerprint}" for fingerprint, muted_at, _ in rows if muted_at is not None}
    return {f"{_CAUSE}{fingerprint}" for fingerprint, _, lasts in rows if lasts} - muted, muted


def _hung(now: datetime) -> Iterator[Condition]:
    """Yield a condition for each step of a workflow that hangs in at least one run."""
    runs: dict[tuple[str, str], list[RunningStep]] = {}
    for step in hung_steps(now):
        runs.setdefault((step.workflow, place_of(step.location)), []).append(step)
    for (workflow, place), steps in runs.items():
        oldest = steps[0]
        name = hashlib.sha256(f"{workflow}\x00{place}".encode(errors="surrogatepass")).hexdigest()[:32]
        where = oldest.run_id if len(steps) == 1 else plural(len(steps), "run")
        yield Condition(
            kind="hung_step",
            key=f"hung_step:{name}",
            title=f'Step "{place}" of {workflow} hangs in {where}',
            text=f"The oldest: {oldest.words}, in {oldest.run_id}. Look at its stack, cancel the run, or abandon the attempt.",
            path=_keyed_path("durable_run_change", oldest.run_id),
        )


def _schedules(now: datetime) -> Iterator[Condition]:
    """Yield a condition for each schedule whose tick is late, or whose newest moments were missed or refused."""
    late = {each.name for each in late_schedules(now)}
    missed = set(count_ticks("missed", now - RECENT).names)
    refused = set(count_ticks("refused", now - RECENT).names)
    for name in sorted(late | missed | refused):
        what = "is late" if name in late else "has missed its moment" if name in missed else "was refused its run"
        yield Condition(
            kind="schedule",
            key=f"schedule:{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:32]}",
            title=f'The schedule "{name}" {what}',
            text=f"`durable schedules` lists its ticks with the reasons. {worker_command()} has the ticker.",
            path=_keyed_path("durable_run_schedule", name),
        )


def _retention(now: datetime) -> Iterator[Condition]:
    since = waiting_since()
    if since is not None and (now - since).total_seconds() >= LATE:
        yield Condition(
            kind="retention",
            key="retention:late",
            title="Runs past their RETENTION are not deleted in time",
            text=f"The oldest should have been gone for {span((now - since).total_seconds())}. {worker_command()} deletes them, "
            "and several do so at once; so does `durable prune`.",
            path="",
        )


def _queues() -> list[Condition] | None:
    """Return the queues whose runs no worker takes; None if Redis does not say which have workers."""
    workers = worker_overview()
    if workers.problem:
        return None
    return [
        Condition(
            kind="queue",
            key=f"{_QUEUE}{queue.name}",
            title=f'No worker serves the queue "{queue.name}"',
            text=f"Its runs wait. Move them to another queue (`durable move`), or start a worker: {worker_command(queue.name)}"
            if queue.is_known
            else "Its runs wait: RQ_QUEUES lacks it. Add it there, and start a worker for it, or move them to another "
            "queue (`durable move`).",
            path=_keyed_path("durable_run_queue", queue.name),
        )
        for queue in workers.queues
        if queue.has_runs and (not queue.workers or not queue.is_known)
    ]


def _keyed_path(page: str, key: str) -> str:
    """Return the path of the page of a run, a queue or a schedule; "" for a project without the admin.

    The modules of the admin cannot be imported there.
    """
    if not apps.is_installed("django.contrib.admin"):
        return ""
    from durable.admin.text import as_key

    return _path(page, as_key(key))


def _path(name: str, *args: str) -> str:
    """Return the path of a page of the admin; "" for a project without it."""
    try:
        return reverse(f"admin:{name}", args=args)
    except NoReverseMatch:
        return ""
