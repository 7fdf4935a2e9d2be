"""Retention: how long what has ended is kept, and how it goes.

`policy` owns the meaning of `DURABLE["RETENTION"]`, `pruning` the deletion of what is past it. Neither decides when: the
sweep does (`durable.worker.timer`), and operators (`durable.operations.prune`).
"""

from __future__ import annotations

from durable.retention.policy import STATES, Policy, RetentionError
from durable.retention.pruning import Pruned, Pruner

__all__ = ["STATES", "Policy", "Pruned", "Pruner", "RetentionError"]
