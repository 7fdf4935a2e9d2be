"""The PostgreSQL store's simple statements: reading, creating, claiming, and the queries of the timer.

Owns texts only; must not execute anything. `durable.store.postgres.sql_functions` has the writes of a pass.
"""

# ruff: noqa: S608 - texts are made of the names of tables and columns alone; values are parameters

from __future__ import annotations

from typing import Final

from durable.core.records import HoldKind, MessageState, RunState
from durable.core.transitions import TRANSITIONS, starts_of
from durable.core.witnesses import FIRST
from durable.store.tables.rows import (
    ACTIVITY,
    ENTRY,
    ENTRY_FIELDS,
    ENTRY_NUMBERS,
    HELD_START,
    HOLD,
    LIMITS,
    LIMITS_AS_ENTRY,
    MESSAGE,
    METADATA,
    RUN,
    SAVED,
    SAVED_AS_ENTRY,
    STATUS,
)


def _led(transition: str) -> str:
    """Return the state to which the transition leads the row `r`."""
    others = {start: end for start, end in TRANSITIONS[transition].items() if start != end}
    whens = " ".join(f"WHEN '{start}' THEN '{end}'" for start, end in others.items())
    return f"CASE r.state {whens} ELSE r.state END"


_CLAIMABLE: Final = ", ".join(f"'{state}'" for state in starts_of("claimed"))

# -- claims and leases

#: A fence that is higher than the row's (`durable.core.witnesses.raised`). PostgreSQL draws anew for each row.
RAISED: Final = f"r.fence + CASE r.fence WHEN 0 THEN {FIRST} ELSE {2 * FIRST} END + floor(random() * {FIRST})::bigint"

_TAKEN = f"""fence = {RAISED},
  crashes = r.crashes + (r.lease_expires_at IS NOT NULL)::integer,
  lease_expires_at = %(lease_until)s, worker = %(worker)s, started_at = COALESCE(r.started_at, %(now)s),
  state = {_led("claimed")},
  wake_at = LEAST(r.wake_at, %(now)s), start_tag = NULL"""

_NOT_PAUSED = f"NOT EXISTS (SELECT 1 FROM {HOLD} AS h WHERE h.kind = '{HoldKind.QUEUE.value}' AND h.name = {{}})"
_FREE = "(lease_expires_at IS NULL OR lease_expires_at <= %(now)s)"

#: A function with a fixed plan: only then does the index of due runs give them in order, and the first few are found
#: without sorting all due runs. Parameters: queue, now, lease_until, worker, limit, since, since_id, since_ranked. Rows
#: of `visited`, rank, the points that the search has left and RUN: one for each run with its rank, and one that has
#: `visited` and the points alone, all NULL for a paused queue.
CLAIM: Final = f"""SELECT visited, rank, next_at, next_id, next_ranked, {RUN.sql("(run).")} FROM durable_claim_4(
  %(queue)s::text, %(now)s::timestamptz, %(lease_until)s::timestamptz, %(worker)s::text, %(limit)s::integer,
  %(since)s::timestamptz, %(since_id)s::text, %(since_ranked)s::timestamptz)"""

#: Parameters: runs, queue, priority, head_start, share, weight, now.
RANK: Final = """SELECT durable_rank_1(%(runs)s::text[], %(queue)s::text, %(priority)s::text, %(head_start)s::integer,
  %(share)s::text, %(weight)s::float8, %(now)s::timestamptz)"""

#: Parameters: run, now, lease_until, worker. Rows of RUN.
CLAIM_RUN: Final = f"""UPDATE {RUN.table} AS r SET {_TAKEN}
WHERE id = %(run)s AND {_FREE} AND state IN ({_CLAIMABLE}) AND {_NOT_PAUSED.format("r.queue")}
RETURNING {RUN.sql("r.")}"""

# The thread that renews a worker's leases does not wait for locks: one locked row would cost all other runs their
# leases. A locked row is "busy" if, read without a lock, it still has the fence and a lease.
_OURS = f"""SELECT r.id FROM {RUN.table} AS r JOIN unnest(%(runs)s::text[], %(fences)s::bigint[]) AS h(id, fence)
  ON r.id = h.id AND r.fence = h.fence WHERE r.lease_expires_at IS NOT NULL"""
_LEASED = f"leased AS MATERIALIZED ({_OURS} ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED)"
_BUSY = f"{_OURS} AND NOT EXISTS (SELECT 1 FROM leased WHERE leased.id = r.id)"

#: Parameters: runs, fences, lease_until. Rows of id, and pending_request or NULL for a busy one.
RENEW: Final = f"""WITH {_LEASED},
renewed AS (
  UPDATE {RUN.table} AS r SET lease_expires_at = %(lease_until)s FROM leased WHERE r.id = leased.id
  RETURNING r.id, r.pending_request)
SELECT id, pending_request FROM renewed UNION ALL SELECT id, NULL FROM ({_BUSY}) AS busy"""

#: Parameters: runs.
REQUESTS: Final = f"SELECT id, pending_request FROM {RUN.table} WHERE id = ANY(%(runs)s) AND pending_request <> ''"

_ASKED = f"""SELECT id AS run_id, pending_request, NULL::text AS location, NULL::integer AS attempt,
  NULL::bigint AS fence,
  false AS stack, false AS abandon
FROM {RUN.table} WHERE id = ANY(%(runs)s) AND pending_request <> ''
UNION ALL
SELECT run_id, '', location, attempt, fence, wants_stack, abandon_asked_at IS NOT NULL
FROM {ACTIVITY.table} CROSS JOIN LATERAL (SELECT stack_asked_at IS NOT NULL AND stack_taken_at IS NULL) AS w(wants_stack)
WHERE run_id = ANY(%(runs)s) AND (wants_stack OR abandon_asked_at IS NOT NULL)"""

#: Parameters: runs. Rows of run, pending request, location, attempt, fence, whether the stack is asked for, whether to
#: abandon.
ASKED: Final = _ASKED

_NOTED = [name for name in ACTIVITY.names if name not in ("run_id", "location")]

#: The same, after writing activities. A worker that has lost the lease writes none. The statement is a transaction of
#: its own; it limits waits for locks before it writes the first row. Parameters: runs; begun and ended activities
#: (JSON); patience.
REPORT: Final = f"""WITH patience(is_set) AS MATERIALIZED (SELECT set_config('lock_timeout', %(patience)s, true)),
ended AS (
  DELETE FROM {ACTIVITY.table} AS a
  USING json_to_recordset(%(ended)s::json) AS e(run_id text, location text, fence bigint), patience
  WHERE patience.is_set <> '' AND a.run_id = e.run_id AND a.location = e.location AND a.fence = e.fence),
begun AS (
  INSERT INTO {ACTIVITY.table} AS a ({ACTIVITY.sql()}, stack)
  SELECT {ACTIVITY.sql("x.")}, '' FROM json_to_recordset(%(begun)s::json) AS x({ACTIVITY.typed()})
  JOIN {RUN.table} AS r ON r.id = x.run_id AND r.fence = x.fence AND r.lease_expires_at IS NOT NULL
  JOIN patience ON patience.is_set <> ''
  ORDER BY x.run_id, x.location
  ON CONFLICT (run_id, location) DO UPDATE SET {", ".join(f"{name} = EXCLUDED.{name}" for name in _NOTED)},
    stack_asked_at = NULL, stack_taken_at = NULL, stack = '', abandon_asked_at = NULL
  WHERE a.fence <= EXCLUDED.fence)
{_ASKED}"""

_SAVE_ORDER = ("generation", "fence", "attempt", "number")

#: Parameters: saves (JSON). Writes those that are later than what is stored, of runs that are leased under their fence.
SAVE_DETAILS: Final = f"""INSERT INTO {SAVED.table} AS s ({SAVED.sql()})
SELECT {SAVED.sql("x.")} FROM json_to_recordset(%(saved)s::json) AS x({SAVED.typed()})
JOIN {RUN.table} AS r ON r.id = x.run_id AND r.fence = x.fence AND r.lease_expires_at IS NOT NULL
ORDER BY x.run_id, x.location
ON CONFLICT (run_id, location) DO UPDATE SET
  {", ".join(f"{name} = EXCLUDED.{name}" for name in SAVED.names if name not in ("run_id", "location"))}
WHERE ({", ".join(f"s.{name}" for name in _SAVE_ORDER)}) < ({", ".join(f"EXCLUDED.{name}" for name in _SAVE_ORDER)})"""

_SHOW = f"""INSERT INTO {STATUS.table} AS s ({STATUS.sql()})
SELECT {STATUS.sql("x.")} FROM json_to_recordset(%(statuses)s::json) AS x({STATUS.typed()}){{}}
ORDER BY x.run_id
ON CONFLICT (run_id) DO UPDATE SET
  {", ".join(f'"{name}" = EXCLUDED."{name}"' for name in STATUS.names if name != "run_id")}
WHERE (s.fence, s.number) < (EXCLUDED.fence, EXCLUDED.number)"""

#: Parameters: statuses (JSON). Writes those that are later than what is stored, of runs that are leased under their
#: fence.
SHOW: Final = _SHOW.format(f"""
JOIN {RUN.table} AS r ON r.id = x.run_id AND r.fence = x.fence AND r.lease_expires_at IS NOT NULL""")
#: The same, in the transaction of a commit, which has compared the fence.
SHOW_COMMITTED: Final = _SHOW.format("")

#: Parameters: runs, fences, now, due_at. Rows of id, and the queue or NULL for a busy one.
RELEASE: Final = f"""WITH {_LEASED},
released AS (
  UPDATE {RUN.table} AS r SET lease_expires_at = NULL, worker = '', state = {_led("released")},
    wake_at = COALESCE(%(due_at)s::timestamptz, LEAST(r.wake_at, %(now)s))
  FROM leased WHERE r.id = leased.id
  RETURNING r.id, r.queue)
SELECT id, queue FROM released UNION ALL SELECT id, NULL FROM ({_BUSY}) AS busy"""

_GIVEN = f"json_to_recordset(%(runs)s::json) AS x({RUN.typed()})"
_PAUSED = f"held.name IS NOT NULL AND x.state = '{RunState.PENDING.value}'"
#: The columns that differ in a run whose workflow is held: it is paused at once, as by `transitions.paused_at_once`.
_WHEN_HELD: Final = {
    "state": f"'{RunState.PAUSED.value}'",
    "wake_at": "NULL",
    "summary": "held.summary",
    "fence": "x.fence + 1",
    "change_seq": "x.change_seq + 1",
}
_CREATED = ", ".join(
    f"CASE WHEN {_PAUSED} THEN {_WHEN_HELD[name]} ELSE x.{name} END" if name in _WHEN_HELD else f"x.{name}"
    for name in RUN.names
)

_CREATE = f"""WITH held AS MATERIALIZED (
  SELECT name, summary FROM {HOLD} WHERE kind = '{HoldKind.WORKFLOW.value}' AND name = ANY(%(workflows)s::text[])
  FOR KEY SHARE),
new AS (
  INSERT INTO {RUN.table} ({RUN.sql()}) SELECT {_CREATED} FROM {_GIVEN} LEFT JOIN held ON held.name = x.workflow
  ON CONFLICT DO NOTHING RETURNING id),
waiting AS (
  INSERT INTO {HELD_START} (run_id, workflow, due_at) SELECT new.id, x.workflow, COALESCE(x.wake_at, x.created_at)
  FROM new JOIN {_GIVEN} ON x.id = new.id JOIN held ON held.name = x.workflow
  WHERE (SELECT count(*) FROM held) > 0 AND {_PAUSED} RETURNING run_id, workflow){{}}
SELECT new.id, held.summary FROM new LEFT JOIN waiting ON waiting.run_id = new.id
LEFT JOIN held ON held.name = waiting.workflow"""

#: Parameters: runs (JSON), workflows. Rows of the ids that were free, each with the summary of a run that is held.
CREATE: Final = _CREATE.format("")

#: The same, if some of the runs have limits. Parameters: those of CREATE, and limits (JSON).
CREATE_LIMITED: Final = _CREATE.format(f""",
limited AS (
  INSERT INTO {LIMITS.table} (run_id, {LIMITS.sql()}) SELECT l.run_id, {LIMITS.sql("l.")}
  FROM json_to_recordset(%(limits)s::json) AS l(run_id text, {LIMITS.typed()}) JOIN new ON new.id = l.run_id)""")

# -- reading

#: Parameters: runs. Rows of RUN.
GET_RUNS: Final = f"SELECT {RUN.sql()} FROM {RUN.table} WHERE id = ANY(%(runs)s::text[])"

#: Parameters: run. A row of RUN, locked.
LOCK_RUN: Final = f"SELECT {RUN.sql()} FROM {RUN.table} WHERE id = %(run)s FOR NO KEY UPDATE"

#: The same, or no row if another transaction has locked it.
TRY_LOCK_RUN: Final = f"{LOCK_RUN} SKIP LOCKED"

#: Parameters: sends (JSON). A row for each in order: place, queue to notify, id of the message sent before.
SEND_MANY: Final = "SELECT place, queue_to_notify, before FROM durable_sends_1(%(sends)s::json)"

# The metadata is looked up for each entry: OFFSET 0 keeps PostgreSQL from reading the metadata of all runs instead,
# which it would do where it expects a history to be long.
_METADATA = f"CROSS JOIN LATERAL (SELECT * FROM {METADATA.table} WHERE entry_id = e.id OFFSET 0) AS m"

_LIMITS = f"SELECT {', '.join(LIMITS_AS_ENTRY)} FROM {LIMITS.table} AS l WHERE l.run_id"

_SAVED = f"SELECT {', '.join(SAVED_AS_ENTRY)} FROM {SAVED.table} AS s WHERE s.run_id"

_LOAD = f"""SELECT {{}} FROM {ENTRY.table} AS e {_METADATA} WHERE e.run_id = %(run)s
UNION ALL {_LIMITS} = %(run)s UNION ALL {_SAVED} = %(run)s"""

#: Parameters: run. Rows of ENTRY_FIELDS, and of ENTRY_NUMBERS; and rows of LIMITS_AS_ENTRY and SAVED_AS_ENTRY, if there
#: are any.
LOAD: Final = _LOAD.format(", ".join(ENTRY_FIELDS))
LOAD_NUMBERS: Final = _LOAD.format(", ".join(ENTRY_NUMBERS))

# No history is longer than the LIMIT. It only tells PostgreSQL so: if it expected long ones, it would compile (`jit`).
_LOAD_SHORT = f"""SELECT q.id, history.* FROM unnest(%(runs)s::text[]) AS q(id)
CROSS JOIN LATERAL (SELECT 1 FROM (
  SELECT COALESCE(octet_length(output), 0) + COALESCE(octet_length(arguments), 0) AS size FROM {ENTRY.table}
  WHERE run_id = q.id LIMIT %(most)s::bigint + 1) AS each
  HAVING count(*) <= %(most)s::bigint AND COALESCE(sum(size), 0) <= %(size)s::bigint) AS short
LEFT JOIN LATERAL (
  SELECT {{}} FROM (SELECT * FROM {ENTRY.table} WHERE run_id = q.id LIMIT %(most)s::bigint) AS e {_METADATA}
  UNION ALL {_LIMITS} = q.id UNION ALL {_SAVED} = q.id) AS history ON true"""

#: Parameters: runs; most, size (of each). Rows of a run's id and the columns of LOAD and LOAD_NUMBERS, NULL without
#: entries.
LOAD_SHORT: Final = _LOAD_SHORT.format(", ".join(ENTRY_FIELDS))
LOAD_SHORT_NUMBERS: Final = _LOAD_SHORT.format(
    ", ".join(f"{each} AS c{number}" for number, each in enumerate(ENTRY_NUMBERS))
)

#: Parameters: run. Rows of MESSAGE.
LIST_MESSAGES: Final = f'SELECT {MESSAGE.sql()} FROM {MESSAGE.table} WHERE run_id = %(run)s ORDER BY "order"'

#: Parameters: message. A row of MESSAGE.
GET_MESSAGE: Final = f"SELECT {MESSAGE.sql()} FROM {MESSAGE.table} WHERE id = %(message)s"

#: Parameters: run, id. A row of MESSAGE.
SENT_BEFORE: Final = f"SELECT {MESSAGE.sql()} FROM {MESSAGE.table} WHERE run_id = %(run)s AND idempotency_id = %(id)s"


def inbox(*, named: bool, before: bool) -> str:
    """Parameters: run, limit, links, and names, before if they are asked for. Rows of MESSAGE."""
    # the answers of a link are for the waits for it alone
    queue = " AND queue = ANY(%(names)s::text[])" if named else " AND NOT starts_with(queue, %(links)s)"
    sent_at = " AND sent_at < %(before)s" if before else ""
    return f"""SELECT {MESSAGE.sql()} FROM {MESSAGE.table}
WHERE run_id = %(run)s AND state = '{MessageState.PENDING.value}'{queue}{sent_at} ORDER BY "order" LIMIT %(limit)s"""


# -- children

#: Parameters: run, children, now. Cancels these children of a run that goes on, locked by the caller.
DROP_CHILDREN: Final = "SELECT durable_drop_children_1(%(run)s, %(children)s::text[], %(now)s, true)"

#: Parameters: run, now. Cancels the dropped children of a run that goes on, locked by the caller.
END_DROPPED: Final = "SELECT durable_end_children_1(%(run)s, %(now)s, '')"

# -- timer and sweep

#: Parameters: queues, after, until. One row: the deadline or NULL. One search of the index of due runs for each queue.
NEXT_DEADLINE: Final = f"""SELECT min(next.wake_at) FROM unnest(%(queues)s::text[]) AS q(name), LATERAL (
  SELECT wake_at FROM {RUN.table} WHERE queue = q.name AND wake_at IS NOT NULL AND wake_at > %(after)s
  AND wake_at <= COALESCE(%(until)s::timestamptz, 'infinity')
  AND state <> '{RunState.PAUSED.value}' ORDER BY wake_at LIMIT 1) AS next"""

_DUE_IN_QUEUE = f"""LATERAL (
  SELECT 1 FROM {RUN.table} WHERE queue = q.name AND wake_at IS NOT NULL AND wake_at <= %(now)s
  AND wake_at >= COALESCE(%(since)s::timestamptz, '-infinity') AND {_FREE} AND state <> '{RunState.PAUSED.value}'
  ORDER BY wake_at LIMIT 1) AS due"""

_SERVED = _NOT_PAUSED.format("q.name")

#: Parameters: queues, now, since. Rows of queue. One search of the index of due runs for each queue.
DUE_QUEUES_OF: Final = f"SELECT q.name FROM unnest(%(queues)s::text[]) AS q(name), {_DUE_IN_QUEUE} WHERE {_SERVED}"

_IN_THE_INDEX = f"wake_at IS NOT NULL AND state <> '{RunState.PAUSED.value}'"

#: Parameters: now, since. Rows of queue. The queues are found one after the other along the index, then searched.
DUE_QUEUES: Final = f"""WITH RECURSIVE q(name) AS (
  (SELECT queue FROM {RUN.table} WHERE {_IN_THE_INDEX} ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM {RUN.table} WHERE queue > q.name AND {_IN_THE_INDEX} ORDER BY queue LIMIT 1) FROM q
  WHERE q.name IS NOT NULL)
SELECT q.name FROM q, {_DUE_IN_QUEUE} WHERE q.name IS NOT NULL AND {_SERVED}"""
