"""The saved views of the list that a user sees."""

from __future__ import annotations

from typing import Final

from django.db.models import Q

from durable.conf import conf
from durable.models import SavedView

MOST: Final = 100


def list_views(owner_key: str, *, with_shared: bool = True) -> list[SavedView]:
    """Return the user's own views and the shared ones by name, at most `MOST`. One statement along two indexes."""
    wanted = Q(owner_key=owner_key) | Q(is_shared=True) if with_shared else Q(owner_key=owner_key)
    found = SavedView.objects.using(conf.DATABASE).filter(wanted)
    return list(found.order_by("name", "pk")[:MOST])
