"""The names of workflows and queues that migrations rename: their rows, and what refers to them besides runs."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import parse_qsl, urlencode

from django.db.models import F

from durable.core.renames import Alias, AliasKind
from durable.models import Hold, RenamedName, SavedView, Schedule


def is_known(alias: str, name: Alias) -> bool:
    """Return True if a migration has recorded this rename."""
    return RenamedName.objects.using(alias).filter(kind=name.kind, old=name.old, new=name.new).exists()


def record(alias: str, name: Alias, at: datetime) -> None:
    """Record the rename, unless it is known."""
    if not is_known(alias, name):
        RenamedName.objects.using(alias).create(kind=name.kind, old=name.old, new=name.new, recorded_at=at)


def rewrite_references(alias: str, kind: AliasKind, before: str, after: str) -> None:
    """Rewrite the references of holds, schedules and saved views to the other name.

    Schedules keep their own names, of which the ids of runs are made.
    """
    copy_hold(alias, kind, before, after)
    schedules = Schedule.objects.using(alias).filter(**{kind.value: before})
    schedules.update(**{kind.value: after}, changes=F("changes") + 1)
    _rewrite_views(alias, kind.value, before, after)


def copy_hold(alias: str, kind: AliasKind, before: str, after: str) -> None:
    """Hold the other name too, if this one is held. A hold is lifted for all names."""
    rows = Hold.objects.using(alias).filter(kind=kind.value)
    held = rows.filter(name=before).first()
    if held is not None and not rows.filter(name=after).exists():
        held.pk, held.name = None, after
        held.save(using=alias, force_insert=True)


def _rewrite_views(alias: str, parameter: str, before: str, after: str) -> None:
    """Rewrite the filters of saved views to the other name. `parameter` is that of the address of a list."""
    for view in SavedView.objects.using(alias).filter(query__contains=parameter).order_by("pk"):
        pairs = parse_qsl(view.query, keep_blank_values=True)
        changed = [(name, after if (name, value) == (parameter, before) else value) for name, value in pairs]
        if changed != pairs:
            SavedView.objects.using(alias).filter(pk=view.pk).update(query=urlencode(changed))
