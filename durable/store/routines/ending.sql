-- The end of a run on PostgreSQL: one function that a trigger calls, whatever statement has ended the run.
--
-- What must happen with every end happens here: the key of the run is free again, its slots and reservations of limits
-- are given up, the parent that waits for the run is woken, or the run's group counts it (`groups.sql`), and the run's
-- open children are cancelled. For a run without a key that is no child and has none it is one look at an index for
-- each, and nothing is written.
--
-- A child's end holds the child's row and then locks the parent's, which may wait. The end of a parent holds the
-- parent's row and never waits for a child's: what is locked is left to the sweep (`durable_cascade`).

-- Make a parent due that waits for the end of this child; do nothing if it does not wait for it, or has ended. The
-- lock comes first: a parent that is about to park either sees the child's end, or is seen to wait for it. A setting
-- local to the transaction tells the commit the parent's queue, because a trigger returns nothing.
CREATE FUNCTION durable_wake_parent_1(of_child text, of_parent text, at timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  p record;
BEGIN
  SELECT queue, state, waiting_for, lease_expires_at INTO p FROM durable_run WHERE id = of_parent FOR NO KEY UPDATE;
  IF FOUND AND p.state NOT IN ('cancelled', 'completed', 'failed')
    AND (starts_with(p.waiting_for, '*') OR strpos(p.waiting_for, '/~' || of_child || '/') > 0) THEN
    UPDATE durable_run SET wake_at = LEAST(wake_at, at) WHERE id = of_parent;
    IF p.state <> 'paused' AND (p.lease_expires_at IS NULL OR p.lease_expires_at <= at) THEN
      PERFORM set_config('durable.queues',
        (COALESCE(NULLIF(current_setting('durable.queues', true), '')::text[], '{}') || p.queue::text)::text, true);
    END IF;
  END IF;
END $$;

-- Cancel the open children of a run that has ended, and the dropped ones of a run that has not (then `parent_state`
-- is ""), as `transitions.cancelled_at_once` does it, or `transitions.cancel_requested` for one that a worker has. A
-- child whose workflow has an `on_end` is left to a worker, as `transitions.cancel_handed_over` does it.
-- Each end fires the trigger again, which cancels the children's children. One transaction ends a bounded number;
-- what is left is noted for the sweep. Returns how many were cancelled or asked to end.
CREATE FUNCTION durable_end_children_1(of_parent text, at timestamptz, parent_state text) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  before integer := COALESCE(NULLIF(current_setting('durable.cascaded', true), '')::integer, 0);
  number integer := 0;
  why text := CASE WHEN parent_state = '' THEN format('its parent "%s" has taken its start back', of_parent)
    ELSE format('its parent "%s" has ended (%s)', of_parent, parent_state) END;
  how text := CASE WHEN parent_state = ''
    THEN format('{"kind":"dropped","parent":%s}', to_json(of_parent))
    ELSE format('{"kind":"parent_ended","parent":%s,"state":%s}', to_json(of_parent),
      to_json(parent_state)) END;
  one record;
  -- the caller has the parent's row locked, and so must not wait for a tally
  groups text[] := ARRAY(SELECT t.group_id FROM durable_childgroup AS g JOIN durable_grouptally AS t ON t.group_id = g.id
    WHERE g.parent_id = of_parent FOR NO KEY UPDATE OF t SKIP LOCKED);
BEGIN
  FOR one IN
    SELECT r.id, r.queue, COALESCE(r.lease_expires_at > at, false) AS is_held,
      EXISTS (SELECT 1 FROM durable_workflowend AS e WHERE e.workflow = r.workflow) AS is_for_worker
    FROM durable_child AS c JOIN durable_run AS r ON r.id = c.run_id
    WHERE c.parent_id = of_parent
      AND (c.is_dropped
        OR EXISTS (SELECT 1 FROM durable_childgroup AS g WHERE g.id = c.member_of AND g.is_dropped)
        OR (parent_state <> '' AND c.when_parent_ends = 'cancel'))
      AND r.state NOT IN ('cancelled', 'completed', 'failed', 'rolling_back') AND r.state_after_rollback = ''
      AND r.pending_request NOT IN ('cancel', 'cancel_rollback') AND (c.member_of IS NULL OR c.member_of = ANY(groups))
    ORDER BY c.position LIMIT 300 - before FOR NO KEY UPDATE OF r SKIP LOCKED
  LOOP
    before := COALESCE(NULLIF(current_setting('durable.cascaded', true), '')::integer, 0);
    EXIT WHEN before >= 300;
    PERFORM set_config('durable.cascaded', (before + 1)::text, true);
    number := number + 1;
    IF one.is_held THEN
      UPDATE durable_run SET pending_request = 'cancel', request_reason = why, change_seq = change_seq + 1
      WHERE id = one.id;
    ELSIF one.is_for_worker THEN
      UPDATE durable_run SET state = 'pending', change_seq = change_seq + 1, fence = fence + 1,
        worker = '', lease_expires_at = NULL, pending_request = 'cancel', request_reason = why, wake_at = at,
        waiting_for = '', summary = format('{"kind":"cancelling","reason":%s}', to_json(why))
      WHERE id = one.id;
      PERFORM set_config('durable.queues',
        (COALESCE(NULLIF(current_setting('durable.queues', true), '')::text[], '{}') || one.queue::text)::text, true);
    ELSE
      UPDATE durable_run SET state = 'cancelled', change_seq = change_seq + 1, fence = fence + 1,
        worker = '', lease_expires_at = NULL, pending_request = '', request_reason = why, wake_at = NULL,
        waiting_for = '', diverged_at = NULL, finished_at = at, summary = how
      WHERE id = one.id;
    END IF;
  END LOOP;
  IF EXISTS (
    SELECT 1 FROM durable_child AS c JOIN durable_run AS r ON r.id = c.run_id
    WHERE c.parent_id = of_parent
      AND (c.is_dropped
        OR EXISTS (SELECT 1 FROM durable_childgroup AS g WHERE g.id = c.member_of AND g.is_dropped)
        OR (parent_state <> '' AND c.when_parent_ends = 'cancel'))
      AND r.state NOT IN ('cancelled', 'completed', 'failed', 'rolling_back') AND r.state_after_rollback = ''
      AND r.pending_request NOT IN ('cancel', 'cancel_rollback')
  ) THEN
    INSERT INTO durable_cascade (run_id, began_at) VALUES (of_parent, at) ON CONFLICT (run_id) DO NOTHING;
  ELSE
    DELETE FROM durable_cascade WHERE run_id = of_parent;
  END IF;
  RETURN number;
END $$;

-- Cancel these children of a run that goes on, which the caller has locked, and for each place ("a/loop/") the open
-- children that were started below; without `every`, only those that its end would cancel.
CREATE FUNCTION durable_drop_children_1(of_parent text, children text[], at timestamptz, every boolean) RETURNS void
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  places text[] := ARRAY(SELECT each FROM unnest(children) AS each WHERE right(each, 1) = '/');
  is_one boolean;
BEGIN
  UPDATE durable_child SET is_dropped = true WHERE run_id = ANY(children) AND parent_id = of_parent
    AND (every OR when_parent_ends = 'cancel');
  is_one := FOUND;
  IF places <> '{}' THEN
    UPDATE durable_child AS c SET is_dropped = true FROM durable_run AS r
    WHERE c.parent_id = of_parent AND r.id = c.run_id AND r.finished_at IS NULL AND NOT c.is_dropped
      AND (every OR c.when_parent_ends = 'cancel')
      AND EXISTS (SELECT 1 FROM unnest(places) AS place WHERE starts_with(c.location, place));
    is_one := is_one OR FOUND;
  END IF;
  IF is_one THEN
    PERFORM durable_end_children_1(of_parent, at, '');
  END IF;
END $$;

-- Go on with the children of the first parent behind this one whose end has left some. Returns that parent and how
-- many were cancelled or asked to end; NULL if there is none. Others lock the parent's row first and this row then,
-- so this does not wait for the parent's. The tallies of the groups come before both, as in a commit.
CREATE FUNCTION durable_cascade_1(after text, at timestamptz, OUT of_parent text, OUT number integer)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  p record;
BEGIN
  SELECT run_id INTO of_parent FROM durable_cascade WHERE run_id > after ORDER BY run_id LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  number := 0;
  PERFORM 1 FROM durable_grouptally
  WHERE group_id = ANY(ARRAY(SELECT id FROM durable_childgroup WHERE parent_id = of_parent))
  ORDER BY group_id FOR NO KEY UPDATE;
  PERFORM 1 FROM durable_cascade WHERE run_id = of_parent FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT CASE WHEN finished_at IS NULL THEN '' ELSE state END AS parent_state INTO p
  FROM durable_run WHERE id = of_parent FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    number := durable_end_children_1(of_parent, at, p.parent_state);
  END IF;
END $$;

-- Write a commit that starts children, that parks for the end of some, or that ends the run of a parent: what
-- durable_commit_1, or durable_fail_2 with a failure, writes, and then the rest. NULL for a part means that it is
-- absent. Returns what durable_commit_1 returns. A child's id that another run has raises a unique violation.
CREATE FUNCTION durable_commit_2(
  of_run text, with_fence bigint, at timestamptz, deleted json, entries json, failures json, consumed json,
  unreceived json, patch jsonb, known_change_seq bigint, sends json,
  witness text, witness_ordinal bigint, failure json, starts json, awaited json,
  dropped json, OUT pending text, OUT queues_to_notify text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  one record;
  summary text;
  queues text[] := '{}';
  taken text[] := '{}';
  has_rank boolean;
BEGIN
  IF starts IS NOT NULL THEN
    -- in one order, and before the parent is locked: the end of a child frees its key and then locks its parent
    FOR one IN SELECT * FROM json_to_recordset(starts) AS x(id text, workflow text, "key" text, created_at timestamptz)
      WHERE "key" IS NOT NULL ORDER BY workflow COLLATE "C", "key" COLLATE "C"
    LOOP
      LOOP
        INSERT INTO durable_runkey (run_id, workflow, key, is_open, taken_at, moves)
        VALUES (one.id, one.workflow, one."key", true, one.created_at, 0) ON CONFLICT DO NOTHING;
        IF FOUND THEN
          taken := taken || one.id;
          EXIT;
        END IF;
        EXIT WHEN EXISTS (SELECT 1 FROM durable_run WHERE id = one.id); -- by an earlier try, or the id is another's
        IF EXISTS (SELECT 1 FROM durable_runkey WHERE workflow = one.workflow AND key = one."key" AND is_open) THEN
          RAISE unique_violation USING CONSTRAINT = 'durable_child_key_is_free', TABLE = 'durable_runkey',
            MESSAGE = format('the key "%s" of a child is taken by another run', one."key"), DETAIL = one.id;
        END IF;
        -- the key of an earlier run of this id, which was deleted behind the engine's back
        DELETE FROM durable_runkey AS k WHERE k.run_id = one.id
          AND NOT EXISTS (SELECT 1 FROM durable_run WHERE id = one.id);
      END LOOP;
    END LOOP;
  END IF;
  IF failure IS NULL THEN
    SELECT c.pending, c.queues_to_notify INTO pending, queues_to_notify FROM durable_commit_1(of_run, with_fence, at,
      deleted, entries, failures, consumed, unreceived, patch, known_change_seq, sends, witness, witness_ordinal) AS c;
  ELSE
    SELECT c.pending, c.queues_to_notify INTO pending, queues_to_notify FROM durable_fail_2(of_run, with_fence, at,
      deleted, entries, failures, consumed, unreceived, patch, known_change_seq, sends, witness, witness_ordinal,
      failure) AS c;
  END IF;
  IF pending IS NULL THEN
    DELETE FROM durable_runkey WHERE run_id = ANY(taken);
    RETURN;
  END IF;
  IF starts IS NOT NULL THEN
    has_rank := EXISTS (SELECT 1 FROM durable_runrank WHERE run_id = of_run);
    FOR one IN SELECT * FROM json_to_recordset(starts) AS x(
      id text, workflow text, queue text, input text, created_at timestamptz, wake_at timestamptz, parent_id text,
      location text, generation integer, when_parent_ends text, "group" text, "position" bigint, limits json, ranking json,
      carried text
    ) LOOP
      summary := durable_start_2(one.id, one.workflow, one.queue, one.input, one.created_at, one.wake_at,
        one.parent_id, NULL);
      IF summary IS NULL THEN
        PERFORM 1 FROM durable_child WHERE run_id = one.id AND parent_id = of_run;
        IF NOT FOUND THEN
          RAISE unique_violation USING CONSTRAINT = 'durable_child_id_is_free', TABLE = 'durable_child',
            MESSAGE = format('the id "%s" of a child is taken by another run', one.id), DETAIL = one.id;
        END IF;
      ELSE
        INSERT INTO durable_child (
          run_id, parent_id, location, generation, when_parent_ends, "group", "position", is_dropped)
        VALUES (one.id, one.parent_id, one.location, one.generation, one.when_parent_ends, one."group",
          one."position", false);
        IF one.limits IS NOT NULL THEN
          INSERT INTO durable_runlimit (run_id, deadline, length, work_limit, worked, in_doubt)
          SELECT one.id, l.deadline, l.length, l.work_limit, l.worked, l.in_doubt FROM json_to_record(one.limits) AS l(
            deadline timestamptz, length double precision, work_limit double precision, worked double precision,
            in_doubt timestamptz);
          UPDATE durable_run SET fence = GREATEST(fence, 1) WHERE id = one.id;
        END IF;
        IF one.carried IS NOT NULL THEN
          UPDATE durable_run SET carried = one.carried WHERE id = one.id;
        END IF;
        IF has_rank OR one.ranking IS NOT NULL THEN
          PERFORM durable_rank_child_1(one.id, one.queue, of_run, one.ranking, at);
        END IF;
        IF summary = '' AND one.wake_at <= at THEN
          queues := queues || one.queue;
        END IF;
      END IF;
    END LOOP;
  END IF;
  IF dropped IS NOT NULL THEN
    PERFORM durable_drop_children_1(of_run, ARRAY(SELECT json_array_elements_text(dropped)), at, false);
  END IF;
  IF awaited IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_array_elements_text(awaited) AS a(id) LEFT JOIN durable_run AS r ON r.id = a.id
    WHERE r.id IS NULL OR r.state IN ('cancelled', 'completed', 'failed')
  ) THEN
    UPDATE durable_run SET wake_at = at WHERE id = of_run AND finished_at IS NULL RETURNING queue INTO one;
    IF FOUND THEN
      queues := queues || one.queue;
    END IF;
  END IF;
  queues := queues || COALESCE(NULLIF(current_setting('durable.queues', true), '')::text[], '{}');
  IF queues <> '{}' THEN
    queues_to_notify := array_to_json(ARRAY(SELECT json_array_elements_text(queues_to_notify::json)) || queues)::text;
  END IF;
END $$;

-- Write the end of a completed child where nothing else is to be written, as durable_complete_1 does. Returns the
-- same as durable_commit_1.
CREATE FUNCTION durable_complete_2(
  of_run text, with_fence bigint, at timestamptz, with_output text,
  witness text, witness_ordinal bigint,
  OUT pending text, OUT queues_to_notify text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  pending := durable_complete_1(of_run, with_fence, at, with_output, witness, witness_ordinal);
  queues_to_notify := array_to_json(NULLIF(current_setting('durable.queues', true), '')::text[])::text;
END $$;

-- The end of a run: called for each row whose `finished_at` is set, and for the deletion of an open run. A run with
-- a key is not completed while messages of `start_or_send` are in its inbox: the worker gives them to another run,
-- which takes the key, and completes it then.
CREATE FUNCTION durable_ended_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  is_parent boolean;
  has_key boolean;
  has_slot boolean;
  has_reservation boolean;
  is_held boolean; -- a step waits for a person
  of_group text; -- "" for a child that is in none
  woken text;
BEGIN
  IF TG_OP = 'DELETE' THEN
    SELECT member_of INTO of_group FROM durable_child WHERE run_id = OLD.id;
    IF of_group IS NULL THEN
      PERFORM durable_wake_parent_1(OLD.id, OLD.parent_id, now());
    ELSE
      woken := durable_member_ended_1(OLD.id, of_group, 'cancelled', now());
      UPDATE durable_child SET member_of = NULL WHERE run_id = OLD.id; -- counted
      IF woken IS NOT NULL THEN
        PERFORM durable_wake_parent_1(woken, OLD.parent_id, now());
      END IF;
    END IF;
    RETURN NULL;
  END IF;
  SELECT CASE WHEN NEW.parent_id IS NOT NULL THEN (SELECT COALESCE(member_of, '') FROM durable_child WHERE run_id = NEW.id) END,
    EXISTS (SELECT 1 FROM durable_child WHERE parent_id = NEW.id),
    EXISTS (SELECT 1 FROM durable_runkey WHERE run_id = NEW.id AND is_open),
    EXISTS (SELECT 1 FROM durable_slot WHERE run_id = NEW.id),
    EXISTS (SELECT 1 FROM durable_reservation WHERE run_id = NEW.id),
    EXISTS (SELECT 1 FROM durable_failure AS f WHERE f.run_id = NEW.id AND f.is_held)
  INTO of_group, is_parent, has_key, has_slot, has_reservation, is_held;
  IF has_key THEN
    IF NEW.state = 'completed' AND EXISTS (
      SELECT 1 FROM durable_queuemessage AS m JOIN durable_keyedsend AS s ON s.message_id = m.id
      WHERE m.run_id = NEW.id AND m.state = 'pending' AND s.run_id = NEW.id
    ) THEN
      RAISE unique_violation USING CONSTRAINT = 'durable_messages_left', TABLE = 'durable_keyedsend',
        MESSAGE = 'the run has not received all messages that were sent to its key', DETAIL = NEW.id;
    END IF;
    UPDATE durable_runkey SET is_open = NULL WHERE run_id = NEW.id;
  END IF;
  IF has_slot AND current_setting('durable.gives_up', true) = NEW.id THEN
    -- the statement goes on with durable_change_slots_1, which finds them
    PERFORM set_config('durable.gives_up', '*' || NEW.id, true);
  ELSIF has_slot THEN
    WITH gone AS (DELETE FROM durable_slot WHERE run_id = NEW.id RETURNING "limit", key)
    INSERT INTO durable_slotnote ("limit", key, run_id) SELECT DISTINCT "limit", key, NEW.id FROM gone;
  END IF;
  IF has_reservation THEN
    DELETE FROM durable_reservation WHERE run_id = NEW.id;
  END IF;
  IF is_held THEN
    UPDATE durable_failure AS f SET is_open = false, is_held = false WHERE f.run_id = NEW.id;
  END IF;
  IF of_group = '' THEN
    PERFORM durable_wake_parent_1(NEW.id, NEW.parent_id, NEW.finished_at);
  ELSIF of_group IS NOT NULL THEN
    woken := durable_member_ended_1(NEW.id, of_group, NEW.state, NEW.finished_at);
    IF woken IS NOT NULL THEN
      PERFORM durable_wake_parent_1(woken, NEW.parent_id, NEW.finished_at);
    END IF;
  END IF;
  IF is_parent THEN
    PERFORM durable_end_children_1(NEW.id, NEW.finished_at, NEW.state);
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER durable_ended AFTER UPDATE OF state ON durable_run FOR EACH ROW
  WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
  EXECUTE FUNCTION durable_ended_1();

CREATE TRIGGER durable_ended_by_deletion AFTER DELETE ON durable_run FOR EACH ROW
  WHEN (OLD.finished_at IS NULL AND OLD.parent_id IS NOT NULL)
  EXECUTE FUNCTION durable_ended_1();
