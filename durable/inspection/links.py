"""The links of a run, in the words of pages and of JSON; never the token or its hash."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.core.entry_shapes import readable
from durable.core.links import LinkState, state_of
from durable.core.records import EntryKind, LinkRecord
from durable.inspection.humanize import moment
from durable.inspection.reading import read_alias
from durable.models import Entry, Link, Run
from durable.store.tables.rows import LINK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link of a run, by the id in its entry's data.

    `opened` counts how often a link was opened at its place.
    """

    state: LinkState
    opened: int
    expires_at: datetime | None
    used_at: datetime | None
    closed_at: datetime | None

    @property
    def note(self) -> str:
        """The state in words: "open until ...", "answered ..."."""
        now = timezone.now()
        if self.state is LinkState.USED and self.used_at is not None:
            return _("answered %(when)s") % {"when": moment(self.used_at, now)}
        if self.state is LinkState.EXPIRED and self.expires_at is not None:
            return _("expired %(when)s") % {"when": moment(self.expires_at, now)}
        if self.state is LinkState.OPEN and self.expires_at is not None:
            return _("open until %(when)s") % {"when": moment(self.expires_at, now)}
        return str(_STATES[self.state])

    @property
    def facts(self) -> dict[str, Any]:
        """The state as JSON data."""
        return {
            "state": str(self.state),
            "opened": self.opened,
            "used_at": None if self.used_at is None else self.used_at.isoformat(),
            "closed_at": None if self.closed_at is None else self.closed_at.isoformat(),
        }


_NOTED: Final = "noted_link"  # the attribute of an entry whose link has been read

_STATES: Final[Mapping[LinkState, StrPromise]] = {
    LinkState.OPEN: gettext_lazy("open until the run ends"),
    LinkState.USED: gettext_lazy("answered"),
    LinkState.EXPIRED: gettext_lazy("expired"),
    LinkState.CLOSED: gettext_lazy("closed without an answer"),
    LinkState.REPLACED: gettext_lazy("replaced by a replay"),
    LinkState.UNOPENED: gettext_lazy("has no address until the run goes on"),
}


_UNOPENED: Final = ShownLink(state=LinkState.UNOPENED, opened=0, expires_at=None, used_at=None, closed_at=None)


def _links_of(run: Run, ids: Iterable[str]) -> dict[str, ShownLink]:
    rows = Link.objects.using(read_alias()).filter(run=run, link_id__in=list(ids)).order_by("opened_at", "pk")
    found: dict[str, list[LinkRecord]] = {}
    for row in rows.values(*LINK.names):
        found.setdefault(row["link_id"], []).append(LinkRecord(**row))
    return {link_id: _shown(run, records) for link_id, records in found.items()}


def note_links(run: Run, entries: Collection[Entry]) -> None:
    """Read the links among these entries of the run for `link_of`; one query, none without a link."""
    ids = {entry.pk: _id_of(entry) for entry in entries if entry.kind == EntryKind.LINK}
    links = _links_of(run, ids.values()) if ids else {}
    has_ended = run.finished_at is not None or bool(run.state_after_rollback)
    otherwise = None if has_ended else _UNOPENED  # nothing here says what became of the link where the run has ended
    for entry in entries:
        if entry.pk in ids:
            vars(entry)[_NOTED] = links.get(ids[entry.pk], otherwise)


def link_of(run: Run, entry: Entry) -> ShownLink | None:
    """Return the link of an entry; one query, unless `note_links` has read it. None if it is none, or not of this
    database: that of a run which had ended before it was imported.
    """
    if entry.kind != EntryKind.LINK:
        return None
    if _NOTED not in vars(entry):
        note_links(run, [entry])
    link: ShownLink | None = vars(entry)[_NOTED]
    return link


def _id_of(entry: Entry) -> str:
    return str(readable(entry.kind, entry.data).get("id", ""))


def _shown(run: Run, records: list[LinkRecord]) -> ShownLink:
    last, used = records[-1], next((each for each in records if each.used_at is not None), None)
    has_ended = run.finished_at is not None or bool(run.state_after_rollback)
    state = state_of(last, timezone.now(), has_ended=has_ended, is_there=True, is_used=used is not None)
    return ShownLink(
        state=state,
        opened=last.generation + 1,
        expires_at=last.expires_at,
        used_at=None if used is None else used.used_at,
        closed_at=last.closed_at,
    )
