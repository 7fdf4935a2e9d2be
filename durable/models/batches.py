"""Read rows with large columns in batches of a bounded size: first the lengths of the columns, then some rows at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from django.db.models import F, Func, IntegerField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

BATCH_BYTES: Final = 4 * 1024 * 1024
_MOST: Final = 1_000  # rows of one batch


class ByteLength(Func):
    """The length of a text column: in bytes on PostgreSQL, without unpacking the column; elsewhere in characters."""

    function = "LENGTH"
    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return `octet_length(column)`."""
        return self.as_sql(compiler, connection, function="OCTET_LENGTH", **context)


def weight(*columns: str) -> Combinable:
    """Return an expression: the total length of the columns of a row, 0 for NULL."""
    total: Combinable = Value(0)
    for each in columns:
        total = total + Coalesce(ByteLength(F(each)), 0)
    return total


def in_batches(weighed: Iterable[tuple[Any, int]], most_bytes: int = BATCH_BYTES) -> Iterator[list[Any]]:
    """Yield the keys in their order, in batches whose rows have at most `most_bytes` together, or of one larger row."""
    batch: list[Any] = []
    total = 0
    for key, weight in weighed:
        if batch and (total + weight > most_bytes or len(batch) >= _MOST):
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += weight
    if batch:
        yield batch
