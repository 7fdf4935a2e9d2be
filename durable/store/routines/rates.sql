-- Rates of limits on PostgreSQL: the one statement that gives an attempt its moment.
--
-- It locks the row of the key, and no row of a run: so it may wait for nothing but another call of itself.
-- `durable.core.limits.rates` says what it computes.

-- Give an attempt its moment, or let it begin. `given_spacing` is that of a limit that has no row yet, NULL if it is
-- not defined. `is_ours` is NULL for an older fence. `refusal` is 'undefined', or 'units' for units that take too
-- long.
CREATE FUNCTION durable_reserve_1(
  of_run text, with_fence bigint, at_location text, of_limit text, of_key text, of_units bigint, given_rate text,
  given_spacing bigint, given_burst integer, may_begin boolean, patience bigint, at timestamptz,
  OUT is_ours boolean, OUT refusal text, OUT is_begun boolean, OUT moment bigint, OUT units_before bigint
) LANGUAGE plpgsql SET enable_seqscan TO off SET jit TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
  each_takes bigint;
  room bigint;
  cost bigint;
  larger bigint;
  now_at bigint := (extract(epoch FROM at) * 1000000)::bigint * 1000;
  closed bigint;
  starts bigint;
  latest bigint := now_at + patience;
  due bigint;
  first bigint;
  taken bigint;
  bucket bigint;
  ring bigint[];
  passed integer;
  cell record;
  ticket record;
BEGIN
  PERFORM 1 FROM durable_run WHERE id = of_run AND fence = with_fence;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  is_ours := true;
  LOOP
    SELECT COALESCE(NULLIF(override_spacing, 0), spacing), COALESCE(NULLIF(override_burst, 0), burst)
    INTO each_takes, room FROM durable_ratelimit WHERE name = of_limit;
    EXIT WHEN FOUND;
    IF given_spacing IS NULL THEN
      refusal := 'undefined';
      RETURN;
    END IF;
    INSERT INTO durable_ratelimit (name, rate, spacing, burst) VALUES (of_limit, given_rate, given_spacing, given_burst)
    ON CONFLICT DO NOTHING;
  END LOOP;
  IF of_units::numeric * each_takes > 31622400000000000 THEN
    refusal := 'units';
    RETURN;
  END IF;
  cost := of_units * each_takes;
  room := room * each_takes;
  larger := GREATEST(0, cost - room);
  LOOP
    SELECT id, reserved, begun, put_off, recent INTO cell FROM durable_ratekey
    WHERE "limit" = of_limit AND key = of_key FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO durable_ratekey ("limit", key) VALUES (of_limit, of_key) ON CONFLICT DO NOTHING;
  END LOOP;
  SELECT COALESCE(max((extract(epoch FROM closed_until) * 1000000)::bigint * 1000), 0) INTO closed
  FROM durable_ratekey WHERE "limit" = of_limit AND key IN ('', of_key);
  starts := GREATEST(now_at, closed);
  SELECT (extract(epoch FROM r.at) * 1000000)::bigint * 1000 AS reserved_at INTO ticket FROM durable_reservation AS r
  WHERE r.run_id = of_run AND r.location = at_location AND r."limit" = of_limit AND r.key = of_key AND r.units = of_units;
  IF FOUND THEN
    due := ticket.reserved_at;
  ELSE
    IF GREATEST(cell.reserved, cell.put_off) > GREATEST(starts, cell.begun) THEN
      -- moments behind the last attempt that waits are of runs that have ended: they are given again
      SELECT (extract(epoch FROM r.at) * 1000000)::bigint * 1000 + room INTO taken FROM durable_reservation AS r
      WHERE r."limit" = of_limit AND r.key = of_key ORDER BY r.at DESC LIMIT 1;
      taken := GREATEST(cell.begun, taken);
      cell.reserved := LEAST(cell.reserved, taken);
      cell.put_off := LEAST(cell.put_off, taken);
    END IF;
    cell.reserved := LEAST(9000000000000000000, GREATEST(cell.reserved, cell.put_off, starts) + cost);
    due := GREATEST(starts, cell.reserved - room);
  END IF;
  is_begun := false;
  first := GREATEST(starts, due);
  IF due <= latest AND first <= latest AND NOT may_begin THEN
    is_begun := true;
    due := first;
  ELSIF due <= latest THEN
    due := GREATEST(first, GREATEST(cell.begun, first - larger) + cost - room);
    IF due <= latest THEN
      is_begun := true;
      cell.begun := LEAST(9000000000000000000, GREATEST(cell.begun, first - larger) + cost);
    ELSE
      cell.put_off := LEAST(9000000000000000000, GREATEST(cell.put_off, cell.begun, starts - larger) + cost);
      due := GREATEST(starts, cell.put_off - room);
    END IF;
  END IF;
  IF is_begun AND may_begin THEN
    bucket := due / 5000000000;
    ring := CASE cell.recent WHEN '' THEN ARRAY[0] || array_fill(0::bigint, ARRAY[12])
      ELSE string_to_array(cell.recent, ' ')::bigint[] END;
    passed := LEAST(12, GREATEST(0, bucket - ring[1]));
    ring := ARRAY[GREATEST(bucket, ring[1])] || array_fill(0::bigint, ARRAY[passed]) || ring[2:12 + 1 - passed];
    ring[2] := ring[2] + of_units;
    cell.recent := array_to_string(ring, ' ');
  END IF;
  UPDATE durable_ratekey
  SET reserved = cell.reserved, begun = cell.begun, put_off = cell.put_off, recent = cell.recent WHERE id = cell.id;
  moment := due;
  units_before := GREATEST(0, due - starts) / each_takes;
  IF is_begun AND may_begin THEN
    DELETE FROM durable_reservation WHERE run_id = of_run AND location = at_location;
  ELSE
    INSERT INTO durable_reservation (run_id, location, "limit", key, units, at)
    VALUES (of_run, at_location, of_limit, of_key, of_units,
      'epoch'::timestamptz + (due + 999) / 1000 * interval '1 microsecond')
    ON CONFLICT (run_id, location) DO UPDATE
    SET "limit" = EXCLUDED."limit", key = EXCLUDED.key, units = EXCLUDED.units, at = EXCLUDED.at;
  END IF;
END $$;
