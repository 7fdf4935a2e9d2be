"""The order of a bulk in words: what a bulk is to do, as an operator reads it beside its progress."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.bulks import FailedAgain
from durable.inspection.family import FailedChildren
from durable.inspection.humanize import either, span, thousands
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.inspection.wording import cause_in_words, state_in_words, verb_title
from durable.models import Cause, Run
from durable.tag_hashes import is_hashed

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
}
_FLAGS = {
    "is_undone": gettext_lazy("whose steps were undone"),
    "is_stuck": gettext_lazy("whose compensation has stopped"),
    "is_diverged": gettext_lazy("that the workers' code does not fit"),
    "needs_attention": gettext_lazy("that need a person"),
}
_OPTIONS = {
    "end_sleeps": gettext_lazy("end sleeps"),
    "rollback": gettext_lazy("rollback"),
    "interrupt": gettext_lazy("interrupt"),
}


def order_words(order: Any, began_at: datetime) -> str:
    """Return what the order of a bulk that began at this moment says, in sentences. At most one statement."""
    options = [str(_OPTIONS.get(name, name)) for name, value in order.options.items() if value is True]
    options += [
        _('from "%(place)s"') % {"place": value}
        for name, value in order.options.items()
        if name == "location" and value
    ]
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
        completed = Run.objects.using(conf.DATABASE).filter(
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
    """Return a cause in words, its fingerprint if it was deleted since; one statement."""
    found = (
        Cause.objects.using(conf.DATABASE).filter(fingerprint=fingerprint).values_list("place", "error_type").first()
    )
    return fingerprint if found is None else cause_in_words(*found)
