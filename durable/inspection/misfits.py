"""The builds around a run whose history does not fit the code: which recorded it, which met it, which serve it now.

Read for such runs only. A worker of a release before, and a process that no row tells of, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.records import RunState
from durable.core.renames import names_of_queue
from durable.inspection.shell_command import command
from durable.inspection.workers import DEAD_AFTER
from durable.models import Build, EntryMetadata, Failure, Run, WorkerProcess

_MOST = 200  # workers that are looked at
_NAMED = 3  # builds that a sentence names
#: What is not offered before another build is there: it would meet the same code again.
WITHHELD = ("recover",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The builds of one run, "" for one that is not known.

    `recorded` is the newest build when the history was recorded, `met` the one that does not fit it. `serving` are the
    builds of the workers that take runs of its queue now. `is_alone`: these workers are known, and all of them run the
    code that has met it.
    """

    recorded: str
    met: str
    serving: Sequence[str]
    is_alone: bool

    @property
    def note(self) -> str:
        """What an operator should know of the builds, as sentences without the last full stop; "" for nothing."""
        said = []
        if self.recorded and self.met and self.recorded != self.met:
            words = _("Recorded with the build %(recorded)s; the build %(met)s does not fit it")
            said.append(words % {"recorded": self.recorded, "met": self.met})
        elif self.met:
            said.append(_("The build %(met)s does not fit it") % {"met": self.met})
        elif self.recorded:
            said.append(_("Recorded with the build %(recorded)s") % {"recorded": self.recorded})
        others = [each for each in self.serving if each != self.met]
        if self.is_alone:
            said.append(_("No worker of its queue has another build yet: deploy one first, then recover it"))
        elif self.met and others:
            said.append(_("Workers of its queue now have %(builds)s") % {"builds": ", ".join(others[:_NAMED])})
        elif others:
            said.append(_("Workers of its queue have %(builds)s") % {"builds": ", ".join(others[:_NAMED])})
        return ". ".join(said)


def replay_check(workflow: str) -> str:
    """Return the command that tells whether recorded runs of the workflow fit the code at hand."""
    return command("replay-check", workflow=workflow)


def misfit_of(run: Run, now: datetime) -> Misfit:
    """Return the builds of a run that has diverged, or that a mistake has stopped; four statements at most."""
    living = _living(now)
    if run.state == RunState.FAILED:
        failure = Failure.objects.using(conf.DATABASE).filter(run=run).first()
        met, since = ("", run.finished_at or now) if failure is None else (failure.build, failure.failed_at)
    else:
        builds = _builds(living, run.queue)
        met, since = builds[0] if len(builds) == 1 else "", run.diverged_at or now
    recorded = ""
    if met or Build.objects.using(conf.DATABASE).exists():
        entries = EntryMetadata.objects.using(conf.DATABASE).filter(entry__run=run)
        newest = entries.aggregate(newest=Max("created_at"))["newest"] or run.started_at or run.created_at
        named = Build.objects.using(conf.DATABASE).filter(first_seen_at__lte=newest).order_by("-first_seen_at")
        recorded = named.values_list("name", flat=True).first() or ""
    return Misfit(
        recorded=recorded,
        met=met,
        serving=_builds(living, run.queue),
        is_alone=run.state == RunState.FAILED and _is_alone(living, run.queue, met, since),
    )


def misfits_of_failed(ids: Iterable[str], now: datetime) -> set[str]:
    """Return those of these failed runs that no worker with other code could take; two statements, none without ids."""
    wanted = list(ids)
    if not wanted:
        return set()
    living = _living(now)
    failures = Failure.objects.using(conf.DATABASE).filter(run__in=wanted)
    return {each.run_id for each in failures if _is_alone(living, each.queue, each.build, each.failed_at)}


def _living(now: datetime) -> list[WorkerProcess]:
    rows = WorkerProcess.objects.using(conf.DATABASE).filter(last_seen_at__gte=now - DEAD_AFTER)
    return list(rows.exclude(state=WorkerProcess.State.STOPPING).order_by("-started_at")[:_MOST])


def _serving(living: Iterable[WorkerProcess], queue: str) -> list[WorkerProcess]:
    names = names_of_queue(queue)
    return [each for each in living if each.serves_all or any(name in each.queues for name in names)]


def _builds(living: Iterable[WorkerProcess], queue: str) -> list[str]:
    """Return the named builds of the workers that serve the queue, the newest worker's first."""
    return list(dict.fromkeys(each.build for each in _serving(living, queue) if each.build))


def _is_alone(living: Iterable[WorkerProcess], queue: str, met: str, since: datetime) -> bool:
    """Return whether the workers of the queue are known, and all have the code that met the run at `since`.

    Where builds have no names, a worker that has begun since then may have other code.
    """
    serving = _serving(living, queue)
    if met:
        return bool(serving) and all(each.build == met for each in serving)
    return bool(serving) and all(each.started_at <= since for each in serving)
