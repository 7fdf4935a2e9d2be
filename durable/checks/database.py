"""Django system checks of durable's database: they query the server, so only `check --database` and `migrate` run them.

They have Django's tag `database` alone: with another tag, Django 6.1 would run them where no database is named.
`durable doctor` and the start of `durable_worker` report the same. `durable.checks.configuration` has the other checks,
and the list.
Every process registers them, and few run them, so what they ask is imported when they do.

No check knows how a process serves requests: settings name an ASGI application that nothing serves, or none though a
server has one. So what concerns ASGI is logged when the first request comes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.signals import request_started
from django.db import OperationalError, ProgrammingError, connections

from durable.conf import conf

#: What libpq needs to notice a host that has vanished without closing its connections.
_NETWORK_OPTIONS: Final = (
    "connect_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
_POSTGRES: Final = ("postgresql", "postgis", "postgresql_psycopg2")
NETWORK_ADVICE: Final = (
    "If the host of the database vanishes, workers and requests wait for minutes for an answer that never comes. "
    'Settings for a failover are in docs/guides/deploying.md, "When the database fails over".'
)

MARK_ADVICE: Final = (
    'Name a file outside of the database, on a disk that is not restored with it, in DURABLE["MARK"], or use Redis: '
    'docs/guides/operating.md, "When the database goes back in time".'
)
_FIRST_REQUEST: Final = "durable.checks.first_request"
logger = logging.getLogger("durable.store")


def look_at_first_request() -> None:
    """Register a check at the first request of this process. Later requests cost nothing."""
    request_started.connect(_warn_under_asgi, dispatch_uid=_FIRST_REQUEST)


def _warn_under_asgi(**request: object) -> None:
    """Log a warning if the process serves ASGI and keeps the connections that it opens for each request."""
    is_first = request_started.disconnect(dispatch_uid=_FIRST_REQUEST)
    if is_first and "scope" in request and keeps_connections():
        logger.warning(
            'This process serves ASGI, where each request may open a connection of its own, and the database "%s" keeps '
            "them: its CONN_MAX_AGE is %s. Requests at once may take all connections of the server. Give the processes "
            "that serve ASGI CONN_MAX_AGE = 0 and a pool, or 0 alone: docs/guides/asgi.md.",
            conf.DATABASE,
            connections[conf.DATABASE].settings_dict["CONN_MAX_AGE"],
        )


def keeps_connections() -> bool:
    """Return whether durable's database is a PostgreSQL whose connections stay open after a request.

    Those of a pool do not: Django wants a `CONN_MAX_AGE` of 0 beside it.
    """
    if conf.DATABASE not in connections.settings:  # `durable.E006`
        return False
    connection = connections[conf.DATABASE]
    return connection.vendor == "postgresql" and connection.settings_dict["CONN_MAX_AGE"] != 0


@register(Tags.database)
def check_server_isolation(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that sessions begin with READ COMMITTED: statements outside transactions use the server's default."""
    from durable.inspection.database import how_to_set_isolation, wrong_isolation

    level = wrong_isolation() if conf.DATABASE in (databases or ()) else None
    if level is None:
        return []
    message = f'Sessions of the database "{conf.DATABASE}" begin with {level.upper()} instead of READ COMMITTED.'
    return [Error(message, hint=how_to_set_isolation(), id="durable.E011")]


@register(Tags.database)
def check_server_version(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that PostgreSQL is a version with which durable is tested."""
    from durable.inspection.database import OLDEST_POSTGRES, too_old_server

    version = too_old_server() if conf.DATABASE in (databases or ()) else None
    if version is None:
        return []
    message = f'The database "{conf.DATABASE}" is PostgreSQL {version}; the oldest that durable supports is {OLDEST_POSTGRES}.'
    hint = (
        f'Upgrade the server to PostgreSQL {OLDEST_POSTGRES} or later, or name another database in DURABLE["DATABASE"].'
    )
    return [Error(message, hint=hint, id="durable.E022")]


@register(Tags.database)
def check_cached_tables(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that no query cache answers for durable's tables."""
    from durable.inspection.database import cached_tables, how_to_let_reads_through

    try:
        found = cached_tables() if conf.DATABASE in (databases or ()) else []
    except (OperationalError, ProgrammingError):  # the tables are yet to be made
        return []
    if not found:
        return []
    message = f"A query cache stands before durable's tables: {', '.join(found)}."
    return [Error(message, hint=how_to_let_reads_through(), id="durable.E017")]


@register(Tags.database)
def check_routines(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the database's functions and triggers are those of the migrations."""
    from durable.inspection.database import how_to_migrate, wrong_routines

    wrong = wrong_routines() if conf.DATABASE in (databases or ()) else []
    if not wrong:
        return []
    message = f'The database "{conf.DATABASE}" is not as its migrations made it: {"; ".join(wrong)}.'
    hint = f"Run `{how_to_migrate()}`: it creates them again, even if no migration has to be applied."
    return [Warning(message, hint=hint, id="durable.W087")]


@register(Tags.database)
def check_partitions(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the tables are in the partitions that the settings name."""
    from durable.inspection.database import how_to_partition, missing_migrations, wrong_partitions

    wrong = wrong_partitions() if conf.DATABASE in (databases or ()) else None
    if wrong is None or missing_migrations():  # `migrate` partitions empty tables
        return []
    return [Error(f"{wrong[:1].upper()}{wrong[1:]}.", hint=how_to_partition(), id="durable.E024")]


@register(Tags.database)
def check_mark(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the database has not gone back in time, as after a restore."""
    from durable import marks

    try:
        found = marks.look() if conf.DATABASE in (databases or ()) else None
    except (OperationalError, ProgrammingError):  # the table is yet to be made
        return []
    if found is None or not found.is_behind:
        return []
    message = f"Workers claim nothing: {found.in_words()}."
    hint = "`durable restored` lists the runs that do things again, and lets workers go on."
    return [Warning(message, hint=hint, id="durable.W097")]  # an error would forbid `migrate`


@register("durable", deploy=True)
def check_place_of_mark(**_: object) -> list[CheckMessage]:
    """Check that a mark of the database can be kept."""
    if (problem := missing_mark()) is None:
        return []
    return [Warning(f"{problem[:1].upper()}{problem[1:]}.", hint=MARK_ADVICE, id="durable.W096")]


def missing_mark() -> str | None:
    """Return why no mark of the database can be kept outside of it, or None."""
    from durable.marks import is_kept

    if not is_kept():
        return "no mark of the database is kept, so that nothing notices when it goes back in time"
    if not isinstance(conf.MARK, str) or not conf.MARK:
        return None
    path = Path(conf.MARK)
    if not path.parent.is_dir():
        return f"the directory of the mark, {path.parent}, does not exist"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"the directory of the mark, {path.parent}, cannot be written by this user"
    return None


@register("durable", deploy=True)
def check_network_options(**_: object) -> list[CheckMessage]:
    """Check that a connection to another host notices when that host vanishes."""
    if not (missing := missing_network_options()):
        return []
    message = f'DATABASES["{conf.DATABASE}"] has no {", ".join(missing)} in its OPTIONS.'
    return [Warning(message, hint=NETWORK_ADVICE, id="durable.W095")]


def missing_network_options() -> list[str]:
    """Return the options of libpq that are not set and without which a connection waits for minutes for a host that has
    vanished; [] for a database on this host, or where a service file has the options.
    """
    if conf.DATABASE not in connections.settings:
        return []
    settings: dict[str, Any] = connections.settings[conf.DATABASE]
    if not settings["ENGINE"].endswith(_POSTGRES):
        return []
    options, host = settings.get("OPTIONS") or {}, str(settings.get("HOST") or "")
    is_here = host.startswith(("/", "@", "127.")) or host in ("", "localhost", "::1")
    return [] if is_here or "service" in options else [each for each in _NETWORK_OPTIONS if each not in options]


def unsuitable() -> str | None:
    """Return why no worker can work with durable's database, and what to do, or None. Database errors propagate."""
    found = [each for check in (check_server_version, check_cached_tables) for each in check(databases=[conf.DATABASE])]
    return " ".join(f"{each.msg} {each.hint}" for each in found) or None
