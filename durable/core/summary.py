"""The summary of a run in one line: what it does, what it waits for, or how it ended.

Owns the kinds of summaries, and the data and the sentence of each kind. The column `summary` holds the data, so that
nothing has to parse a sentence. Every surface shows the sentence, which is made here alone: in English, or in the
language of the `Words` that a surface gives. Must not decide what a run does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

from durable.core.control_flow import Park
from durable.core.errors import STOPPED
from durable.core.limits.slot_records import Admission, limit_label
from durable.core.location import LINK_QUEUES, display_location, unescape
from durable.core.outcomes import is_unsettled
from durable.core.records import EntryRecord
from durable.core.words import ENGLISH, Words, gettext_noop

_MAX_DOING: Final = 300  # the length of the text about what a run is doing: branches may do many things

#: The first characters of a stored summary, enough for `kind_of_stored`.
KIND_LENGTH: Final = 50
_BACKING_OFF: Final = "backing_off"
_IN_LINE: Final = "in_line"
_AWAITING: Final = "awaiting"
_RATED: Final = "rated"
_UNKNOWN: Final = "unknown"
_EXHAUSTED: Final = "exhausted"
#: The kinds of steps that wait for a person; a summary has them first.
_HELD: Final = (_UNKNOWN, _EXHAUSTED)
_TYPE_LIMIT: Final = 60  # characters of an error's type
#: The kinds that mention other runs, each with its counterpart that does not.
_ALONE: Final = {_AWAITING: "awaiting_one", _IN_LINE: "lined", _RATED: "paced"}
#: The kinds of waits that are not for the next attempt of something that has failed.
_AT_REST: Final = frozenset(
    {"asleep", "answering", "asking_person", "asking_of", "event", "mapping", *_HELD, *_ALONE, *_ALONE.values()}
)
#: Why a child was cancelled, in words: with its parent, or because the parent has taken its start back.
DROPPED: Final = 'its parent "{parent}" has taken its start back'
PARENT_ENDED: Final = 'its parent "{parent}" has ended ({state})'
_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_KIND: Final = re.compile(r'\{"kind":"([a-z_]+)"')


class SummaryKind(StrEnum):
    """The kind of a summary. The values are stored."""

    TEXT = "text"  # a text without data; "" if there is nothing to say
    WAITING = "waiting"
    HANDED_OVER = "handed_over"
    STOP_REQUESTED = "stop_requested"
    PAUSED = "paused"
    RESUMED = "resumed"
    RECOVERED = "recovered"
    RECOVERED_COMPENSATING = "recovered_compensating"
    REPLAYED = "replayed"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    DIVERGED = "diverged"
    MISTAKE = "mistake"
    STOPPED_BY_MISTAKE = "stopped_by_mistake"
    END_REFUSED = "end_refused"
    CANCELLING = "cancelling"
    COMPENSATING = "compensating"
    HANDLER_BACKOFF = "handler_backoff"
    HANDLER_FAILED = "handler_failed"
    COMPENSATION_STOPPED = "compensation_stopped"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"
    PARENT_ENDED = "parent_ended"
    DROPPED = "dropped"
    HELD = "held"
    IMPORTED = "imported"


#: One thing that a parked run is doing: its kind and its values. See `asleep`, `backing_off`, `compensating`.
Doing = Mapping[str, Any]


class Summary(str):
    """A run's summary: a text, namely the sentence, with the data that the sentence is made of.

    `kind` says which sentence it is. `facts` are the JSON-native values in it, by the names in `_SENTENCES`. `words`
    gives the language of the sentence.
    """

    __slots__ = ("facts", "kind", "words")

    kind: SummaryKind
    facts: Mapping[str, Any]
    words: Words

    def __new__(cls, kind: SummaryKind, **facts: Any) -> Self:
        return cls._made(ENGLISH, kind, facts)

    @classmethod
    def _made(cls, words: Words, kind: SummaryKind, facts: Mapping[str, Any]) -> Self:
        advice = words.gettext(_ADVICE[kind]) if kind in _ADVICE else ""
        summary = super().__new__(cls, _sentence(words, kind, facts) + advice)
        summary.kind, summary.facts, summary.words = kind, facts, words
        return summary

    @classmethod
    def load(cls, stored: str) -> Summary:
        """Parse a stored summary. A text that is not one becomes a summary of that text."""
        if isinstance(stored, Summary):
            return stored
        if _KIND.match(stored):
            try:
                facts = json.loads(stored)
                return cls(SummaryKind(facts.pop("kind")), **facts)
            except (ValueError, TypeError, LookupError, RecursionError):  # written by another release, or by hand
                pass
        return cls(SummaryKind.TEXT, text=stored)

    def told_in(self, words: Words) -> Summary:
        """Return the summary in another language. A text without data stays as it is."""
        return Summary._made(words, self.kind, self.facts)

    @property
    def stored(self) -> str:
        """The data as JSON text, its kind first; a summary without data is stored as its text."""
        if self.kind is SummaryKind.TEXT:
            return str(self)
        return _encode({"kind": self.kind.value, **self.facts})

    @property
    def without_time(self) -> str:
        """The sentence, without the time at which the wait ends."""
        return self.with_facts(until=None) if self.kind is SummaryKind.WAITING else self

    @property
    def without_advice(self) -> str:
        """The sentence, without the advice at its end."""
        return _sentence(self.words, self.kind, self.facts)

    @property
    def doing(self) -> str:
        """The description of what the run is doing while it waits; "" for none."""
        return _doing(self.words, self.facts["doing"]) if self.kind is SummaryKind.WAITING else ""

    @property
    def _awaited(self) -> list[str]:
        """The kinds of what the run is waiting for, in their order."""
        return [each["kind"] for each in self.facts["doing"]] if self.kind is SummaryKind.WAITING else []

    @property
    def is_backing_off(self) -> bool:
        """Whether the run is waiting for a step's next attempt, before anything else."""
        return self._awaited[:1] == [_BACKING_OFF]

    @property
    def is_in_line(self) -> bool:
        """Whether the run is waiting for a slot of a limit, and for nothing before it."""
        return any(kind in (_IN_LINE, _ALONE[_IN_LINE]) for kind in self._awaited[:1])

    @property
    def is_rated(self) -> bool:
        """Whether the run is waiting for its moment in the rate of a limit, and for nothing before it."""
        return any(kind in (_RATED, _ALONE[_RATED]) for kind in self._awaited[:1])

    @property
    def is_trying_again(self) -> bool:
        """Whether a step or a rollback handler of the run has failed and waits for its next attempt."""
        return self.kind is SummaryKind.HANDLER_BACKOFF or not _AT_REST.issuperset(self._awaited)

    @property
    def is_held(self) -> bool:
        """Whether a step of the run waits for a person."""
        return any(kind in _HELD for kind in self._awaited)

    @property
    def without_others(self) -> Summary:
        """The same summary without facts about other runs: their number in a line, and the ids of children."""
        if self.kind in (SummaryKind.PARENT_ENDED, SummaryKind.DROPPED):
            return self.with_facts(parent="…")
        if self.kind is SummaryKind.CANCELLING:  # the reason may name its parent
            return self.with_facts(reason="…")
        return self._alone(_ALONE)

    @property
    def without_places(self) -> Summary:
        """The same summary without the numbers of lines, which were those of the moment when the wait began."""
        return self._alone({_IN_LINE, _RATED})

    def _alone(self, kinds: Collection[str]) -> Summary:
        """Return the summary with the counterparts of these kinds that mention no other runs."""
        if self.kind is not SummaryKind.WAITING:
            return self
        doing = self.facts["doing"]
        return self.with_facts(
            doing=[{**each, "kind": _ALONE[each["kind"]]} if each["kind"] in kinds else each for each in doing]
        )

    def with_facts(self, **facts: Any) -> Summary:
        return Summary._made(self.words, self.kind, {**self.facts, **facts})

    def __reduce__(self) -> tuple[Any, ...]:
        return Summary.load, (self.stored,)


def is_held(summary: str) -> bool:
    """Return True if this is the summary of a run with a step that waits for a person."""
    return Summary.load(summary).is_held


def kind_of_stored(beginning: str) -> SummaryKind:
    """Return the kind of a stored summary, given its first `KIND_LENGTH` characters."""
    found = _KIND.match(beginning)
    return SummaryKind(found[1]) if found is not None and found[1] in _KINDS else SummaryKind.TEXT


# -- a run that waits


def waiting(park: Park) -> Summary:
    """Return the summary of a parked run: what it is doing, what it waits for, and until when."""
    return Summary(
        SummaryKind.WAITING,
        doing=list(_shown(sorted(park.doing, key=lambda each: each["kind"] not in _HELD))),
        queues=_queues(park.names),
        until=None if park.deadline is None else park.deadline.isoformat(),
    )


def _queues(names: frozenset[str] | None) -> list[str] | None:
    """Return the queues that code sends to, [] for any, None for none; those of links stand in `doing`."""
    if not names or "" in names:
        return None if names is None else []
    return [unescape(each) for each in sorted(names) if not each.startswith(LINK_QUEUES)] or None


def asleep(location: str) -> Doing:
    return {"kind": "asleep", "location": location}


def answering(location: str) -> Doing:
    """A wait for the answer of the link at this location."""
    return {"kind": "answering", "location": location}


def awaiting_event(location: str, event: str, key: str) -> Doing:
    return {"kind": "event", "location": location, "event": event, "key": key}


def asking_person(location: str, who: str) -> Doing:
    """A wait for the answer of a person; `who` is "" for whoever may answer."""
    return {"kind": "asking_of" if who else "asking_person", "location": location, "who": who}


def awaiting(location: str, child_id: str) -> Doing:
    """A wait for the end of a child."""
    return {"kind": _AWAITING, "location": display_location(location), "child": child_id}


def in_line(admission: Admission) -> Doing:
    """A place in the line of a limit."""
    return {
        "kind": _IN_LINE,
        "limit": limit_label(admission.limit, admission.key),
        "place": admission.place,
        "held": admission.held,
        "at_once": admission.at_once,
    }


def rated(limit: str, before: int) -> Doing:
    """A wait of an attempt for its moment in the rate of a limit, behind `before` units."""
    return {"kind": _RATED, "limit": limit, "before": before}


def awaiting_group(location: str, size: int) -> Doing:
    """A wait for the end of all children of a map."""
    return {"kind": "mapping", "location": display_location(location), "size": size}


def backing_off(location: str, error: str, attempt: int, attempts: int | None) -> Doing:
    """A step that has failed with an error of this type and is tried again; `attempts` is None for no limit."""
    return {
        "kind": _BACKING_OFF,
        "location": location,
        "error": error,
        "attempt": attempt,
        "attempts": attempts,
    }


def held(entry: EntryRecord) -> Doing:
    """A step that waits for a person."""
    kind = _UNKNOWN if is_unsettled(entry) else _EXHAUSTED
    return {**asking(entry), "kind": kind}


def asking(entry: EntryRecord) -> Doing:
    """A step whose `verify` is asked again, because it has failed."""
    error = "unknown" if entry.error is None else entry.error.type[:_TYPE_LIMIT]
    return {"kind": "asking", "location": entry.location, "error": error, "attempt": entry.attempts}


def compensating(reason: str) -> Doing:
    """A compensation called by the code, with a rollback handler that is tried again."""
    return {"kind": "compensating", "reason": reason}


def _shown(doing: Iterable[Doing]) -> Iterable[Doing]:
    """Yield what `_doing` will show: items up to the maximum length, and shortened texts."""
    length = -len("; ")
    for each in doing:
        if length > _MAX_DOING:
            return
        shown = {name: value[:_MAX_DOING] if isinstance(value, str) else value for name, value in each.items()}
        yield shown
        length += len(_told(ENGLISH, shown)) + len("; ")


# -- the sentences


def steps_undone(count: int, words: Words = ENGLISH) -> str:
    """Say how many steps a compensation has undone."""
    text = words.ngettext("{number} step was undone", "{number} steps were undone", count)
    return text.format(number=words.number(count))


def _sentence(words: Words, kind: SummaryKind, facts: Mapping[str, Any]) -> str:
    sentence = _SENTENCES[kind]
    if not isinstance(sentence, str):
        return sentence(words, **facts)
    return words.gettext(sentence).format(**_displayed(words, facts))


def _displayed(words: Words, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts with a displayed location; one that an earlier release has stored is not escaped."""
    location = facts.get("location")
    return {**facts, "location": display_location(location, words)} if isinstance(location, str) else facts


def _told(words: Words, doing: Doing) -> str:
    text = _DOING[doing["kind"]]
    if doing["kind"] == _BACKING_OFF and doing["attempts"] is None:
        text = _WITHOUT_END
    if doing.get("attempt") == 0:  # of a run in doubt: none is recorded
        text = _WITHOUT_ATTEMPT.get(doing["kind"], text)
    return words.gettext(text).format(**_displayed(words, doing))


def _doing(words: Words, doing: Sequence[Doing]) -> str:
    told = "; ".join(_told(words, each) for each in doing)
    return told if len(told) <= _MAX_DOING else f"{told[:_MAX_DOING]}…"


def _waiting(words: Words, doing: Sequence[Doing], queues: Sequence[str] | None, until: str | None) -> str:
    does = _doing(words, doing)
    moment = "" if until is None else f"{datetime.fromisoformat(until):%Y-%m-%d %H:%M:%S} UTC"
    if not does:
        return _waits(words, queues, moment)
    does = "; ".join(filter(None, (does, _waits(words, queues, ""))))  # the moment may belong to either
    return words.gettext("{does}; goes on at {moment}").format(does=does, moment=moment) if moment else does


def _waits(words: Words, queues: Sequence[str] | None, moment: str) -> str:
    if queues is None:
        return words.gettext("waiting for {moment}").format(moment=moment) if moment else ""
    names = ", ".join(queues) or words.gettext("any queue")
    if not moment:
        return words.gettext("waiting for a message in {queues}").format(queues=names)
    return words.gettext("waiting for a message in {queues} or {moment}").format(queues=names, moment=moment)


def _compensated(words: Words, count: int, recoverable: bool) -> str:
    undone = steps_undone(count, words)
    if not recoverable:
        return words.gettext("compensated: {steps}").format(steps=undone)
    text = words.gettext("compensated: {steps}; recover() does the undone steps again, from the earliest on")
    return text.format(steps=undone)


def _stopped(words: Words, error: str) -> str:
    return words.gettext("stopped: {error}: {why}").format(error=error, why=words.gettext(STOPPED))


def _held(words: Words, workflow: str, by: str, reason: str) -> str:
    if by:
        text = words.gettext('paused at its start: new starts of "{workflow}" are held by {by}')
    else:
        text = words.gettext('paused at its start: new starts of "{workflow}" are held')
    return text.format(workflow=workflow, by=by) + (f": {reason}" if reason else "")


_DOING: Final[Mapping[str, str]] = {
    "asleep": gettext_noop('asleep in "{location}"'),
    "answering": gettext_noop('waiting for the answer of link "{location}"'),
    "event": gettext_noop("waiting for event {event}, key {key}"),
    "asking_person": gettext_noop('waiting for a person to answer "{location}"'),
    "asking_of": gettext_noop('waiting for {who} to answer "{location}"'),
    _AWAITING: gettext_noop('waiting for child "{child}"'),
    _IN_LINE: gettext_noop("number {place} in line for {limit} ({held} of {at_once} held)"),
    _RATED: gettext_noop("rate {limit}, {before} before it"),
    _ALONE[_AWAITING]: gettext_noop("waiting for a child"),
    _ALONE[_IN_LINE]: gettext_noop("in line for {limit}"),
    _ALONE[_RATED]: gettext_noop("rate {limit}"),
    "mapping": gettext_noop('waiting for the children of the map "{location}" ({size})'),
    _BACKING_OFF: gettext_noop('step "{location}" failed ({error}), attempt {attempt} of {attempts}'),
    _UNKNOWN: gettext_noop(
        'step "{location}" waits for a person: nobody knows whether attempt {attempt} was done ({error})'
    ),
    _EXHAUSTED: gettext_noop('step "{location}" waits for a person: its attempts are used up ({error})'),
    "asking": gettext_noop('step "{location}": asking again whether attempt {attempt} was done ({error})'),
    "compensating": gettext_noop("compensating ({reason}), a rollback handler waits for its next try"),
}

_WITHOUT_END: Final = gettext_noop('step "{location}" failed ({error}), attempt {attempt}')

_WITHOUT_ATTEMPT: Final[Mapping[str, str]] = {
    _UNKNOWN: gettext_noop('step "{location}" waits for a person: nobody knows whether it was done ({error})'),
    "asking": gettext_noop('step "{location}": asking again whether it was done ({error})'),
}

_SENTENCES: Final[Mapping[SummaryKind, str | Callable[..., str]]] = {
    SummaryKind.TEXT: lambda _words, text: text,
    SummaryKind.WAITING: _waiting,
    SummaryKind.HANDED_OVER: gettext_noop("handed over by a worker that stops"),
    SummaryKind.STOP_REQUESTED: gettext_noop("to be stopped as an operator has asked"),
    SummaryKind.PAUSED: gettext_noop("paused"),
    SummaryKind.RESUMED: gettext_noop("resumed"),
    SummaryKind.RECOVERED: gettext_noop("recovered"),
    SummaryKind.RECOVERED_COMPENSATING: gettext_noop("recovered: compensating"),
    SummaryKind.REPLAYED: gettext_noop("replayed from {location}"),
    SummaryKind.IMPORTED: gettext_noop("imported: the run was open elsewhere ({state})"),
    SummaryKind.UNKNOWN_WORKFLOW: gettext_noop('waiting for a worker that knows the workflow "{workflow}"'),
    SummaryKind.DIVERGED: gettext_noop(
        "the code of this worker does not fit the history, trying again until the grace period ends: {error}"
    ),
    SummaryKind.MISTAKE: gettext_noop("a mistake in the code, trying again until the grace period ends: {error}"),
    SummaryKind.STOPPED_BY_MISTAKE: _stopped,
    SummaryKind.END_REFUSED: gettext_noop("cannot end: its on_end, {function}, failed, trying again: {error}"),
    SummaryKind.CANCELLING: gettext_noop("to be cancelled by a worker: {reason}"),
    SummaryKind.COMPENSATING: gettext_noop("compensating"),
    SummaryKind.HANDLER_BACKOFF: gettext_noop("compensating: a rollback handler waits for its next try"),
    SummaryKind.HANDLER_FAILED: gettext_noop('the rollback handler of "{location}" failed: {error}'),
    SummaryKind.COMPENSATION_STOPPED: gettext_noop("compensation stopped: {error}"),
    SummaryKind.COMPENSATED: _compensated,
    SummaryKind.CANCELLED: gettext_noop("cancelled: {reason}"),
    SummaryKind.DROPPED: gettext_noop('cancelled: its parent "{parent}" has taken its start back'),
    SummaryKind.PARENT_ENDED: gettext_noop('cancelled: its parent "{parent}" has ended ({state})'),
    SummaryKind.HELD: _held,
}

#: The advice at the end of a sentence.
_GOES_ON: Final = gettext_noop("; recover() goes on with it")
_ADVICE: Final[Mapping[SummaryKind, str]] = {
    SummaryKind.HANDLER_FAILED: _GOES_ON,
    SummaryKind.COMPENSATION_STOPPED: _GOES_ON,
}

_KINDS: Final = frozenset(SummaryKind)
