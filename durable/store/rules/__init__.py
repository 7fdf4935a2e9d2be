"""The rules that stores compute in Python: rules of rows, and of tables behind protocols.

The stores in memory and for SQLite implement these tables, and both databases use them for rare operations. The
functions of PostgreSQL that do the same have to pass the same tests.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol


class TableStore(Protocol):
    """A part of a `Store`, over tables."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Any]:
        """Return a transaction that reads first and then writes."""

    @abstractmethod
    def _check_fence(self, run_id: str, fence: int) -> None:
        """Raise LeaseLost if the run has another fence."""
