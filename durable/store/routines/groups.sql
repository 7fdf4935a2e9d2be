-- The end of a child of a group on PostgreSQL: it is counted, and the next child begins, in the commit of that end.
--
-- The rules are those of `durable.store.rules.child_rules`.

-- Count the end of a child in its group, and let the next children begin, unless a failure has stopped them, or
-- their parent has ended. Returns the group if its parent is to be woken: all have ended, or the first one has
-- failed. The caller has the child's row locked; the rows of others that another transaction has locked are passed
-- over. Where the next one is of another queue, whose workers may be idle, a setting local to the transaction tells
-- it the commit.
CREATE FUNCTION durable_member_ended_1(of_child text, of_group text, how text, at timestamptz) RETURNS text
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET enable_bitmapscan TO off SET enable_sort TO off AS $$
DECLARE
  t record;
  g record;
  one record;
  r record;
  queues text[] := '{}';
  had_turn boolean := true;
  begun integer := 0;
  passed_over bigint;
  room integer;
  upto bigint;
  stops boolean;
BEGIN
  SELECT * INTO t FROM durable_grouptally WHERE group_id = of_group FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  PERFORM 1 FROM durable_child WHERE run_id = of_child AND member_of IS DISTINCT FROM of_group;
  IF FOUND THEN -- another child has taken its place meanwhile
    RETURN NULL;
  END IF;
  IF t.waiting > 0 THEN
    DELETE FROM durable_turn WHERE run_id = of_child;
    had_turn := NOT FOUND;
  END IF;
  SELECT * INTO g FROM durable_childgroup WHERE id = of_group;
  stops := t.is_stopped OR (how <> 'completed' AND g.on_failure = 'stop');
  t.running := t.running - had_turn::integer;
  t.waiting := t.waiting - (NOT had_turn)::integer;
  IF t.waiting > 0 AND NOT stops AND NOT g.is_over THEN
    room := COALESCE(g.at_once, t.waiting + t.running) - t.running;
    IF g.when_held = 'free' THEN -- held children give their places up
      room := room + (SELECT count(*) FROM durable_failure AS f JOIN durable_child AS c ON c.run_id = f.run_id
        WHERE f.parent_id = g.parent_id AND f.is_held AND c.member_of = of_group);
    END IF;
    room := LEAST(t.waiting, room);
    IF room > 0 AND (g.when_parent_ends <> 'cancel' OR EXISTS (
      SELECT 1 FROM durable_run WHERE id = g.parent_id AND finished_at IS NULL
    )) THEN
      -- in the order of the index: a plan that is made while there are few turns would sort all of them for the first one
      -- mostly it is the one behind the last; a search that has no end nearby reads a whole page of the index
      FOREACH upto IN ARRAY ARRAY[t.turns_from + 1, 9223372036854775807] LOOP
        EXIT WHEN begun = room;
        FOR one IN SELECT w.run_id, w.due_at, w.position FROM durable_turn AS w
          WHERE w.group_id = of_group AND w.position >= t.turns_from AND w.position <= upto ORDER BY w.position
        LOOP
          SELECT state, queue INTO r FROM durable_run WHERE id = one.run_id FOR NO KEY UPDATE SKIP LOCKED;
          IF NOT FOUND THEN
            passed_over := COALESCE(passed_over, one.position);
            CONTINUE;
          END IF;
          t.turns_from := one.position;
          IF r.state = 'pending' THEN
            UPDATE durable_run SET wake_at = LEAST(wake_at, GREATEST(one.due_at, at)) WHERE id = one.run_id;
            IF one.due_at <= at AND r.queue <> ALL (queues) THEN
              queues := queues || r.queue::text;
            END IF;
          END IF;
          DELETE FROM durable_turn WHERE run_id = one.run_id;
          begun := begun + 1;
          EXIT WHEN begun = room;
        END LOOP;
      END LOOP;
      IF queues <> '{}' THEN
        queues := queues || COALESCE(NULLIF(current_setting('durable.queues', true), '')::text[], '{}');
        PERFORM set_config('durable.queues', queues::text, true);
      END IF;
    END IF;
  END IF;
  UPDATE durable_grouptally SET waiting = t.waiting - begun, running = t.running + begun,
    completed = completed + (how = 'completed')::integer,
    failed = failed + (how = 'failed')::integer,
    cancelled = cancelled + (how = 'cancelled')::integer, is_stopped = stops,
    turns_from = COALESCE(passed_over, t.turns_from)
  WHERE group_id = of_group;
  IF g.is_over THEN -- the parent may wait until the open ones are cancelled or compensated
    RETURN CASE WHEN t.waiting + t.running = 0 THEN of_group END;
  END IF;
  IF NOT t.is_stopped AND (stops
    OR (t.created = g.size AND t.completed + t.failed + t.cancelled + 1 = g.size)) THEN
    RETURN of_group;
  END IF;
  RETURN NULL;
END $$;

-- The row of a child is deleted: where its run has not ended, it counts as cancelled.
CREATE FUNCTION durable_member_gone_1() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  woken text;
BEGIN
  IF EXISTS (SELECT 1 FROM durable_run WHERE id = OLD.run_id AND finished_at IS NULL) THEN
    woken := durable_member_ended_1(OLD.run_id, OLD.member_of, 'cancelled', now());
    IF woken IS NOT NULL THEN
      PERFORM durable_wake_parent_1(woken, OLD.parent_id, now());
    END IF;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER durable_member_gone AFTER DELETE ON durable_child FOR EACH ROW WHEN (OLD.member_of IS NOT NULL)
  EXECUTE FUNCTION durable_member_gone_1();
