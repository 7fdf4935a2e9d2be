-- Slots of limits on PostgreSQL: taking them, waiting in line, handing them on.
--
-- Every function that counts or changes the slots of a key has the key's row in durable_limitkey locked. Rows of runs
-- are locked before rows of keys: the one function that touches another run's row while it has a key's locks it only if
-- no other transaction has, and leaves a note for the sweep otherwise. Several keys are locked in their order. So no
-- two of them wait for each other.

-- Lock the row of a key, which is inserted if there is none. Without `may_wait`: false if another transaction has it
-- locked.
CREATE FUNCTION durable_lock_limit_1(of_limit text, of_key text, may_wait boolean) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  LOOP
    IF may_wait THEN
      PERFORM 1 FROM durable_limitkey WHERE "limit" = of_limit AND key = of_key FOR UPDATE;
    ELSE
      PERFORM 1 FROM durable_limitkey WHERE "limit" = of_limit AND key = of_key FOR UPDATE SKIP LOCKED;
    END IF;
    IF FOUND THEN
      RETURN true;
    END IF;
    IF NOT may_wait THEN
      RETURN false;
    END IF;
    INSERT INTO durable_limitkey ("limit", key) VALUES (of_limit, of_key) ON CONFLICT DO NOTHING;
  END LOOP;
END $$;

-- Make a run due that has a slot by now, if no other transaction has its row locked; otherwise note it. A run whose
-- queue was paused meanwhile, and that no worker executes, is put back to the head of the line. Returns the queue to
-- notify, NULL for none, and '' where it has left a note.
CREATE FUNCTION durable_tell_of_slot_1(of_run text, of_limit text, of_key text, at timestamptz) RETURNS text
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  r record;
BEGIN
  SELECT queue, state, finished_at, lease_expires_at INTO r FROM durable_run WHERE id = of_run
  FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    INSERT INTO durable_slotnote ("limit", key, run_id) VALUES (of_limit, of_key, of_run);
    RETURN '';
  END IF;
  IF r.state = 'paused' THEN
    -- it was paused when the slot was on its way to it: others are to have what it does not use
    WITH gone AS (DELETE FROM durable_slot WHERE run_id = of_run AND is_held AND kind <> 'open'
      RETURNING "limit", key)
    INSERT INTO durable_slotnote ("limit", key, run_id) SELECT DISTINCT "limit", key, '' FROM gone;
  END IF;
  IF r.finished_at IS NOT NULL OR r.state = 'paused' THEN
    RETURN NULL;
  END IF;
  IF (r.lease_expires_at IS NULL OR r.lease_expires_at <= at)
    AND EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = r.queue) THEN
    WITH gone AS (DELETE FROM durable_slot WHERE run_id = of_run AND is_held AND kind <> 'open'
      RETURNING location, "limit", key, kind, since),
    noted AS (INSERT INTO durable_slotnote ("limit", key, run_id) SELECT DISTINCT "limit", key, '' FROM gone)
    INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
    SELECT DISTINCT ON (g.location) of_run, g.location, g."limit", g.key, g.kind, false,
      (SELECT COALESCE(min(s.place), 1) - 1 FROM durable_slot AS s
        WHERE s."limit" = g."limit" AND s.key = g.key AND NOT s.is_held), g.since,
      (SELECT json_agg(json_build_array(w."limit", w.key, w.kind) ORDER BY w."limit", w.key)::text
        FROM gone AS w WHERE w.location = g.location)
    FROM gone AS g ORDER BY g.location, g."limit", g.key;
    RETURN NULL;
  END IF;
  UPDATE durable_run SET wake_at = LEAST(wake_at, at) WHERE id = of_run;
  RETURN CASE WHEN r.lease_expires_at IS NULL OR r.lease_expires_at <= at THEN r.queue END;
END $$;

-- Give free slots of a key to the first in its line. Without `may_wait`, leave it to the sweep if another
-- transaction has the key locked. A run that is paused, or whose queue is, keeps its place and is passed by. Returns
-- the queues to notify.
CREATE FUNCTION durable_hand_on_1(of_limit text, of_key text, at timestamptz, may_wait boolean) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  most integer;
  number bigint;
  head record;
  other record;
  full_one record;
  queues text[] := '{}';
BEGIN
  IF NOT durable_lock_limit_1(of_limit, of_key, may_wait) THEN
    INSERT INTO durable_slotnote ("limit", key, run_id) VALUES (of_limit, of_key, '');
    RETURN queues;
  END IF;
  PERFORM 1 FROM durable_slot WHERE "limit" = of_limit AND key = of_key AND NOT is_held LIMIT 1;
  IF NOT FOUND THEN
    RETURN queues;
  END IF;
  SELECT COALESCE(override, at_once) INTO most FROM durable_limit WHERE name = of_limit;
  SELECT count(*) INTO number FROM durable_slot WHERE "limit" = of_limit AND key = of_key AND is_held;
  <<line>>
  WHILE number < most LOOP
    SELECT s.id, s.run_id, s.location, s.wants INTO head FROM durable_slot AS s JOIN durable_run AS r ON r.id = s.run_id
    WHERE s."limit" = of_limit AND s.key = of_key AND NOT s.is_held
      AND r.state <> 'paused' AND r.finished_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = r.queue)
    ORDER BY s.place LIMIT 1 FOR UPDATE OF s SKIP LOCKED;
    IF NOT FOUND THEN
      -- a place that somebody has locked is that of a run which is ending: if it goes on nevertheless, it is next
      INSERT INTO durable_slotnote ("limit", key, run_id) SELECT of_limit, of_key, '' WHERE EXISTS (
        SELECT 1 FROM durable_slot AS s JOIN durable_run AS r ON r.id = s.run_id
        WHERE s."limit" = of_limit AND s.key = of_key AND NOT s.is_held
          AND r.state <> 'paused' AND r.finished_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = r.queue));
      EXIT line;
    END IF;
    full_one := NULL;
    FOR other IN SELECT x ->> 0 AS "limit", x ->> 1 AS key FROM json_array_elements(head.wants::json) AS x
      WHERE (x ->> 0, x ->> 1) <> (of_limit, of_key) AND NOT EXISTS (
        SELECT 1 FROM durable_slot AS s WHERE s.run_id = head.run_id AND s.location = head.location
          AND s."limit" = x ->> 0 AND s.key = x ->> 1 AND s.is_held) ORDER BY 1, 2
    LOOP
      IF NOT durable_lock_limit_1(other."limit", other.key, false) THEN
        INSERT INTO durable_slotnote ("limit", key, run_id) VALUES (of_limit, of_key, '');
        EXIT line;
      END IF;
      IF (SELECT count(*) FROM durable_slot WHERE "limit" = other."limit" AND key = other.key AND is_held)
        >= (SELECT COALESCE(override, at_once) FROM durable_limit WHERE name = other."limit") THEN
        full_one := other;
        EXIT;
      END IF;
    END LOOP;
    IF full_one IS NOT NULL THEN
      UPDATE durable_slot SET "limit" = full_one."limit", key = full_one.key, place = 1 + (
        SELECT COALESCE(max(place), 0) FROM durable_slot
        WHERE "limit" = full_one."limit" AND key = full_one.key AND NOT is_held) WHERE id = head.id;
      CONTINUE;
    END IF;
    DELETE FROM durable_slot WHERE id = head.id;
    INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
    SELECT head.run_id, head.location, x ->> 0, x ->> 1, x ->> 2, true, 0, at, '[]'
    FROM json_array_elements(head.wants::json) AS x
    WHERE NOT EXISTS (SELECT 1 FROM durable_slot AS s WHERE s.run_id = head.run_id AND s.location = head.location
      AND s."limit" = x ->> 0 AND s.key = x ->> 1);
    number := number + 1;
    queues := queues || durable_tell_of_slot_1(head.run_id, of_limit, of_key, at);
  END LOOP;
  RETURN array_remove(queues, NULL);
END $$;

-- Return the line in which a run has a place. A transaction that is about nothing else (`is_alone`) does not wait
-- for the disk while it has the key locked: the commit that parks the run is behind it in the log, and waits for
-- both. If the server dies before, the run has neither its place nor parked, and asks again.
CREATE FUNCTION durable_line_1(
  of_limit text, of_key text, own_place bigint, held bigint, most integer, is_alone boolean
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  found text;
BEGIN
  IF is_alone THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  SELECT json_build_array(of_limit, of_key, 1 + count(*), held, most)::text INTO found FROM (
    SELECT 1 FROM durable_slot WHERE "limit" = of_limit AND key = of_key AND NOT is_held AND place < own_place
    LIMIT 1000) AS before;
  RETURN found;
END $$;

-- Take slots for an operation of a run: all of them, or a place in the line of the first that is full. `slots` is a
-- JSON array of limit, key, kind and the number of a limit that is not defined yet, in the order of limits and keys.
-- `is_ours` is NULL for an older fence. `undefined` is a limit that is not defined. Otherwise `line` is NULL where
-- the run has its slots, or the limit, key, place, number held and number allowed of the line in which it waits.
-- `is_alone`: the transaction is about nothing else.
CREATE FUNCTION durable_acquire_1(
  of_run text, with_fence bigint, at_location text, slots json, at timestamptz, is_alone boolean,
  OUT is_ours boolean, OUT undefined text, OUT line text, OUT queues_to_notify text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  w record;
  mine record;
  most integer;
  own bigint;
  number bigint;
  new_place bigint;
  queues text[] := '{}';
BEGIN
  SELECT count(*), count(*) FILTER (WHERE s.is_held
    AND EXISTS (SELECT 1 FROM json_array_elements(slots) AS x WHERE (x ->> 0, x ->> 1) = (s."limit", s.key)))
  INTO own, number FROM durable_slot AS s WHERE s.run_id = of_run AND s.location = at_location;
  IF own = json_array_length(slots) AND number = own THEN
    -- it was handed all that it wants: nothing is written or locked. Nobody else takes them away while the fence is this one
    SELECT true INTO is_ours FROM durable_run WHERE id = of_run AND fence = with_fence;
    RETURN;
  END IF;
  PERFORM 1 FROM durable_run WHERE id = of_run AND fence = with_fence FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  is_ours := true;
  IF own = 0 AND json_array_length(slots) = 1 THEN
    -- mostly there is one limit. The rest of this function would do the same for a free slot that nobody waits for, and
    -- for a full limit with a line
    SELECT k."limit", k.key, slots -> 0 ->> 2 AS kind INTO w FROM durable_limitkey AS k
    WHERE k."limit" = slots -> 0 ->> 0 AND k.key = slots -> 0 ->> 1 FOR UPDATE;
    IF FOUND THEN
      -- one statement instead of three: this is what a run with a limit pays for
      SELECT COALESCE(override, at_once),
        (SELECT count(*) FROM durable_slot WHERE "limit" = w."limit" AND key = w.key AND is_held),
        (SELECT 1 + max(place) FROM durable_slot WHERE "limit" = w."limit" AND key = w.key AND NOT is_held)
      INTO most, number, new_place FROM durable_limit WHERE name = w."limit";
      IF new_place IS NULL AND number < most THEN
        INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
        VALUES (of_run, at_location, w."limit", w.key, w.kind, true, 0, at, '[]');
        RETURN;
      END IF;
      IF new_place IS NOT NULL AND number >= most THEN
        -- an operator who changes the number notes this key: the line is there, and was seen before or with the new number
        INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
        VALUES (of_run, at_location, w."limit", w.key, w.kind, false, new_place, at, slots::text);
        line := durable_line_1(w."limit", w.key, new_place, number, most, is_alone);
        RETURN;
      END IF;
    END IF;
  END IF;
  FOR w IN SELECT x ->> 0 AS "limit", x ->> 1 AS key, (x ->> 3)::integer AS at_once
    FROM json_array_elements(slots) AS x
  LOOP
    PERFORM 1 FROM durable_limit WHERE name = w."limit";
    IF NOT FOUND THEN
      IF w.at_once IS NULL THEN
        undefined := w."limit";
        RETURN;
      END IF;
      INSERT INTO durable_limit (name, at_once) VALUES (w."limit", w.at_once) ON CONFLICT DO NOTHING;
    END IF;
    queues := queues || durable_hand_on_1(w."limit", w.key, at, true);
  END LOOP;
  IF queues <> '{}' THEN
    queues_to_notify := array_to_json(queues)::text;
  END IF;
  -- of an earlier attempt of another version of the code, which wanted others
  WITH gone AS (
    DELETE FROM durable_slot AS s WHERE s.run_id = of_run AND s.location = at_location AND s.is_held
      AND NOT EXISTS (SELECT 1 FROM json_array_elements(slots) AS x WHERE (x ->> 0, x ->> 1) = (s."limit", s.key))
    RETURNING s."limit", s.key)
  INSERT INTO durable_slotnote ("limit", key, run_id) SELECT "limit", key, '' FROM gone;
  SELECT id, "limit", key, place INTO mine FROM durable_slot
  WHERE run_id = of_run AND location = at_location AND NOT is_held;
  FOR w IN SELECT x ->> 0 AS "limit", x ->> 1 AS key FROM json_array_elements(slots) AS x LOOP
    CONTINUE WHEN EXISTS (SELECT 1 FROM durable_slot
      WHERE run_id = of_run AND location = at_location AND "limit" = w."limit" AND key = w.key AND is_held);
    SELECT COALESCE(override, at_once) INTO most FROM durable_limit WHERE name = w."limit";
    SELECT count(*) INTO number FROM durable_slot WHERE "limit" = w."limit" AND key = w.key AND is_held;
    IF number >= most THEN
      -- an operator who changes the number notes the lines that there are: this place is seen, or the new number is
      SELECT COALESCE(override, at_once) INTO most FROM durable_limit WHERE name = w."limit" FOR SHARE;
    END IF;
    IF number >= most OR EXISTS (
      SELECT 1 FROM durable_slot AS s JOIN durable_run AS r ON r.id = s.run_id
      WHERE s."limit" = w."limit" AND s.key = w.key AND NOT s.is_held AND (mine.id IS NULL OR s.id <> mine.id)
        AND r.state <> 'paused' AND r.finished_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = r.queue)
        AND (mine.id IS NULL OR (mine."limit", mine.key) <> (w."limit", w.key) OR s.place < mine.place)
    ) THEN
      IF mine.id IS NULL OR (mine."limit", mine.key) <> (w."limit", w.key) THEN
        SELECT 1 + COALESCE(max(place), 0) INTO new_place FROM durable_slot
        WHERE "limit" = w."limit" AND key = w.key AND NOT is_held;
        IF mine.id IS NULL THEN
          INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
          SELECT of_run, at_location, w."limit", w.key, x ->> 2, false, new_place, at, slots::text
          FROM json_array_elements(slots) AS x WHERE (x ->> 0, x ->> 1) = (w."limit", w.key);
        ELSE
          UPDATE durable_slot SET "limit" = w."limit", key = w.key, place = new_place, wants = slots::text
          WHERE id = mine.id;
        END IF;
      ELSE
        new_place := mine.place;
      END IF;
      line := durable_line_1(w."limit", w.key, new_place, number, most, is_alone);
      RETURN;
    END IF;
  END LOOP;
  DELETE FROM durable_slot WHERE id = mine.id;
  INSERT INTO durable_slot (run_id, location, "limit", key, kind, is_held, place, since, wants)
  SELECT of_run, at_location, x ->> 0, x ->> 1, x ->> 2, true, 0, at, '[]' FROM json_array_elements(slots) AS x
  WHERE NOT EXISTS (SELECT 1 FROM durable_slot AS s
    WHERE s.run_id = of_run AND s.location = at_location AND s."limit" = x ->> 0 AND s.key = x ->> 1);
END $$;

-- Write what a commit does to the slots of its run, after everything else: give some up, hand them on, and make the
-- run due if it parks for slots that are its own by now. The end of the run has noted what it gave up, or left it to
-- this function if the same statement calls both: `durable.gives_up` has the run then. Returns the queues to notify, as
-- JSON.
CREATE FUNCTION durable_change_slots_1(
  of_run text, at timestamptz, released json, is_left boolean, awaited json
) RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  k record;
  queues text[] := '{}';
  own text;
  has_ended boolean := COALESCE(current_setting('durable.gives_up', true), '') = '*' || of_run;
BEGIN
  PERFORM set_config('durable.gives_up', '', true);
  FOR k IN
    WITH gone AS (
      DELETE FROM durable_slot WHERE run_id = of_run
        AND (has_ended OR location IN (SELECT json_array_elements_text(released))
          OR (is_left AND is_held AND kind <> 'open' AND location NOT IN (SELECT json_array_elements_text(awaited))))
      RETURNING "limit", key),
    noted AS (DELETE FROM durable_slotnote WHERE run_id = of_run RETURNING "limit", key)
    SELECT "limit", key FROM gone UNION SELECT "limit", key FROM noted ORDER BY 1, 2
  LOOP
    queues := queues || durable_hand_on_1(k."limit", k.key, at, true);
  END LOOP;
  IF EXISTS (
    SELECT 1 FROM json_array_elements_text(awaited) AS a(location) WHERE NOT EXISTS (
      SELECT 1 FROM durable_slot AS s WHERE s.run_id = of_run AND s.location = a.location AND NOT s.is_held)
  ) THEN
    UPDATE durable_run SET wake_at = at WHERE id = of_run AND finished_at IS NULL AND state <> 'paused'
    RETURNING queue INTO own;
    queues := queues || own;
  END IF;
  RETURN CASE WHEN queues <> '{}' THEN array_to_json(array_remove(queues, NULL))::text END;
END $$;

-- Do what is noted, at most so much of it; and take slots back that runs of paused queues have and no worker may use.
-- Those are looked for as long as a queue is paused: whoever has handed them on may not have seen that, and a worker may
-- have had the run. Returns the queues to notify, as JSON, and how much was done.
CREATE FUNCTION durable_sweep_slots_1(at timestamptz, most integer, OUT queues_to_notify text, OUT number integer)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  k record;
  queues text[] := '{}';
BEGIN
  number := 0;
  IF EXISTS (SELECT 1 FROM durable_hold WHERE kind = 'queue') THEN
    FOR k IN SELECT DISTINCT s."limit", s.key, s.run_id FROM durable_limit AS l
      JOIN durable_slot AS s ON s."limit" = l.name AND s.is_held AND s.kind <> 'open'
      JOIN durable_run AS r ON r.id = s.run_id AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at)
      JOIN durable_hold AS h ON h.kind = 'queue' AND h.name = r.queue ORDER BY 1, 2, 3 LIMIT most
    LOOP
      IF durable_lock_limit_1(k."limit", k.key, false) THEN
        PERFORM durable_tell_of_slot_1(k.run_id, k."limit", k.key, at);
      END IF;
    END LOOP;
  END IF;
  FOR k IN SELECT id, "limit", key, run_id FROM durable_slotnote ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED LOOP
    DELETE FROM durable_slotnote WHERE id = k.id;
    IF k.run_id <> '' AND EXISTS (SELECT 1 FROM durable_slot
      WHERE run_id = k.run_id AND "limit" = k."limit" AND key = k.key AND is_held)
    THEN
      queues := queues || durable_tell_of_slot_1(k.run_id, k."limit", k.key, at);
    ELSIF k.run_id <> '' AND EXISTS (SELECT 1 FROM durable_reservation
      WHERE run_id = k.run_id AND "limit" = k."limit" AND key = k.key)
    THEN
      -- its moment was moved: it looks again, also if its pass is about to park until the moment before
      queues := queues || durable_tell_of_slot_1(k.run_id, k."limit", k.key, at);
      UPDATE durable_run SET change_seq = change_seq + 1 WHERE id = (
        SELECT id FROM durable_run WHERE id = k.run_id AND lease_expires_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    IF EXISTS (SELECT 1 FROM durable_limitkey WHERE "limit" = k."limit" AND key = k.key) THEN
      queues := queues || durable_hand_on_1(k."limit", k.key, at, false);
    END IF;
    number := number + 1;
  END LOOP;
  IF queues <> '{}' THEN
    queues_to_notify := array_to_json(array_remove(queues, NULL))::text;
  END IF;
END $$;
