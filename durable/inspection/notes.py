"""The notes beside entries of a history: on maps, loops, waits and outputs that were given by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.child_entries import AGAIN
from durable.core.records import EntryStatus
from durable.inspection.humanize import thousands
from durable.inspection.wording import source_in_words
from durable.models import Entry


def wait_note(entry: Entry) -> str:
    """Return how a wait ended that received no message, "" for any other wait. `entry` has its metadata.

    A wait whose data was read without its messages counts as one that received some.
    """
    data: dict[str, Any] = entry.data
    if data.get("received") != []:
        return ""
    deadline = data.get("deadline")
    if deadline and datetime.fromisoformat(deadline) <= entry.metadata.created_at:
        return _("no message was there")  # it had a timeout of zero
    return _("timed out")


def given_note(given: Mapping[str, Any]) -> str:
    """Return who gave the output and why; `given` is what the entry has recorded."""
    return _("output given by hand by %(who)s (%(source)s): %(reason)s") % {
        "who": given.get("by") or _("no user"),
        "source": source_in_words(str(given.get("source", ""))),
        "reason": given.get("reason", ""),
    }


def loop_note(status: str, data: Mapping[str, Any]) -> str:
    """Return how many iterations a loop has made and which of them are pruned, in words."""
    iteration, pruned = data.get("iteration", 0), data.get("pruned", 0)
    if status == EntryStatus.COMPLETED:
        made = ngettext("%(number)s iteration", "%(number)s iterations", iteration + 1)
        note = made % {"number": thousands(iteration + 1)}
    else:
        note = _("in iteration %(number)s") % {"number": thousands(iteration)}
    if pruned > 1:
        gone = _("the records of iterations 0 to %(last)s are pruned, as a loop does to stay small")
        note = f"{note}; {gone % {'last': thousands(pruned - 1)}}"
    elif pruned:
        note = f"{note}; {_('the records of iteration 0 are pruned, as a loop does to stay small')}"
    return note


def map_note(data: Mapping[str, Any]) -> str:
    """Return what is recorded of the children, in words; while they run, `durable.inspection.family` knows more."""
    size = data.get("size", 0)
    note = ngettext("%(number)s child", "%(number)s children", size) % {"number": thousands(size)}
    ended: Mapping[str, int] = data.get("ended", {})
    if failed := ended.get("failed", 0):
        note += ", " + ngettext("%(number)s failed", "%(number)s failed", failed) % {"number": thousands(failed)}
    if cancelled := ended.get("cancelled", 0):
        note += ", " + _("%(number)s cancelled") % {"number": thousands(cancelled)}
    if recovered := recovered_note(data):
        note += ", " + recovered
    return note


def recovered_note(data: Mapping[str, Any]) -> str:
    """Return how many of the failed children a recovery has recovered so far, "" if none is under way."""
    again: Mapping[str, Any] = data.get(AGAIN, {})
    if not again.get("of"):
        return ""
    return _("%(number)s of %(total)s failed children recovered") % {
        "number": thousands(again["done"]),
        "total": thousands(again["of"]),
    }
