"""Refusals in the active language.

Errors are in English: code, logs and the audit log have them. What people often meet on pages is told here: the states
of runs, and errors whose text is a `durable.core.words.Sentence`. Any other error tells its own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.core.errors import InvalidTransitionError, ReplayRefusedError, StaleRunError
from durable.core.words import Sentence
from durable.inspection.time_limit import StatementTimeoutError
from durable.inspection.wording import LOCAL, state_in_words, verb_in_words

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

_WAYS_OUT: Final[Mapping[str, StrPromise]] = {
    "completed": gettext_lazy("It has ended: restart() begins a new one with its input"),
    "failed": gettext_lazy("It has ended: recover() lets it go on, restart() begins a new one with its input"),
    "cancelled": gettext_lazy("It has ended: restart() begins a new one with its input"),
    "paused": gettext_lazy("It is paused: resume() it first"),
    "rolling_back": gettext_lazy("It is being compensated: wait until it has failed"),
}


def told(error: BaseException) -> str:
    """Return the text of the error in the active language."""
    if isinstance(error, StaleRunError):
        return _(
            'cannot %(verb)s run "%(run)s" as you saw it: it has changed since, and is %(state)s now; look at it again '
            "before you decide"
        ) % {"verb": verb_in_words(error.action), "run": error.run_id, "state": state_in_words(error.state)}
    if isinstance(error, InvalidTransitionError) and not error.problem:
        return _transition(error)
    if isinstance(error, ReplayRefusedError):
        return _('cannot replay run "%(run)s" from "%(place)s": %(why)s') % {
            "run": error.run_id,
            "place": error.location,
            "why": "; ".join(map(told_sentence, error.refusals)),
        }
    if isinstance(error, StatementTimeoutError):
        return _(
            'The database took longer than %(seconds)s s, the limit that DURABLE["STATEMENT_TIMEOUT"] sets for a statement '
            "of a list, a search or a page. Ask for less (a state, a workflow, a shorter time), or try again later; if it "
            "happens again, ANALYZE durable's tables."
        ) % {"seconds": f"{error.seconds:g}"}
    return told_sentence(error.args[0]) if error.args and isinstance(error.args[0], Sentence) else str(error)


def told_sentence(text: str) -> str:
    """Return a sentence in the active language; any other text as it is."""
    return text.told_in(LOCAL) if isinstance(text, Sentence) else text


def _transition(error: InvalidTransitionError) -> str:
    text = _("cannot %(verb)s a run that is %(state)s; allowed when it is %(allowed)s") % {
        "verb": verb_in_words(error.action),
        "state": state_in_words(error.state),
        "allowed": ", ".join(map(state_in_words, error.allowed)),
    }
    if not error.run_id:
        return text
    way_out = _WAYS_OUT.get(error.state)
    if way_out is None:
        way_out = gettext_lazy("It is in this state now: look at it again before you decide")
    return f"{text}. {way_out}"
