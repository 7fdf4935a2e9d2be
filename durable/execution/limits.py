"""What code and settings say about a limit, for the first slot that is taken of it.

Later the row of the limit decides, which operators may change.
"""

from __future__ import annotations

from dataclasses import replace

from durable.conf import conf
from durable.core import registry
from durable.core.slot_records import SlotWant

__all__ = ["defined"]


def defined(want: SlotWant) -> SlotWant:
    """Return the want with the number of slots that the setting LIMITS, or else a workflow, gives the limit."""
    if want.at_once is not None:
        return want
    at_once = conf.LIMITS.get(want.limit, {}).get("at_once")
    if at_once is None:
        at_once = next((each for each in _of_workflows(want.limit) if each is not None), None)
    return replace(want, at_once=at_once)


def _of_workflows(name: str) -> list[int | None]:
    limits = (each.limits for each in registry.all())
    return [limit.at_once for found in limits if found is not None for limit in found.limits if limit.name == name]
