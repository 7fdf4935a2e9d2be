"""Idempotency keys: one for each thing that a run does to the outside, whatever the attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from durable.core.records import RunRecord

__all__ = ["generation", "idempotency_key"]


def idempotency_key(run: RunRecord, location: str, purpose: str = "step") -> str:
    """32 hexadecimal digits: the same for all attempts, another for each run, location and purpose.

    A step that was compensated or replayed, and is done again, gets a new one: the outside must not answer with what
    was done then.
    """
    text = f"{run.id}\0{location}\0{generation(run.generations, location)}\0{purpose}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def generation(generations: Mapping[str, int], location: str) -> int:
    """How often what stands at `location` was begun anew, by itself or with something around it.

    What stands around counts too, because a loop's pruned iterations have left no entries that could be counted.
    """
    if not generations:  # nearly always
        return 0
    count = generations.get(location, 0) + generations.get("", 0)
    end = location.rfind("/")
    while end > 0:
        count += generations.get(location[:end], 0)
        end = location.rfind("/", 0, end)
    return count
