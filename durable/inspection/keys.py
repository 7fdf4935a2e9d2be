"""The key of a run, for every surface."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.records import KeyRecord
from durable.inspection.humanize import relative
from durable.models import Run


def key_of(run: Run) -> KeyRecord | None:
    """Return the key with which the run was started, None without one; one query, unless it was read with its `key`."""
    row = getattr(run, "key", None)
    return None if row is None else row.record


def key_data(run: Run) -> dict[str, Any]:
    """Return the key as data: its text, None without one."""
    key = key_of(run)
    return {"key": None if key is None else key.key}


def key_note(key: KeyRecord, now: datetime) -> str:
    """Return what there is to say of a key, as a phrase: who has it, and how often a debounce has moved the run."""
    held = _("held by this run") if key.is_open else _("free again")
    if key.follows is not None:
        held = _("%(held)s; the run began with what the one before it had not received") % {"held": held}
    if not key.moves or key.moved_at is None:
        return held
    moves = ngettext(
        "%(held)s; %(number)d later start was merged into this one, %(when)s",
        "%(held)s; %(number)d later starts were merged into this one, the last %(when)s",
        key.moves,
    )
    return moves % {"held": held, "number": key.moves, "when": relative(key.moved_at, now)}
