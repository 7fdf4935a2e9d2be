"""Links in a database: opened and closed by passes, used by answers from outside.

Ordinary ORM statements, because they are rare. The caller has locked the run's row wherever a row changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from durable.core.records import EntryKind, LinkClosed, LinkOpened, LinkRecord
from durable.link_tokens import hash_of
from durable.models import Entry, Link
from durable.store.tables.rows import LINK


def open_links(alias: str, run_id: str, opened: Sequence[LinkOpened], now: datetime) -> None:
    """Write new links of a run. One that is there already was written by an earlier try of the commit."""
    rows = Link.objects.using(alias)
    for each in opened:
        Link.objects.using(alias).bulk_create(
            [
                Link(
                    token_hash=hash_of(each.token),
                    run_id=run_id,
                    link_id=each.link_id,
                    location=each.location,
                    queue=each.queue,
                    generation=rows.filter(run_id=run_id, location=each.location).count(),
                    verify=each.verify,
                    opened_at=now,
                    expires_at=each.expires_at,
                )
            ],
            ignore_conflicts=True,
        )


def close_links(alias: str, run_id: str, closed: Sequence[LinkClosed], now: datetime) -> None:
    """Let these links accept nothing any more."""
    rows = Link.objects.using(alias).filter(run_id=run_id, link_id__in=[each.link_id for each in closed])
    rows.filter(closed_at__isnull=True).update(closed_at=now)


def find(alias: str, token_hash: str) -> LinkRecord | None:
    """Return the link with this hash."""
    row = Link.objects.using(alias).filter(token_hash=token_hash).values(*LINK.names).first()
    return None if row is None else LinkRecord(**row)


def of_run(alias: str, run_id: str) -> list[LinkRecord]:
    """Return the links of a run, in the order in which they were opened."""
    rows = Link.objects.using(alias).filter(run_id=run_id).order_by("opened_at", "pk").values(*LINK.names)
    return [LinkRecord(**row) for row in rows]


def is_in_history(alias: str, link: LinkRecord) -> bool:
    """Return whether the run still has the entry that opened the link."""
    found = Entry.objects.using(alias).filter(run_id=link.run_id, location=link.location, kind=EntryKind.LINK.value)
    entry = found.only("data").first()
    return entry is not None and entry.data.get("id") == link.link_id


def use(alias: str, link: LinkRecord, message_id: str, now: datetime) -> None:
    """Note the answer of a link."""
    Link.objects.using(alias).filter(token_hash=link.token_hash).update(used_at=now, message_id=message_id)
