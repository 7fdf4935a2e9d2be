"""Chores: what packages above this one have the process of the sweep do from time to time (`timer.Chores`).

Owns the list alone: an app adds to it when Django starts, in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

#: Functions of the time. Each returns soon, and may be called by several processes at once.
CHORES: list[Callable[[datetime], None]] = []
