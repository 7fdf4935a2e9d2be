"""What the pages cost among 1,000,000 runs: `fill` makes them, `ask` asks every address."""

from __future__ import annotations

from typing import Final

__all__ = ["BULK", "DEEP", "OPERATOR"]

DEEP: Final = "deep-history"
BULK: Final = "bulk-of-many"
OPERATOR: Final = "scale"  # a superuser
