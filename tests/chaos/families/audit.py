"""The audit of families, keys and schedules, by SQL alone: of the rows, and of a log that triggers write.

The triggers look at the end of each transaction that ends a run: is its key free, and its parent woken? They note what
they find broken in the log; the rest is decided from the log's order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from django.db import connection

from durable.models import Run
from tests.chaos.audit import numbers_drawn_twice
from tests.chaos.families.load import OVERLAPS, SIZE, FamilyLoad
from tests.support.rows import broken, rows

_LOG: Final = """
CREATE TABLE chaos_log (seq bigserial PRIMARY KEY, kind text, run_id text, what text);

CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_TABLE_NAME = 'durable_runkey' AND TG_OP = 'DELETE' THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('no key', OLD.run_id, OLD.workflow || ' ' || OLD.key),
      ('moves', OLD.run_id, OLD.moves::text);
  ELSIF TG_TABLE_NAME = 'durable_runkey' THEN
    INSERT INTO chaos_log (kind, run_id, what)
    VALUES (CASE WHEN NEW.is_open THEN 'key' ELSE 'no key' END, NEW.run_id, NEW.workflow || ' ' || NEW.key);
  ELSIF TG_TABLE_NAME = 'durable_queuemessage' THEN
    INSERT INTO chaos_log (kind, run_id, what)
    SELECT 'broken', NEW.run_id, 'was sent a message after its end' FROM durable_run
    WHERE id = NEW.run_id AND finished_at IS NOT NULL;
  ELSIF TG_OP = 'INSERT' THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('begin', NEW.id, NEW.workflow);
  ELSIF NEW.finished_at IS NULL THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('begin', NEW.id, 'again');
  ELSE
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('end', NEW.id, NEW.state);
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION chaos_look() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE p record; BEGIN
  IF EXISTS (SELECT 1 FROM durable_runkey WHERE run_id = NEW.id AND is_open) THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('broken', NEW.id, 'has ended and has its key');
  END IF;
  SELECT * INTO p FROM durable_run WHERE id = NEW.parent_id AND finished_at IS NULL;
  IF FOUND AND strpos(p.waiting_for, '/~' || NEW.id || '/') > 0
    AND (p.wake_at IS NULL OR p.wake_at > NEW.finished_at) AND p.lease_expires_at IS NULL THEN
    INSERT INTO chaos_log (kind, run_id, what)
    VALUES ('broken', NEW.id, format('has ended and has not woken %s: %s, %s', p.id, p.state, p.wake_at));
  END IF;
  RETURN NULL;
END $$;

-- of the ticks of a schedule the newest 200 are kept
CREATE TABLE chaos_tick (LIKE durable_tick);
CREATE FUNCTION chaos_ticked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  DELETE FROM chaos_tick WHERE id = NEW.id;
  INSERT INTO chaos_tick SELECT NEW.*;
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_ticked AFTER INSERT OR UPDATE ON durable_tick FOR EACH ROW EXECUTE FUNCTION chaos_ticked();

CREATE TRIGGER chaos_begin AFTER INSERT ON durable_run FOR EACH ROW EXECUTE FUNCTION chaos_note();
CREATE TRIGGER chaos_end AFTER UPDATE ON durable_run FOR EACH ROW
  WHEN ((NEW.finished_at IS NULL) <> (OLD.finished_at IS NULL)) EXECUTE FUNCTION chaos_note();
CREATE TRIGGER chaos_key AFTER INSERT OR DELETE OR UPDATE OF is_open ON durable_runkey FOR EACH ROW
  EXECUTE FUNCTION chaos_note();
CREATE TRIGGER chaos_message AFTER INSERT ON durable_queuemessage FOR EACH ROW EXECUTE FUNCTION chaos_note();
CREATE CONSTRAINT TRIGGER chaos_look AFTER UPDATE ON durable_run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION chaos_look();
"""

#: What must have no row, and what each row means.
_NEVER: Final = {
    "the triggers found": "SELECT DISTINCT run_id, what FROM chaos_log WHERE kind = 'broken'",
    "an open child under an ended parent": """
        SELECT c.run_id, c.parent_id FROM durable_child AS c JOIN durable_run AS r ON r.id = c.run_id
        JOIN durable_run AS p ON p.id = c.parent_id
        WHERE r.finished_at IS NULL AND p.finished_at IS NOT NULL AND c.when_parent_ends = 'cancel'""",
    "children are left for the sweep": "SELECT run_id FROM durable_cascade",
    "an ended run has its key": """
        SELECT k.run_id FROM durable_runkey AS k JOIN durable_run AS r ON r.id = k.run_id
        WHERE k.is_open AND r.finished_at IS NOT NULL""",
    "a child has completed with another number of charges than one": """
        SELECT r.id, count(g.id) FROM durable_run AS r LEFT JOIN shop_charge AS g ON g.reference = r.id
        WHERE r.workflow IN ('chaos.child', 'chaos.fragile', 'chaos.odd') AND r.state = 'completed' GROUP BY r.id HAVING count(g.id) <> 1""",
    "a child has charged twice": "SELECT reference FROM shop_charge GROUP BY reference HAVING count(*) > 1",
    "a map has more children than inputs": f"""
        SELECT c.parent_id, count(*) FROM durable_child AS c JOIN durable_run AS r ON r.id = c.run_id
        WHERE r.workflow = 'chaos.odd' GROUP BY c.parent_id HAVING count(*) <> {2 * SIZE}""",
    "a tick has started no run": """
        SELECT s.name, t.moment FROM chaos_tick AS t JOIN durable_schedule AS s ON s.id = t.schedule_id
        LEFT JOIN durable_run AS r ON r.id = t.run_id WHERE t.outcome = 'started' AND r.id IS NULL""",
    "a run of a schedule has no tick": """
        SELECT r.id FROM durable_run AS r LEFT JOIN chaos_tick AS t ON t.run_id = r.id
        WHERE r.workflow = 'chaos.tick' AND t.id IS NULL""",
    "a moment was ticked twice": """
        SELECT schedule_id, moment FROM chaos_tick GROUP BY schedule_id, moment HAVING count(*) > 1""",
    "a moment has no tick": """
        SELECT s.name, count(*) FROM chaos_tick AS t JOIN durable_schedule AS s ON s.id = t.schedule_id
        GROUP BY s.name HAVING count(*) <> extract(epoch FROM max(t.moment) - min(t.moment)) + 1
          AND NOT bool_or(t.why LIKE '%are not listed%')""",
    "a tick was refused": "SELECT moment, why FROM chaos_tick WHERE outcome = 'refused'",
    "ticks have lost their order": """
        SELECT schedule_id, number FROM (SELECT schedule_id, number, moment,
          lag(moment) OVER (PARTITION BY schedule_id ORDER BY number) AS before FROM chaos_tick) AS t
        WHERE before >= moment""",
}


def install() -> None:
    """Create the log and its triggers."""
    with connection.cursor() as cursor:
        cursor.execute(_LOG)


def broken_promises(load: FamilyLoad) -> list[str]:
    """What is wrong; [] if all is well."""
    return [
        *broken(_NEVER),
        *_outputs(load),
        *_one_at_a_time(),
        *_clicks(load),
        *_counted(load),
        *numbers_drawn_twice(),
    ]


def _outputs(load: FamilyLoad) -> Iterator[str]:
    states = {run_id: (state, output) for run_id, state, output in rows("SELECT id, state, output FROM durable_run")}
    for run_id, expected in load.expected.items():
        state, output = states.get(run_id, ("lost", None))
        if expected in ("cancelled", "stopped"):
            if state != "cancelled" and (state, expected) != ("completed", "stopped"):
                yield f"{run_id} is {state}, not {expected}"
        elif state != "completed" or json.loads(output) != expected:
            yield f"{run_id} is {state} and came to {output}, not to {expected}"
    for run_id, (state, _) in states.items():
        if ":left" in run_id and state != "completed":
            yield f"{run_id} was to go on after its parent and is {state}"


def _one_at_a_time() -> Iterator[str]:
    """Follow the log: who is open, who has a key, what else the schedule has running."""
    is_open: dict[str, set[str]] = defaultdict(set)
    has_key: dict[str, set[str]] = defaultdict(set)
    exclusive = {f"chaos-{each}" for each in OVERLAPS if each != "allow"}
    for kind, run_id, what in rows("SELECT kind, run_id, what FROM chaos_log ORDER BY seq"):
        schedule = run_id.partition("@")[0]
        if kind == "begin" and schedule in exclusive:
            if is_open[schedule]:
                yield f"{run_id} began while {', '.join(sorted(is_open[schedule]))} had not ended"
            is_open[schedule].add(run_id)
        elif kind == "end":
            is_open[schedule].discard(run_id)
        elif kind == "key":
            if has_key[what] - {run_id}:
                yield f'{run_id} got the key "{what}" that {", ".join(has_key[what])} had'
            has_key[what].add(run_id)
        elif kind == "no key":
            has_key[what].discard(run_id)
    if left := [f"{what}: {runs}" for what, runs in has_key.items() if runs]:
        yield f"keys are left: {left}"


def _clicks(load: FamilyLoad) -> Iterator[str]:
    """Each click is in one basket, twice only where its answer was lost and it was sent again; received in order."""
    found: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for key, run_id, body, state in rows(
        "SELECT k.key, m.run_id, m.body, m.state FROM durable_queuemessage AS m JOIN durable_runkey AS k ON k.run_id = m.run_id "
        "JOIN durable_run AS r ON r.id = m.run_id WHERE k.workflow = 'chaos.basket' ORDER BY r.created_at, m.\"order\""
    ):
        found[key].append((run_id, json.loads(body)["n"], state))
    for key, sent in load.clicks.items():
        numbers = [number for _, number, _ in found[key]]
        if lost := set(sent) - set(numbers):
            yield f"clicks of {key} were lost: {sorted(lost)}"
        if numbers != sorted(numbers):
            yield f"clicks of {key} are out of order: {numbers}"


def _counted(load: FamilyLoad) -> Iterator[str]:
    """Each debounced start was merged or began a run; a replaced run was cancelled."""
    [(runs, kept, deleted)] = rows(
        "SELECT (SELECT count(*) FROM durable_run WHERE workflow = 'chaos.quiet'),"
        " (SELECT coalesce(sum(moves), 0) FROM durable_runkey WHERE workflow = 'chaos.quiet'),"
        " (SELECT coalesce(sum(what::integer), 0) FROM chaos_log WHERE kind = 'moves')"
    )
    moves = kept + deleted
    if runs + moves < load.starts["quiet"]:
        yield f"{load.starts['quiet']} debounced starts are {runs} runs and {moves} merges"
    if states := set(Run.objects.filter(workflow="chaos.single").values_list("state", flat=True)) - {"cancelled"}:
        yield f"replaced runs are {states}"
    if not Run.objects.filter(workflow="chaos.quiet", state="completed").exists():
        yield "no debounced run has begun"
