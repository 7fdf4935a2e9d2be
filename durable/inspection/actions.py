"""The audit log, searched: by run, bulk, person, verb, outcome, reason and time.

A search by run, bulk, user or time follows an index. Any other condition is looked for among a bounded number of rows,
the newest ones before the end of the wanted time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import router
from django.db.models import Q, QuerySet

from durable.conf import conf
from durable.inspection.visibility import on_visible
from durable.models import OperatorAction
from durable.models.run import RunQuerySet

WINDOW: Final = 100_000  # rows that are searched if no index serves a condition
WINDOW_OF_VISIBLE: Final = 10_000  # rows among which those on the runs that a user may see are looked for
#: The outcomes whose detail is not the text of an error about any run.
_TELLING: Final = frozenset({"done", "denied", "stale"})  # `durable.operations.audit.Outcome`
_STARTED: Final = "as run "  # in a detail: what follows is the id of the run that was started


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCriteria:
    """A filter of the audit log. Every given condition has to hold; an empty one is ignored.

    `person` is a user's name or, if no user has it, a part of the name that the log has. `reason` is a part of one,
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
    found = OperatorAction.objects.using(conf.DATABASE).all()
    if "\0" in wanted.person + wanted.reason:  # no text in the database has it
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
    if router.db_for_write(model) != conf.DATABASE:  # they may be read from a replica
        return None
    users = model._default_manager.using(conf.DATABASE).filter(**{model.USERNAME_FIELD: name})
    return users.values_list("pk", flat=True).first()


def _within(actions: QuerySet[OperatorAction], until: datetime | None, window: int) -> QuerySet[OperatorAction]:
    """Limit the actions to the newest `window` rows before this time."""
    rows = OperatorAction.objects.using(conf.DATABASE)
    before = rows.order_by("-pk") if until is None else rows.filter(created_at__lt=until).order_by("-created_at", "-id")
    newest = before.values_list("pk", flat=True).first() or 0
    return actions.filter(pk__gt=newest - window)


def visible_page(
    actions: QuerySet[OperatorAction], within: RunQuerySet, limit: int
) -> tuple[list[OperatorAction], OperatorAction | None]:
    """Return up to `limit` of these actions on runs `within`, the newest first, and the one behind which to go on.

    The next `WINDOW_OF_VISIBLE` actions are looked through, so a page may be short and have one to go on behind. None
    for the last page. Two statements.
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

    Without the run that the action has started, and without the error of an action that was refused: it may name any
    run.
    """
    if action.outcome not in _TELLING:
        return ""
    return action.detail.partition(_STARTED)[0].rstrip(", ")
