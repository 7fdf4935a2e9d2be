-- The start of a run under a key on PostgreSQL: the key and the run are one statement.

-- Insert a new run with a key, as durable_start_2 does it, unless the id is taken or an open run of the workflow has
-- the key. `summary` is what durable_start_2 returns of a new run; otherwise `holder` is the run that has the id, or
-- else the key. The insert waits for a run that is ending, and for another start: what they commit decides.
CREATE FUNCTION durable_start_keyed_1(
  new_id text, of_workflow text, on_queue text, with_input text, at timestamptz, due timestamptz, by_parent text,
  of_replay text, with_key text, OUT summary text, OUT holder text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  LOOP
    INSERT INTO durable_runkey (run_id, workflow, key, is_open, taken_at, moves)
    VALUES (new_id, of_workflow, with_key, true, at, 0) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      summary := durable_start_2(new_id, of_workflow, on_queue, with_input, at, due, by_parent, of_replay);
      IF summary IS NULL THEN
        DELETE FROM durable_runkey WHERE run_id = new_id;
        holder := new_id;
      END IF;
      RETURN;
    END IF;
    SELECT id INTO holder FROM durable_run WHERE id = new_id;
    IF FOUND THEN
      RETURN;
    END IF;
    SELECT run_id INTO holder FROM durable_runkey WHERE workflow = of_workflow AND key = with_key AND is_open;
    IF FOUND THEN
      RETURN;
    END IF;
    -- the key of an earlier run of this id, which was deleted behind the engine's back
    DELETE FROM durable_runkey AS k WHERE k.run_id = new_id
      AND NOT EXISTS (SELECT 1 FROM durable_run WHERE id = new_id);
  END LOOP;
END $$;

-- Insert a new run that carries something (`durable.carriers`): as durable_start_2 does it, or with a key as
-- durable_start_keyed_1 does. Other starts do not call it, so that they pay nothing for it.
CREATE FUNCTION durable_start_carried_1(
  new_id text, of_workflow text, on_queue text, with_input text, at timestamptz, due timestamptz, by_parent text,
  of_replay text, carrying text, with_key text, OUT summary text, OUT holder text
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  IF with_key IS NULL THEN
    summary := durable_start_2(new_id, of_workflow, on_queue, with_input, at, due, by_parent, of_replay);
  ELSE
    SELECT k.summary, k.holder INTO summary, holder FROM durable_start_keyed_1(
      new_id, of_workflow, on_queue, with_input, at, due, by_parent, of_replay, with_key) AS k;
  END IF;
  IF summary IS NOT NULL THEN
    UPDATE durable_run SET carried = carrying WHERE id = new_id;
  END IF;
END $$;
