"""A store that answers the first question for a run's history from what was loaded with those of other runs."""

from __future__ import annotations

from typing import Any, cast

from durable.core.records import Entry
from durable.store.base import Store

__all__ = ["prefetched"]


def prefetched(store: Store, run_id: str, history: list[Entry]) -> Store:
    """`store` for one pass of the run, whose history was `history` when it was claimed.

    What is done to a run from outside after that shows in its row's signal, as if the pass had begun then.
    """
    return cast("Store", _Preloaded(store, run_id, history))


class _Preloaded:
    def __init__(self, store: Store, run_id: str, history: list[Entry]) -> None:
        self._store = store
        self._histories = {run_id: history}

    def load(self, run_id: str) -> list[Entry]:
        """The history that is there, once; then the store's."""
        history = self._histories.pop(run_id, None)
        return self._store.load(run_id) if history is None else history

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(self._store, name)
        return value
