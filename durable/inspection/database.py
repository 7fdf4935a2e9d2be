"""The state of the database: its schema, its clock, holders of old snapshots, and transaction ids.

PostgreSQL shows the start of other roles' sessions only to a member of pg_read_all_stats (or pg_monitor).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.apps import apps
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, FloatField, Func, Value
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core import clock
from durable.inspection.humanize import span
from durable.store.partitions.layout import counted, partitions
from durable.store.routines import differences

OLDEST_POSTGRES: Final = 15  # the oldest tested version


def missing_migrations() -> list[str]:
    """Return the migrations that `manage.py migrate durable` would apply to durable's database, as "app.name".

    Database errors propagate.
    """
    executor = MigrationExecutor(connections[conf.DATABASE])
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "durable"]
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(wanted)]


def how_to_migrate() -> str:
    return f"manage.py migrate durable --database {conf.DATABASE}"


def wrong_routines() -> list[str]:
    """Describe the functions and triggers of durable's database that differ from the migrations', a phrase for each.

    Those of migrations that are not applied yet do not count. Database errors propagate.
    """
    return [str(each) for each in differences(conf.DATABASE)]


def wrong_partitions() -> str | None:
    """Describe the partitions of durable's tables if they are others than `DURABLE["PARTITIONS"]` says.

    SQLite has none, and the setting is ignored there. Database errors propagate.
    """
    wanted, found = conf.PARTITIONS, partitions(conf.DATABASE)
    if found is None or found == wanted:
        return None
    return f'the tables of runs and entries have {counted(found)}, and DURABLE["PARTITIONS"] says {counted(wanted)}'


def how_to_partition() -> str:
    return (
        f"Run `manage.py durable partition --into {conf.PARTITIONS}`, which works while workers go on, "
        "or change the setting to what the tables have."
    )


def wrong_isolation() -> str | None:
    """Return the default isolation level of sessions on durable's database, if it is not READ COMMITTED.

    Only PostgreSQL is queried, for the setting of the server, the database or the role. Database errors propagate.
    """
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('default_transaction_isolation')")
        [level] = cursor.fetchone()
    return None if level == "read committed" else str(level)


def how_to_set_isolation() -> str:
    return (
        "Run ALTER ROLE ... SET default_transaction_isolation = 'read committed' for durable's role (or ALTER DATABASE), "
        "connect again, and ask for another level in the transactions that need it."
    )


def too_old_server() -> str | None:
    """Return the version of durable's database server if it is older than the oldest PostgreSQL that is supported.

    Database errors propagate.
    """
    connection: Any = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    version: int = connection.pg_version
    return f"{version // 10_000}.{version % 10_000}" if version < OLDEST_POSTGRES * 10_000 else None


def cached_tables() -> list[str]:
    """Return durable's tables whose reads a query cache answers.

    Each table is asked twice for a random number. Database errors propagate.
    """
    drawn = Count("pk") + Func(function="RANDOM", output_field=FloatField())
    found = []
    for model in apps.get_app_config("durable").get_models():
        nothing = model._default_manager.using(conf.DATABASE).alias(nothing=Value(0)).filter(nothing=1)
        first, second = (nothing.aggregate(drawn=drawn)["drawn"] for _ in range(2))
        if first == second:
            found.append(model._meta.db_table)
    return found


def how_to_let_reads_through() -> str:
    return (
        "Exempt the app durable from the cache: its tables are written by functions in the database, which no cache notices, and "
        "a run that sees old rows waits for ever. Of django-cachalot that is "
        'CACHALOT_UNCACHABLE_APPS = ["durable"].'
    )


CLOCK_TOLERANCE: Final = 2.0  # seconds of difference that are not reported


def clock_difference() -> float | None:
    """Return how many seconds this clock is ahead of the database's (negative: behind), corrected by the query's
    duration.

    None if the database is not a server with its own clock. Database errors propagate.
    """
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    before = clock.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [there] = cursor.fetchone()
    after = clock.now()
    if before <= there <= after:
        return 0.0
    nearest = before if there < before else after
    return float((nearest - there).total_seconds())


OLD: Final = timedelta(minutes=1)
#: PostgreSQL reports no time for a replica's feedback, only the number of transactions begun since.
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

_OLDEST_IDS = """
SELECT datname, age(datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint
FROM pg_database ORDER BY age(datfrozenxid) DESC LIMIT 1
"""

_TOGETHER = " UNION ALL ".join(
    f"SELECT {kind}, row_to_json(found)::text FROM ({statement}) AS found"  # noqa: S608  # the statements above
    for kind, statement in enumerate((_SESSIONS, _PREPARED, _REPLICAS, _SLOTS, _OLDEST_IDS))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldSnapshot:
    """An old snapshot: `holder` says who holds it, `advice` what to do. `seconds` is its age, None if unknown."""

    holder: str
    advice: str
    seconds: float | None = None


def old_snapshots_and_ids() -> tuple[list[OldSnapshot], TransactionIds | None]:
    """Return the snapshots older than a minute, the oldest of each kind first, and the age of the transaction ids.

    Both are of durable's database and cost one statement. `([], None)` if it is not PostgreSQL. Database errors
    propagate.
    """
    if connections[conf.DATABASE].vendor != "postgresql":
        return [], None
    age = OLD.total_seconds()
    parameters = [each for limit in (age, age, MANY, MANY) for each in (limit, MOST)]
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(_TOGETHER, parameters)
        *rows, (_kind, ids) = sorted(cursor.fetchall(), key=lambda row: int(row[0]))
    snapshots = [_KINDS[kind](*json.loads(columns).values()) for kind, columns in rows]
    return snapshots, TransactionIds(*json.loads(ids).values())


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


#: Functions that make a snapshot of a statement's columns, in the order of the statements.
_KINDS: Final[Sequence[Callable[..., OldSnapshot]]] = (_session, _prepared, _replica, _slot)


#: The server gives no transaction a number when so many are between the oldest that is not frozen and the next.
LAST_ID: Final = 2**31 - 3_000_000
#: How far beyond `autovacuum_freeze_max_age`, where autovacuum begins to freeze a table, its age may come.
_WHILE_FREEZING: Final = 1.5


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """The age of the oldest transaction id that some table of the server still needs: that of `database`.

    Autovacuum begins to freeze a table at `freezes_at`. At `LAST_ID` the server refuses all that writes.
    """

    database: str
    age: int
    freezes_at: int

    @property
    def is_old(self) -> bool:
        """Whether autovacuum should have frozen it by now."""
        return self.age > _WHILE_FREEZING * self.freezes_at

    @property
    def is_urgent(self) -> bool:
        """Whether half of the ids are used up as well."""
        return self.is_old and self.age > LAST_ID / 2


def transaction_ids(alias: str) -> TransactionIds | None:
    """Return the age of the server's oldest transaction ids; one statement. A standby knows those of its primary.

    All databases of a server share the ids. None if the database is not PostgreSQL. Database errors propagate.
    """
    if connections[alias].vendor != "postgresql":
        return None
    with connections[alias].cursor() as cursor:
        cursor.execute(_OLDEST_IDS)
        [columns] = cursor.fetchall()
    return TransactionIds(*columns)
