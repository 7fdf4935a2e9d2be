"""Runs of one version of the code, checked with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from django.utils import timezone

from durable import workflow
from durable.core import registry
from durable.models import Run
from durable.replay_check.checking import check_stored
from durable.replay_check.findings import Finding, Verdict
from durable.runtime import Runtime
from tests.support.stores import in_force, passed

NAME = "gate.order"


class Deploys:
    """The code of one workflow, deployed in one version after the other."""

    def __init__(self, at: Runtime) -> None:
        self.at = at
        self._deployed: Any = None

    def deploy(self, function: Callable[..., Any], name: str = NAME) -> Self:
        """Replace the code of the workflow."""
        self.withdraw()
        self._deployed = workflow(name=name)(function)
        return self

    @property
    def code(self) -> Any:
        """The workflow as it is deployed."""
        return self._deployed

    def withdraw(self) -> None:
        if self._deployed is not None:
            registry.registry.unregister(self._deployed)
        self._deployed = None

    def start(self, *args: Any, id: str = "order-1", **kwargs: Any) -> str:
        self._deployed.using(id=id).start(*args, **kwargs)
        return self.settle(id)

    def settle(self, run_id: str) -> str:
        """Pass the run until it rests."""
        for _ in range(50):
            run = Run.objects.get(pk=run_id)
            if run.wake_at is None or run.wake_at > timezone.now():
                return run_id
            passed(self.at, run_id)
        raise AssertionError(f"{run_id} does not rest")

    def verdict(self, run_id: str = "order-1", *, with_decision: bool = False) -> Verdict:
        (found,) = check_stored([run_id], with_decision=with_decision)
        assert found is not None
        assert found.unchecked == ""
        return found

    def finding(self, run_id: str = "order-1") -> Finding:
        found = self.verdict(run_id).finding
        assert found is not None, "the run would go on"
        return found

    def goes_on(self, run_id: str = "order-1") -> bool:
        return self.verdict(run_id).finding is None


@pytest.fixture
def deploys(db: None) -> Iterator[Deploys]:
    with in_force() as at:
        made = Deploys(at)
        yield made
        made.withdraw()
