"""The lease of one claimed run, as its worker knows it.

Owns what is known of it, and when a renewal that fails means a loss. Must not renew: `durable.worker.leases` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable.core.records import RunRecord
from durable.execution.eviction import Eviction


@dataclass(slots=True)
class Lease:
    """The lease of a claimed run: since when it is held, and when it was last renewed (both monotonic).

    `eviction` is None until the pass of the run begins. A pass may raise the fence of the record. `is_busy`: at the
    last renewal, another transaction had locked the run's row.
    """

    record: RunRecord
    since: float
    renewed_at: float
    eviction: Eviction | None = None
    is_busy: bool = False

    @property
    def fence(self) -> int:
        """The fence under which the lease is held."""
        return self.record.fence

    def is_lost_without(self, fence: int) -> bool:
        """Return True if a lease that could not be renewed under this fence means that the run is lost."""
        return self.fence == fence and not (self.eviction is not None and self.eviction.is_changing_fence)
