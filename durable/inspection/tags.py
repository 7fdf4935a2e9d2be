"""Tags of a run for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from durable.core.tags import HASHED

__all__ = ["shown_tag", "tags_note"]


def shown_tag(value: str) -> str:
    """Return the value of a tag as it is shown: that of a hashed tag is not."""
    return _("hashed") if value.startswith(HASHED) else value


def tags_note(data: Mapping[str, Any]) -> str:
    """Return which tags an entry has set: "stage=paid, sum=9.5"."""
    return ", ".join(f"{name}={shown_tag(value)}" for name, value in data.get("tags", {}).items())
