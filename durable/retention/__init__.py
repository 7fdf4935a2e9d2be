"""Retention: how long ended runs are kept, and how they are deleted.

`policy` owns the meaning of `DURABLE["RETENTION"]`, `prune` the deletion of expired runs. Neither decides when: the
sweep does (`durable.worker.timer`), and operators (`durable.operations.prune`).
"""

from __future__ import annotations

from durable.retention.policy import STATES, Policy, RetentionError
from durable.retention.prune import Pruned, Pruner

__all__ = ["STATES", "Policy", "Pruned", "Pruner", "RetentionError"]
