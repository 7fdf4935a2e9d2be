"""What refers to a workflow or a queue by its name, besides runs: holds and saved views."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from durable.core.records import HoldKind
from durable.models import Hold, SavedView

__all__ = ["copy_hold", "rewrite_views"]


def copy_hold(alias: str, kind: HoldKind, before: str, after: str) -> None:
    """Hold the other name too, if this one is held. A hold is lifted for all names."""
    rows = Hold.objects.using(alias).filter(kind=kind.value)
    held = rows.filter(name=before).first()
    if held is not None and not rows.filter(name=after).exists():
        held.pk, held.name = None, after
        held.save(using=alias, force_insert=True)


def rewrite_views(alias: str, parameter: str, before: str, after: str) -> None:
    """Have saved views filter by the other name. `parameter` is that of the address of a list."""
    for view in SavedView.objects.using(alias).filter(query__contains=parameter).order_by("pk"):
        pairs = parse_qsl(view.query, keep_blank_values=True)
        changed = [(name, after if (name, value) == (parameter, before) else value) for name, value in pairs]
        if changed != pairs:
            SavedView.objects.using(alias).filter(pk=view.pk).update(query=urlencode(changed))
