"""Fill an empty database with 1,000,000 runs, or with `--runs`: `python -m tests.tools.scale.fill`.

The runs of `tests.admin.bigdata`, one of them with 100,000 entries and as many messages. `DEEP` has 100,000 entries
too, in joins of numbered branches with loops and joins inside: the engine makes them. Besides: workers, builds,
activities, log lines, saved views, a bulk of 10,000 runs, related runs, holds, 100,000 keyed runs, 10,000 schedules
with 200 ticks each, 1,000 children of `PARENT`, a map of `MAPPER` with 10,000 children, a limit with 100,000 waiting
slots and 100,000 waiting attempts, and the roll-ups, which the sweep's own code makes. PostgreSQL only.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.db.backends.utils import CursorWrapper  # noqa: E402
from django.utils import timezone  # noqa: E402

from durable import Context, cron, workflow  # noqa: E402
from durable.inspection.history_counts import REST, count_long_histories  # noqa: E402
from durable.models import HistoryCount, Schedule  # noqa: E402
from durable.worker.executor import note  # noqa: E402
from tests.admin import bigdata  # noqa: E402
from tests.admin.conftest import staged  # noqa: E402
from tests.support.rollups import settle  # noqa: E402
from tests.tools.scale import BULK, DEEP, MAPPER, OPERATOR, PARENT  # noqa: E402

_SKUS: Final = 50  # in a batch
_PER_SKU: Final = 10  # entries
_OWN: Final = ("id", "name", "workflow", "paused")  # columns in which schedules differ

#: Parameters: long. What the tables of `bigdata` lack; each statement is bounded by the numbers in it.
_OTHERS: Final = (
    # 300 workflows with a run each
    "UPDATE durable_run SET workflow = 'rare.workflow_' || id WHERE id BETWEEN 'run-00000100' AND 'run-00000399'",
    # runs that the long one has started, and such that were made from it
    "UPDATE durable_run SET parent_id = %(long)s WHERE id BETWEEN 'run-00000400' AND 'run-00009999'",
    "UPDATE durable_run SET replay_of_id = %(long)s WHERE id BETWEEN 'run-00010000' AND 'run-00012000'",
    """
    INSERT INTO durable_logline (run_id, at, level, logger, location, text)
    SELECT %(long)s, now() - n * interval '1 second', CASE mod(n, 50) WHEN 0 THEN 40 ELSE 20 END, 'shop', 'step ' || n,
      'charged order ' || n FROM generate_series(1, 10000) AS n
    """,
    """
    INSERT INTO durable_logline (run_id, at, level, logger, location, text)
    SELECT id, created_at, 20, 'shop', 'charge', 'charging' FROM durable_run WHERE mod(right(id, 8)::bigint, 10) = 0
      AND id LIKE 'run-%%'
    """,
    """
    INSERT INTO durable_workerprocess (name, host, pid, queues, serves_all, slots, build, state, memory, started_at, last_seen_at)
    SELECT 'orders-' || n || ':4711:0f3a', 'orders-' || n, 4711, '["default","high"]', false, 8, 'build-40', 'serving', 184000000,
      now() - interval '1 day', now() FROM generate_series(1, 40) AS n
    """,
    """
    INSERT INTO durable_build (name, first_seen_at)
    SELECT 'build-' || n, now() - (41 - n) * interval '3 hours' FROM generate_series(1, 40) AS n
    """,
    """
    INSERT INTO durable_causebuild (cause_id, build, first_seen_at)
    SELECT id, 'build-' || n, now() - (41 - n) * interval '3 hours' FROM durable_cause, generate_series(30, 40) AS n
    """,
    """
    INSERT INTO durable_runkey (run_id, workflow, key, is_open, taken_at, moves)
    SELECT id, workflow, 'order ' || id, CASE WHEN finished_at IS NULL THEN true END, created_at, 0 FROM durable_run
      WHERE id LIKE 'run-%%' AND right(id, 1) = '5'
    """,
    # children of one parent, in the order of their ids, in groups of 100
    "UPDATE durable_run SET parent_id = %(parent)s WHERE id BETWEEN 'run-00700100' AND 'run-00701099'",
    """
    INSERT INTO durable_child (run_id, parent_id, location, generation, when_parent_ends, "group", position, is_dropped)
    SELECT id, parent_id, 'start/' || id, 0, 'cancel', 'group ' || substr(id, 7, 4), row_number() OVER (ORDER BY id), false
      FROM durable_run WHERE parent_id = %(parent)s
    """,
    "UPDATE durable_failure SET parent_id = %(parent)s WHERE run_id BETWEEN 'run-00700100' AND 'run-00701099'",
    # a map that is not over: its children in one group, a hundred at once
    "UPDATE durable_run SET parent_id = %(mapper)s WHERE id BETWEEN 'run-00800100' AND 'run-00810099'",
    """
    INSERT INTO durable_childgroup (id, parent_id, location, generation, size, "position", at_once, on_failure, when_parent_ends,
      is_over, is_dropped)
    VALUES (%(mapper)s || ':refunds', %(mapper)s, 'refunds', 0, 10000, 2, 100, 'finish', 'cancel', false, false)
    """,
    """
    INSERT INTO durable_child (run_id, parent_id, location, generation, when_parent_ends, "group", position, is_dropped, member_of)
    SELECT id, parent_id, 'refunds', 0, 'cancel', 'refunds', 1 + row_number() OVER (ORDER BY id), false, %(mapper)s || ':refunds'
      FROM durable_run WHERE parent_id = %(mapper)s
    """,
    """
    INSERT INTO durable_grouptally (group_id, created, waiting, running, completed, failed, cancelled, is_stopped, turns_from)
    SELECT %(mapper)s || ':refunds', 10000, 0, count(*) FILTER (WHERE finished_at IS NULL),
      count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'failed'),
      count(*) FILTER (WHERE state = 'cancelled'), false, 0 FROM durable_run WHERE parent_id = %(mapper)s
    """,
    "UPDATE durable_failure SET parent_id = %(mapper)s WHERE run_id BETWEEN 'run-00800100' AND 'run-00810099'",
    """
    WITH map AS (
      INSERT INTO durable_entry (run_id, location, kind, ordinal, data)
      SELECT %(mapper)s, 'refunds', 'map', 1000, json_build_object('workflow', 'big.workflow_1', 'size', 10000, 'position', 2,
        'at_once', 100, 'on_failure', 'finish', 'generation', 0, 'when_parent_ends', 'cancel', 'group',
        %(mapper)s || ':refunds')::text
      RETURNING id
    )
    INSERT INTO durable_entrymetadata (entry_id, status, attempts, created_at) SELECT id, 'pending', 0, now() FROM map
    """,
    # what the runs in hand do now: a step each
    """
    INSERT INTO durable_activity (run_id, location, attempt, kind, fence, worker, began_at, timeout, stack)
    SELECT id, 'charge', 1, 'step', fence, worker, created_at, 300, '' FROM durable_run WHERE state = 'running'
    """,
    """
    INSERT INTO durable_savedview (name, query, owner_key, owner_label, is_shared, created_at)
    SELECT 'view ' || n, 'state=failed&workflow=big.workflow_' || mod(n, 7), mod(n, 50)::text, 'user ' || mod(n, 50),
      mod(n, 10) = 0, now() FROM generate_series(1, 500) AS n
    """,
    """
    INSERT INTO durable_operatoraction (actor_label, source, action, run_id, reason, before, after, outcome, detail, created_at,
      bulk_id)
    SELECT 'ada', 'admin', 'recover', CASE n WHEN 0 THEN %(bulk)s ELSE 'run-' || lpad((100 * n + 1)::text, 8, '0') END, 'again',
      '', '', CASE WHEN mod(n, 7) = 3 THEN 'refused' ELSE 'done' END, '', now(), CASE n WHEN 0 THEN '' ELSE %(bulk)s END
    FROM generate_series(0, 9999) AS n
    """,
    """
    INSERT INTO durable_limit (name, at_once) VALUES ('carrier', 50), ('bank', 10)
    """,
    # one line of 100,000
    """
    INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
    SELECT id, 'step ' || step, 'bank', '', 'step', n * step = 1, CASE WHEN n * step > 1 THEN 5 * n + step ELSE 0 END, created_at,
      '[]'
    FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM durable_run WHERE state = 'sleeping' LIMIT 20000) AS r,
      generate_series(1, 5) AS step
    """,
    """
    INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
    SELECT id, '', 'carrier', 'tenant ' || mod(n, 200), 'open', n <= 5000, greatest(0, n - 5000), created_at, '[]'
    FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM durable_run WHERE state = 'sleeping' LIMIT 20000) AS r
    """,
    # a rate with 2,000 keys and 100,000 attempts that wait
    """
    INSERT INTO durable_ratelimit (name, rate, spacing, burst) VALUES ('bank', '1/s', 1000000000, 1)
    """,
    """
    INSERT INTO durable_ratekey ("limit", key) SELECT 'bank', 'tenant ' || n FROM generate_series(1, 2000) AS n
    """,
    """
    INSERT INTO durable_reservation (run_id, location, "limit", key, units, at)
    SELECT id, 'step ' || step, 'bank', 'tenant ' || 1 + mod(n, 1000), 1, now() + (n * step) * interval '1 hour'
    FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM durable_run WHERE state = 'sleeping' LIMIT 20000) AS r,
      generate_series(1, 5) AS step
    """,
    """
    INSERT INTO durable_hold (kind, name, held_at, held_by, reason, summary)
    VALUES ('workflow', 'big.workflow_6', now(), 'ada', 'the bank is closed', '')
    """,
    # two tags of each run: a tenant of 1,000, one of which has a tenth of all runs, and an order
    """
    INSERT INTO durable_runtag (run_id, name, value, start_value, created_at)
    SELECT id, name, value, value, created_at
    FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM durable_run) AS r,
      LATERAL (VALUES ('tenant', CASE mod(n, 10) WHEN 0 THEN 'acme' ELSE 't' || mod(n, 1000) END),
                      ('order', n::text)) AS tags (name, value)
    """,
    # each run is about one of 200,000 orders, and every tenth about one customer too
    """
    INSERT INTO durable_runsubject (run_id, model, object_pk, cancels, created_at)
    SELECT id, 'shop.order', mod(n, 200000)::text, false, created_at
    FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM durable_run) AS r
    UNION ALL
    SELECT id, 'shop.customer', '1', false, created_at
    FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM durable_run) AS r WHERE mod(n, 10) = 0
    """,
    """
    INSERT INTO durable_heldstart (run_id, workflow, due_at)
    SELECT id, workflow, created_at FROM durable_run WHERE state = 'paused' AND workflow = 'big.workflow_6'
    """,
)


class _OutOfStock(Exception):
    """A step of a branch fails, and the branch goes on."""


def _answer(number: int) -> str:
    if number % 97 == 0:
        raise _OutOfStock(f"sku {number} is out of stock")
    return "ok"


def _check(name: str, scope: Context) -> str:
    return scope.step(name, str, 1)


def _sku(number: int, scope: Context) -> None:
    scope.step("fetch", str, number)
    for page in range(3):
        scope.step(f"read page {page}", str, page)
    scope.join("check", {name: partial(_check, name) for name in ("price", "stock", "picture")})
    scope.try_step("order", _answer, number, max_retries=0)
    scope.step("store", str, number)


@workflow(name="scale.import")
def import_catalogue(ctx: Context, batches: int) -> None:
    """Import a catalogue, batch by batch, and wait a month."""
    for batch in range(batches):
        skus: dict[str, Callable[[Context], None]] = {
            f"sku {number}": partial(_sku, number) for number in range(batch * _SKUS, (batch + 1) * _SKUS)
        }
        ctx.join(f"batch {batch}", skus)
    ctx.sleep("until the next catalogue", "30 days")


#: Indexes that no constraint needs, each with the statement that makes it.
_INDEXES: Final = """
SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indrelid AND c.relnamespace = current_schema()::regnamespace
WHERE c.relname LIKE 'durable\\_%%' AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = i.indexrelid)
ORDER BY 1
"""


@contextmanager
def _bare(cursor: CursorWrapper) -> Iterator[None]:
    """Inside, rows are written without indexes, triggers and checks of foreign keys; the indexes are built afterwards.

    Only a superuser may do so. It makes millions of rows a matter of minutes.
    """
    cursor.execute(_INDEXES)
    indexes = cursor.fetchall()
    cursor.execute("SET session_replication_role = replica; SET work_mem = '256MB'; SET maintenance_work_mem = '1GB'")
    for name, _ in indexes:
        cursor.execute(f"DROP INDEX {name}")
    yield
    for _, definition in indexes:
        cursor.execute(definition)
    cursor.execute("RESET session_replication_role; RESET work_mem; RESET maintenance_work_mem")


def fill(*, runs: int, entries: int) -> Iterator[str]:
    """Make the rows, and yield what has been done."""
    with connection.cursor() as cursor, _bare(cursor):
        bigdata.fill(runs=runs, entries=entries, causes=30)
        yield f"{runs:,} runs, one of {entries:,} entries"
        for statement in _OTHERS:
            cursor.execute(statement, {"long": bigdata.LONG, "bulk": BULK, "parent": PARENT, "mapper": MAPPER})
        yield "what is beside the runs"
        _fill_schedules()
        yield "schedules and their ticks"
    yield "indexes"
    logging.getLogger("durable").setLevel(logging.ERROR)  # a hundred steps of the deep history fail
    with staged() as stage:
        stage.start(import_catalogue, entries // (_SKUS * _PER_SKU), id=DEEP)
    yield f"a deep history of {entries:,} entries"
    for each in (bigdata.LONG, DEEP):
        note(each)
    while HistoryCount.objects.filter(noted_at__isnull=False).exists():  # a turn takes two seconds at most
        count_long_histories(timezone.now() + REST)
    yield "the counts of both, as workers have them counted"
    settle(timezone.now())
    yield "the roll-ups"
    User.objects.create_superuser(OPERATOR)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
    yield "statistics"


def _fill_schedules() -> None:
    """Make 10,000 schedules of a few workflows, a tenth of them paused, whose next moments are far away."""
    first = Schedule.objects.create(name="report 0", workflow="big.workflow_0", rule=cron("0 4 1 1 *"))
    columns = ", ".join(f'"{each.column}"' for each in Schedule._meta.concrete_fields if each.name not in _OWN)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO durable_schedule (name, workflow, paused, {columns})
            SELECT 'report ' || n, 'big.workflow_' || mod(n, 7), mod(n, 10) = 0, {columns}
              FROM durable_schedule, generate_series(1, 9999) AS n WHERE id = %(first)s
            """,
            {"first": first.pk},
        )
        cursor.execute(
            """
            INSERT INTO durable_tick (schedule_id, number, moment, kind, outcome, run_id, why, decided_at)
            SELECT s.id, n, now() - (200 - n) * interval '1 hour', 'tick',
              CASE mod(n, 20) WHEN 0 THEN 'skipped' WHEN 1 THEN 'missed' ELSE 'started' END,
              CASE WHEN mod(n, 20) > 1 THEN 'run-' || lpad((mod(s.id, 5000) * 200 + n)::text, 8, '0') ELSE '' END,
              '', now() - (200 - n) * interval '1 hour'
            FROM durable_schedule AS s, generate_series(1, 200) AS n
            """
        )
        cursor.execute("UPDATE durable_schedule SET tick_count = 200, last_at = now()")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Fill the empty database of DATABASE_URL.")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=100_000)
    given = parser.parse_args()
    call_command("migrate", verbosity=0)
    begin = time.monotonic()
    for done in fill(runs=given.runs, entries=given.entries):
        print(f"{time.monotonic() - begin:6.0f} s  {done}", flush=True)


if __name__ == "__main__":
    _main()
