"""The builds of the project's code that workers have run, and when each first appeared: the deploys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from durable.conf import conf
from durable.models import Build

MOST: Final = 50  # builds that are returned


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSeen:
    """A build and when a worker first ran it."""

    name: str
    first_seen_at: datetime


def builds(since: datetime, until: datetime | None = None, *, most: int = MOST) -> list[BuildSeen]:
    """Return the builds that first appeared from `since` on, before `until`: the newest `most` of them, oldest first.

    One statement along an index.
    """
    found = Build.objects.using(conf.DATABASE).filter(first_seen_at__gte=since)
    if until is not None:
        found = found.filter(first_seen_at__lt=until)
    rows = found.order_by("-first_seen_at").values_list("name", "first_seen_at")[:most]
    return [BuildSeen(name=name, first_seen_at=moment) for name, moment in reversed(rows)]
