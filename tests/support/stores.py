"""The store of the tests' database in force without a harness, passes of its runs, and a store whose commits break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from durable import runtime
from durable.conf import conf
from durable.core.records import Batch, Committed
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.runtime import Runtime


@contextmanager
def in_force() -> Iterator[Runtime]:
    """The production backend. Branches run in turn, in the thread that has the test's transaction."""
    at = replace(runtime.production(), sequential_branches=True)
    runtime.activate(at)
    try:
        yield at
    finally:
        runtime.deactivate(at)


def passed(at: Runtime, run_id: str) -> PassOutcome:
    """One pass of the run, due or not."""
    now = at.now()
    claimed = at.store.claim_run(run_id, now=now, lease_until=now + timedelta(seconds=conf.LEASE), worker="test")
    assert claimed is not None
    return execute_pass(claimed, store=at.store, eviction=Eviction(), at=at)


def settle(most: int | None = None) -> int:
    """Pass all runs of the store in force until none is due, or `most` times; return how many passes there were."""
    at = runtime.current()
    for number in range(500 if most is None else most):
        now = at.now()
        found = at.store.claim(
            queue="default", now=now, lease_until=now + timedelta(seconds=30), worker="test", limit=1
        )
        if not found:
            return number
        execute_pass(found[0], store=at.store, eviction=Eviction(), at=at)
    assert most is not None, "runs are due for ever"
    return most


class Breaking:
    """Another store, whose commits break where `strike` says; it is given the number, the batch and the commit."""

    def __init__(self, inner: Any, strike: Callable[[int, Batch, Callable[[], Committed]], Committed]) -> None:
        self.inner = inner
        self.strike = strike
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def sent_commits(self) -> None:
        """No event loop commits past this store."""

    def commit(self, batch: Batch) -> Committed:
        self.commits += 1
        return self.strike(self.commits, batch, lambda: self.inner.commit(batch))
