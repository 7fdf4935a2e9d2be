"""Idempotency keys: one for each thing that a run does to the outside, whatever the attempt."""

from __future__ import annotations

import hashlib

from durable.core.entries import RunRecord

__all__ = ["idempotency_key"]


def idempotency_key(run: RunRecord, location: str, purpose: str = "step") -> str:
    """32 hexadecimal digits: the same for all attempts, another for each run, location and purpose.

    A step that was compensated and is done again gets a new one: the outside must not answer with what was undone.
    """
    generation = run.generations.get(location, 0)
    text = f"{run.id}\0{location}\0{generation}\0{purpose}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
