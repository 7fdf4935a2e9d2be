"""Fixtures of the worker's side."""

import pytest

from durable import bell, holding, supervisor


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged seldom is logged in each test."""
    for module in (bell, holding, supervisor):
        monkeypatch.setattr(module._log_this, "_said", {})


@pytest.fixture
def no_outages(unlogged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell remembers no outage of another test."""
    monkeypatch.setattr(bell, "_quiet_until", {})
