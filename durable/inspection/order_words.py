"""The order of a bulk in words: what a bulk was told to do, as an operator reads it beside its progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from durable.conf import conf
from durable.inspection.bulks import FailedAgain
from durable.inspection.humanize import span
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered

__all__ = ["order_words"]

_TIMES = {
    "created_from": "created from {}",
    "created_until": "created before {}",
    "finished_from": "ended from {}",
    "finished_until": "ended before {}",
}
_WORDS = {
    "workflow": 'of the workflow "{}"',
    "queue": 'in the queue "{}"',
    "id_prefix": 'whose id begins with "{}"',
    "error_text": 'whose error has the text "{}"',
    "waiting_queue": 'that wait for a message in "{}"',
    "cause": "that failed because of {}",
    "place": 'that failed at "{}"',
    "worker": 'of the worker "{}"',
}
_FLAGS = {
    "is_undone": "whose steps were undone",
    "is_stuck": "whose compensation has stopped",
    "is_diverged": "that the workers' code does not fit",
    "needs_attention": "that need a person",
}


def order_words(order: Any) -> str:
    """Return what the order of a bulk says, in sentences."""
    number = "" if order.total is None else f"{order.total:,} "
    options = [name.replace("_", " ") for name, value in order.options.items() if value is True]
    options += [f'from "{value}"' for name, value in order.options.items() if name == "location" and value]
    how = f" ({', '.join(options)})" if options else ""
    sentences = [f"{order.verb.capitalize()}{how} {number}runs{_which(order.selection)}"]
    canary = order.canary
    if canary is not None:
        sentences.append(
            f"The first {canary.first} are tried alone, for {span(canary.within)} at most; it stops after "
            f"{canary.stop_after} of them failed"
        )
    if order.rate is not None:
        sentences.append(f"At most {order.rate:g} runs a second")
    if order.reason:
        sentences.append(f"Reason: {order.reason}")
    return " ".join(f"{each.rstrip('.')}." for each in sentences)


def _which(selection: Any) -> str:
    if isinstance(selection, Filtered):
        words = ", ".join(_conditions(selection.wanted))
        return f" {words}" if words else ""
    if isinstance(selection, FailedAgain):
        return f" that failed again after the bulk {selection.bulk_id}"
    return " that were chosen"


def _conditions(wanted: RunCriteria) -> Iterator[str]:
    if wanted.states:
        yield f"that are {' or '.join(sorted(each.replace('_', ' ') for each in wanted.states))}"
    for name, words in _WORDS.items():
        value = getattr(wanted, name)
        if value:
            yield words.format("(hidden)" if name == "error_text" and conf.REDACT else value)
    for name, words in _TIMES.items():
        moment = getattr(wanted, name)
        if moment is not None:
            yield words.format(f"{moment:%Y-%m-%d %H:%M} UTC")
    for name, words in _FLAGS.items():
        if getattr(wanted, name):
            yield words
