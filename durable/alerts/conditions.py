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

from durable import marks
from durable.conf import conf
from durable.core.causes import ROLLBACK, place_of
from durable.core.registry import ALERT
from durable.inspection.activities import RunningStep, hung_steps
from durable.inspection.causes import held_by_cause, list_causes
from durable.inspection.humanize import plural, span
from durable.inspection.schedules import count_ticks, late_schedules
from durable.inspection.wording import worker_command
from durable.inspection.workers import worker_overview
from durable.models import Cause, Failure
from durable.retention import LATE, waiting_since

#: Alerts are sent only for causes that have made a run fail within this time.
RECENT: Final = timedelta(hours=1)
_MOST_HELD: Final = 100  # held runs of a cause to count
_CAUSE: Final = "cause:"
_HELD: Final = "held:"
_QUEUE: Final = "queue:"
#: The kind of alerts that no run delivers: workers claim none.
DATABASE: Final = "database"
_DATABASE: Final = f"{DATABASE}:"


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
    if "held" in events:
        conditions += _held()
        silent |= _lasting([each for each in alerted if each.startswith(_HELD)])[1]
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
    if DATABASE in events:
        database = _database()
        if database is None:
            unknown |= {each for each in alerted if each.startswith(_DATABASE)}
        conditions += database or []
    return Found(conditions=conditions, unknown=unknown, silent=silent)


def path_of(key: str) -> str:
    """Return the path of the page about a condition that may be over: of a cause, a queue or the database, else ""."""
    for prefix in (_CAUSE, _HELD):
        if key.startswith(prefix):
            return _path("durable_run_cause", key.removeprefix(prefix))
    if key.startswith(_DATABASE):
        return keyed_path("durable_run_database", key.removeprefix(_DATABASE))
    return keyed_path("durable_run_queue", key.removeprefix(_QUEUE)) if key.startswith(_QUEUE) else ""


def _causes(now: datetime) -> Iterator[Condition]:
    for cause in list_causes(now, muted=False):
        if ALERT in cause.workflows or cause.last_at is None or cause.last_at < now - RECENT or not cause.failed:
            continue
        is_rollback = cause.place.endswith(ROLLBACK)
        place = f'"{cause.place.removesuffix(ROLLBACK).rstrip()}"' if cause.place else "the workflow's code"
        workflows = ", ".join(cause.workflows[:5])
        what = "A compensation has stopped" if is_rollback else "Runs fail"
        them = "it" if cause.failed.number == 1 else "them"
        yield Condition(
            kind="rollback" if is_rollback else "cause",
            key=f"{_CAUSE}{cause.fingerprint}",
            title=f"{what} at {place} of {workflows}: {cause.error_type}",
            text=f"{plural(cause.failed.number, 'run')} failed for this cause. `durable recover --cause "
            f"{cause.fingerprint}` recovers {them} once the cause is fixed.",
            path=_path("durable_run_cause", cause.fingerprint),
        )


def _lasting(keys: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return which of the causes still have failed runs, and which were muted; one statement, none for no keys.

    The keys of held runs say whether these last.
    """
    if not keys:
        return set(), set()
    prefix = f"{keys[0].partition(':')[0]}:"
    open_ones = Failure.objects.using(conf.DATABASE).filter(cause=OuterRef("pk"), is_open=True, is_held=prefix == _HELD)
    causes = Cause.objects.using(conf.DATABASE).filter(fingerprint__in=[each.removeprefix(prefix) for each in keys])
    rows = list(causes.annotate(lasts=Exists(open_ones)).values_list("fingerprint", "muted_at", "lasts"))
    muted = {f"{prefix}{fingerprint}" for fingerprint, muted_at, _ in rows if muted_at is not None}
    return {f"{prefix}{fingerprint}" for fingerprint, _, lasts in rows if lasts} - muted, muted


def _held() -> Iterator[Condition]:
    """Yield a condition for each cause of which steps wait for a person, however long ago they were held."""
    causes = Cause.objects.using(conf.DATABASE)
    for cause in causes.filter(pk__in=held_by_cause().keys(), muted_at__isnull=True).order_by("first_seen_at", "pk"):
        held = Failure.objects.using(conf.DATABASE).filter(cause=cause, is_open=True, is_held=True)
        rows = list(held.order_by("-failed_at").values_list("run_id", "workflow")[: _MOST_HELD + 1])
        if not rows:  # settled meanwhile
            continue
        number = plural(len(rows), "run") if len(rows) <= _MOST_HELD else f"More than {_MOST_HELD} runs"
        stay = "stays" if len(rows) == 1 else "stay"
        where = f'"{cause.place}"' if cause.place else "a step"
        workflows = ", ".join(sorted({workflow for _run, workflow in rows})[:5])
        newest = rows[0][0]
        yield Condition(
            kind="held",
            key=f"{_HELD}{cause.fingerprint}",
            title=f"A person is waited for at {where} of {workflows}: {cause.error_type}",
            text=f"{number} {stay} open until somebody says whether it was done, has it tried again, or fails it. "
            f"`durable why {newest}` asks the question of the newest one, `durable list --held` lists all.",
            path=keyed_path("durable_run_change", newest) if len(rows) == 1 else _held_path(cause.fingerprint),
        )


def _held_path(fingerprint: str) -> str:
    path = _path("durable_run_changelist")
    return f"{path}?held=1&cause={fingerprint}" if path else ""


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
            path=keyed_path("durable_run_change", oldest.run_id),
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
            path=keyed_path("durable_run_schedule", name),
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


def _database() -> list[Condition] | None:
    """Return the condition of a database that went back in time; None if its mark cannot be read."""
    found = marks.look()
    if found.row is None or not found.is_behind:
        return None if found.problem else []
    if found.is_another_history:
        title = "Two databases with one name are in use, and workers claim nothing in one of them"
    else:
        title = f"The database went back by {span(found.lost.total_seconds())}, and workers claim nothing"
    return [
        Condition(
            kind=DATABASE,
            key=f"{_DATABASE}{found.row.name}",
            title=title,
            text=f"{found.in_words()}. `durable restored` lists the runs that do things again, and lets workers go on.",
            path=keyed_path("durable_run_database", found.row.name),
        )
    ]


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
            path=keyed_path("durable_run_queue", queue.name),
        )
        for queue in workers.queues
        if queue.has_runs and (not queue.workers or not queue.is_known)
    ]


def keyed_path(page: str, key: str) -> str:
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
