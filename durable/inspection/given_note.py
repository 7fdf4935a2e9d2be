"""The note on a step whose output was given by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from durable.inspection.wording import source_in_words


def given_note(given: Mapping[str, Any]) -> str:
    """Return who gave the output and why; `given` is what the entry has recorded."""
    return _("output given by hand by %(who)s (%(source)s): %(reason)s") % {
        "who": given.get("by") or _("no user"),
        "source": source_in_words(str(given.get("source", ""))),
        "reason": given.get("reason", ""),
    }
