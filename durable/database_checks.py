"""Django system checks of durable's database: they query the server, so only `check --database` and `migrate` run them.

They have Django's tag `database` alone: with another tag, Django 6.1 would run them where no database is named.
`durable doctor` and the start of `durable_worker` report the same. `durable.checks` has the other checks, and the list.
Every process registers them, and few run them, so what they ask is imported when they do.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import OperationalError, ProgrammingError

from durable.conf import conf

__all__ = ["check_cached_tables", "check_routines", "check_server_isolation", "check_server_version", "unsuitable"]


@register(Tags.database)
def check_server_isolation(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that sessions begin with READ COMMITTED: statements outside transactions use the server's default."""
    from durable.inspection.pending_migrations import how_to_set_isolation, wrong_isolation

    level = wrong_isolation() if conf.DATABASE in (databases or ()) else None
    if level is None:
        return []
    message = f'Sessions of the database "{conf.DATABASE}" begin with {level.upper()} instead of READ COMMITTED.'
    return [Error(message, hint=how_to_set_isolation(), id="durable.E011")]


@register(Tags.database)
def check_server_version(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that PostgreSQL is one of the versions that durable is tried with."""
    from durable.inspection.pending_migrations import OLDEST_POSTGRES, too_old_server

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
    """Check that no query cache answers in the place of durable's tables."""
    from durable.inspection.pending_migrations import cached_tables, how_to_let_reads_through

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
    from durable.inspection.pending_migrations import how_to_migrate, wrong_routines

    wrong = wrong_routines() if conf.DATABASE in (databases or ()) else []
    if not wrong:
        return []
    message = f'The database "{conf.DATABASE}" is not as its migrations made it: {"; ".join(wrong)}.'
    hint = f"Run `{how_to_migrate()}`: it creates them again, even if no migration has to be applied."
    return [Warning(message, hint=hint, id="durable.W087")]


def unsuitable() -> str | None:
    """Return why no worker can work with durable's database, and what to do, or None. Database errors propagate."""
    found = [each for check in (check_server_version, check_cached_tables) for each in check(databases=[conf.DATABASE])]
    return " ".join(f"{each.msg} {each.hint}" for each in found) or None
