"""Databases beside the default one, for tests of what durable does there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections

from durable.store import store_for


@contextmanager
def migrated(alias: str, config: dict[str, Any], apps: Sequence[str] = ("auth", "durable")) -> Iterator[None]:
    """Inside, `alias` is a database with durable's tables and those of users. For a caller that may use databases."""
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: config})[alias]
    for app in apps:
        call_command("migrate", app, database=alias, verbosity=0)
    yield
    connections[alias].close()
    store_for.cache_clear()
    del connections.databases[alias]
    del connections[alias]


def only_with_a_server() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("without a server no connection breaks")
