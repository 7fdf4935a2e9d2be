"""On PostgreSQL: the claim takes a lower bound, and tells how much it has passed over.

While a transaction holds an old snapshot, no vacuum removes what runs leave behind in the index of due runs. A claim that
begins at its oldest end passes over two entries for each run that has ended since.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

FUNCTIONS = {}

#: Due runs of one queue for a worker, the longest due first, from (`since`, `since_id`) on; see `Store.claim`. A row for
#: each with the run, and a last row with the number of entries of the index that the look has visited.
FUNCTIONS["durable_claim_2"] = """
CREATE FUNCTION durable_claim_2(
  on_queue text, at timestamptz, until timestamptz, by_worker text, at_most integer, since timestamptz, since_id text
) RETURNS TABLE (run durable_run, visited bigint) LANGUAGE plpgsql SET enable_seqscan TO off AS $$
DECLARE
  visited_before bigint := pg_stat_get_xact_tuples_returned('durable_run_due'::regclass);
  first_moment timestamptz := COALESCE(since, '-infinity');
  first_id text := COALESCE(since_id, '');
BEGIN
  RETURN QUERY WITH due AS MATERIALIZED (
    SELECT id FROM durable_run
    WHERE queue = on_queue AND wake_at IS NOT NULL AND wake_at <= at AND (wake_at, id) >= (first_moment, first_id)
      AND (lease_expires_at IS NULL OR lease_expires_at <= at) AND state <> 'paused'
    ORDER BY wake_at, id LIMIT at_most FOR NO KEY UPDATE SKIP LOCKED)
  UPDATE durable_run AS r SET fence = r.fence + 1,
    crashes = r.crashes + (r.lease_expires_at IS NOT NULL)::integer,
    lease_expires_at = until, worker = by_worker, started_at = COALESCE(r.started_at, at),
    state = CASE r.state WHEN 'rolling_back' THEN r.state ELSE 'running' END,
    wake_at = LEAST(r.wake_at, at)
  FROM due WHERE r.id = due.id RETURNING r, NULL::bigint;
  run := NULL;
  visited := pg_stat_get_xact_tuples_returned('durable_run_due'::regclass) - visited_before;
  RETURN NEXT;
END $$
"""


def create(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for function in FUNCTIONS.values():
            schema_editor.execute(function, params=None)


def drop(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name in FUNCTIONS:
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}", params=None)


class Migration(migrations.Migration):
    dependencies = [("durable", "0009_compensate")]

    operations = [migrations.RunPython(create, drop)]
