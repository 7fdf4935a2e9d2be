"""The audit of flow, by SQL alone: of the rows, and of the log that triggers write beside that of the families.

Each charge and each refund is a row of the log, written by the transaction that has made it. A trigger looks at the end
of each transaction that starts a child: has it recorded the start too, and is the parent open?
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

from django.db import connection

from tests.chaos.families import audit as family_audit
from tests.chaos.flow.load import FlowLoad
from tests.chaos.flow.workflows import SLOTS
from tests.support.rows import broken, rows

_LOG: Final = f"""
CREATE FUNCTION chaos_money() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('charge', NEW.reference, NEW.id::text);
  ELSE
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('refund', OLD.reference, OLD.id::text);
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION chaos_born() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (kind, run_id, what)
  SELECT 'broken', NEW.run_id, 'was started by a run that is ' || state || ' by the same commit' FROM durable_run
  WHERE id = NEW.parent_id AND finished_at IS NOT NULL;
  IF NOT EXISTS (SELECT 1 FROM durable_entry WHERE run_id = NEW.parent_id AND location = NEW.location) THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('broken', NEW.run_id, 'was started without an entry of its parent');
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION chaos_tally() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (kind, run_id, what)
  SELECT 'broken', g.parent_id, format('%s children of %s run at a time', NEW.running, g.id) FROM durable_childgroup AS g
  WHERE g.id = NEW.group_id AND NEW.running > g.at_once;
  RETURN NULL;
END $$;

CREATE FUNCTION chaos_slots() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos_log (kind, run_id, what) SELECT 'broken', NEW.run_id, format('has one of %s slots', count(*))
  FROM durable_slot WHERE "limit" = 'chaos-paid' AND is_held HAVING count(*) > {SLOTS};
  RETURN NULL;
END $$;

CREATE TRIGGER chaos_money AFTER INSERT OR DELETE ON shop_charge FOR EACH ROW EXECUTE FUNCTION chaos_money();
CREATE TRIGGER chaos_tally AFTER INSERT OR UPDATE ON durable_grouptally FOR EACH ROW EXECUTE FUNCTION chaos_tally();
CREATE TRIGGER chaos_slots AFTER INSERT OR UPDATE ON durable_slot FOR EACH ROW
  WHEN (NEW.is_held AND NEW."limit" = 'chaos-paid') EXECUTE FUNCTION chaos_slots();
CREATE CONSTRAINT TRIGGER chaos_born AFTER INSERT ON durable_child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION chaos_born();
"""

#: The children that the entries of parents name, with what they hold: the newest generation of each.
_NAMED: Final = """
    SELECT p.id AS parent, p.state AS parent_state, p.error AS parent_error, e.location, r.id, r.state, r.output,
      (SELECT count(*) FROM shop_charge WHERE reference = r.id) AS held, m.rollback_completed_at
    FROM durable_run AS p JOIN durable_entry AS e ON e.run_id = p.id JOIN durable_entrymetadata AS m ON m.entry_id = e.id
    JOIN durable_run AS r ON r.id = e.data::jsonb ->> 'child'
    WHERE p.workflow = 'chaos.asking' AND e.kind = 'child' AND e.data::jsonb ->> 'action' <> 'result'"""

#: What must have no row, and what each row means.
_NEVER: Final = {
    "a child was recorded as refused and was started": """
        SELECT e.run_id, e.location, c.run_id, r.state FROM durable_entry AS e
        JOIN durable_child AS c ON c.run_id = e.data::jsonb ->> 'child' AND c.parent_id = e.run_id
        JOIN durable_run AS r ON r.id = c.run_id WHERE e.data::jsonb ? 'refused'""",
    "a child of a refused start is open or holds its charge": """
        SELECT e.run_id, e.location, c.run_id, r.state FROM durable_entry AS e
        JOIN durable_child AS c ON c.parent_id = e.run_id AND c.location = e.location
        JOIN durable_run AS r ON r.id = c.run_id WHERE e.data::jsonb ? 'refused' AND NOT c.is_dropped
        AND (r.state <> 'cancelled' OR r.output IS NOT NULL AND EXISTS (SELECT 1 FROM shop_charge WHERE reference = r.id))""",
    "a run has completed without its charge": """
        SELECT id FROM durable_run AS r WHERE workflow = 'chaos.paid' AND state = 'completed'
        AND NOT EXISTS (SELECT 1 FROM shop_charge WHERE reference = r.id)""",
    "a run has failed or was compensated, and its charge is left": """
        SELECT id, state FROM durable_run AS r WHERE workflow = 'chaos.paid' AND state_after_rollback = ''
        AND (state = 'failed' OR state = 'cancelled' AND output IS NOT NULL)
        AND EXISTS (SELECT 1 FROM shop_charge WHERE reference = r.id)""",
    "a compensated parent has left a charge": f"""
        SELECT n.parent, n.parent_state, n.parent_error, n.location, n.rollback_completed_at, n.id, n.state, n.output,
          (SELECT string_agg(concat_ws(' ', a.created_at, a.run_id, a.action, a.outcome), '; ' ORDER BY a.id)
           FROM durable_operatoraction AS a WHERE a.run_id IN (n.parent, n.id)),
          (SELECT string_agg(concat_ws(' ', e.location, e.kind, m.status, m.rollback_completed_at), '; ' ORDER BY e.id)
           FROM durable_entry AS e JOIN durable_entrymetadata AS m ON m.entry_id = e.id WHERE e.run_id = n.id)
        FROM ({_NAMED}) AS n WHERE n.held > 0 AND (n.parent_state = 'failed' OR n.rollback_completed_at IS NOT NULL)""",
    "a map of a compensated parent has left a charge": """
        SELECT g.id, c.run_id, r.state FROM durable_childgroup AS g JOIN durable_run AS p ON p.id = g.parent_id
        JOIN durable_child AS c ON c.member_of = g.id JOIN durable_run AS r ON r.id = c.run_id
        WHERE p.workflow = 'chaos.asking' AND p.state = 'failed' AND NOT g.is_dropped AND NOT c.is_dropped
        AND r.output IS NOT NULL AND EXISTS (SELECT 1 FROM shop_charge WHERE reference = r.id)""",
    "a run has ended before its deadline, because of it": """
        SELECT r.id, l.deadline, r.finished_at FROM durable_run AS r JOIN durable_runlimit AS l ON l.run_id = r.id
        WHERE r.state = 'failed' AND r.error::jsonb ->> 'type' = 'RunDeadlineError' AND r.finished_at < l.deadline""",
    "a slot is left": 'SELECT run_id, "limit", is_held FROM durable_slot',
    "a turn is left": "SELECT run_id FROM durable_turn",
    "the counts of a map are wrong": """
        SELECT g.id, t.created, t.waiting, t.running, count(*) FROM durable_grouptally AS t
        JOIN durable_childgroup AS g ON g.id = t.group_id LEFT JOIN durable_child AS c ON c.member_of = g.id
        GROUP BY g.id, t.group_id HAVING t.waiting + t.running > 0 OR count(c.run_id) <> t.created
        OR t.created <> t.completed + t.failed + t.cancelled""",
    "generations are missing": """
        SELECT parent_id, location FROM durable_child WHERE member_of IS NULL AND "group" IS NULL
        GROUP BY parent_id, location HAVING count(*) <> max(generation) + 1""",
}

_FATES: Final = {"paid": "completed", "failed": "failed", "cancelled": "cancelled"}


def install() -> None:
    """Create the families' log, and what writes more into it."""
    family_audit.install()
    with connection.cursor() as cursor:
        cursor.execute(_LOG)


def broken_promises(load: FlowLoad) -> list[str]:
    """What is wrong; [] if all is well."""
    return [*family_audit.broken_promises(load.families), *broken(_NEVER), *_money(), *_ends(load), *_answers()]


def charges() -> Counter[str]:
    """How many charges and refunds the log has."""
    return Counter(dict(rows("SELECT kind, count(*) FROM chaos_log WHERE kind IN ('charge', 'refund') GROUP BY kind")))


def _money() -> Iterator[str]:
    """No run ever holds two charges, and none is given back twice."""
    held: Counter[str] = Counter()
    for kind, run_id, what in rows(
        "SELECT kind, run_id, what FROM chaos_log WHERE kind IN ('charge', 'refund') ORDER BY seq"
    ):
        held[run_id] += 1 if kind == "charge" else -1
        if held[run_id] not in (0, 1):
            yield f"{run_id} held {held[run_id]} charges at its {kind} {what}"


def _ends(load: FlowLoad) -> Iterator[str]:
    """A parent that no verb has struck ends as told."""
    wanted = {"completes": "completed", "fails": "failed", "late": "failed"}
    found = {run_id: (state, error) for run_id, state, error in rows("SELECT id, state, error FROM durable_run")}
    for run_id, end in load.ends.items():
        state, error = found.get(run_id, ("lost", None))
        if run_id not in load.struck and end in wanted and state != wanted[end]:
            yield f"{run_id} is {state}: {error}"


def _answers() -> Iterator[str]:
    """What a completed parent says of its children is so."""
    fates = {
        run_id: (state, parent, held)
        for run_id, state, parent, held in rows(
            "SELECT id, state, parent_id, EXISTS (SELECT 1 FROM shop_charge WHERE reference = r.id) FROM durable_run AS r "
            "WHERE workflow = 'chaos.paid'"
        )
    }
    for run_id, output in rows(
        "SELECT id, output FROM durable_run AS p WHERE workflow = 'chaos.asking' AND state = 'completed' "
        "AND NOT EXISTS (SELECT 1 FROM durable_run WHERE replay_of_id = p.id)"
    ):
        said = json.loads(output)
        named = {child: fate for fate, child in said["found"].values() if fate != "refused"}
        named |= dict.fromkeys(said["bills"], "paid") | dict.fromkeys(said["failed"], "failed")
        for child, fate in named.items():
            state, parent, is_held = fates.get(child, ("lost", run_id, False))
            is_so = state == _FATES[fate] and (fate == "cancelled" or is_held == (fate == "paid"))
            if parent == run_id and not is_so:
                yield f"{run_id} says of {child} that it is {fate}, and it is {state}, {'with' if is_held else 'without'} its charge"
