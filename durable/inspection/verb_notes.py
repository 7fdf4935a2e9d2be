"""What a verb on a run means beyond the run's state: for its children, and for steps of which nobody knows the outcome.

Sentences for the person who decides. Must not decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db.models import Q
from django.utils.translation import ngettext

from durable.core.entry_shapes import readable
from durable.core.location import listed
from durable.core.outcomes import HELD, ONCE, HeldReason
from durable.core.records import ENDED, EntryKind, EntryStatus
from durable.inspection.family import cancel_note, pause_note
from durable.inspection.progress import open_entries
from durable.inspection.wording import display_location
from durable.models import Run
from durable.models.run import RunQuerySet

_UNFINISHED: Final = [each.value for each in (EntryStatus.RUNNING, EntryStatus.UNKNOWN, EntryStatus.HELD)]

#: The verbs that mean something for a run's children, and what says it.
_OF_CHILDREN: Final[Mapping[str, Callable[[Run, RunQuerySet | None], str]]] = {
    "pause": pause_note,
    "cancel": cancel_note,
}
#: The verbs about which there may be a note.
NOTED: Final = frozenset({*_OF_CHILDREN, "restart"})


def verb_note(run: Run, verb: str, within: RunQuerySet | None = None) -> str:
    """Say what the verb means for the children of the run, and for steps that may have been done; "" for nothing.

    `within` limits the children, for example to those that a user may see. At most one statement, and those of the
    children.
    """
    notes = [_unsettled_note(run, verb)]
    if run.state not in ENDED and verb in _OF_CHILDREN:
        notes.append(_OF_CHILDREN[verb](run, within))
    return ". ".join(filter(None, notes))


def _unsettled_note(run: Run, verb: str) -> str:
    """Say what a cancel or a restart means for steps of which nobody knows whether they were done; "" without any."""
    is_cancel = verb == "cancel" and run.state not in ENDED
    if not is_cancel and verb != "restart":
        return ""
    found = _unsettled(run)
    if not found:
        return ""
    named = listed(display_location(location) for location, _has_handler in found)
    told = {"places": named}
    if verb == "restart":
        text = ngettext(
            "Nobody knows whether %(places)s was done: it would be done again",
            "Nobody knows whether %(places)s were done: they would be done again",
            len(found),
        )
    elif any(has_handler for _location, has_handler in found):
        text = ngettext(
            "Nobody knows whether %(places)s was done, and nobody will be asked any more, unless you compensate first: "
            "then verify is asked, and the run waits for a person if nobody knows",
            "Nobody knows whether %(places)s were done, and nobody will be asked any more, unless you compensate first: "
            "then verify is asked about those with a rollback handler, and the run waits for a person if nobody knows",
            len(found),
        )
    else:
        text = ngettext(
            "Nobody knows whether %(places)s was done, and nobody will be asked any more",
            "Nobody knows whether %(places)s were done, and nobody will be asked any more",
            len(found),
        )
    return text % told


def _unsettled(run: Run) -> list[tuple[str, bool]]:
    """Return the steps of which nobody knows whether they were done, and whether each has a rollback handler."""
    found = open_entries(run, Q(status__in=_UNFINISHED))
    rows: list[Any] = list(found.filter(kind=EntryKind.STEP.value).order_by("ordinal").values_list("location", "data"))
    told = [(location, readable(EntryKind.STEP, data)) for location, data in rows]
    return [(location, "rollback" in data) for location, data in told if ONCE in data and _is_unknown(data)]


def _is_unknown(data: Mapping[str, Any]) -> bool:
    held = data.get(HELD)
    return held is None or held["reason"] == HeldReason.UNKNOWN
