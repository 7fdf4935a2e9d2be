"""Runs of one version of the code, checked with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final, Self

import pytest
from django.utils import timezone

from durable import runtime, workflow
from durable.core import registry
from durable.core.records import RunRecord
from durable.models import Run
from durable.replay_check.checking import check_stored
from durable.replay_check.findings import Finding, FindingKind, Verdict
from durable.replay_check.replaying import RecordedRun, replayed
from durable.runtime import Runtime
from tests.support.stores import in_force, passed

NAME = "gate.order"
#: What is told although no pass stops as diverged: it fails with that error, or follows a version that is gone.
OTHERWISE: Final = frozenset({FindingKind.EXCEPTION, FindingKind.RULE, FindingKind.UNKNOWN_VERSION})


def kept(run_id: str) -> RunRecord:
    """The run as the store in force has it."""
    run = runtime.current().store.get(run_id)
    assert run is not None
    return run


def verdict_of(run_id: str) -> Verdict:
    """The verdict on a run of the store in force, of which the replay gets a copy."""
    at = runtime.current()
    return replayed(RecordedRun(run=deepcopy(kept(run_id)), entries=deepcopy(list(at.store.load(run_id)))), at)


def has_diverged(run_id: str) -> bool:
    run = kept(run_id)
    return run.error is not None and run.error.type == "HistoryDivergedError"


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

    def begin(self, function: Callable[..., Any], id: str = "order-1") -> None:
        """Replace the code of the workflow, and start a run of it."""
        self.deploy(function)
        self.start(id=id)

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

    def finding(self, code: Callable[..., Any] | None = None, *, of: str = "order-1") -> Finding:
        """What is found of the run with this code, or with the one that is deployed."""
        if code is not None:
            self.deploy(code)
        found = self.verdict(of).finding
        assert found is not None, "the run would go on"
        return found

    def goes_on(self, code: Callable[..., Any] | None = None, *, of: str = "order-1") -> bool:
        """Whether the run goes on with this code, or with the one that is deployed."""
        if code is not None:
            self.deploy(code)
        return self.verdict(of).finding is None


@pytest.fixture
def deploys(db: None) -> Iterator[Deploys]:
    with in_force() as at:
        made = Deploys(at)
        yield made
        made.withdraw()
