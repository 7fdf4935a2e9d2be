"""Operators' verbs: searches of the audit log, those on a run's time axis, what a verb means beyond the run's state,
saved views.

A search by run, bulk, user or time follows an index. Any other condition is checked on a bounded number of rows, the
newest ones before the end of the wanted time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import router
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy, ngettext

from durable.core.entry_shapes import readable
from durable.core.location import listed
from durable.core.outcomes import HELD, ONCE, HeldReason
from durable.core.records import ENDED, ActionOutcome, EntryKind
from durable.inspection.children import cancel_note, going_on_note, recover_note
from durable.inspection.humanize import with_reason
from durable.inspection.pagination import on_visible
from durable.inspection.progress import unfinished_entries
from durable.inspection.reading import read_alias
from durable.inspection.wording import display_location
from durable.models import OperatorAction, Run, SavedView
from durable.models.run import RunQuerySet
from durable.operations.verbs import HALTS, RUN_VERBS
from durable.store.tables.surveys import UNFINISHED

WINDOW: Final = 100_000  # rows to search if no index serves a condition
WINDOW_OF_VISIBLE: Final = 10_000  # rows to search for those on runs that a user may see
#: The outcomes whose detail is not the text of an error about any run.
_TELLING: Final = frozenset({ActionOutcome.DONE, ActionOutcome.DENIED, ActionOutcome.STALE})
_STARTED: Final = "as run "  # in a detail, before the id of the run that was started


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCriteria:
    """A filter of the audit log. Every given condition has to hold; an empty one is ignored.

    `person` is a user's name or, if no user has it, a part of a name in the log. `reason` is a part of a reason,
    ignoring case. The times are aware, from (included) and until (excluded). `bulk_id` selects the row of a bulk and
    the rows of its runs. `is_grouped` leaves out the rows of a bulk's runs.
    """

    run_id: str = ""
    bulk_id: str = ""
    person: str = ""
    source: str = ""
    action: str = ""
    outcome: str = ""
    reason: str = ""
    since: datetime | None = None
    until: datetime | None = None
    is_grouped: bool = False


def search_actions(wanted: ActionCriteria, *, window: int = WINDOW) -> QuerySet[OperatorAction]:
    """Return the matching actions, without an order. At most two statements, to find the user and the window."""
    found = OperatorAction.objects.using(read_alias()).all()
    if "\0" in wanted.person + wanted.reason:  # no text in the database can contain it
        return found.none()
    if wanted.bulk_id:
        found = found.filter(Q(bulk_id=wanted.bulk_id) | Q(bulk_id="", run_id=wanted.bulk_id))
    elif wanted.is_grouped:
        found = found.filter(bulk_id="")
    if wanted.run_id:
        found = found.filter(run_id=wanted.run_id)
    if wanted.since is not None:
        found = found.filter(created_at__gte=wanted.since)
    if wanted.until is not None:
        found = found.filter(created_at__lt=wanted.until)
    rest = {name: getattr(wanted, name) for name in ("source", "action", "outcome") if getattr(wanted, name)}
    condition = Q(**rest)
    if wanted.reason:
        condition &= Q(reason__icontains=wanted.reason)
    if wanted.person:
        user = _user(wanted.person)
        if user is None:
            condition &= Q(actor_label__icontains=wanted.person)
        else:
            found = found.filter(actor_id=user)
    if not condition:
        return found
    is_short = bool(wanted.run_id or wanted.bulk_id)
    return found.filter(condition) if is_short else _within(found, wanted.until, window).filter(condition)


def _user(name: str) -> Any:
    """Return the key of the user with this name; None if there is none, or if users are in another database."""
    model = get_user_model()
    if router.db_for_write(model) != read_alias():  # they may be read from a replica
        return None
    users = model._default_manager.using(read_alias()).filter(**{model.USERNAME_FIELD: name})
    return users.values_list("pk", flat=True).first()


def _within(actions: QuerySet[OperatorAction], until: datetime | None, window: int) -> QuerySet[OperatorAction]:
    """Limit the actions to the newest `window` rows before this time."""
    rows = OperatorAction.objects.using(read_alias())
    before = rows.order_by("-pk") if until is None else rows.filter(created_at__lt=until).order_by("-created_at", "-id")
    newest = before.values_list("pk", flat=True).first() or 0
    return actions.filter(pk__gt=newest - window)


def visible_page(
    actions: QuerySet[OperatorAction], within: RunQuerySet, limit: int
) -> tuple[list[OperatorAction], OperatorAction | None]:
    """Return up to `limit` of these actions on runs `within`, the newest first, and the action after which the next
    page begins.

    Searches the next `WINDOW_OF_VISIBLE` actions, so a page may be short although more follow. None for the last page.
    Two statements.
    """
    ordered = actions.order_by("-created_at", "-id")
    behind = list(ordered.only("created_at")[WINDOW_OF_VISIBLE - 1 : WINDOW_OF_VISIBLE + 1])
    end = behind[0] if len(behind) == 2 else None
    if end is not None:
        ordered = ordered.filter(created_at__gte=end.created_at).exclude(created_at=end.created_at, id__lt=end.pk)
    page = list(on_visible(ordered, within)[: limit + 1])
    return page[:limit], page[limit - 1] if len(page) > limit else end


def detail_without_runs(action: OperatorAction) -> str:
    """Return the detail of an action on a run for a reader who may not see all runs.

    Omits the id of a started run, and the error of a refused action, which may name any run.
    """
    if action.outcome not in _TELLING:
        return ""
    return action.detail.partition(_STARTED)[0].rstrip(", ")


_MOST: Final = 50
_AT_ONCE: Final = timedelta(seconds=1)  # between an operator's cancel and the end of the run
_DONE: Final = {
    **{each.action: each.told for each in RUN_VERBS.values() if each.told},
    "send": gettext_lazy("sent a message by %(who)s"),
    "worker_died": gettext_lazy("worker %(who)s died"),
    "taken_over": gettext_lazy("taken over by %(who)s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAction:
    """An operator's verb on the run, for display: "recovered by ada: the bank is back"."""

    title: str
    at: datetime


def read_actions(run: Run, now: datetime) -> list[ShownAction]:
    """Return the operators' verbs on the run before its end, in order, at most 50; one statement."""
    found = OperatorAction.objects.using(read_alias()).filter(
        run_id=run.id, outcome=ActionOutcome.DONE, action__in=list(_DONE)
    )
    before = (run.finished_at or now) + _AT_ONCE
    chosen = found.filter(created_at__lte=before).order_by("created_at", "id")[:_MOST]
    return [ShownAction(title=_title(each), at=each.created_at) for each in chosen]


def _title(action: OperatorAction) -> str:
    return with_reason(str(_DONE[action.action]) % {"who": action.actor_label or action.source}, action.reason)


MOST: Final = 100


def list_views(owner_key: str, *, with_shared: bool = True) -> list[SavedView]:
    """Return the user's own views and the shared ones by name, at most `MOST`. One statement along two indexes."""
    wanted = Q(owner_key=owner_key) | Q(is_shared=True) if with_shared else Q(owner_key=owner_key)
    found = SavedView.objects.using(read_alias()).filter(wanted)
    return list(found.order_by("name", "pk")[:MOST])


#: The verbs that mean something for a run's children, and what says it.
_OF_CHILDREN: Final[Mapping[str, Callable[[Run, RunQuerySet | None], str]]] = {
    **dict.fromkeys(HALTS, going_on_note),
    "cancel": cancel_note,
    "recover": recover_note,
}
#: The verbs about which there may be a note.
NOTED: Final = frozenset({*_OF_CHILDREN, "restart"})


def verb_note(run: Run, verb: str, within: RunQuerySet | None = None) -> str:
    """Say what the verb means for the children of the run, and for steps that may have been done; "" for nothing.

    `within` limits the children, for example to those that a user may see. At most one statement, and those of the
    children.
    """
    notes = [_unsettled_note(run, verb)]
    if verb in _OF_CHILDREN and (verb == "recover" or run.state not in ENDED):
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
    found = unfinished_entries(run, *UNFINISHED)
    rows: list[Any] = list(found.filter(kind=EntryKind.STEP.value).order_by("ordinal").values_list("location", "data"))
    told = [(location, readable(EntryKind.STEP, data)) for location, data in rows]
    return [(location, "rollback" in data) for location, data in told if ONCE in data and _is_unknown(data)]


def _is_unknown(data: Mapping[str, Any]) -> bool:
    held = data.get(HELD)
    return held is None or held["reason"] == HeldReason.UNKNOWN
