"""Absurd, from the package `absurd-sdk` and its SQL, whose path is given on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.benchmarks.measuring import Bench, Figure, Skipped, measure, seconds
from tests.benchmarks.peers.children import figures
from tests.benchmarks.surroundings import database

RESULT = "x" * 30


@measure("absurd", is_peer=True)
def absurd(bench: Bench) -> Iterator[Figure]:
    """Steps of one task, and tasks of one step by one synchronous worker: per second.

    The tasks were spawned before the worker starts, so what spawning costs is not in it.
    """
    if importlib.util.find_spec("absurd_sdk") is None:
        raise Skipped("absurd-sdk is not installed: uv sync --group bench")
    if bench.absurd_sql is None:
        raise Skipped("give the SQL of Absurd with --absurd-sql PATH")
    with database(bench.database_url, "durable_benchmarks_absurd") as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(bench.absurd_sql.read_bytes())
        sizes = bench.size(1500, 300), bench.size(1000, 150)
        yield from figures(__name__, *sizes, environment={"BENCHMARK_URL": url})


def main(step_count: int, run_count: int) -> None:
    """Measure in this process."""
    module: Any = importlib.import_module("absurd_sdk")
    app = module.Absurd(os.environ["BENCHMARK_URL"], queue_name="benchmarks")
    app.create_queue()
    left = 0

    @app.register_task(name="many")  # type: ignore[untyped-decorator,unused-ignore]
    def many(params: Any, ctx: Any) -> int:
        nonlocal left
        for number in range(params["count"]):
            ctx.step(f"step-{number}", lambda: RESULT)
        left -= 1
        if not left:
            app.stop_worker()
        return int(params["count"])

    def rate(tasks: int, length: int) -> float:
        nonlocal left
        left = tasks
        for _ in range(tasks):
            app.spawn("many", {"count": length})
        return tasks * length / seconds(app.start_worker)

    rate(5, 1)
    print(json.dumps({"absurd steps": rate(1, step_count), "absurd one-step runs": rate(run_count, 1)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
