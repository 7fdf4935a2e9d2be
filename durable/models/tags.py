"""Tags: names with values, by which runs are found. A side table: a run without tags has no row.

A row has the time of its run, because only an index that begins with the tag and goes on with the order of lists gives
the newest runs without sorting all of the tag: an array with a GIN index has no order. `RunQuerySet.tagged` sorts by
the columns of the row. A join on the time too would let the run's own columns do the same; but PostgreSQL then expects
one row of the join, and reads both tables whole (20,000 runs, half of them with the tag).
"""

from __future__ import annotations

from typing import Final

from django.db import models

from durable.core.ids import MAX_ID
from durable.models.fields import NameField, TagValueField
from durable.models.rows import Row
from durable.models.run import Run

_PACKED: Final = 1_000  # characters: of 200, each of which may be written with five


class RunTag(Row):
    """A tag of a run: the text of its value (`durable.core.tags.tag_text`), or its HMAC (`durable.tag_hashes`).

    `created_at` is that of the run, so that the newest runs of a tag are one range of the index. `start_value` is what
    the start of the run has given, None if the run has tagged itself.
    """

    # no constraint in the database: the row is inserted in the transaction that has inserted the run
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="tags", db_index=False, db_constraint=False)
    name = NameField[str, str](max_length=MAX_ID)
    value = TagValueField[str, str](max_length=_PACKED)
    start_value = TagValueField[str | None, str | None](max_length=_PACKED, null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="durable_runtag_once_per_name")]
        indexes = [models.Index(fields=["name", "value", "created_at", "run"], name="durable_runtag_newest")]

    def __str__(self) -> str:
        return f"{self.name}={self.value}"
