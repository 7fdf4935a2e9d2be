"""The limit: what one connection can commit, row by row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import psycopg
from django.utils import timezone

from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.workflows import RESULT

TABLE = """CREATE TABLE IF NOT EXISTS bare (
  id bigserial PRIMARY KEY, run text NOT NULL, location text NOT NULL, output text, created_at timestamptz NOT NULL)"""
INSERT = "INSERT INTO bare (run, location, output, created_at) VALUES (%s, %s, %s, %s)"


@cache
def _connection(url: str) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(TABLE)
    return connection


def bare_rate(bench: Bench, for_seconds: float) -> float:
    """Rows per second."""
    cursor = _connection(bench.database_url).cursor()
    now = timezone.now()
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < for_seconds:
        for _ in range(50):
            cursor.execute(INSERT, ["run", f"step-{count}", RESULT, now])
        count += 50
    cursor.execute("TRUNCATE bare")
    return count / elapsed


@measure("bare", is_peer=True)
def bare(bench: Bench) -> Iterator[Figure]:
    """One-row inserts through psycopg, autocommit, one connection, statement prepared by psycopg: rows per second.

    Says nothing of what several connections reach together: their commits share a flush of the log.
    """
    yield Figure("bare inserts", bare_rate(bench, bench.size(20, 5) / 10), "/s")
