"""Passes with surroundings of their own: evicted at a moment, with real threads, through a store that interferes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from durable.core.effects import Call
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.testing import Harness


class ConditionalEviction(Eviction):
    """The stop of a worker, once `when()` holds."""

    def __init__(self, when: Callable[[], bool]) -> None:
        super().__init__()
        self.when = when

    @property
    def requested(self) -> bool:
        if self.when():
            self.request("shutdown")
        return super().requested

    @property
    def why(self) -> str:
        return super().why if self.requested else ""


def evicted_pass(h: Harness, run_id: str, *, when: Callable[[], bool], after_begin: bool = False) -> PassOutcome:
    """A pass that is evicted once `when()` holds; with `after_begin`, not before a step's function is called."""
    has_begun = not after_begin

    def observe(_call: Call) -> None:
        nonlocal has_begun
        has_begun = True

    claimed = h._store.claim_run(run_id, now=h.now, lease_until=h.now + timedelta(seconds=30), worker="evicted")
    assert claimed is not None
    at = replace(h._runtime, on_call=observe)
    return execute_pass(claimed, store=h._store, eviction=ConditionalEviction(lambda: has_begun and when()), at=at)


def threaded_pass(h: Harness, run_id: str, *, store: Any = None) -> PassOutcome:
    """A pass whose branches are threads or tasks, as in production; `store` stands before the harness's."""
    claimed = h._store.claim_run(run_id, now=h.now, lease_until=h.now + timedelta(seconds=30), worker="threaded")
    assert claimed is not None
    at = replace(h._runtime, sequential_branches=False, on_call=None)
    return execute_pass(claimed, store=store or h._store, eviction=Eviction(), at=at)
