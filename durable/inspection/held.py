"""Steps that wait for a person: what is known of their last attempts, and the question that a person answers.

Reads the steps of one run (`held_of`) and of many (`held_by_reason`). Must not decide anything, and must not show
arguments to those who may not see payloads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final

from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Substr
from django.utils import timezone
from django.utils.translation import gettext as _

from durable.core.entry_shapes import readable
from durable.core.outcomes import HeldReason, HeldStep, held_steps
from durable.core.places import Place
from durable.core.records import EntryRecord, EntryStatus, RunState
from durable.core.summary import KIND_LENGTH, SummaryKind, is_held
from durable.inspection.humanize import moment, printable, shortened
from durable.inspection.payloads import TooLarge, payload, read_within, redacted_error
from durable.inspection.progress import unfinished_entries
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import rows_within
from durable.inspection.wording import display_location
from durable.models import Attempt, Entry, Failure, OperatorAction, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

MOST: Final = 20  # held steps of a run that are read
CAP: Final = 1_000  # held runs to count
_BYTES: Final = 16 * 1024  # of arguments that are read, of all steps together
_LENGTH: Final = 120  # characters of arguments that are shown
_DIED: Final = "WorkerDied"

#: The states in which a run may stand still because of a held step.
_AT_REST: Final = (RunState.SLEEPING, RunState.ROLLING_BACK)


def waits_for_person(run: Run) -> bool:
    """Return whether the run stands still until a person settles one of its steps, as far as its row says."""
    if run.state not in _AT_REST or not is_held(run.summary):
        return False
    return run.wake_at is None or run.wake_at > timezone.now()  # a step that was just settled is due


def has_held(run: Run) -> bool:
    """Return whether a step of the run waits for a person; one look at an index."""
    return Failure.objects.using(read_alias()).filter(run=run.pk, is_held=True).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldHere:
    """A held step with its last attempt.

    `call` is the step with its arguments, or without them for those who may not see payloads. `began_at` and `ended_at`
    are those of the attempt; `ended_at` is when its worker died, if that was noted (`has_died`). `worker` had the
    attempt; "" if that is not recorded. `until` is when the step fails by itself, None for never. `error` is redacted.
    """

    step: HeldStep
    call: str
    began_at: datetime | None
    ended_at: datetime | None
    worker: str
    has_died: bool
    error: str
    until: datetime | None

    @property
    def location(self) -> str:
        return self.step.location

    @property
    def is_unknown(self) -> bool:
        """Whether nobody knows if the attempt was done; else its attempts are used up."""
        return self.step.reason == HeldReason.UNKNOWN

    def headline(self, waited: str) -> str:
        """Say since when it waits for a person, and why. `waited` is how long, in words."""
        told = {"span": waited, "number": self.step.attempt, "step": display_location(self.location)}
        if not self.step.attempt:
            text = _('Waits for a person for %(span)s: nobody knows whether "%(step)s" was done')
        elif self.is_unknown:
            text = _('Waits for a person for %(span)s: nobody knows whether attempt %(number)d of "%(step)s" was done')
        else:
            text = _('Waits for a person for %(span)s: the attempts of "%(step)s" are used up')
        return text % told

    def question(self, now: datetime) -> str:
        """Return the question to a person: "Was it done? charge(42, 990), attempt 1 begun 14:02:01 UTC, worker a:1 died
        14:02:03 UTC".
        """
        asked = _("Was it done?") if self.is_unknown else _("Its attempts are used up:")
        attempt = [self._began(now)] if self.step.attempt else []  # else it is not recorded
        return f"{asked} {', '.join([self.call, *attempt, *self._ended(now)])}"

    def _began(self, now: datetime) -> str:
        told = {"number": self.step.attempt, "when": "" if self.began_at is None else moment(self.began_at, now)}
        text = _("attempt %(number)d") if self.began_at is None else _("attempt %(number)d begun %(when)s")
        return text % told

    def _ended(self, now: datetime) -> list[str]:
        when = "" if self.ended_at is None else moment(self.ended_at, now)
        told = {"worker": self.worker, "when": when, "error": shortened(self.error)}
        if self.has_died:
            return [_("worker %(worker)s died %(when)s") % told]
        if self.worker and when:
            return [_("ended %(when)s on worker %(worker)s: %(error)s") % told]
        return [told["error"]] if self.error else []


def held_of(run: Run, *, with_payloads: bool = False, locations: Iterable[str] | None = None) -> Sequence[HeldHere]:
    """Return the held steps of the run (of these `locations`), in the order in which they began, at most `MOST`.

    Two statements, one more where a worker has died, and two for arguments.
    """
    found = unfinished_entries(run, EntryStatus.HELD)
    if locations is not None:
        found = found.filter(location__in=list(locations))
    entries: list[Any] = list(found.select_related("metadata").defer("output", "arguments").order_by("ordinal")[:MOST])
    if not entries:
        return []
    attempts = _last_attempts(run, entries)
    deaths = _deaths(run) if any(map(_may_have_died, entries)) else []
    calls = _calls(run, entries) if with_payloads else {}
    return [_held_here(run, entry, attempts.get(entry.location), deaths, calls.get(entry.pk, "")) for entry in entries]


def _held_here(
    run: Run, entry: Any, attempt: Attempt | None, deaths: Sequence[tuple[datetime, str]], call: str
) -> HeldHere:
    metadata = entry.metadata
    began = metadata.last_attempt_at if attempt is None else attempt.started_at
    ended = None if attempt is None else attempt.finished_at
    worker = "" if attempt is None else attempt.worker
    died = None
    if _may_have_died(entry):  # the attempt was recorded by the worker that has found it
        died = next((each for each in deaths if began and began <= each[0] and (not ended or each[0] <= ended)), None)
        ended, worker = died or (ended, "")
    [step] = held_steps([_record(entry)])
    return HeldHere(
        step=step,
        call=call or display_location(entry.location),
        began_at=began,
        ended_at=ended,
        worker=worker,
        has_died=died is not None,
        error=redacted_error(run.workflow, metadata.error),
        until=metadata.next_attempt_at,
    )


def _record(entry: Any) -> EntryRecord:
    metadata = entry.metadata
    return EntryRecord(
        location=entry.location,
        kind=entry.kind,
        ordinal=entry.ordinal,
        data=readable(entry.kind, entry.data),
        status=metadata.status,
        attempts=metadata.attempts,
        error=metadata.error,
        created_at=metadata.created_at,
    )


def _may_have_died(entry: Any) -> bool:
    return entry.metadata.error is not None and entry.metadata.error.type == _DIED


def _last_attempts(run: Run, entries: Sequence[Any]) -> dict[str, Attempt]:
    """Return the newest recorded attempt of each step, if it is the step's last one; by location."""
    wanted = reduce(or_, (Q(location=each.location, number=each.metadata.attempts) for each in entries))
    found = Attempt.objects.using(read_alias()).filter(wanted, run=run).defer("error").order_by("id")
    return {each.location: each for each in found}


def _deaths(run: Run) -> list[tuple[datetime, str]]:
    """Return when workers have died with the run, and which, the newest first."""
    died = OperatorAction.objects.using(read_alias()).filter(run_id=run.id, action="worker_died")
    return list(died.order_by("-created_at", "-id").values_list("created_at", "actor_label")[:MOST])


def _calls(run: Run, entries: Sequence[Any]) -> dict[int, str]:
    """Return the steps with their arguments as the redaction hook shows them: "charge(42, 990)"; by key."""
    found = Entry.objects.using(read_alias()).filter(pk__in=[each.pk for each in entries]).order_by("ordinal")
    read: Mapping[Any, Sequence[Any] | TooLarge] = read_within(found, "arguments", most=_BYTES)
    return {each.pk: _call(run, each.location, read.get(each.pk, [None])) for each in entries}


def _call(run: Run, location: str, read: Sequence[Any] | TooLarge) -> str:
    name = display_location(location)
    if isinstance(read, TooLarge):
        return f"{name}(…)"
    shown = payload(run.workflow, f"arguments:{location}", read[0], Place(run.id, "arguments", location))
    if shown is None:
        return f"{name}()"
    values = shown if isinstance(shown, list) else [shown]
    text = printable(", ".join(json.dumps(each, ensure_ascii=False) for each in values))
    return f"{name}({shortened(text, _LENGTH)})"


# -- of all runs


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run with a held step, and why it is held, as far as its row says: the first of its steps counts.

    `reason` is "" while a worker has the run, and has changed what its row says.
    """

    id: str
    workflow: str
    reason: str
    since: datetime


#: By the beginning of a stored summary, why the run is held.
_BEGINNINGS: Final = {
    f'{{"kind":"{SummaryKind.WAITING.value}","doing":[{{"kind":"{reason.value}"': reason.value for reason in HeldReason
}


def held_runs(within: RunQuerySet | None = None, most: int = CAP) -> list[HeldRun]:
    """Return the newest runs that have a held step, at most `most`; one statement along their index."""
    held = Failure.objects.using(read_alias()).filter(is_held=True)
    held = rows_within(held, within)
    # looked up for each of them: for a join, PostgreSQL might read the table of all runs
    told = Run.objects.filter(pk=OuterRef("run_id")).values(told=Substr("summary", 1, KIND_LENGTH))[:1]
    rows = held.annotate(told=Subquery(told)).order_by("-run_created_at", "-run_id")
    return [
        HeldRun(run_id, workflow, reason_of_stored(str(unpack(told))), since)
        for run_id, workflow, told, since in rows.values_list("run_id", "workflow", "told", "failed_at")[:most]
    ]


def reason_of_stored(beginning: str) -> str:
    """Return why a run is held, given the first `KIND_LENGTH` characters of its summary; "" if they do not say it."""
    return next((reason for start, reason in _BEGINNINGS.items() if beginning.startswith(start)), "")


def held_by_reason(runs: Iterable[HeldRun]) -> Counter[tuple[str, str]]:
    return Counter((each.workflow, each.reason) for each in runs)
