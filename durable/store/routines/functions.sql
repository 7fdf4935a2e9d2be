-- The functions that write what a run does most often: start, claim, record, receive a message, park, end.
--
-- Sent as statements, these writes would spend more time on parsing and planning than on writing. A session keeps the
-- plans of a function, whichever pooler is in between. Each function locks first and reads then, so it decides by the
-- newest version of a row. A plan is made once and kept while tables grow, so no plan may scan a whole table. A commit
-- often has no witness. A plan for that alone is cheaper, and PostgreSQL would make it anew for each call, which takes
-- longer than the rest: `plan_cache_mode`. It would also make one for each call that names a run in tables in partitions.
-- `durable.store.postgres.sql_functions` calls them.
--
-- A commit proves that what the pass has written last is there: its witness, an entry. The statement that locks the
-- run's row looks for it: one look at an index, where a statement of its own would cost several times as much.

-- Insert a new run, whose other columns are as in every new run; paused, if new starts of its workflow are held.
-- Returns NULL if the id was taken, "" for a run that is due, and the summary of one that is held. The lock lets a
-- release wait for the commit.
CREATE FUNCTION durable_start_2(
  new_id text, of_workflow text, on_queue text, with_input text, at timestamptz, due timestamptz, by_parent text,
  of_replay text
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  held text;
BEGIN
  SELECT h.summary INTO held FROM durable_hold AS h WHERE h.kind = 'workflow' AND h.name = of_workflow FOR KEY SHARE;
  INSERT INTO durable_run (
    id, workflow, queue, state, input, origins, wake_at, waiting_for, summary, fence, worker, crashes, change_seq,
    message_count, pending_request, request_reason, state_after_rollback, generations, created_at, parent_id,
    replay_of_id)
  VALUES (
    new_id, of_workflow, on_queue, CASE WHEN held IS NULL THEN 'pending' ELSE 'paused' END, with_input, '[]',
    CASE WHEN held IS NULL THEN due END, '', COALESCE(held, ''), (held IS NOT NULL)::integer, '', 0,
    (held IS NOT NULL)::integer, 0, '', '', '', '{}', at, by_parent, of_replay)
  ON CONFLICT DO NOTHING; -- the key alone is unique; named, it would be looked for among the indexes of a partition
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF held IS NOT NULL THEN
    INSERT INTO durable_heldstart (run_id, workflow, due_at) VALUES (new_id, of_workflow, COALESCE(due, at));
  END IF;
  RETURN COALESCE(held, '');
END $$;

-- Return how many entries of an index this transaction has read, those of the index of each partition included.
CREATE FUNCTION durable_visited_1(of_index regclass) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  RETURN pg_stat_get_xact_tuples_returned(of_index) + COALESCE((
    SELECT sum(pg_stat_get_xact_tuples_returned(i.inhrelid)) FROM pg_inherits AS i WHERE i.inhparent = of_index), 0);
END $$;

-- Claim due runs of one queue for a worker, the longest due first, from (`since`, `since_id`) on; see `Store.claim`.
-- Returns a row for each with the run, and a last row with the number of entries of the index that the search has
-- visited; NULL for a paused queue, of which no run is claimed. The lower bound skips what ended runs leave in the
-- index: two entries for each run, which no vacuum removes while a transaction holds an older snapshot. Without sorts and
-- bitmaps it stops at the last that it takes, also where statistics of an earlier hour promise few due runs. The fence
-- rises by a random number (`durable.core.witnesses`).
CREATE FUNCTION durable_claim_3(
  on_queue text, at timestamptz, until timestamptz, by_worker text, at_most integer, since timestamptz, since_id text
) RETURNS TABLE (run durable_run, visited bigint)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET enable_bitmapscan TO off SET enable_sort TO off AS $$
DECLARE
  visited_before bigint := durable_visited_1('durable_run_due');
  first_moment timestamptz := COALESCE(since, '-infinity');
  first_id text := COALESCE(since_id, '');
BEGIN
  IF EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = on_queue) THEN
    RETURN NEXT;
    RETURN;
  END IF;
  RETURN QUERY WITH due AS MATERIALIZED (
    SELECT id FROM durable_run
    WHERE queue = on_queue AND wake_at IS NOT NULL AND wake_at <= at AND (wake_at, id) >= (first_moment, first_id)
      AND (lease_expires_at IS NULL OR lease_expires_at <= at) AND state <> 'paused'
    ORDER BY wake_at, id LIMIT at_most FOR NO KEY UPDATE SKIP LOCKED)
  UPDATE durable_run AS r SET fence = r.fence + CASE r.fence WHEN 0 THEN 536870912 ELSE 1073741824 END + floor(random() * 536870912)::bigint,
    crashes = r.crashes + (r.lease_expires_at IS NOT NULL)::integer,
    lease_expires_at = until, worker = by_worker, started_at = COALESCE(r.started_at, at),
    state = CASE r.state WHEN 'rolling_back' THEN r.state ELSE 'running' END,
    wake_at = LEAST(r.wake_at, at)
  WHERE r.id = ANY(ARRAY(SELECT id FROM due)) RETURNING r, NULL::bigint; -- a join planned on few runs reads all of them
  run := NULL;
  visited := durable_visited_1('durable_run_due') - visited_before;
  RETURN NEXT;
END $$;

-- Raise an error, so that nothing is written, if earlier commits of the pass are not there
-- (`durable.core.witnesses`). The caller has locked the run's row, and has not found the witness. Without an
-- ordinal, the witness is a JSON list of such as are not a single entry, and this function looks for them.
CREATE FUNCTION durable_witness_1(of_run text, witness text, witness_ordinal bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  one record;
  is_there boolean := witness_ordinal IS NULL;
BEGIN
  FOR one IN SELECT * FROM json_to_recordset(CASE WHEN is_there THEN witness::json ELSE '[]' END) AS x(
    state text, location text, has_version boolean, has_output boolean, ordinal bigint, data text,
    status text, attempts integer, error text, last_attempt_at timestamptz, next_attempt_at timestamptz, completed_at timestamptz,
    finished_ordinal bigint, rollback_completed_at timestamptz, rollback_error text)
  LOOP
    IF one.state IS NOT NULL THEN
      is_there := is_there AND EXISTS (SELECT 1 FROM durable_run WHERE id = of_run AND state = one.state);
    ELSIF NOT one.has_version THEN
      is_there := is_there AND EXISTS (
        SELECT 1 FROM durable_entry AS e
        WHERE e.run_id = of_run AND e.location = one.location AND e.ordinal = one.ordinal
          AND (e.output IS NOT NULL OR NOT one.has_output));
    ELSE
      is_there := is_there AND EXISTS (
        SELECT 1 FROM durable_entry AS e JOIN durable_entrymetadata AS m ON m.entry_id = e.id
        WHERE e.run_id = of_run AND e.location = one.location AND e.ordinal = one.ordinal AND e.data = one.data
          AND (m.status, m.attempts, m.error, m.last_attempt_at, m.next_attempt_at, m.completed_at, m.finished_ordinal,
            m.rollback_completed_at, m.rollback_error) IS NOT DISTINCT FROM (
            one.status, one.attempts, one.error, one.last_attempt_at, one.next_attempt_at, one.completed_at,
            one.finished_ordinal, one.rollback_completed_at, one.rollback_error));
    END IF;
  END LOOP;
  IF NOT is_there THEN
    RAISE integrity_constraint_violation USING CONSTRAINT = 'durable_commits_are_there', TABLE = 'durable_entry',
      MESSAGE = format('the database has lost earlier commits of run "%s"', of_run), DETAIL = of_run;
  END IF;
END $$;

-- Write entries and their metadata, given as JSON. Returns the same as durable_record_1.
CREATE FUNCTION durable_flush_1(
  of_run text, with_fence bigint, entries json, witness text, witness_ordinal bigint
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  pending text;
  is_there boolean;
BEGIN
  SELECT r.pending_request, (witness IS NULL OR EXISTS (
    SELECT 1 FROM durable_entry AS e WHERE e.run_id = of_run AND e.location = witness
      AND (e.ordinal = witness_ordinal OR (e.ordinal = ~witness_ordinal AND e.output IS NOT NULL)))) INTO pending, is_there
  FROM durable_run AS r WHERE r.id = of_run AND r.fence = with_fence FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NOT is_there THEN
    PERFORM durable_witness_1(of_run, witness, witness_ordinal);
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
END $$;

-- Write one entry and its metadata. Returns the pending request; NULL, with nothing written, for an older fence. A
-- writer of a run's entries has the run's row locked, so an entry that was found stays. Most entries are new, so the
-- function inserts first.
CREATE FUNCTION durable_record_1(
  of_run text, with_fence bigint,
  new_location text, new_kind text, new_ordinal bigint, new_output text, new_arguments text, new_data text,
  new_status text, new_attempts integer, new_error text, new_created_at timestamptz, new_last_attempt_at timestamptz,
  new_next_attempt_at timestamptz, new_completed_at timestamptz, new_finished_ordinal bigint,
  new_rollback_completed_at timestamptz, new_rollback_error text,
  witness text, witness_ordinal bigint
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  pending text;
  is_there boolean;
  found_id bigint;
BEGIN
  SELECT r.pending_request, (witness IS NULL OR EXISTS (
    SELECT 1 FROM durable_entry AS e WHERE e.run_id = of_run AND e.location = witness
      AND (e.ordinal = witness_ordinal OR (e.ordinal = ~witness_ordinal AND e.output IS NOT NULL)))) INTO pending, is_there
  FROM durable_run AS r WHERE r.id = of_run AND r.fence = with_fence FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NOT is_there THEN
    PERFORM durable_witness_1(of_run, witness, witness_ordinal);
  END IF;
  IF witness IS DISTINCT FROM new_location THEN -- a witness is there, as the entry of an attempt that was committed before
    INSERT INTO durable_entry (run_id, location, kind, ordinal, output, arguments, data)
    VALUES (of_run, new_location, new_kind, new_ordinal, new_output, new_arguments, new_data)
    ON CONFLICT DO NOTHING RETURNING id INTO found_id; -- without its columns, as in durable_start_2
  END IF;
  IF found_id IS NULL THEN
    UPDATE durable_entry SET kind = new_kind, ordinal = new_ordinal, output = new_output, arguments = new_arguments,
      data = new_data
    WHERE run_id = of_run AND location = new_location RETURNING id INTO found_id;
    IF NOT FOUND THEN
      RAISE unique_violation USING CONSTRAINT = 'durable_entry_pkey', TABLE = 'durable_entry',
        MESSAGE = 'the sequence of durable_entry.id has given the id of another entry';
    END IF;
    UPDATE durable_entrymetadata SET status = new_status, attempts = new_attempts, error = new_error,
      created_at = new_created_at, last_attempt_at = new_last_attempt_at, next_attempt_at = new_next_attempt_at,
      completed_at = new_completed_at, finished_ordinal = new_finished_ordinal,
      rollback_completed_at = new_rollback_completed_at, rollback_error = new_rollback_error
    WHERE entry_id = found_id;
  ELSE
    INSERT INTO durable_entrymetadata (entry_id, status, attempts, error, created_at, last_attempt_at, next_attempt_at,
      completed_at, finished_ordinal, rollback_completed_at, rollback_error)
    VALUES (found_id, new_status, new_attempts, new_error, new_created_at, new_last_attempt_at, new_next_attempt_at,
      new_completed_at, new_finished_ordinal, new_rollback_completed_at, new_rollback_error);
  END IF;
  RETURN pending;
END $$;

-- Put a message into a run's inbox, and raise the run's `change_seq` by `rise`. Returns the message's place in the
-- inbox, and the queue to notify or NULL; or the id of the message that was sent before with the same idempotency
-- id; all NULL if there is no such run.
CREATE FUNCTION durable_send_1(
  new_id text, to_run text, to_queue text, with_body text, at timestamptz, with_idempotency_id text, rise integer,
  OUT place bigint, OUT queue_to_notify text, OUT before text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  r record;
  is_awaited boolean;
BEGIN
  SELECT queue, state, waiting_for, message_count, lease_expires_at INTO r
  FROM durable_run WHERE id = to_run FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF with_idempotency_id IS NOT NULL THEN
    SELECT id INTO before FROM durable_queuemessage
    WHERE run_id = to_run AND idempotency_id = with_idempotency_id;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  place := r.message_count + 1;
  INSERT INTO durable_queuemessage (id, run_id, queue, body, sent_at, "order", state, received_by, idempotency_id)
  VALUES (new_id, to_run, to_queue, with_body, at, place, 'pending', '', with_idempotency_id);
  is_awaited := (starts_with(r.waiting_for, '*') AND NOT starts_with(to_queue, 'durable.link:'))
    OR strpos(r.waiting_for, '/' || to_queue || '/') > 0;
  UPDATE durable_run SET message_count = place, change_seq = change_seq + rise,
    wake_at = CASE WHEN is_awaited AND state NOT IN ('completed', 'failed', 'cancelled') THEN LEAST(wake_at, at)
      ELSE wake_at END
  WHERE id = to_run;
  IF is_awaited AND r.state NOT IN ('paused', 'completed', 'failed', 'cancelled')
    AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at) THEN
    queue_to_notify := r.queue;
  END IF;
END $$;

-- Put messages into inboxes, in their order. Returns for each what durable_send_1 returns. Locks the runs first,
-- the youngest first, as every function does that locks several: a child is younger than its parent, and the end of
-- a child locks the child, then the parent.
CREATE FUNCTION durable_sends_1(sends json) RETURNS TABLE (place bigint, queue_to_notify text, before text)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  one record;
  receivers text[] := ARRAY(SELECT each.value ->> 'run_id' FROM json_array_elements(sends) AS each);
BEGIN
  PERFORM 1 FROM durable_run WHERE id = ANY(receivers) ORDER BY created_at DESC, id FOR NO KEY UPDATE;
  FOR one IN SELECT * FROM json_to_recordset(sends) AS x(
    number integer, id text, run_id text, queue text, body text, sent_at timestamptz, idempotency_id text
  ) ORDER BY number LOOP
    RETURN QUERY SELECT s.place, s.queue_to_notify, s.before FROM durable_send_1(
      one.id, one.run_id, one.queue, one.body, one.sent_at, one.idempotency_id, 1) AS s;
  END LOOP;
END $$;

-- Write one commit; NULL for a part means that it is absent. Returns the pending request and the queues to notify
-- (JSON); all NULL, with nothing written, for an older fence. The order of the parts matters: what is deleted may be
-- written again, a run must not park for a message that it has just consumed, and it finds what it sends to itself
-- when it parks.
CREATE FUNCTION durable_commit_1(
  of_run text, with_fence bigint, at timestamptz, deleted json, entries json, failures json, consumed json,
  unreceived json, patch jsonb, known_change_seq bigint, sends json,
  witness text, witness_ordinal bigint,
  OUT pending text, OUT queues_to_notify text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  r record;
  new durable_run;
  one record;
  notified text;
  queues text[] := '{}';
  concerned text[];
  awaited text;
  is_overruled boolean := false;
BEGIN
  IF sends IS NOT NULL THEN
    concerned := ARRAY(SELECT each.value ->> 'run_id' FROM json_array_elements(sends) AS each) || of_run;
    IF patch ->> 'finished_at' IS NOT NULL THEN -- the end wakes the parent
      concerned := concerned || (SELECT parent_id::text FROM durable_run WHERE id = of_run);
    END IF;
    PERFORM 1 FROM durable_run WHERE id = ANY(concerned) ORDER BY created_at DESC, id FOR NO KEY UPDATE;
  END IF;
  SELECT d.queue, d.state, d.waiting_for, d.change_seq, d.pending_request, d.state_after_rollback,
    (witness IS NULL OR EXISTS (
    SELECT 1 FROM durable_entry AS e WHERE e.run_id = of_run AND e.location = witness
      AND (e.ordinal = witness_ordinal OR (e.ordinal = ~witness_ordinal AND e.output IS NOT NULL)))) AS is_there INTO r
  FROM durable_run AS d WHERE d.id = of_run AND d.fence = with_fence FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF NOT r.is_there THEN
    PERFORM durable_witness_1(of_run, witness, witness_ordinal);
  END IF;
  pending := r.pending_request;
  IF deleted IS NOT NULL THEN
    concerned := ARRAY(SELECT json_array_elements_text(deleted));
    DELETE FROM durable_attempt WHERE run_id = of_run AND location = ANY(concerned);
    WITH gone AS (DELETE FROM durable_entry WHERE run_id = of_run AND location = ANY(concerned) RETURNING id)
    DELETE FROM durable_entrymetadata WHERE entry_id IN (SELECT id FROM gone);
  END IF;
  IF entries IS NOT NULL THEN
    PERFORM durable_flush_1(of_run, with_fence, entries, NULL, NULL);
  END IF;
  IF failures IS NOT NULL THEN
    INSERT INTO durable_attempt (run_id, location, number, worker, started_at, finished_at, error)
    SELECT of_run, location, number, worker, started_at, finished_at, error FROM json_to_recordset(failures) AS x(
      location text, number integer, worker text, started_at timestamptz, finished_at timestamptz, error text);
  END IF;
  IF consumed IS NOT NULL THEN
    UPDATE durable_queuemessage AS m
    SET state = x.state, received_by = COALESCE(x.received_by, m.received_by), response = x.response
    FROM json_to_recordset(consumed) AS x(id text, state text, received_by text, response text)
    WHERE m.id = x.id AND m.run_id = of_run;
  END IF;
  IF unreceived IS NOT NULL THEN
    concerned := ARRAY(SELECT json_array_elements_text(unreceived));
    UPDATE durable_queuemessage SET state = 'pending', received_by = '', response = NULL
    WHERE run_id = of_run AND received_by = ANY(concerned);
  END IF;
  IF patch IS NOT NULL OR known_change_seq IS NOT NULL THEN
    new := jsonb_populate_record(NULL::durable_run, patch);
    IF known_change_seq IS NOT NULL AND COALESCE(new.state, r.state) NOT IN ('completed', 'failed', 'cancelled') THEN
      awaited := COALESCE(new.waiting_for, r.waiting_for);
      is_overruled := r.change_seq <> known_change_seq OR (awaited <> '' AND EXISTS (
        SELECT 1 FROM durable_queuemessage WHERE run_id = of_run AND state = 'pending'
        AND ((starts_with(awaited, '*') AND NOT starts_with(queue, 'durable.link:'))
          OR strpos(awaited, '/' || queue || '/') > 0)));
    END IF;
    IF new.state = 'paused' AND r.pending_request <> 'pause' AND at IS NOT NULL THEN -- by a pass: no longer requested
      is_overruled := true;
      new.state := CASE WHEN r.state_after_rollback <> '' THEN 'rolling_back' ELSE 'pending' END;
      new.pending_request := NULL;
      new.summary := '';
    END IF;
    IF is_overruled THEN
      queues := ARRAY[r.queue::text];
    END IF;
    UPDATE durable_run SET
      queue = COALESCE(new.queue, queue),
      state = COALESCE(new.state, state),
      output = CASE WHEN patch ? 'output' THEN new.output ELSE output END,
      error = CASE WHEN patch ? 'error' THEN new.error ELSE error END,
      origins = COALESCE(new.origins, origins),
      wake_at = CASE WHEN is_overruled THEN at WHEN patch ? 'wake_at' THEN new.wake_at ELSE wake_at END,
      waiting_for = COALESCE(new.waiting_for, waiting_for),
      summary = COALESCE(new.summary, summary),
      fence = COALESCE(new.fence, fence),
      lease_expires_at = CASE WHEN patch ? 'lease_expires_at' THEN new.lease_expires_at ELSE lease_expires_at END,
      worker = COALESCE(new.worker, worker),
      crashes = COALESCE(new.crashes, crashes),
      change_seq = COALESCE(new.change_seq, change_seq),
      pending_request = COALESCE(new.pending_request, pending_request),
      request_reason = COALESCE(new.request_reason, request_reason),
      state_after_rollback = COALESCE(new.state_after_rollback, state_after_rollback),
      diverged_at = CASE WHEN patch ? 'diverged_at' THEN new.diverged_at ELSE diverged_at END,
      generations = COALESCE(new.generations, generations),
      started_at = CASE WHEN patch ? 'started_at' THEN new.started_at ELSE started_at END,
      finished_at = CASE WHEN patch ? 'finished_at' THEN new.finished_at ELSE finished_at END
    WHERE id = of_run;
    pending := COALESCE(new.pending_request, pending);
  END IF;
  IF sends IS NOT NULL THEN
    FOR one IN SELECT * FROM json_to_recordset(sends) AS x(
      number integer, id text, run_id text, queue text, body text, sent_at timestamptz, idempotency_id text
    ) ORDER BY number LOOP
      SELECT s.queue_to_notify INTO notified FROM durable_send_1(one.id, one.run_id, one.queue, one.body,
        one.sent_at, one.idempotency_id, (one.run_id <> of_run)::integer) AS s;
      IF notified IS NOT NULL AND notified <> ALL (queues) THEN
        queues := queues || notified;
      END IF;
    END LOOP;
  END IF;
  IF queues <> '{}' THEN
    queues_to_notify := array_to_json(queues)::text;
  END IF;
END $$;

-- Write one commit that makes the run failed or holds a step, and the run's failure with its cause and the build of
-- the worker. Returns what durable_commit_1 returns. The lock of the cause keeps it from being deleted meanwhile;
-- failures of one cause do not wait for it.
CREATE FUNCTION durable_fail_2(
  of_run text, with_fence bigint, at timestamptz, deleted json, entries json, failures json, consumed json,
  unreceived json, patch jsonb, known_change_seq bigint, sends json,
  witness text, witness_ordinal bigint, failure json,
  OUT pending text, OUT queues_to_notify text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  f record;
  found_id bigint;
BEGIN
  SELECT c.pending, c.queues_to_notify INTO pending, queues_to_notify FROM durable_commit_1(of_run, with_fence, at,
    deleted, entries, failures, consumed, unreceived, patch, known_change_seq, sends, witness, witness_ordinal) AS c;
  IF pending IS NULL THEN
    RETURN;
  END IF;
  SELECT * INTO f FROM json_to_record(failure) AS x(
    names text[], place text, error_type text, pattern text, first_seen_at timestamptz, workflow text, queue text,
    worker text, failed_at timestamptz, run_created_at timestamptz, is_open boolean, is_held boolean, build text);
  LOOP
    SELECT id INTO found_id FROM durable_cause WHERE fingerprint = ANY(f.names)
    ORDER BY array_position(f.names, fingerprint::text) LIMIT 1 FOR KEY SHARE;
    EXIT WHEN FOUND;
    INSERT INTO durable_cause (fingerprint, place, error_type, pattern, first_seen_at, muted_by)
    VALUES (f.names[1], f.place, f.error_type, f.pattern, f.first_seen_at, '')
    ON CONFLICT (fingerprint) DO NOTHING;
  END LOOP;
  INSERT INTO durable_failure (run_id, cause_id, workflow, queue, worker, failed_at, run_created_at, is_open, is_held,
    build, parent_id)
  VALUES (of_run, found_id, f.workflow, f.queue, f.worker, f.failed_at, f.run_created_at, f.is_open, f.is_held,
    f.build, (SELECT c.parent_id FROM durable_child AS c WHERE c.run_id = of_run))
  ON CONFLICT (run_id) DO UPDATE SET cause_id = EXCLUDED.cause_id, workflow = EXCLUDED.workflow,
    queue = EXCLUDED.queue, worker = EXCLUDED.worker, failed_at = EXCLUDED.failed_at,
    run_created_at = EXCLUDED.run_created_at, is_open = EXCLUDED.is_open, is_held = EXCLUDED.is_held,
    build = EXCLUDED.build, parent_id = EXCLUDED.parent_id;
  IF f.build <> '' THEN
    INSERT INTO durable_causebuild (cause_id, build, first_seen_at) VALUES (found_id, f.build, f.first_seen_at)
    ON CONFLICT (cause_id, build) DO NOTHING;
  END IF;
END $$;

-- Write the end of a completed run where nothing else is to be written. Returns the same as durable_record_1.
CREATE FUNCTION durable_complete_1(
  of_run text, with_fence bigint, at timestamptz, with_output text,
  witness text, witness_ordinal bigint
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
BEGIN
  IF witness IS NOT NULL AND witness_ordinal IS NULL THEN
    PERFORM 1 FROM durable_run WHERE id = of_run AND fence = with_fence FOR NO KEY UPDATE;
    IF FOUND THEN
      PERFORM durable_witness_1(of_run, witness, NULL);
    END IF;
    witness := NULL;
  END IF;
  UPDATE durable_run SET state = 'completed', output = with_output, error = NULL, origins = '[]', wake_at = NULL,
    waiting_for = '', summary = '', lease_expires_at = NULL, worker = '', pending_request = '', diverged_at = NULL,
    finished_at = at
  WHERE id = of_run AND fence = with_fence AND (witness IS NULL OR EXISTS (
    SELECT 1 FROM durable_entry AS e WHERE e.run_id = of_run AND e.location = witness
      AND (e.ordinal = witness_ordinal OR (e.ordinal = ~witness_ordinal AND e.output IS NOT NULL))));
  IF FOUND THEN
    RETURN '';
  END IF;
  IF EXISTS (SELECT 1 FROM durable_run WHERE id = of_run AND fence = with_fence) THEN
    PERFORM durable_witness_1(of_run, witness, witness_ordinal);
  END IF;
  RETURN NULL;
END $$;
