"""Holders of an old snapshot on PostgreSQL, because of which vacuum cannot remove the dead rows of ended runs.

PostgreSQL shows the start of other roles' sessions only to a member of pg_read_all_stats (or pg_monitor).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import connections
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.inspection.humanize import span

OLD: Final = timedelta(minutes=1)
#: PostgreSQL reports no time for a replica's feedback, only the number of transactions that have begun since.
MANY: Final = 100_000
MOST: Final = 20  # snapshots that are reported

# A session delays vacuum by its snapshot, and by its transaction id once it has written. Vacuum's own session does not.
_SESSIONS = """
SELECT pid, application_name, usename, state, extract(epoch FROM now() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND xact_start < now() - make_interval(secs => %s)
  AND query NOT ILIKE 'vacuum%%'
ORDER BY xact_start LIMIT %s
"""

_PREPARED = """
SELECT gid, owner, extract(epoch FROM now() - prepared)::float8
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < now() - make_interval(secs => %s)
ORDER BY prepared LIMIT %s
"""

_REPLICAS = """
SELECT pid, application_name, age(backend_xmin)::bigint FROM pg_stat_replication WHERE age(backend_xmin) > %s
ORDER BY age(backend_xmin) DESC LIMIT %s
"""

_SLOTS = """
SELECT slot_name, active, age(xmin)::bigint FROM pg_replication_slots WHERE age(xmin) > %s
ORDER BY age(xmin) DESC LIMIT %s
"""

_TOGETHER = " UNION ALL ".join(
    f"SELECT {kind}, row_to_json(found)::text FROM ({statement}) AS found"  # noqa: S608  # the statements above
    for kind, statement in enumerate((_SESSIONS, _PREPARED, _REPLICAS, _SLOTS))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldSnapshot:
    """A snapshot: `holder` says what holds it, `advice` what to do. `seconds` is its age, None if it is unknown."""

    holder: str
    advice: str
    seconds: float | None = None


def old_snapshots() -> list[OldSnapshot]:
    """Return the snapshots on durable's database older than a minute, the oldest of each kind first; one statement.

    [] if the database is not PostgreSQL. Database errors propagate.
    """
    if connections[conf.DATABASE].vendor != "postgresql":
        return []
    age = OLD.total_seconds()
    parameters = [each for limit in (age, age, MANY, MANY) for each in (limit, MOST)]
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(_TOGETHER, parameters)
        rows = cursor.fetchall()
    return [_KINDS[kind](*json.loads(columns).values()) for kind, columns in rows]


def _session(pid: int, application: str, user: str, state: str, seconds: float) -> OldSnapshot:
    session = _('%(pid)d of "%(application)s"') % {"pid": pid, "application": application} if application else str(pid)
    if state.startswith("idle"):
        holder = _("the session %(session)s (role %(role)s) has been idle in a transaction for %(span)s")
    else:
        holder = _("the session %(session)s (role %(role)s) has been in a transaction for %(span)s")
    return OldSnapshot(
        holder=holder % {"session": session, "role": user, "span": span(seconds)},
        advice=_("End it where it was begun, or with %(command)s") % {"command": f"SELECT pg_terminate_backend({pid})"},
        seconds=seconds,
    )


def _prepared(name: str, owner: str, seconds: float) -> OldSnapshot:
    return OldSnapshot(
        holder=_('the prepared transaction "%(name)s" (role %(role)s) has been open for %(span)s')
        % {"name": name, "role": owner, "span": span(seconds)},
        advice=_("Have its transaction manager end it, or COMMIT PREPARED or ROLLBACK PREPARED '%(name)s'")
        % {"name": name},
        seconds=seconds,
    )


def _replica(pid: int, application: str, age: int) -> OldSnapshot:
    if application:
        holder = _('the replica "%(name)s" (walsender %(pid)d) asks for a snapshot that is %(age)d transactions old')
    else:
        holder = _("the replica (walsender %(pid)d) asks for a snapshot that is %(age)d transactions old")
    return OldSnapshot(
        holder=holder % {"name": application, "pid": pid, "age": age},
        advice=_("Look on the replica for a long query, or turn hot_standby_feedback off there"),
    )


def _slot(name: str, is_active: bool, age: int) -> OldSnapshot:
    if is_active:
        holder = _(
            'the replication slot "%(name)s", which is active, keeps a snapshot that is %(age)d transactions old'
        )
    else:
        holder = _(
            'the replication slot "%(name)s", which is not active, keeps a snapshot that is %(age)d transactions old'
        )
    return OldSnapshot(
        holder=holder % {"name": name, "age": age},
        advice=_("Look on its replica for a long query, or drop it if it is not needed: %(command)s")
        % {"command": f"pg_drop_replication_slot('{name}')"},
    )


#: What makes a snapshot of the columns of each statement, in the order of the statements.
_KINDS: Final[Sequence[Callable[..., OldSnapshot]]] = (_session, _prepared, _replica, _slot)
