"""Runs by the million, for looking at how the pages bear it: `python -m tests.admin.bigdata --runs 1000000`.

Fills the database that DATABASE_URL names with rows that look like a busy site's, most of them completed; one run,
`long-history`, has a history of many entries. PostgreSQL only: the rows are made there. Then it measures the pages.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

__all__ = ["ENTRIES", "RUNS", "fill"]

RUNS = """
INSERT INTO durable_run (id, workflow, queue, state, input, output, error, origins, waiting_for, summary, wake_at, fence,
  worker, crashes, signal, messages, request, request_reason, outcome, generations, seed, created_at, started_at, finished_at)
SELECT 'run-' || lpad(n::text, 8, '0'), 'big.workflow_' || (n % 7), CASE n % 10 WHEN 0 THEN 'high' ELSE 'default' END,
  state, '{"args":[' || n || '],"kwargs":{}}', CASE state WHEN 'completed' THEN '"done"' END,
  CASE state WHEN 'failed' THEN '{"type": "StepExhaustedError", "message": "step \\"charge\\" failed on its last attempt: '
    || 'Timeout: no answer for ' || n || '", "traceback": "Traceback (most recent call last): ..."}' END,
  CASE state WHEN 'failed' THEN '["charge"]' ELSE '[]' END,
  CASE state WHEN 'sleeping' THEN '/approved/' ELSE '' END,
  CASE state WHEN 'sleeping' THEN 'waiting for a message in approved' ELSE '' END,
  CASE state WHEN 'sleeping' THEN now() + interval '1 day' END, 1, '', 0, 1, 0, '', '', '', '{}', '',
  at, at, CASE WHEN state IN ('completed', 'failed', 'cancelled') THEN at + interval '3 seconds' END
FROM (
  SELECT n, now() - (%(runs)s - n) * interval '0.1 second' AS at,
    CASE WHEN n %% 500 = 1 THEN 'failed' WHEN n %% 50 = 2 THEN 'sleeping' WHEN n %% 1000 = 3 THEN 'cancelled'
      ELSE 'completed' END AS state
  FROM generate_series(1, %(runs)s) AS n
) AS made
""".replace("n % 7", "n %% 7").replace("n % 10 ", "n %% 10 ")

ENTRIES = """
WITH run AS (
  INSERT INTO durable_run (id, workflow, queue, state, input, origins, waiting_for, summary, wake_at, fence, worker, crashes,
    signal, messages, request, request_reason, outcome, generations, seed, created_at, started_at)
  VALUES ('long-history', 'big.long', 'default', 'sleeping', '{"args":[],"kwargs":{}}', '[]', '', 'asleep in "nap"',
    now() + interval '1 day', 1, '', 0, 1, 0, '', '', '', '{}', '', now() - interval '1 hour', now() - interval '1 hour')
  RETURNING id),
entry AS (
  INSERT INTO durable_entry (run_id, location, kind, ordinal, output, arguments, data)
  SELECT run.id, 'step ' || n, 'step', 2 * n, '"' || n || '"', '[' || n || ']', '{}'
  FROM run, generate_series(1, %(entries)s) AS n RETURNING id, ordinal)
INSERT INTO durable_entrymetadata (entry_id, status, attempts, created_at, last_attempt_at, completed_at, finished_ordinal)
SELECT id, 'completed', 1, now() - interval '1 hour' + ordinal * interval '0.1 second',
  now() - interval '1 hour' + ordinal * interval '0.1 second', now() - interval '1 hour' + ordinal * interval '0.1 second',
  ordinal + 1
FROM entry
"""


def fill(*, runs: int, entries: int) -> None:
    """Insert that many runs, and one with that many entries; then let the database learn of its new size."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(RUNS, {"runs": runs})
        cursor.execute(ENTRIES, {"entries": entries})
        cursor.execute("ANALYZE durable_run, durable_entry, durable_entrymetadata")


def main() -> None:
    """Fill and measure: the server's time for each page, the median of some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=10_000)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.test import Client
    from django.test.utils import setup_test_environment

    from durable.models import Run

    setup_test_environment()
    if not Run.objects.filter(pk="long-history").exists():
        began = time.perf_counter()
        fill(runs=given.runs, entries=given.entries)
        sys.stdout.write(f"{given.runs:,} runs made in {time.perf_counter() - began:.0f} s\n")
    client = Client()
    client.force_login(User.objects.get_or_create(username="big", is_staff=True, is_superuser=True)[0])
    for address in (
        "/admin/durable/run/",
        "/admin/durable/run/?state=failed",
        "/admin/durable/run/?state=failed&state=sleeping",
        "/admin/durable/run/?workflow=big.workflow_3",
        "/admin/durable/run/?q=run-0001",
        "/admin/durable/run/?q=no answer",
        "/admin/durable/run/?queue=nobody",
        "/admin/durable/run/?waiting=approved",
        "/admin/durable/",
        "/admin/durable/run/long-history/change/",
        "/admin/durable/run/long-history/live/",
    ):
        took = []
        for _ in range(7):
            began = time.perf_counter()
            response = client.get(address)
            took.append(time.perf_counter() - began)
            assert response.status_code == 200, response.status_code
        sys.stdout.write(f"{statistics.median(took) * 1000:7.0f} ms  {address}\n")


if __name__ == "__main__":
    main()
