"""The distinct names at the beginning of an index: one look-up for each name, however many runs there are."""

from __future__ import annotations

from typing import Final

from django.db import connections

from durable.conf import conf
from durable.models.rows import pack, unpack

# Each step looks up where the next name begins. Parameters: after, most.
_SCAN: Final = """
WITH RECURSIVE names(name, number) AS (
  SELECT (SELECT {column} FROM durable_run WHERE {column} > %s{served} ORDER BY {column} LIMIT 1), 1
  UNION ALL
  SELECT (SELECT {column} FROM durable_run WHERE {column} > names.name{served} ORDER BY {column} LIMIT 1), number + 1
  FROM names WHERE name IS NOT NULL AND number < %s
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_WORKFLOWS: Final = _SCAN.format(column="workflow", served="")
_QUEUES: Final = _SCAN.format(column="queue", served=" AND wake_at IS NOT NULL AND NOT (state = 'paused')")

_KEYS: Final = """
WITH RECURSIVE names(name, number) AS (
  SELECT (SELECT key FROM {table} WHERE "limit" = %s ORDER BY "limit", key LIMIT 1), 1
  UNION ALL
  SELECT (SELECT key FROM {table} WHERE "limit" = %s AND key > names.name ORDER BY "limit", key LIMIT 1), number + 1
  FROM names WHERE name IS NOT NULL AND number < %s
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_AWAITED: Final = _KEYS.format(table="durable_reservation")
_WITH_SLOTS: Final = _KEYS.format(table="durable_slot")


def workflows_of_runs(after: str, most: int) -> list[str]:
    """Return up to `most` workflows of runs after the name `after`, in their order; one statement."""
    return _names(_WORKFLOWS, after, most)


def queues_of_due_runs(after: str, most: int) -> list[str]:
    """Return up to `most` queues of runs that will wake or are held, after the name `after`; one statement."""
    return _names(_QUEUES, after, most)


def keys_awaited(limit: str, most: int) -> list[str]:
    """Return up to `most` keys of a limit's rate for which attempts wait, in their order; one statement."""
    return _keys(_AWAITED, limit, most)


def keys_with_slots(limit: str, most: int) -> list[str]:
    """Return up to `most` keys of a limit of which slots are held or waited for, in their order; one statement."""
    return _keys(_WITH_SLOTS, limit, most)


def _keys(scan: str, limit: str, most: int) -> list[str]:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(scan, [pack(limit), pack(limit), most])
        return [unpack(name) for (name,) in cursor.fetchall()]


def _names(scan: str, after: str, most: int) -> list[str]:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(scan, [pack(after), most])
        return [unpack(name) for (name,) in cursor.fetchall()]
