"""The sentences of `durable why` about maps: a parent that waits for one, and a child that waits for its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.map_entries import UNDONE_FROM
from durable.core.records import EntryKind, RunState
from durable.inspection.entry_facts import whole_data
from durable.inspection.humanize import thousands
from durable.inspection.map_note import recovered_note
from durable.inspection.wording import display_location
from durable.models import ChildGroup, Entry, Run, Turn
from durable.models.run import RunQuerySet


def waiting_for_map(run: Run, awaited: Sequence[str]) -> str | None:
    """Return what the run waits for, if a group of children is among these; None if none is."""
    groups = ChildGroup.objects.using(conf.DATABASE).filter(id__in=list(awaited))
    group = groups.select_related("tally").order_by("position").first()
    if group is None:
        return None
    tally = group.tally
    if group.is_over:  # its children are waited for again: they undo what they have done
        return _compensating(run, group)
    note = _(
        'Waiting for the children of the map "%(map)s": %(ended)s of %(size)s have ended, %(running)s are under way'
    ) % {
        "map": display_location(group.location),
        "ended": thousands(tally.completed + tally.failed + tally.cancelled),
        "size": thousands(group.size),
        "running": thousands(tally.running),
    }
    if tally.waiting:
        note += ", " + _("%(waiting)s wait for their turn") % {"waiting": thousands(tally.waiting)}
    if tally.failed:
        note += "; " + _("failed so far: %(failed)s") % {"failed": thousands(tally.failed)}
    return note


def _compensating(run: Run, group: ChildGroup) -> str:
    """Return how far the compensation of the children of a map has come."""
    tally = group.tally
    note = _('Compensating the children of the map "%(map)s": %(running)s of %(size)s are under way') % {
        "map": display_location(group.location),
        "running": thousands(tally.running + tally.waiting),
        "size": thousands(group.size),
    }
    entries = Entry.objects.using(conf.DATABASE).filter(run_id=run.id, location=group.location)
    data: Mapping[str, Any] | None = entries.values_list("data", flat=True).first()
    left = None if data is None else data.get("rollback", {}).get(UNDONE_FROM)
    if left is not None:
        note += ", " + _("%(left)s are left") % {"left": thousands(left)}
    return note


def recovering_note(run: Run, entries: Sequence[Entry]) -> str:
    """Return how far the recovery of the failed children of a map has come, "" for none; a query if a map is open.

    `entries` are the open entries of the run.
    """
    if run.state not in (RunState.RUNNING, RunState.PENDING):
        return ""
    maps = [each.pk for each in entries if each.kind == EntryKind.MAP]
    found = Entry.objects.using(conf.DATABASE).filter(pk__in=maps).order_by("ordinal") if maps else ()
    for entry in found:
        if note := recovered_note(whole_data(entry)):
            return _('Map "%(map)s": %(note)s') % {"map": display_location(entry.location), "note": note}
    return ""


def turn_note(run: Run, within: RunQuerySet | None = None) -> str | None:
    """Return for what a child waits that has not had its turn; None for any other run.

    With `within`, the runs that a reader may see, neither its parent nor the number of other children is told.
    """
    if run.parent_id is None:
        return None
    turns = Turn.objects.using(conf.DATABASE).filter(run_id=run.id).select_related("group__tally")
    turn = turns.first()
    if turn is None:
        return None
    if within is not None:
        return _("Waits for its turn")
    group = turn.group
    return _('Waits for its turn: %(running)s of %(at_once)s of the map "%(map)s" of "%(parent)s" are under way') % {
        "running": thousands(group.tally.running),
        "at_once": thousands(group.at_once or group.size),
        "map": display_location(group.location),
        "parent": group.parent_id,
    }
