-- The rank of runs on PostgreSQL: start tags of shares, and the claim of due runs by rank.

-- Move a share by this number of runs of this weight. Returns the start tag of the first of them
-- (`durable.core.limits.ranks.tagged`). A start waits for another start of the share. A claim, which does not wait, leaves
-- a share that another transaction has locked where it is.
CREATE FUNCTION durable_tag_1(
  on_queue text, of_share text, of_weight float8, number integer, at timestamptz, waits boolean
) RETURNS timestamptz LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  served timestamptz;
  present bigint;
  span interval := make_interval(secs => number / of_weight);
  found_id bigint;
  tag_before timestamptz;
  first timestamptz;
BEGIN
  SELECT s.tag, s.round INTO served, present FROM durable_share AS s WHERE s.queue = on_queue AND s.share = '';
  IF NOT FOUND AND waits THEN
    INSERT INTO durable_share (queue, share, tag, round) VALUES (on_queue, '', CASE WHEN number > 0 THEN at END, 0)
    ON CONFLICT DO NOTHING;
  ELSIF FOUND AND served IS NULL AND number > 0 THEN -- from now on runs wait
    SELECT s.id INTO found_id FROM durable_share AS s WHERE s.queue = on_queue AND s.share = '' AND s.tag IS NULL
    FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE durable_share AS s SET tag = at WHERE s.id = found_id;
    END IF;
  END IF;
  IF number = 0 THEN -- claims give the tags; an insert beside a row that somebody updates would wait for that
    IF NOT EXISTS (SELECT 1 FROM durable_share AS s WHERE s.queue = on_queue AND s.share = of_share) THEN
      INSERT INTO durable_share (queue, share, round) VALUES (on_queue, of_share, 0) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
  END IF;
  served := LEAST(COALESCE(served, at), at);
  present := COALESCE(present, 0);
  IF waits THEN
    INSERT INTO durable_share AS s (queue, share, tag, round) VALUES (on_queue, of_share, served + span, present)
    ON CONFLICT (queue, share) DO UPDATE SET
      tag = CASE WHEN s.round >= present THEN GREATEST(s.tag, served) ELSE served END + span,
      round = GREATEST(s.round, present)
    RETURNING s.tag - span INTO first;
    RETURN first;
  END IF;
  SELECT CASE WHEN s.round >= present THEN s.tag END INTO tag_before FROM durable_share AS s
  WHERE s.queue = on_queue AND s.share = of_share;
  first := GREATEST(tag_before, served);
  SELECT s.id INTO found_id FROM durable_share AS s WHERE s.queue = on_queue AND s.share = of_share
  FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE durable_share AS s SET
      tag = CASE WHEN s.round >= present THEN GREATEST(s.tag, served) ELSE served END + span,
      round = GREATEST(s.round, present)
    WHERE s.id = found_id RETURNING s.tag - span INTO first;
  END IF;
  RETURN first;
END $$;

-- Give new runs of one queue, in this order, a head start and a share. Those that are due have their start tags from
-- now on. Others get them from the claim that finds them due, and so do runs that another run has started: a commit
-- of that one's worker does not wait for a start.
CREATE FUNCTION durable_rank_1(
  runs text[], on_queue text, of_priority text, seconds integer, of_share text, of_weight float8,
  at timestamptz
) RETURNS void LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  due text[];
  first timestamptz;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM durable_lane AS l WHERE l.queue = on_queue AND l.head_start = seconds) THEN
    INSERT INTO durable_lane (queue, head_start) VALUES (on_queue, seconds) ON CONFLICT DO NOTHING;
  END IF;
  INSERT INTO durable_runrank (run_id, priority, head_start, share, weight)
  SELECT each, of_priority, seconds, of_share, of_weight FROM unnest(runs) AS each;
  IF of_share = '' THEN
    UPDATE durable_run AS r SET head_start = seconds FROM unnest(runs) AS each WHERE r.id = each;
    RETURN;
  END IF;
  due := ARRAY(
    SELECT r.id FROM unnest(runs) WITH ORDINALITY AS x(id, place) JOIN durable_run AS r ON r.id = x.id
    WHERE r.wake_at <= at AND r.state <> 'paused' AND r.parent_id IS NULL ORDER BY x.place);
  first := durable_tag_1(on_queue, of_share, of_weight, cardinality(due), at, true);
  UPDATE durable_run AS r SET head_start = seconds,
    start_tag = COALESCE(first + make_interval(secs => (d.place - 1) / of_weight), '9999-01-01Z')
  FROM unnest(runs) AS each LEFT JOIN unnest(due) WITH ORDINALITY AS d(id, place) ON d.id = each WHERE r.id = each;
END $$;

-- Give a new child a ranking: what its start says (`given`, NULL for nothing), and for the rest what its parent has
-- (`durable.core.limits.ranks.inherited`).
CREATE FUNCTION durable_rank_child_1(
  of_run text, on_queue text, by_parent text, given json, at timestamptz
) RETURNS void LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
DECLARE
  p record;
  g record;
BEGIN
  SELECT k.priority, k.head_start, k.share, k.weight INTO p FROM durable_runrank AS k WHERE k.run_id = by_parent;
  IF NOT FOUND AND given IS NULL THEN
    RETURN;
  END IF;
  SELECT * INTO g FROM json_to_record(COALESCE(given, '{}')) AS x(
    priority text, head_start integer, share text, weight double precision);
  IF COALESCE(g.priority, '') = '' THEN
    g.priority := COALESCE(p.priority, '');
    g.head_start := COALESCE(p.head_start, 0);
  END IF;
  IF COALESCE(g.share, '') = '' THEN
    g.share := COALESCE(p.share, '');
    g.weight := COALESCE(p.weight, 1);
  END IF;
  PERFORM durable_rank_1(ARRAY[of_run], on_queue, g.priority, g.head_start, g.share, g.weight, at);
END $$;

-- Claim due runs of a queue in which a run has had a priority or a share, in the order of rank. Each part is read in
-- the order of its index: a plan that is made while few runs are due would sort all that is in an index, and under
-- an old snapshot what ended runs have left there. The function
-- 
-- 1. gives start tags to runs of shares that have become due;
-- 2. reads the first due runs without a lock: those without a rank, and of each lane those with a tag and others;
-- 3. locks the first of them by rank, skips what another transaction has locked, and reads again if that was all.
-- 
-- The last row also has the points at which the next search may begin: that of runs without a rank, and that of the
-- others.
CREATE FUNCTION durable_claim_ranked_1(
  on_queue text, at timestamptz, until timestamptz, by_worker text, at_most integer, since timestamptz, since_id text,
  since_ranked timestamptz
) RETURNS TABLE (
  run durable_run, rank timestamptz, visited bigint, next_at timestamptz, next_id text, next_ranked timestamptz
)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET enable_bitmapscan TO off SET enable_sort TO off AS $$
DECLARE
  visited_before bigint := durable_visited_1('durable_run_due') + durable_visited_1('durable_run_ranked');
  first_moment timestamptz := COALESCE(since, '-infinity');
  first_id text := COALESCE(since_id, '');
  ahead integer := at_most + 32;
  first_ranked timestamptz := COALESCE(since_ranked, '-infinity');
  first_tag timestamptz := '-infinity';
  last_tagged timestamptz;
  one record;
  said record;
  ids text[];
  wakes timestamptz[];
  ranks timestamptz[];
  tags timestamptz[];
  is_plain boolean[];
  taken text[] := '{}';
  served timestamptz;
  left_tagged integer;
  share_id bigint;
BEGIN
  FOR one IN
    SELECT d.id, d.wake_at FROM durable_lane AS l CROSS JOIN LATERAL (
      SELECT r.id, r.wake_at FROM durable_run AS r
      WHERE r.queue = on_queue AND r.head_start = l.head_start AND r.start_tag = '9999-01-01Z'
        AND r.wake_at IS NOT NULL AND r.wake_at <= at AND r.wake_at >= first_ranked
        AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at) AND r.state <> 'paused'
      ORDER BY r.start_tag, r.wake_at, r.id LIMIT 100) AS d
    WHERE l.queue = on_queue ORDER BY d.wake_at, d.id
  LOOP
    last_tagged := one.wake_at;
    PERFORM 1 FROM durable_run AS r WHERE r.id = one.id AND r.queue = on_queue AND r.start_tag = '9999-01-01Z'
    FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      SELECT k.share, k.weight INTO said FROM durable_runrank AS k WHERE k.run_id = one.id;
      UPDATE durable_run AS r SET start_tag = durable_tag_1(on_queue, said.share, said.weight, 1, at, false)
      WHERE r.id = one.id;
    END IF;
  END LOOP;
  IF since_ranked IS NOT NULL THEN
    SELECT LEAST(s.tag, since_ranked) INTO first_tag FROM durable_share AS s WHERE s.queue = on_queue AND s.share = '';
    first_tag := COALESCE(first_tag, '-infinity');
  END IF;
  FOR attempt IN 1..5 LOOP
    SELECT array_agg(c.id ORDER BY c.rank, c.id), array_agg(c.wake_at ORDER BY c.rank, c.id),
      array_agg(c.rank ORDER BY c.rank, c.id), array_agg(c.tag ORDER BY c.rank, c.id),
      array_agg(c.is_plain ORDER BY c.rank, c.id)
    INTO ids, wakes, ranks, tags, is_plain FROM (
      (SELECT r.id::text, r.wake_at, r.wake_at AS rank, NULL::timestamptz AS tag, true AS is_plain
      FROM durable_run AS r
      WHERE r.queue = on_queue AND r.wake_at IS NOT NULL AND r.wake_at <= at AND r.head_start IS NULL
        AND (r.wake_at, r.id) >= (first_moment, first_id)
        AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at) AND r.state <> 'paused'
      ORDER BY r.wake_at, r.id LIMIT ahead)
      UNION ALL
      SELECT d.id, d.wake_at, d.wake_at - make_interval(secs => l.head_start), NULL, false
      FROM durable_lane AS l CROSS JOIN LATERAL (
        SELECT r.id::text, r.wake_at FROM durable_run AS r
        WHERE r.queue = on_queue AND r.head_start = l.head_start AND r.start_tag IS NULL
          AND r.wake_at IS NOT NULL AND r.wake_at <= at AND r.wake_at >= first_ranked
          AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at) AND r.state <> 'paused'
        ORDER BY r.start_tag, r.wake_at, r.id LIMIT ahead) AS d WHERE l.queue = on_queue
      UNION ALL
      SELECT d.id, d.wake_at, d.start_tag - make_interval(secs => l.head_start), d.start_tag, false
      FROM durable_lane AS l CROSS JOIN LATERAL (
        SELECT r.id::text, r.wake_at, r.start_tag FROM durable_run AS r
        WHERE r.queue = on_queue AND r.head_start = l.head_start AND r.start_tag >= first_tag
          AND r.start_tag < '9999-01-01Z' AND r.wake_at IS NOT NULL AND r.wake_at <= at
          AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= at) AND r.state <> 'paused'
        ORDER BY r.start_tag, r.wake_at, r.id LIMIT ahead) AS d WHERE l.queue = on_queue
    ) AS c;
    EXIT WHEN ids IS NULL;
    FOR place IN 1..cardinality(ids) LOOP -- one by one: no plan for all of them may read the whole table
      EXIT WHEN cardinality(taken) >= at_most;
      PERFORM 1 FROM durable_run AS r WHERE r.id = ids[place]
        AND CASE WHEN r.queue = on_queue AND r.wake_at <= at AND r.state <> 'paused'
          THEN r.lease_expires_at IS NULL OR r.lease_expires_at <= at END
      FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      UPDATE durable_run AS r SET fence = r.fence + CASE r.fence WHEN 0 THEN 536870912 ELSE 1073741824 END + floor(random() * 536870912)::bigint,
        crashes = r.crashes + (r.lease_expires_at IS NOT NULL)::integer,
        lease_expires_at = until, worker = by_worker, started_at = COALESCE(r.started_at, at),
        state = CASE r.state WHEN 'rolling_back' THEN r.state ELSE 'running' END,
        wake_at = LEAST(r.wake_at, at), start_tag = NULL
      WHERE r.id = ids[place] RETURNING r.* INTO run;
      rank := ranks[place];
      taken := taken || ids[place];
      RETURN NEXT;
    END LOOP;
    EXIT WHEN cardinality(taken) > 0;
  END LOOP;
  SELECT max(c.tag) FILTER (WHERE c.id = ANY(taken)), count(c.tag) FILTER (WHERE c.id <> ALL(taken))
  INTO served, left_tagged FROM unnest(ids, tags) AS c(id, tag);
  IF cardinality(taken) > 0 AND (served IS NOT NULL OR left_tagged = 0) THEN -- what the shares are served up to; a new round when none waits
    SELECT s.id INTO share_id FROM durable_share AS s WHERE s.queue = on_queue AND s.share = ''
      AND (served IS NOT NULL OR s.tag IS NOT NULL) FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE durable_share AS s SET tag = CASE WHEN left_tagged > 0 THEN GREATEST(s.tag, served) END,
        round = s.round + (left_tagged = 0)::integer
      WHERE s.id = share_id;
    END IF;
  END IF;
  run := NULL;
  rank := NULL;
  SELECT c.wake_at, c.id INTO next_at, next_id FROM unnest(ids, wakes, is_plain) AS c(id, wake_at, is_plain)
  WHERE c.is_plain AND c.id <> ALL(taken) ORDER BY c.wake_at, c.id LIMIT 1;
  SELECT LEAST(min(c.wake_at), last_tagged, at) INTO next_ranked FROM unnest(ids, wakes, tags, is_plain)
    AS c(id, wake_at, tag, is_plain)
  WHERE NOT c.is_plain AND c.tag IS NULL AND c.id <> ALL(taken);
  next_at := COALESCE(next_at, at);
  next_id := COALESCE(next_id, '');
  visited := durable_visited_1('durable_run_due') + durable_visited_1('durable_run_ranked') - visited_before;
  RETURN NEXT;
END $$;

-- Claim due runs of one queue, as durable_claim_3 does, in the order of rank. A queue in which no run has ever had a
-- priority or a share pays for one look at the lanes.
CREATE FUNCTION durable_claim_4(
  on_queue text, at timestamptz, until timestamptz, by_worker text, at_most integer, since timestamptz, since_id text,
  since_ranked timestamptz
) RETURNS TABLE (
  run durable_run, rank timestamptz, visited bigint, next_at timestamptz, next_id text, next_ranked timestamptz
)
LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM durable_lane AS l WHERE l.queue = on_queue)
    AND NOT EXISTS (SELECT 1 FROM durable_hold AS h WHERE h.kind = 'queue' AND h.name = on_queue) THEN
    RETURN QUERY SELECT * FROM durable_claim_ranked_1(
      on_queue, at, until, by_worker, at_most, since, since_id, since_ranked);
  ELSE
    RETURN QUERY SELECT c.run, (c.run).wake_at, c.visited, NULL::timestamptz, NULL::text, NULL::timestamptz
    FROM durable_claim_3(on_queue, at, until, by_worker, at_most, since, since_id) AS c;
  END IF;
END $$;
