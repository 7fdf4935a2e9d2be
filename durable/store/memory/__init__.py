"""The store in memory. `store` has the rows and the contract; the other modules have the tables of single subjects."""

from durable.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
