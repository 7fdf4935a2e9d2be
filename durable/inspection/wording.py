"""Codes, commands, refusals and divergences in words, in the active language.

The codes themselves stay what programs read: REST, JSON of the command line, addresses, stylesheets.

Errors are in English in code, logs and the audit log. Pages translate what people often meet: states of runs, and
errors whose text is a `durable.core.words.Sentence`. Other errors show their own text.

A divergence is stored in English, as `durable.core.replay_cursor` wrote it. A text without its known beginning and end
(shortened or redacted, for example) stays as it is; so does a problem that only names values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from durable.core.errors import InvalidTransitionError, ReplayRefusedError, StaleRunError
from durable.core.links import is_of_link
from durable.core.location import EVENT_QUEUES, LINK_QUEUES, is_of_question
from durable.core.location import display_location as location_in_words
from durable.core.words import Sentence, Words, safe
from durable.inspection.humanize import span, thousands
from durable.inspection.reading import RETRY, ReplicaLostError, StatementTimeoutError, UnreadableError, source
from durable.operations.audit import ACTIONS

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


class _LocalWords(Words):
    """The words of the active language, for sentences of `core/`."""

    def gettext(self, text: str) -> str:
        return gettext(text)

    def ngettext(self, one: str, many: str, number: int) -> str:
        return ngettext(one, many, number)

    def number(self, count: int) -> str:
        return thousands(count)


LOCAL: Final = _LocalWords()

_STATES: Final[Mapping[str, StrPromise]] = {
    "pending": _("pending"),
    "running": _("running"),
    "sleeping": _("sleeping"),
    "diverging": _("code does not fit"),
    "paused": _("paused"),
    "rolling_back": _("rolling back"),
    "completed": _("completed"),
    "failed": _("failed"),
    "cancelled": _("cancelled"),
    "exhausted": _("failed for good"),
    "unknown": _("outcome unknown"),
    "held": _("held"),
    "caught": _("caught"),
    "received": _("received"),
}

_KINDS: Final[Mapping[str, StrPromise]] = {
    "step": pgettext_lazy("kind of entry", "step"),
    "loop": pgettext_lazy("kind of entry", "loop"),
    "sleep": pgettext_lazy("kind of entry", "sleep"),
    "message": pgettext_lazy("kind of entry", "message"),
    "send": pgettext_lazy("kind of entry", "send"),
    "join": pgettext_lazy("kind of entry", "join"),
    "race": pgettext_lazy("kind of entry", "race"),
    "removed": pgettext_lazy("kind of entry", "removed"),
    "version_check": pgettext_lazy("kind of entry", "version check"),
    "rollback_checkpoint": pgettext_lazy("kind of entry", "rollback checkpoint"),
    "compensate": pgettext_lazy("kind of entry", "compensate"),
    "child": pgettext_lazy("kind of entry", "child"),
    "map": pgettext_lazy("kind of entry", "map"),
    "tag": pgettext_lazy("kind of entry", "tag"),
    "link": pgettext_lazy("kind of entry", "link"),
    "publish": pgettext_lazy("kind of entry", "published value"),
    "iteration": pgettext_lazy("kind of entry", "iteration"),
    "branch": pgettext_lazy("kind of entry", "branch"),
    "block": pgettext_lazy("kind of entry", "block"),
}

_VERBS: Final[Mapping[str, StrPromise]] = {
    **{name: each.words for name, each in ACTIONS.items()},
    "lost_commits": pgettext_lazy("verb", "commits lost"),
    "worker_died": pgettext_lazy("verb", "worker died"),
    "taken_over": pgettext_lazy("verb", "taken over"),
}

_OUTCOMES: Final[Mapping[str, StrPromise]] = {
    "done": pgettext_lazy("outcome", "done"),
    "denied": pgettext_lazy("outcome", "denied"),
    "refused": pgettext_lazy("outcome", "refused"),
    "stale": pgettext_lazy("outcome", "stale"),
    "conflict": pgettext_lazy("outcome", "conflict"),
    "missing": pgettext_lazy("outcome", "missing"),
    "invalid": pgettext_lazy("outcome", "invalid"),
}

_SOURCES: Final[Mapping[str, StrPromise]] = {
    "admin": pgettext_lazy("source", "admin"),
    "api": pgettext_lazy("source", "api"),
    "cli": pgettext_lazy("source", "cli"),
    "code": pgettext_lazy("source", "code"),
}


def display_location(location: str) -> str:
    """Return a location for people: `polling/~3/poll` is "polling / iteration 3 / poll"."""
    return location_in_words(location, LOCAL)


def display_queue(queue: str) -> str:
    """Return the name of a message queue for people: that of a link is "link paid", of an event "event paid"."""
    if not is_of_link(queue):
        return queue
    if queue.startswith(EVENT_QUEUES):
        return gettext("event %(name)s") % {"name": queue.removeprefix(EVENT_QUEUES).partition(":")[2]}
    if is_of_question(queue):
        return gettext("question %(name)s") % {"name": queue.removeprefix(LINK_QUEUES).partition(":")[2]}
    return gettext("link %(name)s") % {"name": queue.removeprefix(LINK_QUEUES).partition(":")[2]}


def display_place(place: str) -> str:
    """Return a place without numbers of iterations for people: "a / ~ / b" is "a / any iteration / b"."""
    return " / ".join(gettext("any iteration") if each == "~" else each for each in place.split(" / "))


def cause_in_words(place: str, error_type: str) -> str:
    """Return a cause in a few words: where its runs failed, and with which error."""
    return f"{display_place(place) or gettext('Code of the workflow itself')} · {error_type}"


def _in_words(words: Mapping[str, StrPromise], name: str) -> str:
    found = words.get(name)
    return name.replace("_", " ") if found is None else str(found)


state_in_words: Final = partial(_in_words, _STATES)  # of a run or a message; also the status of an entry
kind_in_words: Final = partial(_in_words, _KINDS)  # of an entry
verb_in_words: Final = partial(_in_words, _VERBS)  # of the audit log
outcome_in_words: Final = partial(_in_words, _OUTCOMES)  # of an action
source_in_words: Final = partial(_in_words, _SOURCES)  # the surface from which an action came


def verb_title(name: str) -> str:
    """Return a verb of the audit log in words, with a capital letter first."""
    words = verb_in_words(name)
    return words[:1].upper() + words[1:]


MOST: Final = 800  # characters of a divergence in an explanation, so that its advice at the end stays visible

_ROOT: Final = "the root"
_ADVICE: Final = (
    "The code has changed since this history was recorded, or does not do the same each time (a clock, dice or a query "
    "between steps). Bring the operation back, mark it as removed with ctx.removed(name, kind), or branch on "
    "ctx.get_version(name, latest)"
)
_PROBLEMS: Final[Mapping[re.Pattern[str], StrPromise]] = {
    re.compile(
        r'the code comes to the (?P<kind>\w+) "(?P<place>.+)", which is not in the history, but the history goes on with '
        r'(?P<others>".+)'
    ): _(
        'the code comes to the %(kind)s "%(place)s", which is not in the history, but the history goes on with %(others)s'
    ),
    re.compile(
        r'the code comes to the (?P<kind>\w+) "(?P<place>.+)", which has not ended, but the history has '
        r'(?P<others>".+) before it'
    ): _('the code comes to the %(kind)s "%(place)s", which has not ended, but the history has %(others)s before it'),
    re.compile(r'the code ended, but the history goes on with (?P<others>".+)'): _(
        "the code ended, but the history goes on with %(others)s"
    ),
    re.compile(r'expected a (?P<kind>\w+|try block) at "(?P<place>.+)", found a (?P<found>\w+|try block)'): _(
        'expected a %(kind)s at "%(place)s", found a %(found)s'
    ),
}
_DIVERGENCE_KINDS: Final = frozenset({"kind", "found"})
_MORE: Final = re.compile(r"(?P<places>.+) and (?P<number>\d+) more")


def told_divergence(text: str) -> str:
    """Return the text of a divergence in the active language; any other text unchanged."""
    for pattern, template in _PROBLEMS.items():
        found = re.fullmatch(rf"in (?P<scope>.+?): {pattern.pattern}\. {re.escape(_ADVICE)}", text)
        if found is not None:
            values = found.groupdict()
            scope = values.pop("scope")
            problem = str(template) % {name: _told(name, value) for name, value in values.items()}
            where = gettext("in the root") if scope == _ROOT else gettext("in %(scope)s") % {"scope": scope}
            return gettext(
                "%(where)s: %(problem)s. The code has changed since this history was recorded, or does not do the same "
                "each time (a clock, dice or a query between steps). Bring the operation back, mark it as removed with "
                "ctx.removed(name, kind), or branch on ctx.get_version(name, latest)"
            ) % {"where": where, "problem": problem}
    return text


def _told(name: str, value: str) -> str:
    if name in _DIVERGENCE_KINDS:
        return kind_in_words(value)
    more = _MORE.fullmatch(value) if name == "others" else None
    return value if more is None else gettext("%(places)s and %(number)s more") % more.groupdict()


def command(verb: str, *arguments: str, **options: Any) -> str:
    """Return `python manage.py durable <verb> ...`, quoted for a shell.

    A True option has no value; an empty one is left out.
    """
    words = ["python", "manage.py", "durable", verb, *arguments]
    for name, value in options.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(map(_quoted, words))


def worker_command(*queues: str) -> str:
    """Return the command that starts a worker for these queues, for all queues without any."""
    return " ".join(map(_quoted, ["python", "manage.py", "durable_worker", *queues]))


def _quoted(word: str) -> str:
    """Return the word quoted for a shell.

    A word with characters that hide or reorder text has them as numbers: `$'order \\u202e1'`, as bash, zsh and ksh read
    it.
    """
    if safe(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_shown, word)) + "'"


def _shown(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if safe(character) == character:
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


_WAYS_OUT: Final[Mapping[str, StrPromise]] = {
    "completed": _("It has ended: restart() begins a new one with its input"),
    "failed": _("It has ended: recover() lets it go on, restart() begins a new one with its input"),
    "cancelled": _("It has ended: restart() begins a new one with its input"),
    "paused": _("It is paused: resume() it first"),
    "rolling_back": _("It is being compensated: wait until it has failed"),
}


def told(error: BaseException) -> str:
    """Return the text of the error in the active language."""
    if isinstance(error, StaleRunError):
        return gettext(
            'cannot %(verb)s run "%(run)s" as you saw it: it has changed since, and is %(state)s now; look at it again '
            "before you decide"
        ) % {"verb": verb_in_words(error.action), "run": error.run_id, "state": state_in_words(error.state)}
    if isinstance(error, InvalidTransitionError) and not error.problem:
        return _transition(error)
    if isinstance(error, ReplayRefusedError):
        return gettext('cannot replay run "%(run)s" from "%(place)s": %(why)s') % {
            "run": error.run_id,
            "place": error.location,
            "why": "; ".join(map(told_sentence, error.refusals)),
        }
    if isinstance(error, StatementTimeoutError):
        return gettext(
            'The database took longer than %(seconds)s s, the limit that DURABLE["STATEMENT_TIMEOUT"] sets for a statement '
            "of a list, a search or a page. Ask for less (a state, a workflow, a shorter time), or try again later; if it "
            "happens again, ANALYZE durable's tables."
        ) % {"seconds": f"{error.seconds:g}"}
    if isinstance(error, ReplicaLostError):
        return gettext(
            "The read replica has ended the query. Load the page again: the primary is read for %(span)s."
        ) % {"span": span(RETRY)}
    return told_sentence(error.args[0]) if error.args and isinstance(error.args[0], Sentence) else str(error)


def title_of(error: UnreadableError) -> str:
    """Return the title of the page that shows the error, in the active language."""
    return gettext("Load it again") if isinstance(error, ReplicaLostError) else gettext("The database took too long")


def told_of_source() -> str:
    """Return where a list is read and how old it is, in the active language; "" if no replica is configured."""
    found = source()
    if found is None:
        return ""
    if found.is_instead:
        return gettext("The read replica does not answer: this is read from the primary.")
    if found.age is None:
        return gettext("Read from the replica. It does not say how old its data are.")
    return gettext("As of %(span)s ago: read from the replica.") % {"span": span(found.age)}


def told_sentence(text: str) -> str:
    """Return a sentence in the active language; any other text unchanged."""
    return text.told_in(LOCAL) if isinstance(text, Sentence) else text


def _transition(error: InvalidTransitionError) -> str:
    text = gettext("cannot %(verb)s a run that is %(state)s; allowed when it is %(allowed)s") % {
        "verb": verb_in_words(error.action),
        "state": state_in_words(error.state),
        "allowed": ", ".join(map(state_in_words, error.allowed)),
    }
    if not error.run_id:
        return text
    way_out = _WAYS_OUT.get(error.state)
    if way_out is None:
        way_out = _("It is in this state now: look at it again before you decide")
    return f"{text}. {way_out}"
