"""Refusals: the database says that its disk is full, or that a transaction has to be repeated, for a while.

Triggers on durable's tables raise what PostgreSQL itself would raise, with its error codes, while a row says so. What
was refused is counted by sequences, which no rollback takes back.
"""

from __future__ import annotations

import random
from typing import Final

import psycopg

#: The errors by name, and how many of a hundred rows are refused with each.
CODES: Final = {"disk_full": ("53100", 100), "serialization_failure": ("40001", 30), "deadlock": ("40P01", 30)}
_TABLES: Final = ("durable_run", "durable_entry", "durable_queuemessage", "durable_attempt")
_LONGEST: Final = 2.0  # seconds


class Refusals:
    """The triggers on the database of this URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def install(self) -> None:
        """Create what refuses; nothing is refused yet."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CREATE TABLE chaos_refusal (name text, code text, share integer, ends_at timestamptz)")
            for name in CODES:
                connection.execute(f"CREATE SEQUENCE chaos_{name}")
            connection.execute(
                "CREATE FUNCTION chaos_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE it record; BEGIN "
                "SELECT * INTO it FROM chaos_refusal WHERE ends_at > clock_timestamp() AND random() * 100 < share LIMIT 1; "
                "IF FOUND THEN PERFORM nextval(format('chaos_%s', it.name)); "
                "RAISE EXCEPTION 'chaos: %', it.name USING ERRCODE = it.code; END IF; RETURN NEW; END $$"
            )
            for table in _TABLES:
                connection.execute(
                    f"CREATE TRIGGER chaos_refuse BEFORE INSERT OR UPDATE ON {table} "
                    "FOR EACH ROW EXECUTE FUNCTION chaos_refuse()"
                )

    def begin(self, name: str, chance: random.Random) -> None:
        """Refuse with this error for a moment."""
        code, share = CODES[name]
        seconds = chance.uniform(0.5, _LONGEST)
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DELETE FROM chaos_refusal")
            connection.execute(
                "INSERT INTO chaos_refusal VALUES (%s, %s, %s, clock_timestamp() + %s * interval '1 second')",
                [name, code, share, seconds],
            )

    def refused(self) -> dict[str, int]:
        """How many rows were refused with each error."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            found = {}
            for name in CODES:
                row = connection.execute(
                    f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM chaos_{name}"
                ).fetchone()
                assert row is not None
                found[name] = int(row[0])
            return found
