"""DBOS, from the package `dbos`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.benchmarks.measuring import Bench, Figure, Skipped, measure, most_at_once, seconds
from tests.benchmarks.peers.children import figures
from tests.benchmarks.surroundings import database

RESULT = "x" * 30
AT_ONCE = 4


@measure("dbos", is_peer=True)
def dbos(bench: Bench) -> Iterator[Figure]:
    """Per second: steps of a workflow, queued workflows of one step, and those that a workflow enqueues and waits for.

    Queued workflows are timed from the first enqueueing to the last result. Then replayed steps, µs each: a fork of a
    workflow after its last step. Then workflows of one step from a queue that allows four at once, and how many of them
    worked at once, by the clock of their steps.

    Workflows and queues live in one process, DBOS' recommendation for one machine, with the defaults for everything. A
    queue is looked at once a second, unless it is told otherwise.
    """
    if importlib.util.find_spec("dbos") is None:
        raise Skipped("dbos is not installed: uv sync --group bench")
    sizes = bench.size(1500, 300), bench.size(500, 100), bench.size(1000, 200), bench.size(100, 24)
    with database(bench.database_url, "durable_benchmarks_dbos") as url:
        yield from figures(__name__, *sizes, environment={"BENCHMARK_URL": url})


def main(step_count: int, run_count: int, replay_count: int, limited_count: int) -> None:
    """Measure in this process."""
    module: Any = importlib.import_module("dbos")
    DBOS = module.DBOS
    DBOS(config={"name": "benchmarks", "system_database_url": _url(), "log_level": "ERROR"})

    @DBOS.step()  # type: ignore[untyped-decorator,unused-ignore]
    def one() -> str:
        return RESULT

    @DBOS.workflow()  # type: ignore[untyped-decorator,unused-ignore]
    def many(count: int) -> int:
        for _ in range(count):
            one()
        return count

    @DBOS.step()  # type: ignore[untyped-decorator,unused-ignore]
    def now() -> float:
        return time.time()

    @DBOS.workflow()  # type: ignore[untyped-decorator,unused-ignore]
    def limited() -> list[float]:
        return [now(), time.time()]

    @DBOS.workflow()  # type: ignore[untyped-decorator,unused-ignore]
    def mapping(count: int) -> int:
        handles = [DBOS.enqueue_workflow("benchmarks", many, 1) for _ in range(count)]
        return sum(handle.get_result() for handle in handles)

    DBOS.launch()
    DBOS.register_queue("benchmarks")
    many(20)
    answer = {"dbos steps": step_count / seconds(lambda: many(step_count))}

    def enqueue_and_wait() -> None:
        for handle in [DBOS.enqueue_workflow("benchmarks", many, 1) for _ in range(run_count)]:
            handle.get_result()

    DBOS.enqueue_workflow("benchmarks", many, 1).get_result()
    answer["dbos one-step runs"] = run_count / seconds(enqueue_and_wait)

    answer["dbos children of a map"] = run_count / seconds(lambda: mapping(run_count))

    with module.SetWorkflowID("replayed"):
        many(replay_count)
    replayed = seconds(lambda: DBOS.fork_workflow("replayed", replay_count + 1).get_result())
    answer["dbos replay"] = replayed / replay_count * 1e6

    DBOS.register_queue("limited", global_concurrency=AT_ONCE)
    spans: list[list[float]] = []

    def enqueue_limited() -> None:
        handles = [DBOS.enqueue_workflow("limited", limited) for _ in range(limited_count)]
        spans.extend(handle.get_result() for handle in handles)

    answer["dbos admissions, one queue"] = limited_count / seconds(enqueue_limited)
    answer[f"dbos steps at once with {AT_ONCE} slots"] = most_at_once((begins, ends) for begins, ends in spans)
    print(json.dumps(answer), flush=True)
    DBOS.destroy()


def _url() -> str:
    """The database's URL as SQLAlchemy reads it: a socket's directory is no host, but a parameter."""
    at = urlsplit(os.environ["BENCHMARK_URL"])
    host = unquote(at.hostname or "")
    if not host.startswith("/"):
        return at._replace(scheme="postgresql+psycopg").geturl()
    return f"postgresql+psycopg://{at.username}@{at.path}?host={host}&port={at.port}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
