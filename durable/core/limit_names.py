"""How code names a slot: the limit, and its key if it has some."""

from __future__ import annotations

from durable.core.ids import check_key, check_limit
from durable.core.slot_records import SlotWant

__all__ = ["wanted"]


def wanted(label: str) -> SlotWant:
    """Return the slot that a step names: "gpu", or "crm/acme" for a key. Raises ValueError."""
    limit, _, key = label.partition("/")
    return SlotWant(check_limit(limit), check_key(key) if key else "")
