"""What the order of a ranked backlog costs on the oldest PostgreSQL, whose plans and prices are others."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, Skipped, measure
from tests.benchmarks.peers.children import figures
from tests.benchmarks.surroundings import SETTINGS
from tests.support.postgres import OLDEST_POSTGRES, oldest_postgres


@measure("ranks on the oldest PostgreSQL")
def ranks(bench: Bench) -> Iterator[Figure]:
    """One-step runs by a `durable_worker`: runs per second of a backlog with a priority and of one without.

    The server is one of its own, of the oldest version that is supported, with its defaults: it compiles statements
    that it thinks expensive. Figures of two versions are not compared.
    """
    from project.servers import EmbeddedPostgres

    programs = oldest_postgres()
    if programs is None:
        raise Skipped(f"PostgreSQL {OLDEST_POSTGRES} is not installed")
    with EmbeddedPostgres(programs=programs, settings=SETTINGS) as server:
        yield from figures("tests.benchmarks.ranked", bench.size(2000, 300), environment={"DATABASE_URL": server.url})
