"""The PostgreSQL store's writing of history and inboxes: one statement for each set of parts that a commit can have.

Only texts are made here, nothing is executed. A statement is a chain of common table expressions over one snapshot:

- `held` is the run's row, locked, if its fence is still the batch's; every part below takes its rows through it, so
  that nothing is written without it. With sends, `locked` locks the receiving runs too, all in the order of ids.
- One statement must not write a row twice: what the run sends to itself and its patch become one update, and deleted
  entries that are written anew are only written.
- What a concurrent commit wrote while this one waited for the lock is not in the snapshot. What the parts decide by is
  therefore read from locked rows, or written with ON CONFLICT.
"""

# ruff: noqa: S608 - texts are made of the names of tables and columns alone; values are parameters

from __future__ import annotations

from functools import lru_cache
from typing import Final

from durable.core.entries import MessageState
from durable.store.rows import ATTEMPT, ENTRY, MESSAGE, METADATA, RUN
from durable.store.statements import ENDED_STATES, NOT_CLAIMABLE

__all__ = ["FLUSH", "SEND", "commit", "patch_alone"]

_PENDING: Final = MessageState.PENDING.value

#: Parameters: run, fence, entries (JSON). The commonest commit, entries and nothing else, as a function of the
#: database's (migration 0002): the pending request, or NULL, and nothing written, if the fence has moved on.
FLUSH: Final = "SELECT durable_flush_1(%(run)s::text, %(fence)s::bigint, %(entries)s::json)"

# -- the run's lock

_HELD = f"""held AS MATERIALIZED (
  SELECT id, request, signal, state, waiting_for FROM {RUN.table}
  WHERE id = %(run)s AND fence = %(fence)s FOR NO KEY UPDATE)"""

_LOCKED = f"""locked AS MATERIALIZED (
  SELECT id, fence, request, signal, state, waiting_for, messages FROM {RUN.table}
  WHERE id = ANY(%(rows)s::text[]) ORDER BY id FOR NO KEY UPDATE)"""

_HELD_OF_LOCKED = "held AS MATERIALIZED (SELECT * FROM locked WHERE id = %(run)s AND fence = %(fence)s)"

# -- entries

_ENTRIES = f"""rows AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(entries)s::json) AS x({ENTRY.typed()}, {METADATA.typed()})),
entry AS (
  INSERT INTO {ENTRY.table} (run_id, {ENTRY.sql()}) SELECT held.id, {ENTRY.sql("rows.")} FROM held, rows
  ON CONFLICT (run_id, location) DO UPDATE SET {ENTRY.excluded()} RETURNING id, location),
metadata AS (
  INSERT INTO {METADATA.table} (entry_id, {METADATA.sql()})
  SELECT entry.id, {METADATA.sql("rows.")} FROM entry JOIN rows USING (location)
  ON CONFLICT (entry_id) DO UPDATE SET {METADATA.excluded()})"""

_DELETED = f"""gone AS (
  DELETE FROM {ENTRY.table} AS e USING held
  WHERE e.run_id = held.id AND e.location = ANY(%(deleted)s::text[]) RETURNING e.id),
gone_metadata AS (DELETE FROM {METADATA.table} WHERE entry_id IN (SELECT id FROM gone)),
gone_attempts AS (
  DELETE FROM {ATTEMPT.table} AS a USING held
  WHERE a.run_id = held.id AND a.location = ANY(%(forgotten)s::text[]))"""

_ATTEMPTS = f"""attempt AS (
  INSERT INTO {ATTEMPT.table} (run_id, {ATTEMPT.sql()}) SELECT held.id, {ATTEMPT.sql("x.")}
  FROM held, json_to_recordset(%(failures)s::json) AS x({ATTEMPT.typed()}))"""

# -- messages

_CONSUMED = f"""consumed AS (
  UPDATE {MESSAGE.table} AS m
  SET state = x.state, received_by = COALESCE(x.received_by, m.received_by), response = x.response
  FROM held, json_to_recordset(%(consumed)s::json) AS x(id text, state text, received_by text, response text)
  WHERE m.id = x.id AND m.run_id = held.id)"""

_UNRECEIVED = f"""unreceived AS (
  UPDATE {MESSAGE.table} AS m SET state = '{_PENDING}', received_by = '', response = NULL FROM held
  WHERE m.run_id = held.id AND m.received_by = ANY(%(unreceive)s::text[]))"""

_SENT = f"""outgoing AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(sends)s::json)
  AS x(number integer, id text, run_id text, queue text, body text, sent_at timestamptz, idempotency_id text)),
stored AS (
  INSERT INTO {MESSAGE.table} ({MESSAGE.sql()})
  SELECT {{columns}} FROM outgoing AS o JOIN locked AS l ON l.id = o.run_id{{gate}}
  WHERE NOT EXISTS (
    SELECT 1 FROM {MESSAGE.table} AS m WHERE m.run_id = o.run_id AND m.idempotency_id = o.idempotency_id)
  ON CONFLICT (run_id, idempotency_id) DO UPDATE SET idempotency_id = EXCLUDED.idempotency_id
  RETURNING {MESSAGE.sql(MESSAGE.table + ".")}),
received AS (
  SELECT s.run_id, s.sent_at, s."order",
    {{waiting_for}} = '*' OR strpos({{waiting_for}}, '/' || s.queue || '/') > 0 AS awaited
  FROM stored AS s JOIN locked AS l ON l.id = s.run_id WHERE s.id IN (SELECT id FROM outgoing)),
inbox AS (
  SELECT run_id, max("order") AS newest, min(sent_at) FILTER (WHERE awaited) AS wake FROM received GROUP BY run_id),
woken AS (
  UPDATE {RUN.table} AS r
  SET messages = GREATEST(r.messages, i.newest), signal = r.signal + 1,
    wake_at = CASE WHEN r.state IN {ENDED_STATES} THEN r.wake_at ELSE LEAST(r.wake_at, i.wake) END
  FROM inbox AS i WHERE r.id = i.run_id{{others}}
  RETURNING r.id, r.queue, {{rings}} AS rings)"""

_RINGS = f"""(i.wake IS NOT NULL AND r.state NOT IN {NOT_CLAIMABLE}
    AND (r.lease_expires_at IS NULL OR r.lease_expires_at <= i.wake))"""


def _sent(*, gate: str, others: str, waiting_for: str) -> str:
    special = {
        "state": f"'{_PENDING}'",
        "received_by": "''",
        "response": "NULL",
        "order": "l.messages + row_number() OVER (PARTITION BY o.run_id ORDER BY o.number)",
    }
    columns = ", ".join(special.get(name, f'o."{name}"') for name in MESSAGE.names)
    return _SENT.format(columns=columns, gate=gate, others=others, waiting_for=waiting_for, rings=_RINGS)


#: Parameters: sends (JSON), rows (ids of runs). Rows of MESSAGE, and for each the queue to ring for, or NULL.
SEND: Final = f"""WITH {_LOCKED}, {_sent(gate="", others="", waiting_for="l.waiting_for")}
SELECT {MESSAGE.sql("m.")}, (SELECT queue FROM woken WHERE woken.id = m.run_id AND rings) FROM (
  SELECT {MESSAGE.sql()} FROM stored UNION ALL
  SELECT {MESSAGE.sql("e.")} FROM {MESSAGE.table} AS e JOIN outgoing AS o
  ON e.run_id = o.run_id AND e.idempotency_id = o.idempotency_id) AS m"""

# -- the run's row


def _patched(patch: tuple[str, ...], *, parks: bool, sends: bool) -> str:
    """The update of the run's own row: its patch, the check of its parking, and what it sent to itself."""
    assigned = {name: f"%(patch_{name})s::{RUN.types[name]}" for name in patch}
    waiting_for = assigned.get("waiting_for", "held.waiting_for")
    state = assigned.get("state", "held.state")
    wake_at = assigned.get("wake_at", "r.wake_at")
    parts = []
    sources = ["held"]
    rings = []
    if parks:
        parts.append(_parking(state, waiting_for))
        sources.append("parking AS p")
        wake_at = f"CASE WHEN p.overruled THEN %(now)s::timestamptz ELSE {wake_at} END"
        rings.append("p.overruled")
    if sends:
        sources.append("(SELECT max(newest) AS newest, min(wake) AS wake FROM inbox WHERE run_id = %(run)s) AS i")
        wake_at = f"CASE WHEN {state} IN {ENDED_STATES} THEN {wake_at} ELSE LEAST({wake_at}, i.wake) END"
        assigned["messages"] = "GREATEST(r.messages, i.newest)"
        rings.append(_RINGS)
    if parks or sends or "wake_at" in patch:
        assigned["wake_at"] = wake_at
    parts.append(f"""patched AS (
  UPDATE {RUN.table} AS r SET {", ".join(f"{name} = {value}" for name, value in assigned.items())}
  FROM {", ".join(sources)} WHERE r.id = held.id RETURNING r.queue, ({" OR ".join(rings) or "false"}) AS rings)""")
    return ",\n".join(parts)


def _parking(state: str, waiting_for: str) -> str:
    """Whether the run may not park after all: called meanwhile, or a message that it waits for lies there.

    The signal tells of messages from outside; the run's own do not raise it, hence the look into the inbox.
    """
    return f"""parking AS MATERIALIZED (
  SELECT {state} NOT IN {ENDED_STATES} AND (held.signal <> %(signal)s OR ({waiting_for} <> '' AND EXISTS (
    SELECT 1 FROM {MESSAGE.table} AS m
    WHERE m.run_id = held.id AND m.state = '{_PENDING}' AND m.id <> ALL(%(taken)s::text[])
    AND ({waiting_for} = '*' OR strpos({waiting_for}, '/' || m.queue || '/') > 0)))) AS overruled FROM held)"""


@lru_cache(maxsize=128)
def patch_alone(patch: tuple[str, ...]) -> str:
    """The end of a run, mostly: a patch and nothing else, that does not park. One row, the pending request, or none."""
    assigned = ", ".join(f"{name} = %(patch_{name})s::{RUN.types[name]}" for name in patch)
    return f"UPDATE {RUN.table} SET {assigned} WHERE id = %(run)s AND fence = %(fence)s RETURNING request, NULL"


@lru_cache(maxsize=512)
def commit(
    *,
    entries: bool = False,
    deleted: bool = False,
    attempts: bool = False,
    consumed: bool = False,
    unreceive: bool = False,
    sends: bool = False,
    to_itself: bool = False,
    patch: tuple[str, ...] | None = None,
    parks: bool = False,
) -> str:
    """The statement for a batch with these parts. Its one row: the pending request and the queues to ring for; no
    row, and nothing written, if the fence has moved on."""
    parts = [_LOCKED, _HELD_OF_LOCKED] if sends else [_HELD]
    parts += [
        part
        for wanted, part in (
            (entries, _ENTRIES),
            (deleted, _DELETED),
            (attempts, _ATTEMPTS),
            (consumed, _CONSUMED),
            (unreceive, _UNRECEIVED),
        )
        if wanted
    ]
    ringing = []
    if sends:
        own = "CASE WHEN l.id = %(run)s THEN %(patch_waiting_for)s::text ELSE l.waiting_for END"
        waiting_for = own if patch and "waiting_for" in patch and to_itself else "l.waiting_for"
        parts.append(_sent(gate=" CROSS JOIN held", others=" AND r.id <> %(run)s", waiting_for=waiting_for))
        ringing.append("SELECT queue FROM woken WHERE rings")
    if patch or parks or to_itself:
        parts.append(_patched(patch or (), parks=parks, sends=to_itself))
        ringing.append("SELECT queue FROM patched WHERE rings")
    ring = f"ARRAY({' UNION '.join(ringing)})" if ringing else "NULL"
    return f"WITH {', '.join(parts)}\nSELECT held.request, {ring} FROM held"
