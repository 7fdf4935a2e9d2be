"""Bulks as operators see them: a description of the order, the causes of a selection's failed runs, and the progress.

Read from the audit log and, for a bulk in the background, from the state of its run. A constant number of statements,
each with a cap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from durable.conf import conf
from durable.core.places import Place
from durable.core.records import ActionOutcome, RunState
from durable.core.registry import BULK, is_stopped, replays_prefix
from durable.core.tally import Tally
from durable.inspection.children import FailedChildren
from durable.inspection.counting import Count, count_capped
from durable.inspection.explain_states import capitalized
from durable.inspection.humanize import either, span, thousands
from durable.inspection.payloads import payload, recorded_input
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import runs_within
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.inspection.wording import cause_in_words, state_in_words, verb_title
from durable.models import Cause, Entry, Failure, OperatorAction, Run
from durable.models.history import KeyIn
from durable.models.run import RunQuerySet
from durable.operations.verbs import BULK_ACTIONS, RUN_VERBS
from durable.tag_hashes import is_hashed

CAP: Final = 10_000  # rows of a bulk to count, and to search for failed runs
_READ: Final = 500  # refused rows that are grouped
_SHOWN: Final = 20  # runs of a group
_REFUSED: Final = sorted(set(ActionOutcome) - {ActionOutcome.DONE})
_FOLLOWED: Final = frozenset(each for each in BULK_ACTIONS if RUN_VERBS[each].is_followed)
_MEANT_FOR_HELD: Final = frozenset({"recover", "settle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSummary:
    """A bulk: who requested it, and its progress.

    `run` is its background run; None for a bulk done at once, or if the run was deleted. `done`, `refused` and `total`
    are numbers of runs; `total` is None if it is not known. `again` counts runs that have failed again, among the
    newest `CAP` done; None if the verb is not followed. `started` are the children that its replays start again, for
    the newest `CAP` replays; None for other verbs. `stopped` are the numbers of failed and of open runs of the canary
    that stopped the bulk; None if it is not stopped. `was_stopped`: an operator ended it there.
    """

    id: str
    verb: str
    actor: str
    source: str
    reason: str
    began_at: datetime
    run: Run | None
    done: Count
    refused: Count
    total: int | None
    again: Count | None
    started: Count | None = None
    order: Any = None
    actor_id: Any = None
    phase: str = ""
    stopped: tuple[int, int] | None = None
    was_stopped: bool = False

    @property
    def is_over(self) -> bool:
        return self.run is None or self.run.finished_at is not None

    @property
    def processed(self) -> int:
        return self.done.number + self.refused.number

    @property
    def numbers(self) -> str:
        """The progress in words: "312 of 1,060; 3 refused; 2 failed again"."""
        processed = str(Count(number=self.processed, is_capped=self.done.is_capped))
        if self.total is not None and self.total >= self.processed:
            processed = _("%(number)s of %(total)s") % {"number": processed, "total": thousands(self.total)}
        parts = [processed]
        if self.refused:
            refused = ngettext("%(number)s refused", "%(number)s refused", self.refused.number)
            parts.append(refused % {"number": self.refused})
        if self.again:
            again = ngettext("%(number)s failed again", "%(number)s failed again", self.again.number)
            parts.append(again % {"number": self.again})
        return "; ".join(parts)

    @property
    def headline(self) -> str:
        """The present state, as one sentence without a full stop."""
        if self.stopped is not None:
            return self._stopped_why(*self.stopped)
        told = {"numbers": self.numbers, "first": self.done}
        if self.was_stopped:
            return _("Stopped by an operator: %(numbers)s") % told
        if self.is_over:
            ended = RunState.COMPLETED if self.run is None else self.run.state
            if ended == RunState.COMPLETED:
                return _("Done: %(numbers)s") % told
            return _("%(state)s: %(numbers)s") % {**told, "state": capitalized(state_in_words(ended))}
        if self.phase == "watch":
            return _("Waiting for the first %(first)s before the rest: %(numbers)s") % told
        if self.run is not None and self.run.state == RunState.PAUSED:
            return _("Paused: %(numbers)s") % told
        return _("Under way: %(numbers)s") % told

    def _stopped_why(self, failed: int, still: int) -> str:
        told = {"first": self.done, "failed": failed, "still": still}
        if failed and still:
            text = ngettext(
                "Stopped after the first %(first)s: %(failed)d of them failed again, and %(still)d was still under way",
                "Stopped after the first %(first)s: %(failed)d of them failed again, and %(still)d were still under way",
                still,
            )
        elif failed:
            text = ngettext(
                "Stopped after the first %(first)s: %(failed)d of them failed again",
                "Stopped after the first %(first)s: %(failed)d of them failed again",
                failed,
            )
        else:
            text = ngettext(
                "Stopped after the first %(first)s: %(still)d had not come to an end in time",
                "Stopped after the first %(first)s: %(still)d had not come to an end in time",
                still,
            )
        return text % told


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Runs of a bulk that were refused for one reason: the first ones, and their number."""

    outcome: str
    reason: str
    runs: tuple[str, ...]
    number: int


def find_bulk(bulk_id: str) -> BulkSummary | None:
    """Return the bulk with this id; None if there is none. At most eight statements."""
    run = Run.objects.using(read_alias()).filter(pk=bulk_id).defer("input", "output").first()
    if run is not None and run.workflow != BULK:
        return None
    rows = _rows(bulk_id)
    first = rows.order_by("bulk_id", "outcome", "id").first()  # along the index
    head = _head(bulk_id) or first
    if head is None or (run is None and first is None and head.after):  # an action on a single run, which was deleted
        return None
    state = {} if run is None else _state_of(run)
    done, refused = _counted(bulk_id, state)
    order = None if run is None else order_of(run)
    return BulkSummary(
        id=bulk_id,
        verb=head.action,
        actor=head.actor_label,
        source=head.source,
        reason=head.reason,
        began_at=head.created_at,
        run=run,
        done=done,
        refused=refused,
        total=None if order is None else order.total,
        again=_number_failed_again(bulk_id, head.action) if head.action in _FOLLOWED else None,
        started=_number_started(bulk_id) if head.action == "replay" else None,
        order=order,
        actor_id=head.actor_id,
        phase=str(state.get("phase", "")),
        stopped=_stopped(run, state),
        was_stopped=state.get("stopped") is True,
    )


def find_limited_bulk(bulk_id: str, within: RunQuerySet, actor_id: Any) -> BulkSummary | None:
    """Return the bulk with this id for a user who may see the runs `within`; None if there is none for this user.

    It must be the user's own bulk, of at most `_READ` runs, and the user must still see all of them. Two more
    statements.
    """
    found = find_bulk(bulk_id)
    if found is None or found.actor_id is None or str(found.actor_id) != str(actor_id):
        return None
    members = list(_rows(bulk_id).order_by("bulk_id", "outcome", "id").values_list("run_id", flat=True)[: _READ + 1])
    runs = Run.objects.using(read_alias()).filter(pk__in=members)
    if len(members) > _READ or runs.count() != within.filter(pk__in=members).count():
        return None
    again = None if found.again is None else _number_failed_again(bulk_id, found.verb, within)
    return replace(found, again=again)


def refusals(bulk_id: str) -> list[Refusals]:
    """Return the refusals of the bulk by reason, the most frequent first. One statement."""
    found = _rows(bulk_id).filter(outcome__in=_REFUSED).order_by("outcome", "id")
    return refusals_of(found.values_list("outcome", "run_id", "detail")[:_READ])


def refusals_of(rows: Iterable[tuple[str, str, str]]) -> list[Refusals]:
    """Group refused runs (outcome, id, detail) by reason, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome, run_id, detail in rows:
        groups.setdefault((outcome, detail.replace(f'"{run_id}"', "").replace("  ", " ")), []).append(run_id)
    made = [
        Refusals(outcome=outcome, reason=reason, runs=tuple(runs[:_SHOWN]), number=len(runs))
        for (outcome, reason), runs in groups.items()
    ]
    return sorted(made, key=lambda each: -each.number)


def failed_again(bulk_id: str, verb: str, within: RunQuerySet | None = None) -> RunQuerySet:
    """Return the runs that failed again after the bulk's verb, among the newest `CAP` of its rows.

    For replays as new runs, the new runs count. After `recover` and `settle`, runs with a step that waits for a person
    again count too.
    """
    every = runs_within(within)
    runs = every.filter(state=RunState.FAILED.value)
    originals = _done(bulk_id).order_by("-id").values("run_id")[:CAP]
    if verb in _MEANT_FOR_HELD:
        held = Failure.objects.using(read_alias()).filter(run__in=originals, is_held=True)
        return every.filter(Q(state=RunState.FAILED.value) | Q(pk__in=held.values("run_id")), KeyIn("id", originals))
    if verb != "replay":
        return runs.filter(KeyIn("id", originals))
    prefix = replays_prefix(bulk_id)
    return runs.filter(replay_of__in=originals, pk__gte=prefix, pk__lt=f"{prefix}\U0010ffff")


def order_of(run: Run) -> Any:
    """Return the order of a bulk's run; None if it is too large or cannot be read: the rows of the log are enough.

    Two statements.
    """
    args = (recorded_input(run) or {}).get("args", ())
    return args[0] if len(args) == 1 else None


@dataclass(frozen=True, slots=True)
class FailedAgain:
    """The runs of a bulk that have failed again, as the selection of another bulk."""

    bulk_id: str
    verb: str
    total: ClassVar[int | None] = None  # not known without counting
    is_everything: ClassVar[bool] = False  # the bulk is a condition

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids after `cursor`, sorted by id, and the next cursor; None at the end."""
        found = self._runs().order_by("pk")
        ids = list((found if cursor is None else found.filter(pk__gt=cursor)).values_list("pk", flat=True)[:limit])
        return ids, ids[-1] if len(ids) == limit else None

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` of the ids, if failed runs are asked for."""
        return self.page(None, limit)[0] if RunState.FAILED in states else []

    def tally(self, states: Collection[str], most: int) -> Tally:  # noqa: ARG002  # all of them are failed
        """Count the runs by workflow. One statement."""
        found = list(self._runs().values_list("workflow", flat=True)[:most])
        numbers = {(RunState.FAILED.value, workflow): found.count(workflow) for workflow in set(found)}
        return Tally(numbers=numbers, partial=frozenset({RunState.FAILED.value}) if len(found) >= most else frozenset())

    def failed(self) -> Sequence[tuple[RunQuerySet, bool]]:
        """Return the runs as one queryset, which is not a window."""
        return [(self._runs(), False)]

    def _runs(self) -> RunQuerySet:
        return failed_again(self.bulk_id, self.verb)


def bulks_among(run_ids: Iterable[str]) -> set[str]:
    members = _rows(OuterRef("run_id"))
    heads = OperatorAction.objects.using(read_alias()).filter(run_id__in=list(run_ids), bulk_id="")
    return set(heads.filter(Exists(members)).values_list("run_id", flat=True))


# -- the parts


def _rows(bulk_id: str | OuterRef) -> QuerySet[OperatorAction]:
    # Not empty: the condition of the index on bulks.
    return OperatorAction.objects.using(read_alias()).filter(bulk_id=bulk_id).exclude(bulk_id="").order_by()


def _done(bulk_id: str) -> QuerySet[OperatorAction]:
    return _rows(bulk_id).filter(outcome=ActionOutcome.DONE)


def _head(bulk_id: str) -> OperatorAction | None:
    found = OperatorAction.objects.using(read_alias()).filter(run_id=bulk_id, outcome=ActionOutcome.DONE, bulk_id="")
    return found.order_by("created_at", "id").first()


def _counted(bulk_id: str, state: dict[str, Any]) -> tuple[Count, Count]:
    """Return the numbers of done and refused runs, as counted by the bulk's run, or else from the log."""
    known = [state.get(name) for name in ("done", "refused")]
    if all(isinstance(each, int) for each in known):
        return Count(number=int(str(known[0]))), Count(number=int(str(known[1])))
    rows = _rows(bulk_id)
    done, refused = count_capped([rows.filter(outcome=ActionOutcome.DONE), rows.filter(outcome__in=_REFUSED)], CAP)
    return done, refused


def _number_failed_again(bulk_id: str, verb: str, within: RunQuerySet | None = None) -> Count:
    [found] = count_capped([failed_again(bulk_id, verb, within).order_by()], CAP)
    return found


def _number_started(bulk_id: str) -> Count:
    numbers = _done(bulk_id).filter(number__gt=0).order_by("-id").values_list("number", flat=True)
    found = list(numbers[: CAP + 1])
    return Count(number=sum(found[:CAP]), is_capped=len(found) > CAP)


def _state_of(run: Run) -> dict[str, Any]:
    """Return the state of the bulk's loop or, at its end, its output; {} if there is none yet, or if it is hidden.

    Do not show its reasons of refusals: only its numbers and words are the app's own.
    """
    recorded = Run.objects.using(read_alias()).filter(pk=run.pk).values_list("output", flat=True).first()
    found = payload(run.workflow, "output", recorded, Place(run.pk, "output"))
    if found is None:
        entries = Entry.objects.using(read_alias()).filter(run=run, location="runs")
        loop = entries.values_list("data", flat=True).first()
        found = payload(run.workflow, "state:runs", (loop or {}).get("state"), Place(run.pk, "state", "runs"))
    return found if isinstance(found, dict) else {}


def _stopped(run: Run | None, state: dict[str, Any]) -> tuple[int, int] | None:
    if run is None or run.wake_at is not None or not is_stopped(run.workflow, run.state, run.waiting_for):
        return None
    failed, still = (state.get(name) for name in ("again", "open"))
    return (failed if isinstance(failed, int) else 0, still if isinstance(still, int) else 0)


_TIMES = {
    "created_from": gettext_lazy("created from %(value)s"),
    "created_until": gettext_lazy("created before %(value)s"),
    "finished_from": gettext_lazy("ended from %(value)s"),
    "finished_until": gettext_lazy("ended before %(value)s"),
}
_WORDS = {
    "workflow": gettext_lazy('of the workflow "%(value)s"'),
    "queue": gettext_lazy('in the queue "%(value)s"'),
    "id_prefix": gettext_lazy('whose id begins with "%(value)s"'),
    "error_text": gettext_lazy('whose error has the text "%(value)s"'),
    "waiting_queue": gettext_lazy('waiting for a message in "%(value)s"'),
    "cause": gettext_lazy("that failed because of “%(value)s”"),
    "place": gettext_lazy('that failed at "%(value)s"'),
    "worker": gettext_lazy('of the worker "%(value)s"'),
    "about": gettext_lazy('about "%(value)s"'),
}
_FLAGS = {
    "is_undone": gettext_lazy("whose steps were undone"),
    "is_stuck": gettext_lazy("whose compensation has stopped"),
    "is_diverged": gettext_lazy("that the workers' code does not fit"),
    "needs_attention": gettext_lazy("that need a person"),
    "is_held": gettext_lazy("with a step that waits for a person"),
}
_OPTIONS = {
    "end_sleeps": gettext_lazy("end sleeps"),
    "not_done": gettext_lazy("it was not done"),
    "fail": gettext_lazy("it fails"),
    "rollback": gettext_lazy("rollback"),
    "interrupt": gettext_lazy("interrupt"),
}


def order_words(order: Any, began_at: datetime) -> str:
    """Describe the order of a bulk that began at this moment, in sentences. At most one statement."""
    options = [
        str(_OPTIONS.get(name, name)) for name, value in order.options.items() if name in _OPTIONS and value is True
    ]
    if "done" in order.options:
        options.append(_("it was done"))
    if place := order.options.get("place"):
        options.append(_('at "%(place)s"') % {"place": place})
    if location := order.options.get("location"):
        options.append(_('from "%(place)s"') % {"place": location})
    verb = verb_title(order.verb)
    told = {"verb": f"{verb} ({', '.join(options)})" if options else verb, "which": _which(order.selection, began_at)}
    if order.total is not None:
        runs = ngettext("%(verb)s %(number)s run %(which)s", "%(verb)s %(number)s runs %(which)s", order.total)
        sentences = [(runs % {**told, "number": thousands(order.total)}).strip()]
    else:
        sentences = [(_("%(verb)s runs %(which)s") % told).strip()]
    canary = order.canary
    if canary is not None:
        sentences.append(
            _("The first %(first)d are tried alone, for %(span)s at most; it stops after %(failed)d of them failed")
            % {"first": canary.first, "span": span(canary.within), "failed": canary.stop_after}
        )
    if order.rate is not None:
        sentences.append(_("At most %(rate)s runs a second") % {"rate": f"{order.rate:g}"})
    if order.reason:
        sentences.append(_("Reason: %(reason)s") % {"reason": order.reason})
    return " ".join(each if each.endswith(("?", "!", "…")) else f"{each.rstrip('.')}." for each in sentences)


def _which(selection: Any, began_at: datetime) -> str:
    if isinstance(selection, Filtered):
        return ", ".join(_conditions(selection.wanted))
    if isinstance(selection, FailedAgain):
        return _("that failed again after the bulk %(bulk)s") % {"bulk": selection.bulk_id}
    if isinstance(selection, FailedChildren):
        completed = Run.objects.using(read_alias()).filter(
            pk=selection.parent, state=RunState.COMPLETED.value, finished_at__lt=began_at
        )
        if completed.exists():
            return _('that are failed children of "%(run)s", which has completed: its output stays as it is') % {
                "run": selection.parent
            }
        return _('that are failed children of "%(run)s", and then that run if it has failed too') % {
            "run": selection.parent
        }
    return _("that were chosen")


def _conditions(wanted: RunCriteria) -> Iterator[str]:
    if wanted.states:
        states = either(sorted(state_in_words(each) for each in wanted.states))
        yield _("in the state %(states)s") % {"states": states}
    for name, words in _WORDS.items():
        value = getattr(wanted, name)
        if name == "cause" and value:
            value = _cause(value)
        if value:
            yield str(words) % {"value": _("(hidden)") if name == "error_text" and conf.REDACT else value}
    for name, value in wanted.tags:
        yield _('with the tag "%(name)s=%(value)s"') % {
            "name": name,
            "value": _("(hidden)") if conf.REDACT or is_hashed(name) else value,
        }
    for name, words in _TIMES.items():
        moment = getattr(wanted, name)
        if moment is not None:
            yield str(words) % {"value": f"{moment:%Y-%m-%d %H:%M} UTC"}
    for name, words in _FLAGS.items():
        if getattr(wanted, name):
            yield str(words)


def _cause(fingerprint: str) -> str:
    """Describe a cause, or give its fingerprint if it was deleted since; one statement."""
    found = Cause.objects.using(read_alias()).filter(fingerprint=fingerprint).values_list("place", "error_type").first()
    return fingerprint if found is None else cause_in_words(*found)
