"""The tables beside those of runs and entries: what a `Store` on a database does for each feature.

Ordinary ORM statements for both databases, because they are rarer than passes. `durable.store.base` says what the
methods promise. The caller has locked the run's row wherever rows of one run change.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from durable.core.records import RunRecord
from durable.store.base import Store

AT_ONCE: Final = 1_000  # rows of one statement


class DatabaseTables(Store):
    """A part of a `Store` on a Django database."""

    alias: str

    @abstractmethod
    def _begin_to_write(self) -> None:
        """Prepare a transaction that reads first to write later. Only a database without row locks needs this."""

    @abstractmethod
    def _lock_run(self, run_id: str, *, wait: bool = True) -> RunRecord | None:
        """Return the run's row, locked until the transaction ends; None if there is none.

        Without `wait`, also None if another transaction has locked it.
        """

    def _put_over(
        self, model: Any, rows: Sequence[Any], key: Sequence[str], columns: Sequence[str], *, keep: bool = False
    ) -> None:
        """Insert rows. Of one that exists, update these columns, but for those of its key; or keep it as it is."""
        changed = [name for name in columns if name not in key]
        over = {"update_conflicts": True, "update_fields": changed, "unique_fields": key}
        if rows:
            how = {"ignore_conflicts": True} if keep else over
            model.objects.using(self.alias).bulk_create(rows, batch_size=AT_ONCE, **how)
