"""Names of slots in code: the limit, and the key if the limit has keys."""

from __future__ import annotations

from durable.core.ids import MAX_ID, check_key, check_limit
from durable.core.slot_records import SlotWant


def wanted(label: str) -> SlotWant:
    """Return the slot that a step names: "gpu", or "crm/acme" for a key. Raises ValueError."""
    limit, key = split_label(label)
    return SlotWant(limit, key)


def split_label(label: str) -> tuple[str, str]:
    """Return the limit and the key that code names: "crm/acme", or "gpu" without a key. Raises ValueError."""
    limit, slash, key = label.partition("/")
    if slash and not key:  # an empty variable: it must not share what is allowed to all
        raise ValueError(
            f"{label!r} names an empty key: write {limit!r} for the limit without keys, or a key of 1 to {MAX_ID} "
            "characters behind the slash"
        )
    return check_limit(limit), check_key(key) if key else ""
