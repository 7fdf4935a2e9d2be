"""A database that went back in time: what is known of it, and the open runs that do things again."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from durable.inspection.restored import restored_database
from durable.listings.listing import Listing, Page
from durable.listings.runs import Run, seen_runs
from durable.listings.shapes import Seen, Shape, field
from durable.listings.work import OF_VERB, Count


class RestoredDatabase(Shape):
    """The database beside its mark, and its open runs that were due before the mark was written."""

    results: list[Run] = field(help="The longest due first, at most 50. While workers ran, each has moved since.")
    name: str = field("about.name", help="The database's own, for the verb; empty before the first sweep.")
    place: str = field("about.place", help="Its name and host, as the settings of this process have them.")
    is_behind: bool = field("about.is_behind", help="Whether it went back in time: then workers claim nothing.")
    is_another_history: bool = field(
        "about.is_another_history", help="Whether another database with this name has come as far on another way."
    )
    is_holding: bool = field(
        "about.is_holding", help="Whether a decision about all open runs is carried out: workers wait for that."
    )
    is_kept: bool = field("about.is_kept", help="Whether a mark is kept at all.")
    mark_in: str = field("about.mark_in", help='The path of a file, "Redis", or empty for none.')
    problem: str = field("about.problem", help="Why the mark could not be read; empty if it was.")
    as_of: datetime | None = field("about.as_of", help="The last moment of a sweep in the database.")
    mark_at: datetime | None = field("about.mark_at", help="The last moment of a sweep that the mark knows.")
    mark_place: str = field("about.mark_place", help="The database in which that sweep was.")
    mark_by: str = field("about.mark_by", help="The process that wrote the mark.")
    lost_seconds: float = field("about.lost", help="The time between the two; 0 if the database is not behind.")
    open: Count = field("about.open", help="The open runs that are not paused.")
    moved: Count = field("about.moved", help="Those of them that were due before the mark was written.")
    went_back_from: datetime | None = field("about.went_back_from", help="The mark's moment at the last decision.")
    went_back_to: datetime | None = field("about.went_back_to", help="The database's moment then.")
    decided_at: datetime | None = field("about.decided_at", help="When that was.")
    revision: str = field("about.revision", help=OF_VERB)


class Decided(Shape):
    """What a decision about a restored database has come to."""

    name: str = field(help="Of the database: a new one for a copy.")
    paused: int = field(help="How many runs were paused so far.")
    in_doubt: int = field(help="How many runs were put in doubt so far: their next steps count as unknown.")
    is_done: bool = field(help="False while open runs are left: workers wait for that.")


def _read(seen: Seen) -> Page:
    found = restored_database(seen.now, seen.within)
    return Page(results=found.runs, about=found, seen=seen_runs(seen, found.runs))


RESTORED: Final = Listing(
    name="restored",
    word="database",
    item=Run,
    page=RestoredDatabase,
    read=_read,
    over_rest=(
        "Return whether the database went back in time, as after a restore, with its open runs that were due before the "
        "mark was written.\n\nWhat the lost time has brought is not in the database: no list can have it."
    ),
)
