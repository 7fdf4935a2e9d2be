"""On PostgreSQL: the function that writes entries, the commonest commit of all.

As a function its plan is kept by the session, whichever pooler stands between; sent as a statement, each commit would
pay for parsing and planning more than for writing. When columns of entries change, a new migration adds a function
under a new name, so that workers of the old version go on.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

FUNCTIONS = {}

FUNCTIONS["durable_flush_1"] = """
CREATE FUNCTION durable_flush_1(of_run text, with_fence bigint, entries json) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  pending text;
BEGIN
  SELECT pending_request INTO pending FROM durable_run WHERE id = of_run AND fence = with_fence FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  WITH rows AS MATERIALIZED (
    SELECT * FROM json_to_recordset(entries) AS x(
      location text, kind text, ordinal bigint, output text, arguments text, data text,
      status text, attempts integer, error text, created_at timestamptz, last_attempt_at timestamptz,
      next_attempt_at timestamptz, completed_at timestamptz, finished_ordinal bigint,
      rollback_completed_at timestamptz, rollback_error text)),
  entry AS (
    INSERT INTO durable_entry (run_id, location, kind, ordinal, output, arguments, data)
    SELECT of_run, location, kind, ordinal, output, arguments, data FROM rows
    ON CONFLICT (run_id, location) DO UPDATE SET kind = EXCLUDED.kind, ordinal = EXCLUDED.ordinal,
      output = EXCLUDED.output, arguments = EXCLUDED.arguments, data = EXCLUDED.data
    RETURNING id, location)
  INSERT INTO durable_entrymetadata (
    entry_id, status, attempts, error, created_at, last_attempt_at, next_attempt_at, completed_at, finished_ordinal,
    rollback_completed_at, rollback_error)
  SELECT entry.id, status, attempts, error, created_at, last_attempt_at, next_attempt_at, completed_at,
    finished_ordinal, rollback_completed_at, rollback_error
  FROM entry JOIN rows USING (location)
  ON CONFLICT (entry_id) DO UPDATE SET status = EXCLUDED.status, attempts = EXCLUDED.attempts,
    error = EXCLUDED.error, created_at = EXCLUDED.created_at, last_attempt_at = EXCLUDED.last_attempt_at,
    next_attempt_at = EXCLUDED.next_attempt_at, completed_at = EXCLUDED.completed_at,
    finished_ordinal = EXCLUDED.finished_ordinal, rollback_completed_at = EXCLUDED.rollback_completed_at,
    rollback_error = EXCLUDED.rollback_error;
  RETURN pending;
END $$
"""


def create(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTIONS["durable_flush_1"], params=None)


def drop(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION IF EXISTS durable_flush_1(text, bigint, json)", params=None)


class Migration(migrations.Migration):
    dependencies = [("durable", "0001_initial")]

    operations = [migrations.RunPython(create, drop)]
