"""The store whose runs the workers of these tests pass, and commands as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable.store import Store, store_for
from tests.support.processes import Program, Run


@pytest.fixture
def store() -> Store:
    return store_for("default")


@pytest.fixture
def run(child_environment: dict[str, str]) -> Iterator[Run]:
    """Start a command, with `extra` in its environment; it is ended with the test."""
    started: list[Program] = []
    flows = {"DJANGO_SETTINGS_MODULE": "tests.support.flows.settings", "PYTHONUNBUFFERED": "1"}

    def start(*arguments: str, **extra: str) -> Program:
        started.append(Program(*arguments, environment={**child_environment, **flows, **extra}))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end()
        each.close()
