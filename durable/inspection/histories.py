"""The metadata of a run's entries, found along its index.

A run's entries lie scattered among those of all the others, and so does their metadata. Where a long history is joined with it,
PostgreSQL takes one pass over the whole table for cheaper than ten thousand look-ups, even where it takes three times as long,
and the pass gets longer as the table grows. Keys that come as an array are looked up.
"""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, F, Func, Subquery

from durable.conf import conf
from durable.models import Entry

__all__ = ["OfRun"]


class OfRun(Func):
    """Whether metadata belongs to an entry of the run; `entry` is the path to the entry's key, through the metadata."""

    output_field = BooleanField()
    template = "%(expressions)s"
    arg_joiner = " IN "

    def __init__(self, run_id: str, entry: str = "entry", **extra: Any) -> None:
        keys = Entry.objects.using(conf.DATABASE).filter(run=run_id).order_by().values("id")
        super().__init__(F(entry), Subquery(keys), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """`entry_id = ANY(ARRAY(SELECT ...))`."""
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **context)
