"""The note on a loop's iterations, from its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.records import EntryStatus
from durable.inspection.humanize import thousands


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
