"""The lines of a limit's keys: how many slots of each are held, how many runs wait, and since when.

One statement for all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connections

from durable.conf import conf
from durable.inspection.capped_counts import moment_of
from durable.models.rows import pack

# Both databases name the columns of VALUES alike. By `place` slots of a key are in the order of its index, which keeps
# each count on it. Parameters: the limit and the cap of held slots, the limit and the cap of waiting ones, the limit,
# and a number and a key for each row.
_SLOTS: Final = """SELECT "durable_slot"."{column}" FROM "durable_slot" WHERE "durable_slot"."limit" = %s
  AND "durable_slot"."key" = keys.column2 AND "durable_slot"."is_held" = {is_held} ORDER BY "durable_slot"."place" LIMIT {most}"""
_COUNTED: Final = "(SELECT COUNT(*) FROM ({slots}) AS counted)"
_EACH: Final = "SELECT keys.column1, {held}, {waiting}, ({oldest}) FROM (VALUES {{keys}}) AS keys"
_LINES: Final = _EACH.format(
    held=_COUNTED.format(slots=_SLOTS.format(column="id", is_held="true", most="%s")),
    waiting=_COUNTED.format(slots=_SLOTS.format(column="id", is_held="false", most="%s")),
    oldest=_SLOTS.format(column="since", is_held="false", most="1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """A key: how many slots are held, how many runs wait, and since when the first in line; None if none waits."""

    held: int
    waiting: int
    oldest_at: datetime | None


def lines_of(limit: str, keys: Sequence[str], *, most_held: int, most_waiting: int) -> list[KeyLine]:
    """Return the line of each key, in their order, counting no further than `most_held` and `most_waiting`.

    One statement along an index, none without keys.
    """
    if not keys:
        return []
    name = pack(limit)
    given: list[str | int] = [name, most_held, name, most_waiting, name]
    for number, key in enumerate(keys):
        given += [number, pack(key)]
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(_LINES.format(keys=", ".join(["(%s, %s)"] * len(keys))), given)
        found = {
            number: KeyLine(held=held, waiting=waiting, oldest_at=None if since is None else moment_of(since))
            for number, held, waiting, since in cursor.fetchall()
        }
    return [found[number] for number in range(len(keys))]
