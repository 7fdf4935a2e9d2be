"""A store that answers the first load of a run's history from one loaded together with those of other runs."""

from __future__ import annotations

from typing import Any, cast

from durable.core.time_limits import History
from durable.store.base import Store


def prefetched(store: Store, run_id: str, history: History) -> Store:
    """Return `store` for one pass of the run, whose history was `history` when it was claimed.

    A later change from outside is noticed by the row's `change_seq`, as if the pass had begun at the claim.
    """
    return cast("Store", _Preloaded(store, run_id, history))


class _Preloaded:
    def __init__(self, store: Store, run_id: str, history: History) -> None:
        self._store = store
        self._histories = {run_id: history}

    def load(self, run_id: str) -> History:
        """Return the prefetched history the first time, and then the store's."""
        history = self._histories.pop(run_id, None)
        return self._store.load(run_id) if history is None else history

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(self._store, name)
        return value
