"""The causes of failed and held runs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from durable.inspection.causes import list_causes
from durable.listings.listing import Listing, Page
from durable.listings.shapes import Seen, Shape, field
from durable.listings.work import Count


class Cause(Shape):
    """A cause of failed runs, and of open ones with a step that waits for a person."""

    cause: str = field("fingerprint", help="Give it as `cause` to the list of runs.")
    place: str = field(
        help='The step that failed, "~" for the number of an iteration; empty for the workflow\'s own code.'
    )
    error_type: str = field(help="The name of the innermost error's class.")
    pattern: str | None = field(
        lambda cause, seen: cause.pattern if seen.payloads else None,
        help='The error\'s message, "#" for what differs. Null without the permission to see payloads.',
    )
    runs: Count = field("count", help="How many runs are failed or held because of it.")
    held: Count = field(help="How many of these are held: open, with a step that waits for a person.")
    first_seen_at: datetime
    since: datetime | None = field(help="When the first of these runs failed or was held.")
    last_at: datetime | None = field(help="When the last of these runs failed or was held.")
    workflows: list[str] = field(help="Those of its newest failures.")
    builds: list[str] = field(
        help="The newest build of the code whose workers have seen it; empty where none is named."
    )
    is_muted: bool
    note: str = field(help="What an operator has said of it; empty for nothing.")
    noted_at: datetime | None = field(help="When that was said.")
    noted_by: str


class CauseList(Shape):
    """The causes of failed and held runs, at most 50."""

    results: list[Cause]


def _causes(seen: Seen, *, muted: bool | None = None) -> Page:
    return Page(results=list_causes(seen.now, muted=muted, within=seen.within))


CAUSES: Final = Listing(
    name="causes",
    item=Cause,
    page=CauseList,
    read=_causes,
    about="runs",
    over_rest="Return the causes of failed and held runs, muted ones too, the one with the newest failure first.",
)
