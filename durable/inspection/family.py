"""Families: a run's parents up to the root, and its children by state and group.

Every count and page follows the index of a parent's children, or stops at a cap: a run may have any number of them.
"""

from __future__ import annotations

from durable.conf import conf
from durable.models import Child

__all__ = ["has_children"]


def has_children() -> bool:
    """Return whether any run is a child: without one a list of roots has nothing to leave out. One look at an index."""
    return Child.objects.using(conf.DATABASE).order_by("pk").values_list("pk").first() is not None
