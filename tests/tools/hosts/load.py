"""The client: it starts runs and sends messages while hosts fail, and repeats what got no answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections

from durable import get_run
from durable.core.errors import RunNotFoundError
from durable.core.records import ENDED
from durable.models import Run
from tests.support.waiting import force
from tests.tools.hosts import workflows

PAUSE: Final = 0.25  # seconds between two starts
PATIENCE: Final = 180.0  # seconds


@dataclass
class Load:
    """The runs of one trial, started by a thread from `begin` to `finish`. Ids make each call repeatable."""

    name: str
    started: dict[str, float] = field(default_factory=dict)  # when each start was answered, by the monotonic clock
    starts: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # the workflow of each, and its arguments
    collecting: dict[str, int] = field(default_factory=dict)  # how many numbers were sent to each
    lost: set[str] = field(default_factory=set)
    is_over_at: float = 0.0  # by the monotonic clock
    _is_over: threading.Event = field(default_factory=threading.Event)
    _problem: BaseException | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def start_patient(self, first: str, second: str) -> str:
        """Start a run whose pass lasts through two events of the ledger."""
        run_id = f"{self.name}-patient"
        self._start(run_id, workflows.patient, first, second)
        return run_id

    def finish(self) -> list[str]:
        """Start no more, and wait for the end of all. Return those that have not ended.

        What the database has lost is started and sent again, as the client of a real one would.
        """
        self._is_over.set()
        self.is_over_at = time.monotonic()
        self._thread.join(PATIENCE)
        if self._problem is not None:
            raise self._problem
        assert not self._thread.is_alive(), "the client waits"
        for run_id in set(self.started) - self._found():
            self.lost.add(run_id)
            self._start(run_id, *self.starts[run_id])
        for run_id in self.unended():
            if run_id in self.collecting:
                for number in range(workflows.NUMBERS):
                    self._send(run_id, number)
        deadline = time.monotonic() + PATIENCE
        while (left := self.unended()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def unended(self) -> list[str]:
        open_ones = set(force(lambda: list(Run.objects.exclude(state__in=ENDED).values_list("pk", flat=True))))
        return sorted(open_ones & set(self.started))

    def wait_for_ends(self, number: int, since: float = 0.0) -> None:
        """Wait until so many orders have completed that were started after a moment of the monotonic clock."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            later = [run_id for run_id, at in self.started.copy().items() if at > since and "order" in run_id]
            if force(lambda: Run.objects.filter(pk__in=later, state="completed").count()) >= number:  # noqa: B023 - called here
                return
            time.sleep(0.1)
        raise AssertionError(f"no {number} runs have completed within {PATIENCE:g} s")

    def _go_on(self) -> None:
        number = 0
        try:
            while not self._is_over.wait(PAUSE):
                self._start(f"{self.name}-order-{number}", workflows.order)
                if number % 8 == 0:
                    run_id = f"{self.name}-collect-{number}"
                    self._start(run_id, workflows.collect)
                    self.collecting[run_id] = 0
                for run_id, sent in list(self.collecting.items()):
                    if sent < workflows.NUMBERS:
                        self._send(run_id, sent)
                        self.collecting[run_id] += 1
                number += 1
        except BaseException as error:
            self._problem = error
        finally:
            connections.close_all()

    def _start(self, run_id: str, workflow: Any, *arguments: object) -> None:
        force(lambda: workflow.using(id=run_id).start(*arguments), PATIENCE)
        self.starts[run_id] = (workflow, *arguments)
        self.started[run_id] = time.monotonic()

    def _send(self, run_id: str, number: int) -> None:
        try:
            force(lambda: get_run(run_id).send("numbers", number, id=f"number {number}"), PATIENCE)
        except RunNotFoundError:  # the database has lost it: `finish` starts it again
            self.lost.add(run_id)

    def _found(self) -> set[str]:
        return set(force(lambda: list(Run.objects.filter(pk__in=self.started).values_list("pk", flat=True))))
