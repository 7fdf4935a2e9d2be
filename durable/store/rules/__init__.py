"""What stores compute in Python, written once: rules of rows, and of tables behind protocols.

The stores in memory and for SQLite have these tables, and the two databases share what is rare. What PostgreSQL does
in functions of its own is tried against the same tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any


class TableStore(ABC):
    """A part of a `Store`, over tables."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Any]:
        """Return a transaction that reads, and then writes."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]:
        """Return what one reading needs around it."""

    @abstractmethod
    def _check_fence(self, run_id: str, fence: int) -> None:
        """Raise LeaseLost if the run has another fence."""
