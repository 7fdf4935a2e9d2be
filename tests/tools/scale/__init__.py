"""What the pages cost among 1,000,000 runs: `fill` makes them, `ask` asks every address."""

from __future__ import annotations

from typing import Final

__all__ = ["BULK", "DEEP", "MAPPER", "OPERATOR", "PARENT"]

DEEP: Final = "deep-history"
PARENT: Final = "run-00700001"  # has 1,000 children
MAPPER: Final = "run-00800002"  # sleeps, and has a map of 10,000 children
BULK: Final = "bulk-of-many"
OPERATOR: Final = "scale"  # a superuser
