"""Carriers for `DURABLE["CARRY"]`: the language, the time zone, and the schema of django-tenants.

    DURABLE = {
        "CARRY": {
            "language": "durable.contrib.carry.language",
            "zone": "durable.contrib.carry.time_zone",
            "schema": "durable.contrib.carry.schema",
        },
    }

Each saves what is active where a run is started, and nothing where nothing has been activated. `durable.carriers` says
when they are asked. The schema's carrier uses what the database backend of django-tenants adds to a connection, so it
imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone, translation

from durable.conf import conf

__all__ = ["language", "schema", "time_zone"]


class _Language:
    """The active language, as a code such as "de"; "" where translations are switched off."""

    def save(self) -> str | None:
        """Return the code of the active language."""
        found = translation.get_language()
        return "" if found is None else found

    def restored(self, value: str, /) -> AbstractContextManager[None]:
        """Return a context manager in which the language is active."""
        return translation.override(value or None)


class _TimeZone:
    """The active time zone, by its name; nothing is saved where none has been activated."""

    def save(self) -> str | None:
        """Return the name of the active time zone."""
        active = timezone.get_current_timezone()
        if active == timezone.get_default_timezone():
            return None
        name = getattr(active, "key", None)
        if name is None:
            raise ValueError(f"the active time zone, {active!r}, has no name: activate one of zoneinfo.ZoneInfo")
        return str(name)

    def restored(self, value: str, /) -> AbstractContextManager[None]:
        """Return a context manager in which the time zone is active."""
        return timezone.override(ZoneInfo(value))


class _Schema:
    """The schema of django-tenants on the connection to durable's database."""

    def save(self) -> str | None:
        """Return the name of the active schema."""
        return str(self._connection().schema_name or "") or None

    @contextmanager
    def restored(self, value: str, /) -> Iterator[None]:
        """Activate the schema on the connection of this thread, and then what was active before."""
        connection = self._connection()
        before = connection.tenant
        connection.set_schema(value)
        try:
            yield
        finally:
            connection.set_tenant(before)

    def _connection(self) -> Any:
        connection: Any = connections[conf.DATABASE]
        if not hasattr(connection, "set_schema"):
            raise ImproperlyConfigured(
                f'the database "{conf.DATABASE}" has no schemas of django-tenants: its ENGINE is '
                f'"{connection.settings_dict["ENGINE"]}", not "django_tenants.postgresql_backend"'
            )
        return connection


language = _Language()
time_zone = _TimeZone()
schema = _Schema()
