"""One entry of a history in full (engine records and payloads), notes beside entries, and the links of a run in words.

Must not return payloads, tag values or error texts that were not redacted, nor the token of a link or its hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext, pgettext_lazy

from durable.core.children.entries import AGAIN
from durable.core.entry_shapes import CANNOT_BE_SHOWN, readable
from durable.core.errors import ErrorInfo
from durable.core.links import LinkState, state_of
from durable.core.location import display_location
from durable.core.messages import MISFIT, NOT_ACCEPTED
from durable.core.outcomes import HELD, ONCE, SAID_BY, HeldReason
from durable.core.places import REFUSED, Place, RecordedValue, values_of
from durable.core.records import LINK_INTERNAL, EntryKind, EntryStatus, LinkRecord
from durable.core.steps import SUMMARY, UNCOUNTED
from durable.core.tags import PRUNED
from durable.inspection.forks import FAILED, FORKS, ForkOutcome, innermost_failures, outcome_of
from durable.inspection.humanize import moment, span, thousands
from durable.inspection.payloads import PAGE_BYTES, TooLarge, payload, read_within, redacted, redacted_traceback
from durable.inspection.reading import read_alias
from durable.inspection.run_facts import shown_tags, tags_note
from durable.inspection.shown import summary_of
from durable.inspection.wording import display_queue, source_in_words, state_in_words
from durable.models import Attempt, Entry, Link, QueueMessage, Run, StepSave
from durable.store.tables.rows import LINK
from durable.store.tables.surveys import long_data

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

#: The members of an entry's data that hold values of the workflow.
_VALUES: Final = {
    EntryKind.LOOP: ("state", "open", PRUNED),
    EntryKind.MESSAGE: ("received",),
    EntryKind.SEND: (NOT_ACCEPTED,),
    EntryKind.JOIN: ("branches",),
    EntryKind.RACE: ("branches", PRUNED),
    EntryKind.LINK: LINK_INTERNAL,
}


def entry_facts(run: Run, entry: Entry) -> dict[str, Any]:
    """Return what is recorded of the operation by name: a child's id, a map's counts, a sleep's deadline."""
    data = whole_data(entry)
    facts = _without(data, *_VALUES.get(EntryKind(entry.kind), ()))
    if entry.kind == EntryKind.MESSAGE:
        facts["received"] = [_received(each) for each in data.get("received", ())]
    if entry.kind == EntryKind.MESSAGE and "event" in data:
        facts = {**_without(facts, "names"), "event": _without(data["event"], "id", "run", "after")}
    if entry.kind in (EntryKind.JOIN, EntryKind.RACE):
        branches = data.get("branches", {})
        facts["branches"] = {name: _without(branch, "output", "error") for name, branch in branches.items()}
    if SUMMARY in facts and entry.kind == EntryKind.STEP:
        facts[SUMMARY] = summary_of(run.workflow, data)
    if (link := link_of(run, entry)) is not None:
        facts |= link.facts
    if entry.kind == EntryKind.TAG:
        facts |= {part: shown_tags(run.workflow, data.get(part, {})) for part in ("tags", "before")}
    if entry.kind == EntryKind.MAP and "first" in facts.get("failure", ()):
        facts["failure"] = {**facts["failure"], "first": [_failed(run, each) for each in facts["failure"]["first"]]}
    return facts


def whole_data(entry: Entry) -> dict[str, Any]:
    """Return the full data of an entry, and reduce the entry's own `data` to its checked shape."""
    entry.data = readable(entry.kind, entry.data)
    return dict(entry.data)


def _received(record: dict[str, Any]) -> dict[str, Any]:
    shown = _without(record, "body", "completed", REFUSED, MISFIT)
    return {**shown, **{name: True for name in (REFUSED, MISFIT) if name in record}}


def _failed(run: Run, child: list[Any]) -> list[Any]:
    """Return a failed child of a map: its number, its id, and its error's type and text."""
    number, child_id, kind, message = child[:4]
    return [number, child_id, kind, str(redacted(run.workflow, "error", message))]


def _without(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


MOST: Final = 100  # failed attempts and messages that are shown
_TITLES: Final[Mapping[str, StrPromise]] = {
    "arguments": pgettext_lazy("payload", "arguments"),
    "output": pgettext_lazy("payload", "output"),
    "state": pgettext_lazy("payload", "state"),
    "saved": pgettext_lazy("payload", "saved for the next attempt"),
}
_GONE: Final[tuple[None, None, dict[str, Any]]] = (None, None, {})  # an entry that was deleted between two statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A named payload: "arguments", "output", "state", "message approved", "refusal approved" ...

    `value` is JSON data. `of` is what the name ends with: the queue of a message, or the branch.
    """

    name: str
    value: Any
    of: str = ""

    @property
    def title(self) -> str:
        if self.name in _TITLES:
            return str(_TITLES[self.name])
        if self.name.startswith("message"):
            return _("message %(queue)s") % {"queue": display_queue(self.of)}
        if self.name.startswith("refusal"):
            return _("why message %(queue)s was refused") % {"queue": display_queue(self.of)}
        return _('output of branch "%(branch)s"') % {"branch": self.of}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """A failed attempt of a step; `traceback` is "" if the user may not see it."""

    attempt: Attempt
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchOutcome:
    """A branch of a join or race: its end, its error, and the location where that began ("" if no entry failed)."""

    name: str
    status: str
    error: ErrorInfo | None
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDetail:
    """The details of an entry.

    `status` is the entry's; that of a join or race that raised an error is "failed". `branches` are its branches, the
    failed ones first. `facts` are the engine's own words about the entry, by name. `fields` are the payloads: none if
    the user may not see them, and none if they are `too_large`.
    """

    entry: Entry
    status: str
    branches: Sequence[BranchOutcome]
    facts: Sequence[tuple[str, str]]
    fields: Sequence[Field]
    attempts: Sequence[FailedAttempt]
    too_large: TooLarge | None = None


def read_entry_detail(run: Run, location: str, *, with_payloads: bool, most: int = PAGE_BYTES) -> EntryDetail | None:
    """Return the entry at `location`, or None. A few statements; values of more than `most` bytes are not read."""
    found = Entry.objects.using(read_alias()).filter(run=run, location=location)
    entry = found.select_related("metadata").defer("output", "arguments", "data").first()
    if entry is None:
        return None
    read = _read(run, entry, found, most) if with_payloads else None
    if not isinstance(read, list):
        _read_facts(entry)
    attempts = Attempt.objects.using(read_alias()).filter(run=run, location=location).order_by("-id")[:MOST]
    outcome = outcome_of(run.id, location, with_errors=True) if entry.kind in FORKS else None
    return EntryDetail(
        entry=entry,
        status=entry.metadata.status if outcome is None else outcome.status(entry.metadata.status),
        branches=[] if outcome is None else list(_branches(run, outcome, with_payloads=with_payloads)),
        facts=list(_facts(run, entry)),
        fields=read if isinstance(read, list) else [],
        too_large=read if isinstance(read, TooLarge) else None,
        attempts=[
            FailedAttempt(attempt=each, error=_error(run.workflow, each.error, with_payloads=with_payloads))
            for each in attempts
        ],
    )


def inbox(run: Run, *, newest: int = MOST) -> list[QueueMessage]:
    """Return the run's newest messages, the newest first, without bodies and responses."""
    return list(newest_messages(run, newest).defer("body", "response"))


def newest_messages(run: Run, most: int) -> QuerySet[QueueMessage]:
    return QueueMessage.objects.using(read_alias()).filter(run=run).order_by("-order")[:most]


def _read(run: Run, entry: Entry, found: QuerySet[Entry], most: int) -> list[Field] | TooLarge:
    """Load the entry's data and return its fields; values that are too large are not loaded."""
    read = read_within(found, "output", "arguments", "data", most=most).get(entry.pk, _GONE)
    if isinstance(read, TooLarge):
        return read
    entry.output, entry.arguments, entry.data = read
    whole_data(entry)
    return list(_fields(run, entry))


def _read_facts(entry: Entry) -> None:
    """Load the part of the entry's data without payloads."""
    entry.data = dict(long_data(read_alias(), entry.run_id, [(entry.pk, 0)])).get(entry.pk, {})
    entry.output = entry.arguments = None


def _branches(run: Run, outcome: ForkOutcome, *, with_payloads: bool) -> Iterator[BranchOutcome]:
    origins = {name: end.origins[0] for name, end in outcome.branches.items() if end.origins}
    innermost = innermost_failures(run.id, list(origins.values())[:MOST]) if origins else {}
    for name, end in sorted(outcome.branches.items(), key=lambda each: each[1].status != FAILED):
        error = None if end.error is None else _error(run.workflow, end.error, with_payloads=with_payloads)
        origin = origins.get(name, "")
        yield BranchOutcome(name=name, status=end.status, error=error, location=innermost.get(origin, origin))


def _error(workflow: str, error: ErrorInfo, *, with_payloads: bool) -> ErrorInfo:
    message = str(redacted(workflow, "error", error.message))
    return ErrorInfo(error.type, message, redacted_traceback(workflow, error) if with_payloads else "")


def _facts(run: Run, entry: Entry) -> Iterator[tuple[str, str]]:
    data: dict[str, Any] = entry.data
    if wrong := data.get(CANNOT_BE_SHOWN):
        yield _("data"), _("cannot be shown: %(problem)s") % {"problem": wrong}
        return
    if entry.kind == EntryKind.MESSAGE and (source := [*_facts_of_source(data)]):
        yield from source
        data = _without(data, "names", "count")
    for name in _PLAIN.get(entry.kind, ()):
        if (value := data.get(name)) not in (None, "", []):
            told = state_in_words(value) if name == "state" else value
            yield str(_NAMES.get(name, name)), ", ".join(map(str, told)) if isinstance(told, list) else str(told)
    if entry.kind == EntryKind.STEP:
        yield from _facts_of_step(run, data)
    if entry.kind in (EntryKind.STEP, EntryKind.CHILD, EntryKind.MAP) and (failure := data.get("failure")):
        kind = str(failure.get("kind"))
        note = failed_note(data)
        yield _("failed for good"), note or str(_WHY.get(kind, "")) or state_in_words(kind)
    if entry.kind == EntryKind.STEP and (rollback := data.get("rollback")):
        yield _("rollback handler"), str(rollback.get("handler"))
    if entry.kind == EntryKind.TAG:
        yield _("tags"), tags_note(run.workflow, data)
    if (link := link_of(run, entry)) is not None:
        yield _("link"), link.note
        if link.opened > 1:
            yield _("times opened"), f"{link.opened:,}"
    if entry.kind == EntryKind.MESSAGE and (note := wait_note(entry)):
        yield _("received"), note


def _facts_of_source(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what a wait gets its message from, if it is not a queue."""
    if (place := data.get("link")) is not None:
        yield _("answer of link"), display_location(place)
    if (awaited := data.get("event")) is not None:
        yield _("event"), str(awaited["name"])
        yield pgettext("of an event", "key"), str(awaited["key"])
        if "within" in awaited:
            yield _("or published before, within"), span(float(awaited["within"]))
    if (ask := data.get("ask")) is not None:
        spec = ask["spec"]
        yield _("asked"), spec["to_label"] or spec["permission"] or _("whoever may operate runs")
        if spec["form"]:
            yield _("form"), spec["form"]


def _facts_of_step(run: Run, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if summary := summary_of(run.workflow, data):
        yield _("about"), summary
    if given := data.get("given"):
        at = moment(datetime.fromisoformat(given["at"]), timezone.now()) if "at" in given else ""
        yield _("given by hand"), f"{given_note(given)}, {at}".removesuffix(", ")
    if held := data.get(HELD):
        since = moment(datetime.fromisoformat(held["since"]), timezone.now())
        told = {"why": _HELD_BECAUSE.get(held["reason"], held["reason"]), "since": since}
        yield _("waits for a person"), _("%(why)s, since %(since)s") % told
    if once := data.get(ONCE):
        yield _("idempotency key"), str(once["key"])
        if once.get("verify"):
            yield _("asked whether it was done"), str(once["verify"])
    if uncounted := data.get(UNCOUNTED):
        yield _("attempts that do not count"), f"{uncounted:,}"


#: Why a step waits for a person.
_HELD_BECAUSE: Final[Mapping[str, StrPromise]] = {
    HeldReason.UNKNOWN: gettext_lazy("nobody knows whether its last attempt was done"),
    HeldReason.EXHAUSTED: gettext_lazy("its attempts are used up"),
}
#: Why a step is not tried again, by the kind of its failure.
_WHY: Final[Mapping[str, StrPromise]] = {
    "critical": gettext_lazy("its error allows no further attempt"),
    "exhausted": gettext_lazy("no attempts are left"),
    "timeout": gettext_lazy("no attempts are left; the last one took longer than its timeout"),
    "rollback": gettext_lazy("it has asked for the compensation"),
    "payload": gettext_lazy("its output cannot be recorded"),
}
_PLAIN: Final[dict[str, tuple[str, ...]]] = {
    EntryKind.LOOP: ("iteration", "pruned"),
    EntryKind.SLEEP: ("state", "deadline"),
    EntryKind.MESSAGE: ("names", "count", "deadline"),
    EntryKind.SEND: ("queue", "to"),
    EntryKind.RACE: ("winner",),
    EntryKind.VERSION_CHECK: ("resolved", "latest"),
    EntryKind.REMOVED: ("original",),
    EntryKind.COMPENSATE: ("reason", "handlers"),
    EntryKind.PUBLISH: ("as",),
    EntryKind.CHILD: ("child", "workflow", "deadline"),
    EntryKind.MAP: ("workflow", "size", "at_once", "when_held", "on_failure"),
    EntryKind.LINK: ("verify",),
}
_NAMES: Final[Mapping[str, StrPromise]] = {
    "iteration": pgettext_lazy("fact of an entry", "iteration"),
    "pruned": pgettext_lazy("fact of an entry", "pruned"),
    "state": pgettext_lazy("fact of an entry", "state"),
    "deadline": pgettext_lazy("fact of an entry", "deadline"),
    "names": pgettext_lazy("fact of an entry", "names"),
    "count": pgettext_lazy("fact of an entry", "count"),
    "queue": pgettext_lazy("fact of an entry", "queue"),
    "to": pgettext_lazy("fact of an entry", "to"),
    "winner": pgettext_lazy("fact of an entry", "winner"),
    "resolved": pgettext_lazy("fact of an entry", "resolved"),
    "latest": pgettext_lazy("fact of an entry", "latest"),
    "verify": pgettext_lazy("fact of an entry", "checked by"),
    "original": pgettext_lazy("fact of an entry", "original"),
    "reason": pgettext_lazy("fact of an entry", "reason"),
    "handlers": pgettext_lazy("fact of an entry", "handlers"),
    "child": pgettext_lazy("fact of an entry", "child"),
    "workflow": pgettext_lazy("fact of an entry", "workflow"),
    "size": pgettext_lazy("fact of an entry", "children"),
    "at_once": pgettext_lazy("fact of an entry", "at once"),
    "on_failure": pgettext_lazy("fact of an entry", "on failure"),
    "when_held": pgettext_lazy("fact of an entry", "when held"),
    "as": pgettext_lazy("fact of an entry", "shown as"),
}


def _fields(run: Run, entry: Entry) -> Iterator[Field]:
    place: str = entry.location
    arguments, output, *others = values_of(run.id, entry)
    for each in (arguments, output):
        if each.text is not None:
            name = "output" if each is output else "arguments"
            yield Field(name=name, value=payload(run.workflow, field_of(each, place), each.text, each.place))
    if entry.kind == EntryKind.STEP and entry.metadata.status != EntryStatus.COMPLETED:
        saved = StepSave.objects.using(read_alias()).filter(run=run, location=place).first()
        if saved is not None:
            at = Place(run.id, "saved", place)
            yield Field(name="saved", value=payload(run.workflow, f"saved:{place}", saved.details, at))
    for each in others:
        if each.text is not None or each.name == "state":
            name = f'output of branch "{each.of}"' if each.name == "branch" else f"{each.name} {each.of}".strip()
            value = payload(run.workflow, field_of(each, place), each.text, each.place)
            yield Field(name=name, value=value, of=each.of)


#: For the redaction hook: the field of values whose place differs from the entry's.
_OF_QUEUES: Final = {"body": "message", "message": "message", "refusal": "response"}


def field_of(value: RecordedValue, location: str) -> str:
    """Return the redaction hook's name for a value of the entry at `location`.

    A send's arguments are the body of a message, and a branch's output is that of its join or race.
    """
    if value.name in _OF_QUEUES:
        return f"{_OF_QUEUES[value.name]}:{value.of}"
    return f"{'output' if value.name == 'branch' else value.name}:{location}"


# -- the notes beside entries of a history


def wait_note(entry: Entry) -> str:
    """Say how a wait without a received message ended; "" for any other wait. `entry` has its metadata.

    If the data was read without its messages, the wait counts as one that received some.
    """
    data: dict[str, Any] = entry.data
    if data.get("received") != []:
        return ""
    deadline = data.get("deadline")
    if deadline and datetime.fromisoformat(deadline) <= entry.metadata.created_at:
        return _("no message was there")  # it had a timeout of zero
    return _("timed out")


def given_note(given: Mapping[str, Any]) -> str:
    """Say who gave the output and why; `given` is the entry's record."""
    return _("output given by hand by %(who)s (%(source)s): %(reason)s") % _by_whom(given)


def failed_note(data: Mapping[str, Any]) -> str:
    """Say who has said that a held step fails, and why; "" if nobody has. `data` are those of its entry."""
    by = data.get("failure", {}).get(SAID_BY)
    return "" if by is None else _("failed by hand by %(who)s (%(source)s): %(reason)s") % _by_whom(by)


def _by_whom(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return who has settled a step by hand, on which surface and why, as words of a note."""
    source = source_in_words(str(record.get("source", "")))
    return {"who": record.get("by") or _("no user"), "source": source, "reason": record.get("reason", "")}


def loop_note(status: str, data: Mapping[str, Any]) -> str:
    """Say how many iterations a loop has made, and which of them are pruned."""
    iteration, pruned = data.get("iteration", 0), data.get("pruned", 0)
    if status == EntryStatus.COMPLETED:
        made = ngettext("%(number)s iteration", "%(number)s iterations", iteration + 1)
        note = made % {"number": thousands(iteration + 1)}
    else:
        note = _("in iteration %(number)s") % {"number": thousands(iteration)}
    if pruned > 1:
        gone = _("the records of iterations 0 to %(last)s are pruned, as a loop does to stay small")
        note = f"{note}; {gone % {'last': thousands(pruned - 1)}}"
    elif pruned:
        note = f"{note}; {_('the records of iteration 0 are pruned, as a loop does to stay small')}"
    return note


def map_note(data: Mapping[str, Any]) -> str:
    """Say what is recorded of a map's children; while they run, `durable.inspection.children` knows more."""
    size = data.get("size", 0)
    note = ngettext("%(number)s child", "%(number)s children", size) % {"number": thousands(size)}
    ended: Mapping[str, int] = data.get("ended", {})
    if failed := ended.get("failed", 0):
        note += ", " + ngettext("%(number)s failed", "%(number)s failed", failed) % {"number": thousands(failed)}
    if cancelled := ended.get("cancelled", 0):
        note += ", " + _("%(number)s cancelled") % {"number": thousands(cancelled)}
    if recovered := recovered_note(data):
        note += ", " + recovered
    return note


def recovered_note(data: Mapping[str, Any]) -> str:
    """Say how many failed children a recovery has recovered so far; "" if none is under way."""
    again: Mapping[str, Any] = data.get(AGAIN, {})
    if not again.get("of"):
        return ""
    return _("%(number)s of %(total)s failed children recovered") % {
        "number": thousands(again["done"]),
        "total": thousands(again["of"]),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link of a run, by the id in its entry's data.

    `opened` counts how often a link was opened at its place.
    """

    state: LinkState
    opened: int
    expires_at: datetime | None
    used_at: datetime | None
    closed_at: datetime | None

    @property
    def note(self) -> str:
        """The state in words: "open until ...", "answered ..."."""
        now = timezone.now()
        if self.state is LinkState.USED and self.used_at is not None:
            return _("answered %(when)s") % {"when": moment(self.used_at, now)}
        if self.state is LinkState.EXPIRED and self.expires_at is not None:
            return _("expired %(when)s") % {"when": moment(self.expires_at, now)}
        if self.state is LinkState.OPEN and self.expires_at is not None:
            return _("open until %(when)s") % {"when": moment(self.expires_at, now)}
        return str(_STATES[self.state])

    @property
    def facts(self) -> dict[str, Any]:
        """The state as JSON data."""
        return {
            "state": str(self.state),
            "opened": self.opened,
            "used_at": None if self.used_at is None else self.used_at.isoformat(),
            "closed_at": None if self.closed_at is None else self.closed_at.isoformat(),
        }


_NOTED: Final = "noted_link"  # the attribute of an entry whose link has been read

_STATES: Final[Mapping[LinkState, StrPromise]] = {
    LinkState.OPEN: gettext_lazy("open until the run ends"),
    LinkState.USED: gettext_lazy("answered"),
    LinkState.EXPIRED: gettext_lazy("expired"),
    LinkState.CLOSED: gettext_lazy("closed without an answer"),
    LinkState.REPLACED: gettext_lazy("replaced by a replay"),
    LinkState.UNOPENED: gettext_lazy("has no address until the run goes on"),
}


_UNOPENED: Final = ShownLink(state=LinkState.UNOPENED, opened=0, expires_at=None, used_at=None, closed_at=None)


def _links_of(run: Run, ids: Iterable[str]) -> dict[str, ShownLink]:
    rows = Link.objects.using(read_alias()).filter(run=run, link_id__in=list(ids)).order_by("opened_at", "pk")
    found: dict[str, list[LinkRecord]] = {}
    for row in rows.values(*LINK.names):
        found.setdefault(row["link_id"], []).append(LinkRecord(**row))
    return {link_id: _shown(run, records) for link_id, records in found.items()}


def note_links(run: Run, entries: Collection[Entry]) -> None:
    """Read the links among these entries of the run for `link_of`; one query, none without a link."""
    ids = {entry.pk: _id_of(entry) for entry in entries if entry.kind == EntryKind.LINK}
    links = _links_of(run, ids.values()) if ids else {}
    has_ended = run.finished_at is not None or bool(run.state_after_rollback)
    otherwise = None if has_ended else _UNOPENED  # nothing here says what became of the link where the run has ended
    for entry in entries:
        if entry.pk in ids:
            vars(entry)[_NOTED] = links.get(ids[entry.pk], otherwise)


def link_of(run: Run, entry: Entry) -> ShownLink | None:
    """Return the link of an entry; one query, unless `note_links` has read it. None if it is none, or not of this
    database: that of a run which had ended before it was imported.
    """
    if entry.kind != EntryKind.LINK:
        return None
    if _NOTED not in vars(entry):
        note_links(run, [entry])
    link: ShownLink | None = vars(entry)[_NOTED]
    return link


def _id_of(entry: Entry) -> str:
    return str(readable(entry.kind, entry.data).get("id", ""))


def _shown(run: Run, records: list[LinkRecord]) -> ShownLink:
    last, used = records[-1], next((each for each in records if each.used_at is not None), None)
    has_ended = run.finished_at is not None or bool(run.state_after_rollback)
    state = state_of(last, timezone.now(), has_ended=has_ended, is_there=True, is_used=used is not None)
    return ShownLink(
        state=state,
        opened=last.generation + 1,
        expires_at=last.expires_at,
        used_at=None if used is None else used.used_at,
        closed_at=last.closed_at,
    )
