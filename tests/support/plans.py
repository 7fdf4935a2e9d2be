"""What PostgreSQL makes of statements, and which of them read more the larger a table is.

To read the whole of a small table is right where a page needs two hundred of its rows. What is asked for here is the
plan for a larger one: whole tables are priced higher than the server would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from django.db import connection, connections
from django.test.utils import CaptureQueriesContext


def scans(queries: CaptureQueriesContext, tables: Collection[str]) -> list[str]:
    """Statements that would read one of these tables from one end to the other."""
    return [
        f"{node['Relation Name']} in {sql[:300]}"
        for sql, plan in _plans(queries, tables)
        for node in _nodes(plan)
        if node["Node Type"] == "Seq Scan" and _table(node) in tables
    ]


def sorts(queries: CaptureQueriesContext, tables: Collection[str], most: int = 1_000) -> list[str]:
    """Statements on these tables that would sort more than `most` rows."""
    return [
        f"{node['Plan Rows']} rows in {sql[:300]}"
        for sql, plan in _plans(queries, tables)
        for node in _nodes(plan)
        if node["Node Type"] in {"Sort", "Incremental Sort"} and node["Plan Rows"] > most
    ]


def sifted(queries: CaptureQueriesContext, tables: Collection[str]) -> int:
    """How many rows of these tables a question has read at most only to find that they are none that it asks for."""
    return max(
        (
            int(node.get("Rows Removed by Filter", 0) * node["Actual Loops"])
            for _, plan in _plans(queries, tables, "ANALYZE, TIMING OFF, ")
            for node in _nodes(plan)
        ),
        default=0,
    )


def read(queries: CaptureQueriesContext, table: str) -> int:
    """How many rows of the table the questions have read, over and over included."""
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for _, plan in _plans(queries, {table}, "ANALYZE, TIMING OFF, ")
        for node in _nodes(plan)
        if _table(node) == table
    )


def blocks(queries: CaptureQueriesContext, table: str) -> int:
    """How many blocks the questions about the table have read: a scan that finds nothing further reads blocks alone."""
    plans = [plan for _, plan in _plans(queries, {table}, "ANALYZE, BUFFERS, TIMING OFF, ")]
    return sum(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) for plan in plans)


def most_read(queries: CaptureQueriesContext) -> tuple[int, str]:
    """The most rows of a table of durable that one node of a plan has read, and its statement; (0, "") without any."""
    tables = {table for table in connection.introspection.table_names() if table.startswith("durable_")}
    found = (
        (int((node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)) * node.get("Actual Loops", 0)), sql)
        for sql, plan in _plans(queries, tables, "ANALYZE, TIMING OFF, ")
        for node in _nodes(plan)
        if "Relation Name" in node  # the scan of an index for a bitmap counts dead entries too
    )
    return max(found, default=(0, ""))


def parts_of(alias: str, name: str) -> list[str]:
    """The partitions of a table, or the indexes of partitions that belong to an index; the name alone without any."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = to_regclass(%s) ORDER BY c.oid",
            [name],
        )
        return [part for (part,) in cursor.fetchall()] or [name]


def _table(node: dict[str, Any]) -> str:
    """The table that a node reads, which may be one of its partitions; "" for a node that reads none."""
    return re.sub(r"_p\d+_of_\d+$", "", node.get("Relation Name", ""))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _plans(
    queries: CaptureQueriesContext, tables: Collection[str], how: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the plans of the statements that read one of these tables.

    With `ANALYZE` in `how` the statements are executed again, unless they write.
    """
    for query in list(queries.captured_queries):
        sql = query["sql"]
        if "SELECT" not in sql or not any(f'"{table}"' in sql for table in tables):
            continue
        reads = sql.lstrip().startswith(("SELECT", "WITH RECURSIVE"))
        options = f"{how if reads else ''}FORMAT JSON"
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL seq_page_cost = {_price_of_a_page()}")
            cursor.execute(f"EXPLAIN ({options}) " + sql.replace("%", "%%"), [])
            [[explained]] = cursor.fetchall()
            cursor.execute("SET LOCAL seq_page_cost TO DEFAULT")
        plan = explained if isinstance(explained, list) else json.loads(explained)
        yield sql, plan[0]["Plan"]


def _price_of_a_page() -> float:
    """For how much larger a table the plan is asked for. Before PostgreSQL 17 each of many values is a search anew.

    A look-up in a table in partitions is planned at the price of one in each of them, though it is made in one.
    """
    price = 2.5 if getattr(connection, "pg_version", 0) >= 170_000 else 4.0
    return price * len(parts_of(connection.alias, "durable_run"))
