"""Ask every address among the runs of `tests.tools.scale.fill`: `python -m tests.tools.scale.ask`.

For each request it prints medians of five, after one more that warms caches: milliseconds of this process's CPU,
milliseconds of CPU of the session's process in the database (of the cursor's waiting, where that cannot be read), the
number of statements, the size of the answer, and the most rows that one node of a plan has read. On a busy machine they
are up to twice as large as on a quiet one. The first two together are what the server takes for a page. With `--first`
the process forgets what it has counted of long histories before each request.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402

from durable.inspection import history_counts  # noqa: E402
from tests.support.plans import most_read  # noqa: E402
from tests.tools.scale import OPERATOR  # noqa: E402
from tests.tools.scale.requests import LIMITED, Asked, every_request  # noqa: E402

LIMIT: Final = 150.0  # milliseconds
_TIMES: Final = 5

#: What a session is prepared with: no CPU time is spent in parallel workers, where it would not be seen, and the
#: workers of the data live on.
_PREPARED: Final = (
    "SET max_parallel_workers_per_gather = 0",
    "UPDATE durable_run SET lease_expires_at = now() + interval '1 hour' WHERE state = 'running' AND lease_expires_at IS NOT NULL",
    "UPDATE durable_workerprocess SET last_seen_at = now()",
)


@dataclass(frozen=True)
class Cost:
    """What a request took: see the module."""

    asked: Asked
    status: int
    process: float
    database: float
    statements: int
    size: int
    rows: int
    heaviest: str

    @property
    def total(self) -> float:
        """Milliseconds of the server's time."""
        return self.process + self.database


class _Cursor:
    """Counts the statements of a connection, and how long they took."""

    def __init__(self) -> None:
        self.statements = 0
        self.seconds = 0.0

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return execute(*arguments)
        finally:
            self.statements += 1
            self.seconds += time.perf_counter() - begin


def ask(client: Client, asked: Asked, *, with_plans: bool, is_first: bool = False) -> Cost:
    """Send the request several times; `is_first`: each time as if nothing had been counted before."""
    schedule = _schedule()
    costs: list[tuple[float, float, int, int, int]] = []
    for _ in range(_TIMES + 1):
        if is_first:
            history_counts._results.clear()
        cursor = _Cursor()
        with connection.execute_wrapper(cursor):
            database, begin = _on_cpu(schedule), time.process_time()
            response = _send(client, asked)
            size = sum(map(len, response.streaming_content)) if response.streaming else len(response.content)
            process = time.process_time() - begin
        spent = cursor.seconds if schedule is None else _on_cpu(schedule) - database
        costs.append((process * 1000, spent * 1000, cursor.statements, size, response.status_code))
    rows, heaviest = 0, ""
    if with_plans:
        with CaptureQueriesContext(connection) as queries:
            response = _send(client, asked)
            if response.streaming:
                sum(map(len, response.streaming_content))
        rows, heaviest = most_read(queries)
    process, spent, statements, size, status = (median(each) for each in zip(*costs[1:], strict=True))
    return Cost(asked, int(status), process, spent, int(statements), int(size), rows, heaviest)


def _send(client: Client, asked: Asked) -> Any:
    if not asked.data:
        return client.get(asked.address)
    how: dict[str, Any] = {"content_type": "application/json"} if asked.is_json else {}
    return client.post(asked.address, asked.data, **how)


def _schedule() -> Path | None:
    """The file in which Linux says how long the session's process was on a CPU."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [(pid,)] = cursor.fetchall()
    path = Path(f"/proc/{pid}/schedstat")
    return path if path.exists() else None


def _on_cpu(schedule: Path | None) -> float:
    return 0.0 if schedule is None else int(schedule.read_text().split()[0]) / 1e9


def _all(only: str, *, with_plans: bool, is_first: bool) -> Iterator[Cost]:
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.get(username=OPERATOR))
    with connection.cursor() as cursor:
        for statement in _PREPARED:
            cursor.execute(statement)
    for asked in every_request():
        if only in asked.title:
            yield ask(client, asked, with_plans=with_plans, is_first=is_first)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Ask every address of the database of DATABASE_URL.")
    parser.add_argument("--only", default="", help="requests whose address contains this text")
    parser.add_argument(
        "--plans", action="store_true", help="explain the statements, and print the heaviest one's beginning"
    )
    parser.add_argument(
        "--first", action="store_true", help="forget what was counted of long histories before each request"
    )
    parser.add_argument("--limited", choices=LIMITED, help="ask the interface as a user who sees some runs alone")
    given = parser.parse_args()
    limits = dict.fromkeys(("API_RUNS", "ADMIN_RUNS"), LIMITED[given.limited]) if given.limited else {}
    with override_settings(DURABLE={**settings.DURABLE, **limits}):
        only = given.only or ("/api/" if given.limited else "")
        sys.exit(1 if _report(only, with_plans=given.plans, is_first=given.first) else 0)


def _report(only: str, *, with_plans: bool, is_first: bool) -> int:
    """Print a line for each request, and return how many took too long."""
    slow = 0
    print(f"{'sum':>7} {'process':>8} {'database':>8} {'stmts':>5} {'bytes':>9} {'rows':>7}  status  request")
    for cost in _all(only, with_plans=with_plans, is_first=is_first):
        is_slow = cost.total > LIMIT and not cost.asked.is_whole
        slow += is_slow
        print(
            f"{cost.total:7.1f} {cost.process:8.1f} {cost.database:8.1f} {cost.statements:5} {cost.size:9} {cost.rows:7}"
            f" {'!' if is_slow else ' '} {cost.status}  {cost.asked.title}",
            flush=True,
        )
        if cost.heaviest:
            print(f"{'':60}{cost.heaviest}")
    print(f"{slow} above {LIMIT:.0f} ms")
    return slow


if __name__ == "__main__":
    _main()
