"""Work off a plain and a ranked backlog on the server of `DATABASE_URL`; print the rates. Argument: how many runs."""

from __future__ import annotations

import json
import sys


def main(count: int) -> None:
    """Work off so many runs of each kind."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from tests.benchmarks.passing import empty_tables
    from tests.benchmarks.workers import elapsed, wait_for_all, workers
    from tests.benchmarks.workflows import steps

    answer: dict[str, float] = {}
    with workers(1):
        for name, start in (
            ("runs without a rank, oldest PostgreSQL", steps.using()),
            ("ranked runs, oldest PostgreSQL", steps.using(priority="10 min")),
        ):
            start.start_many([(1,)] * count)
            wait_for_all(steps.name)
            answer[name] = count / elapsed(steps.name)
            empty_tables()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
