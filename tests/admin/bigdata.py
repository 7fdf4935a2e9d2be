"""Runs by the million, as a busy site leaves them, for looking at how the pages bear it.

Most runs are completed; the others are in every state that a run can be in, and the newest are still under way. One of
them, `LONG`, has a history of many entries and as many messages. PostgreSQL only: the rows are made there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

#: The tables that are filled.
GROWING = (
    "durable_run",
    "durable_entry",
    "durable_entrymetadata",
    "durable_attempt",
    "durable_queuemessage",
    "durable_operatoraction",
    "durable_failure",
)
LONG = "long-history"
BIG = "big-family"
_WORKER = "orders-1:4711:0f3a"
_TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/orders/{name}.py", line {17 * number}, in {name}\n    return {name}_of(order, {number})\n'
    for number, name in enumerate(("charge", "price", "account", "bank", "session", "answer", "headers", "wait"), 2)
)

#: One every 0.1 seconds, the last one now. Parameters: runs, worker, traceback.
_RUNS = """
INSERT INTO durable_run (id, workflow, queue, state, input, output, error, origins, waiting_for, summary, wake_at, fence,
  worker, lease_expires_at, crashes, change_seq, message_count, pending_request, request_reason,
  state_after_rollback, generations, seed, created_at,
  started_at, finished_at)
SELECT 'run-' || lpad(n::text, 8, '0'), 'big.workflow_' || mod(n, 7), CASE mod(n, 10) WHEN 0 THEN 'high' ELSE 'default' END,
  state, '{"args":[' || n || '],"kwargs":{}}', CASE state WHEN 'completed' THEN '"done"' END,
  CASE WHEN has_failed THEN '{"type": "StepExhaustedError", "message": "step \\"charge\\" failed on its last attempt: '
    || 'TimeoutError: no answer for ' || n || '", "traceback": ' || %(traceback)s || '}' END,
  CASE WHEN has_failed THEN '["charge"]' ELSE '[]' END,
  CASE WHEN state = 'sleeping' AND is_asked THEN '/approved/' ELSE '' END,
  CASE WHEN state <> 'sleeping' THEN '' WHEN is_asked THEN 'waiting for a message in approved' ELSE 'asleep in "nap"' END,
  CASE state WHEN 'pending' THEN at WHEN 'running' THEN at WHEN 'rolling_back' THEN now() + interval '1 hour'
    WHEN 'sleeping' THEN CASE WHEN NOT is_asked THEN now() + interval '1 day' END END,
  CASE state WHEN 'pending' THEN 0 ELSE 1 END, CASE state WHEN 'running' THEN %(worker)s ELSE '' END,
  CASE state WHEN 'running' THEN now() + interval '30 seconds' END, 0, 1, CASE mod(n, 4) WHEN 0 THEN 1 ELSE 0 END, '', '',
  CASE state WHEN 'rolling_back' THEN 'failed' ELSE '' END, '{}', '', at, CASE WHEN state <> 'pending' THEN at END,
  CASE WHEN state IN ('completed', 'failed', 'cancelled') THEN at + interval '3 seconds' END
FROM (
  SELECT *, mod(n, 100) = 2 AS is_asked, state IN ('failed', 'rolling_back') AS has_failed
  FROM (
    SELECT n, now() - (%(runs)s - n) * interval '0.1 second' AS at,
      CASE WHEN n > %(runs)s - 20 THEN 'pending' WHEN n > %(runs)s - 40 THEN 'running' WHEN mod(n, 100) = 1 THEN 'failed'
        WHEN mod(n, 50) = 2 THEN 'sleeping' WHEN mod(n, 1000) = 3 THEN 'cancelled' WHEN mod(n, 2000) = 4 THEN 'paused'
        WHEN mod(n, 5000) = 5 THEN 'rolling_back' ELSE 'completed' END AS state
    FROM generate_series(1, %(runs)s) AS n
  ) AS moved
) AS made
"""

#: As old as the oldest of the others, and asleep. Parameters: long, runs, entries.
_LONG_RUN = """
INSERT INTO durable_run (id, workflow, queue, state, input, origins, waiting_for, summary, wake_at, fence, worker, crashes,
  change_seq, message_count, pending_request, request_reason,
  state_after_rollback, generations, seed, created_at, started_at)
SELECT %(long)s, 'big.long', 'default', 'sleeping', '{"args":[],"kwargs":{}}', '[]', '', 'asleep in "nap"',
  now() + interval '1 day', 1, '', 0, 1, %(entries)s, '', '', '', '{}', '', at, at
FROM (SELECT now() - %(runs)s * interval '0.1 second' AS at) AS oldest
"""

#: The history of the long run, which ends with a sleep, and one step of every other run that has begun, in the order in
#: which they were recorded: those of the long run lie scattered among the others. Parameters: long, entries.
_ENTRIES = """
INSERT INTO durable_entry (run_id, location, kind, ordinal, output, arguments, data)
SELECT run_id, location, kind, ordinal, output, arguments, data FROM (
  SELECT id AS run_id, 'step ' || n AS location, 'step' AS kind, 2 * n AS ordinal,
    '"' || repeat('x', 30) || '"' AS output, '[' || n || ']' AS arguments, '{}' AS data,
    created_at + n * (now() - created_at) / %(entries)s AS at
  FROM durable_run, generate_series(1, %(entries)s - 1) AS n WHERE id = %(long)s
  UNION ALL
  SELECT id, 'nap', 'sleep', 2 * %(entries)s, NULL, NULL, '{"state":"pending"}', now()
  FROM durable_run WHERE id = %(long)s
  UNION ALL
  SELECT id, 'charge', 'step', 0, CASE WHEN state NOT IN ('failed', 'running') THEN '"paid"' END, NULL,
    CASE state WHEN 'failed' THEN '{"failure":{"kind":"exhausted","raises":"exhausted"}}' ELSE '{}' END, created_at
  FROM durable_run WHERE id <> %(long)s AND state <> 'pending'
) AS recorded
ORDER BY at
"""

#: Every fiftieth step of the long run took two attempts. Parameters: long, entries.
_METADATA = """
INSERT INTO durable_entrymetadata (entry_id, status, attempts, created_at, last_attempt_at, completed_at, finished_ordinal)
SELECT id, status, attempts, at, CASE WHEN kind = 'step' THEN at END,
  CASE status WHEN 'completed' THEN at + interval '0.01 second' END, CASE status WHEN 'completed' THEN ordinal + 1 END
FROM (
  SELECT entry.*, created_at + ordinal * (now() - created_at) / (2 * %(entries)s) AS at,
    CASE WHEN kind = 'sleep' THEN 'pending' WHEN state = 'failed' THEN 'exhausted' WHEN state = 'running' THEN 'running'
      ELSE 'completed' END AS status,
    CASE WHEN kind = 'sleep' THEN 0 WHEN state = 'failed' THEN 4 WHEN run.id = %(long)s AND mod(ordinal, 100) = 0 THEN 2
      ELSE 1 END AS attempts
  FROM durable_entry AS entry JOIN durable_run AS run ON run.id = entry.run_id
) AS shaped
ORDER BY id
"""

#: Of failed runs all four, of the long run the first of two. Parameters: long, worker, traceback.
_ATTEMPTS = """
INSERT INTO durable_attempt (run_id, location, number, worker, started_at, finished_at, error)
SELECT run_id, location, number, %(worker)s, at, at + interval '0.01 second',
  '{"type": "TimeoutError", "message": "no answer", "traceback": ' || %(traceback)s || '}'
FROM (
  SELECT id AS run_id, 'charge' AS location, number, created_at + number * interval '0.5 second' AS at
  FROM durable_run, generate_series(1, 4) AS number WHERE state = 'failed'
  UNION ALL
  SELECT entry.run_id, location, 1, m.created_at - interval '0.1 second'
  FROM durable_entry AS entry JOIN durable_entrymetadata AS m ON m.entry_id = entry.id
  WHERE run_id = %(long)s AND attempts > 1
) AS failed
ORDER BY at
"""

#: The long run was sent a message for each of its entries, every fourth of the others one, in the order in which they
#: came. Of those all but the newest are answered; of a run that waits none is. Parameters: long, entries.
_MESSAGES = """
INSERT INTO durable_queuemessage (id, run_id, queue, body, sent_at, "order", state, received_by, response, idempotency_id)
SELECT id || ' ' || number, id, 'approved', '{"by": "ada"}', at, number, state,
  CASE state WHEN 'pending' THEN '' ELSE 'approval' END, CASE state WHEN 'completed' THEN 'null' END, NULL
FROM (
  SELECT id, n AS number, created_at + n * (now() - created_at) / %(entries)s AS at,
    CASE WHEN n > %(entries)s - 20 THEN 'pending' ELSE 'completed' END AS state
  FROM durable_run, generate_series(1, %(entries)s) AS n WHERE id = %(long)s
  UNION ALL
  SELECT id, 1, created_at, CASE state WHEN 'completed' THEN 'completed' ELSE 'pending' END
  FROM durable_run WHERE id <> %(long)s AND mod(right(id, 8)::bigint, 4) = 0
) AS sent
ORDER BY at
"""

#: Every tenth run was cancelled, or a user tried to, the long one twenty times. Parameters: long.
_ACTIONS = """
INSERT INTO durable_operatoraction (actor_label, source, action, run_id, reason, before, after, outcome, detail, created_at)
SELECT 'ada', 'admin', 'cancel', id, '', 'sleeping', 'cancelled', 'done', '', at FROM (
  SELECT id, created_at + n * (now() - created_at) / 20 AS at
  FROM durable_run, generate_series(1, 20) AS n WHERE id = %(long)s
  UNION ALL
  SELECT id, created_at FROM durable_run WHERE id <> %(long)s AND mod(right(id, 8)::bigint, 10) = 0
) AS asked
ORDER BY at
"""


#: Each failed run has one of the causes. Parameter: causes.
_CAUSES = """
INSERT INTO durable_cause (fingerprint, place, error_type, pattern, first_seen_at, muted_by)
SELECT 'cause-' || n, 'charge', 'Error' || n, 'no answer for #', now(), '' FROM generate_series(0, %(causes)s - 1) AS n
"""
_FAILURES = """
INSERT INTO durable_failure (run_id, cause_id, workflow, queue, worker, failed_at, run_created_at, is_open)
SELECT run.id, cause.id, workflow, queue, worker, finished_at, created_at, true
FROM durable_run AS run JOIN durable_cause AS cause
  ON cause.fingerprint = 'cause-' || mod(right(run.id, 8)::bigint / 100, %(causes)s)
WHERE state = 'failed'
"""


def fill(*, runs: int, entries: int, causes: int = 5) -> None:
    """Insert that many runs with a step each, and one with that many entries; then ANALYZE their tables."""
    given: dict[str, str | int] = {
        "runs": runs,
        "entries": entries,
        "causes": causes,
        "long": LONG,
        "worker": _WORKER,
        "traceback": json.dumps(_TRACEBACK),
    }
    with connection.cursor() as cursor:
        for statement in (_RUNS, _LONG_RUN, _ENTRIES, _METADATA, _ATTEMPTS, _MESSAGES, _ACTIONS, _CAUSES, _FAILURES):
            cursor.execute(statement, given)
        cursor.execute(f"ANALYZE {', '.join(GROWING)}")


@contextmanager
def filled(*, runs: int, entries: int) -> Iterator[None]:
    """Fill the tables, commit and vacuum for the tests of a block, then empty the tables again.

    The tables are emptied before, too: rows that other tests rolled back leave gaps, new rows go into the gaps, and the
    planner then takes the tables to be in no order. For a caller that may use the database, and is in no transaction.
    """
    _empty()
    fill(runs=runs, entries=entries)
    try:
        with connection.cursor() as cursor:
            # of all rows: the statistics of a sample are its luck
            cursor.execute("SET default_statistics_target = 1000")
            cursor.execute(f"VACUUM (ANALYZE) {', '.join(GROWING)}, durable_cause")
            cursor.execute("RESET default_statistics_target")
        yield
    finally:
        _empty()


def _empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(GROWING)}, durable_cause CASCADE")


#: A failed parent, and its children, the newest of all runs: every tenth completed, the others failed. Parameters: big,
#: size.
_FAMILY = (
    """
    INSERT INTO durable_run (id, workflow, queue, state, input, error, origins, waiting_for, summary, fence, worker, crashes,
      change_seq, message_count, pending_request, request_reason, state_after_rollback, generations, seed, created_at, started_at,
      finished_at, parent_id)
    SELECT CASE n WHEN 0 THEN %(big)s ELSE %(big)s || ':bill ' || n END, CASE n WHEN 0 THEN 'big.parent' ELSE 'big.child' END,
      'default', CASE WHEN mod(n, 10) = 9 THEN 'completed' ELSE 'failed' END, '{"args":[],"kwargs":{}}',
      '{"type": "ValueError", "message": "refused", "traceback": ""}', '[]', '', '', 1, '', 0, 1, 0, '', '', '', '{}', '',
      now() + n * interval '1 ms', now(), now(), CASE WHEN n > 0 THEN %(big)s END
    FROM generate_series(0, %(size)s) AS n
    """,
    """
    INSERT INTO durable_child (run_id, parent_id, location, generation, when_parent_ends, "group", "position", is_dropped)
    SELECT %(big)s || ':bill ' || n, %(big)s, 'bills', 0, 'cancel', CASE WHEN mod(n, 2) = 0 THEN 'bills' END, n, false
    FROM generate_series(1, %(size)s) AS n
    """,
    """
    INSERT INTO durable_failure (run_id, cause_id, workflow, queue, worker, failed_at, run_created_at, is_open, parent_id)
    SELECT run.id, (SELECT min(id) FROM durable_cause), workflow, queue, worker, finished_at, created_at, true, parent_id
    FROM durable_run AS run WHERE (id = %(big)s OR parent_id = %(big)s) AND state = 'failed'
    """,
    # rows of other parents, so that this one's are not all there are
    """
    INSERT INTO durable_child (run_id, parent_id, location, generation, when_parent_ends, "position", is_dropped)
    SELECT id, 'parent-' || mod(row_number() OVER (), 1000), 'bills', 0, 'cancel', row_number() OVER (), false
    FROM durable_run WHERE id BETWEEN 'run-00000001' AND 'run-00030000'
    """,
)


@contextmanager
def a_family(size: int) -> Iterator[None]:
    """Inside, there is the parent `BIG` with so many children, all of them newer than other runs."""
    with connection.cursor() as cursor:
        for statement in _FAMILY:
            cursor.execute(statement, {"big": BIG, "size": size})
        cursor.execute("ANALYZE durable_run, durable_child, durable_failure")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM durable_child WHERE parent_id = %s OR parent_id LIKE 'parent-%%'", [BIG])
            cursor.execute("DELETE FROM durable_failure WHERE run_id = %s OR parent_id = %s", [BIG, BIG])
            cursor.execute("DELETE FROM durable_run WHERE id = %s OR parent_id = %s", [BIG, BIG])
