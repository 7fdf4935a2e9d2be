"""The note on a wait for messages that has ended without one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

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
