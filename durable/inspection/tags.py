"""Values of tags as the surfaces show them: never a hash, and what the project's redaction hook makes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _

from durable.core.tags import HASHED
from durable.inspection.payloads import redacted

#: What the hook's name of a tag begins with, and a word of a search that is a tag.
TAG: Final = "tag:"


def shown_value(workflow: str, name: str, value: str) -> str | None:
    """Return the value of a tag as it is shown; None for a hashed one."""
    if value.startswith(HASHED):
        return None
    shown = redacted(workflow, f"{TAG}{name}", value)
    return "" if shown is None else str(shown)


def shown_tags(workflow: str, tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the values of an entry's tags as they are shown; None for a hashed one, and where there is none."""
    return {name: None if value is None else shown_value(workflow, name, value) for name, value in tags.items()}


def tags_note(workflow: str, data: Mapping[str, Any]) -> str:
    """Return which tags an entry has set: "stage=paid, sum=9.5"."""
    shown = shown_tags(workflow, data.get("tags", {}))
    return ", ".join(f"{name}={_('hashed') if value is None else value}" for name, value in shown.items())
