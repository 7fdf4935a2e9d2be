"""The note of a map in a history: how many children it has, and how they have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.map_entries import AGAIN
from durable.inspection.humanize import thousands


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
