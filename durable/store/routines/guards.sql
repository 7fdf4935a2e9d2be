-- The guards: triggers that keep the invariants of runs and entries on PostgreSQL, in place of constraints.
--
-- PostgreSQL parses the expressions of a table's check constraints for each statement that writes to the table, and
-- runs a statement of its own for the row that a foreign key names. Together these took a third of what the server
-- spent on recording a step. A session compiles a trigger's function once. A guard refuses what the constraint of the
-- same name refuses, with the same error.
--
-- A function that has the run's row locked writes what refers to a run or an entry, so the referenced row exists. What
-- has to be refused is the deletion of a row that leaves its own rows behind, perhaps to a later run of the same id.

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
BEGIN
  IF broken IS NOT NULL THEN
    RAISE check_violation USING CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
      MESSAGE = format('row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken);
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION durable_entry_guard_4() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.kind NOT IN ('step', 'loop', 'sleep', 'message', 'send', 'join', 'race', 'removed', 'version_check',
      'rollback_checkpoint', 'compensate', 'child', 'map', 'tag', 'link', 'publish') THEN 'durable_entry_kind_is_known'
  END;
BEGIN
  IF broken IS NOT NULL THEN
    RAISE check_violation USING CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
      MESSAGE = format('row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken);
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION durable_metadata_guard_1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.status NOT IN ('pending', 'running', 'completed', 'failed', 'exhausted', 'unknown', 'held')
      THEN 'durable_metadata_status_is_known'
    WHEN NEW.attempts < 0 THEN 'durable_metadata_attempts_from_zero'
  END;
BEGIN
  IF broken IS NOT NULL THEN
    RAISE check_violation USING CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
      MESSAGE = format('row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken);
  END IF;
  RETURN NEW;
END $$;

-- After a statement that deleted runs or emptied the table. Without foreign keys, TRUNCATE ... CASCADE does not
-- empty the tables of entries and metadata; this does.
CREATE FUNCTION durable_run_gone_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
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
END $$;

CREATE FUNCTION durable_entry_gone_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
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
END $$;

-- A run that has entries keeps its id.
CREATE FUNCTION durable_run_renamed_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM durable_entry WHERE run_id = OLD.id) THEN
    RAISE foreign_key_violation USING CONSTRAINT = 'durable_entry_of_a_run', TABLE = 'durable_entry',
      MESSAGE = 'a run has entries, which would stay behind under its old id',
      HINT = 'Start a new run instead, or replay this one under a new id.';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER durable_guard BEFORE INSERT OR UPDATE ON durable_run FOR EACH ROW EXECUTE FUNCTION durable_run_guard_1();

CREATE TRIGGER durable_guard_4 BEFORE INSERT OR UPDATE ON durable_entry FOR EACH ROW
  EXECUTE FUNCTION durable_entry_guard_4();

CREATE TRIGGER durable_guard BEFORE INSERT OR UPDATE ON durable_entrymetadata FOR EACH ROW
  EXECUTE FUNCTION durable_metadata_guard_1();

CREATE TRIGGER durable_gone AFTER DELETE ON durable_run REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION durable_run_gone_1();

CREATE TRIGGER durable_emptied AFTER TRUNCATE ON durable_run FOR EACH STATEMENT EXECUTE FUNCTION durable_run_gone_1();

CREATE TRIGGER durable_gone AFTER DELETE ON durable_entry REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION durable_entry_gone_1();

CREATE TRIGGER durable_emptied AFTER TRUNCATE ON durable_entry FOR EACH STATEMENT
  EXECUTE FUNCTION durable_entry_gone_1();

CREATE TRIGGER durable_renamed BEFORE UPDATE OF id ON durable_run FOR EACH ROW WHEN (OLD.id <> NEW.id)
  EXECUTE FUNCTION durable_run_renamed_1();
