"""A store whose commits break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable.core.records import Batch, Committed


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
