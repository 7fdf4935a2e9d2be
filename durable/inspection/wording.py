"""Codes in words, in the active language: states, kinds of entries, verbs, outcomes, sources.

The codes themselves stay what programs read: REST, JSON of the command line, addresses, stylesheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from durable.core.location import display_location as location_in_words
from durable.core.words import Words
from durable.inspection.humanize import thousands

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
    "iteration": pgettext_lazy("kind of entry", "iteration"),
    "branch": pgettext_lazy("kind of entry", "branch"),
    "block": pgettext_lazy("kind of entry", "block"),
}

_VERBS: Final[Mapping[str, StrPromise]] = {
    "start": pgettext_lazy("verb", "start"),
    "restart": pgettext_lazy("verb", "restart"),
    "send": pgettext_lazy("verb", "send"),
    "ask": pgettext_lazy("verb", "ask"),
    "delete_message": pgettext_lazy("verb", "delete message"),
    "move_message": pgettext_lazy("verb", "move message"),
    "wake": pgettext_lazy("verb", "wake"),
    "pause": pgettext_lazy("verb", "pause"),
    "resume": pgettext_lazy("verb", "resume"),
    "cancel": pgettext_lazy("verb", "cancel"),
    "abandon": pgettext_lazy("verb", "abandon"),
    "take_stack": pgettext_lazy("verb", "take stack"),
    "recover": pgettext_lazy("verb", "recover"),
    "replay": pgettext_lazy("verb", "replay"),
    "give_output": pgettext_lazy("verb", "give output"),
    "edit_input": pgettext_lazy("verb", "edit input"),
    "import": pgettext_lazy("verb", "import"),
    "prune": pgettext_lazy("verb", "prune"),
    "lost_commits": pgettext_lazy("verb", "commits lost"),
    "worker_died": pgettext_lazy("verb", "worker died"),
    "taken_over": pgettext_lazy("verb", "taken over"),
    "mute": pgettext_lazy("verb", "mute"),
    "unmute": pgettext_lazy("verb", "unmute"),
    "note": pgettext_lazy("verb", "note"),
    "pause_queue": pgettext_lazy("verb", "pause queue"),
    "create_schedule": pgettext_lazy("verb", "create schedule"),
    "edit_schedule": pgettext_lazy("verb", "edit schedule"),
    "override_schedule": pgettext_lazy("verb", "override schedule"),
    "take_back_override": pgettext_lazy("verb", "take back override"),
    "delete_schedule": pgettext_lazy("verb", "delete schedule"),
    "pause_schedule": pgettext_lazy("verb", "pause schedule"),
    "resume_schedule": pgettext_lazy("verb", "resume schedule"),
    "run_schedule": pgettext_lazy("verb", "run schedule now"),
    "backfill_schedule": pgettext_lazy("verb", "backfill schedule"),
    "resume_queue": pgettext_lazy("verb", "resume queue"),
    "hold_starts": pgettext_lazy("verb", "hold starts"),
    "release_starts": pgettext_lazy("verb", "release starts"),
    "set_limit": pgettext_lazy("verb", "set limit"),
    "take_back_limit": pgettext_lazy("verb", "take back limit"),
    "set_rate": pgettext_lazy("verb", "set rate"),
    "take_back_rate": pgettext_lazy("verb", "take back rate"),
    "close_limit": pgettext_lazy("verb", "close limit"),
    "open_limit": pgettext_lazy("verb", "open limit"),
    "share": pgettext_lazy("verb", "share"),
    "go_on": pgettext_lazy("verb", "go on"),
    "stop_here": pgettext_lazy("verb", "stop here"),
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


def display_place(place: str) -> str:
    """Return a place without numbers of iterations for people: "a / ~ / b" is "a / any iteration / b"."""
    return " / ".join(gettext("any iteration") if each == "~" else each for each in place.split(" / "))


def cause_in_words(place: str, error_type: str) -> str:
    """Return a cause in a few words: where its runs failed, and with which error."""
    return f"{display_place(place) or gettext('Code of the workflow itself')} · {error_type}"


def state_in_words(name: str) -> str:
    """Return the state of a run or a message, or the status of an entry, in words."""
    return _in_words(_STATES, name)


def kind_in_words(name: str) -> str:
    """Return the kind of an entry in words."""
    return _in_words(_KINDS, name)


def verb_in_words(name: str) -> str:
    """Return a verb of the audit log in words."""
    return _in_words(_VERBS, name)


def verb_title(name: str) -> str:
    """Return a verb of the audit log in words, with a capital letter first."""
    words = verb_in_words(name)
    return words[:1].upper() + words[1:]


def outcome_in_words(name: str) -> str:
    """Return the outcome of an action in words."""
    return _in_words(_OUTCOMES, name)


def source_in_words(name: str) -> str:
    """Return the surface from which an action came in words."""
    return _in_words(_SOURCES, name)


def _in_words(words: Mapping[str, StrPromise], name: str) -> str:
    found = words.get(name)
    return name.replace("_", " ") if found is None else str(found)
