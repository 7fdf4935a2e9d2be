"""Django system checks of durable's database: they query the server, so only `check --database` and `migrate` run them.

They have Django's tag `database` alone: with another tag, Django 6.1 would run them where no database is named.
`durable doctor` and the start of `durable_worker` report the same. `durable.checks` has the other checks, and the list.
Every process registers them, and few run them, so what they ask is imported when they do.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from durable.conf import conf

__all__ = ["check_routines", "check_server_isolation"]


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
def check_routines(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the database's functions and triggers are those of the migrations."""
    from durable.inspection.pending_migrations import how_to_migrate, wrong_routines

    wrong = wrong_routines() if conf.DATABASE in (databases or ()) else []
    if not wrong:
        return []
    message = f'The database "{conf.DATABASE}" is not as its migrations made it: {"; ".join(wrong)}.'
    hint = f"Run `{how_to_migrate()}`: it creates them again, even if no migration has to be applied."
    return [Warning(message, hint=hint, id="durable.W087")]
