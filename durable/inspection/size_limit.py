"""Large values of a page, within a size limit: an admin page must not hold a gigabyte because a run does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Model, QuerySet
from django.utils.translation import gettext as _

from durable.inspection.humanize import thousands
from durable.models.rows import in_batches, weight

PAGE_BYTES: Final = 4 * 1024 * 1024  # of recorded text


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A placeholder for values that are not read.

    `size` is their length in bytes (in characters, if the database counts only those).
    """

    size: int

    def __str__(self) -> str:
        text = _("(%(number)s bytes: too large for this page, the export has it)")
        return text % {"number": thousands(self.size)}


def read_within(
    found: QuerySet[Any, Any], *columns: str, most: int = PAGE_BYTES
) -> Mapping[Any, Sequence[Any] | TooLarge]:
    """Return the columns' values by the rows' keys; TooLarge for a row that would bring the total above `most`.

    Two statements; earlier rows of `found` have priority.
    """
    model: type[Model] = found.model
    read: dict[Any, Sequence[Any] | TooLarge] = {}
    fitting: list[tuple[Any, int]] = []
    left = most
    for key, size in found.values_list("pk", weight(*columns)):
        if size <= left:
            left -= size
            fitting.append((key, size))
        else:
            read[key] = TooLarge(size)
    rows = model._default_manager.using(found.db)
    for keys in in_batches(fitting):
        read |= {key: values for key, *values in rows.filter(pk__in=keys).values_list("pk", *columns)}
    return read
