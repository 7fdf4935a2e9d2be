"""What to say of a step whose output was given by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["given_note"]


def given_note(given: Mapping[str, Any]) -> str:
    """Return who gave the output and why; `given` is what the entry has recorded."""
    who = f"{given.get('by') or 'no user'} ({given.get('source', '')})"
    return f"output given by hand by {who}: {given.get('reason', '')}"
