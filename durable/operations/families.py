"""The recovery of a run's failed children, and then of the run itself, as one bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable.core.records import RunState
from durable.operations import bulk
from durable.operations.canary import Canary
from durable.operations.queries import children, record


@dataclass(frozen=True, slots=True)
class ChildrenFirst:
    """A selection of runs by ids: children and then, unless `parent` is "", their parent on a page of its own."""

    ids: tuple[str, ...]
    parent: str = ""

    @property
    def total(self) -> int | None:
        """The number of ids."""
        return len(self.ids) + bool(self.parent)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return the ids from a position on; the parent comes after all children."""
        begin = 0 if cursor is None else int(cursor)
        if begin >= len(self.ids):
            return [self.parent] if self.parent else [], None
        end = min(begin + limit, len(self.ids))
        return self.ids[begin:end], str(end) if end < len(self.ids) or self.parent else None


def recover_children(
    run_id: str, group: str | None = None, *, canary: Canary | None = None, rate: float | None = None
) -> bulk.BulkReport:
    """Recover the run's failed children, of one group or all, and then the run if it has failed too.

    The current actor acts, as in `durable.operations.bulk.apply`, which describes `canary` and `rate`. More than 100
    runs are recovered in the background. Raises RunNotFoundError, and what `apply` raises.
    """
    failed = children(run_id, RunState.FAILED.value, group)
    parent = run_id if record(run_id).state == RunState.FAILED else ""
    return bulk.apply("recover", ChildrenFirst(tuple(failed), parent), canary=canary, rate=rate)
