"""On PostgreSQL: guards, which keep the invariants of runs and entries in the place of checks and foreign keys.

PostgreSQL parses the expressions of a table's checks anew for each statement that writes to it, and asks for the row that
a foreign key names with a statement of its own: together a third of what the server spends on recording a step. A trigger's
function is compiled once by a session. It refuses what the constraint of the same name refuses, with the same error.

What refers to a run or an entry is written by functions that have the run's row locked, so it is there; what has to be
refused is that the row goes and leaves what belongs to it behind, perhaps to a later run of the same id.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.db.models import CheckConstraint

FUNCTIONS = {}

#: What the guards raise with: as PostgreSQL does for a constraint.
_REFUSE = """
  IF broken IS NOT NULL THEN
    RAISE check_violation USING CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
      MESSAGE = format('row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken);
  END IF;
  RETURN NEW;
"""

FUNCTIONS["durable_run_guard_1"] = f"""
CREATE FUNCTION durable_run_guard_1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.state NOT IN ('pending', 'running', 'sleeping', 'paused', 'rolling_back', 'completed', 'failed', 'cancelled')
      THEN 'durable_run_state_is_known'
    WHEN NEW.state IN ('completed', 'failed', 'cancelled')
      AND (NEW.finished_at IS NULL OR NEW.wake_at IS NOT NULL OR NEW.lease_expires_at IS NOT NULL)
      THEN 'durable_run_end_is_final'
    WHEN NEW.finished_at IS NOT NULL AND NEW.state NOT IN ('completed', 'failed', 'cancelled')
      THEN 'durable_run_finished_means_ended'
    WHEN NEW.pending_request NOT IN ('', 'pause', 'cancel', 'cancel_rollback')
      THEN 'durable_run_pending_request_is_known'
    WHEN NEW.state_after_rollback NOT IN ('', 'completed', 'failed', 'cancelled')
      THEN 'durable_run_state_after_rollback_is_an_end'
    WHEN NEW.crashes < 0 OR NEW.fence < 0 OR NEW.message_count < 0 OR NEW.change_seq < 0
      THEN 'durable_run_counts_from_zero'
    WHEN NEW.parent_id = NEW.id THEN 'durable_run_is_not_its_own_parent'
    WHEN NEW.id = '' THEN 'durable_run_has_an_id'
  END;
BEGIN{_REFUSE}END $$
"""

FUNCTIONS["durable_entry_guard_1"] = f"""
CREATE FUNCTION durable_entry_guard_1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.kind NOT IN ('step', 'loop', 'sleep', 'message', 'send', 'join', 'race', 'removed', 'version_check',
      'rollback_checkpoint') THEN 'durable_entry_kind_is_known'
  END;
BEGIN{_REFUSE}END $$
"""

FUNCTIONS["durable_metadata_guard_1"] = f"""
CREATE FUNCTION durable_metadata_guard_1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.status NOT IN ('pending', 'running', 'completed', 'failed', 'exhausted')
      THEN 'durable_metadata_status_is_known'
    WHEN NEW.attempts < 0 THEN 'durable_metadata_attempts_from_zero'
  END;
BEGIN{_REFUSE}END $$
"""

#: After a statement that deleted runs, or emptied the table; the tables that TRUNCATE ... CASCADE can no longer know of
#: are emptied with it.
FUNCTIONS["durable_run_gone_1"] = """
CREATE FUNCTION durable_run_gone_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    IF EXISTS (SELECT 1 FROM durable_entry) THEN
      TRUNCATE durable_entry CASCADE;
    END IF;
  ELSIF EXISTS (SELECT 1 FROM gone JOIN durable_entry ON durable_entry.run_id = gone.id) THEN
    RAISE foreign_key_violation USING CONSTRAINT = 'durable_entry_of_a_run', TABLE = 'durable_entry',
      MESSAGE = 'a run has entries, which would stay behind',
      HINT = 'Delete the rows of durable_entrymetadata and durable_entry first, or delete runs with Run.objects.';
  END IF;
  RETURN NULL;
END $$
"""

FUNCTIONS["durable_entry_gone_1"] = """
CREATE FUNCTION durable_entry_gone_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    IF EXISTS (SELECT 1 FROM durable_entrymetadata) THEN
      TRUNCATE durable_entrymetadata CASCADE;
    END IF;
  ELSIF EXISTS (SELECT 1 FROM gone JOIN durable_entrymetadata AS m ON m.entry_id = gone.id) THEN
    RAISE foreign_key_violation USING CONSTRAINT = 'durable_metadata_of_an_entry', TABLE = 'durable_entrymetadata',
      MESSAGE = 'an entry has metadata, which would stay behind',
      HINT = 'Delete the rows of durable_entrymetadata first.';
  END IF;
  RETURN NULL;
END $$
"""

#: A run that has entries keeps its id.
FUNCTIONS["durable_run_renamed_1"] = """
CREATE FUNCTION durable_run_renamed_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM durable_entry WHERE run_id = OLD.id) THEN
    RAISE foreign_key_violation USING CONSTRAINT = 'durable_entry_of_a_run', TABLE = 'durable_entry',
      MESSAGE = 'a run has entries, which would stay behind under its old id',
      HINT = 'Start a new run instead, or replay this one under a new id.';
  END IF;
  RETURN NEW;
END $$
"""

#: By table: what guards each of its rows, and what follows when rows go.
GUARDS = {
    "durable_run": ("durable_run_guard_1", "durable_run_gone_1"),
    "durable_entry": ("durable_entry_guard_1", "durable_entry_gone_1"),
    "durable_entrymetadata": ("durable_metadata_guard_1", None),
}

TRIGGERS = """
CREATE TRIGGER durable_guard BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {guard}()
"""

TRIGGER_WHEN_RENAMED = """
CREATE TRIGGER durable_renamed BEFORE UPDATE OF id ON durable_run FOR EACH ROW WHEN (OLD.id <> NEW.id)
EXECUTE FUNCTION durable_run_renamed_1()
"""

TRIGGERS_WHEN_GONE = """
CREATE TRIGGER durable_gone AFTER DELETE ON {table} REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION {gone}();
CREATE TRIGGER durable_emptied AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {gone}()
"""

GUARDED = ("Run", "Entry", "EntryMetadata")
REFERENCES = {
    "durable_entry": ("run_id", "durable_run", "id"),
    "durable_entrymetadata": ("entry_id", "durable_entry", "id"),
}


def triggers() -> list[str]:
    """The statements that create them."""
    found = []
    for table, (guarding, gone) in GUARDS.items():
        found.append(TRIGGERS.format(table=table, guard=guarding))
        if gone is not None:
            found += TRIGGERS_WHEN_GONE.format(table=table, gone=gone).split(";")
    return [*found, TRIGGER_WHEN_RENAMED]


def guard(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    for function in FUNCTIONS.values():
        schema_editor.execute(function, params=None)
    for trigger in triggers():
        schema_editor.execute(trigger, params=None)
    for model in GUARDED:
        meta = apps.get_model("durable", model)._meta
        for constraint in meta.constraints:
            if isinstance(constraint, CheckConstraint):
                schema_editor.execute(f"ALTER TABLE {meta.db_table} DROP CONSTRAINT {constraint.name}")
    for table, name in _foreign_keys(schema_editor):
        schema_editor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')


def _foreign_keys(schema_editor: BaseDatabaseSchemaEditor) -> list[tuple[str, str]]:
    """Table and name of the constraints that guards make superfluous; the names are Django's."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY(%s::regclass[])",
            [list(REFERENCES)],
        )
        return list(cursor.fetchall())


def leave_to_constraints(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    for table, (column, other, key) in REFERENCES.items():
        schema_editor.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {table}_{column}_fk FOREIGN KEY ({column}) REFERENCES {other} ({key}) "
            "DEFERRABLE INITIALLY DEFERRED"
        )
    for name in GUARDED:
        model = apps.get_model("durable", name)
        for constraint in model._meta.constraints:
            if isinstance(constraint, CheckConstraint):
                schema_editor.add_constraint(model, constraint)
    for name in FUNCTIONS:
        schema_editor.execute(f"DROP FUNCTION {name}() CASCADE")


class Migration(migrations.Migration):
    dependencies = [("durable", "0007_functions")]

    operations = [migrations.RunPython(guard, leave_to_constraints)]
