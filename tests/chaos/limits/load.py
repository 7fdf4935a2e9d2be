"""The load of limits: starts, pauses, cancels and edits of a number, by a client that does not give up."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.utils import timezone

from durable import get_run
from durable.core.records import ENDED, RunState
from durable.errors import InvalidTransitionError, UnknownLimitError
from durable.models import Run
from durable.operations.limits import set_limit
from durable.operations.rates import close_limit, open_limit
from tests.chaos.limits import workflows as limited
from tests.support.waiting import force

_TENANTS: Final = ("acme", "emoji 🎉/slash")


@dataclass
class LimitLoad:
    """Groups of runs with limits. `expected` says how each run has to end."""

    chance: random.Random
    expected: dict[str, str] = field(default_factory=dict)
    charges: int = 0
    groups: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    _keepers: list[str] = field(default_factory=list)
    _paused: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """Nothing is there before the first run."""

    def begin_a_group(self) -> None:
        """Start one run of each kind for each tenant."""
        group = self.groups
        self.groups += 1
        for number, tenant in enumerate(_TENANTS):
            name = f"{group}-{number}"
            self._start(f"member-{name}", limited.member, tenant, charges=1)
            self._start(f"stepper-{name}", limited.stepper, tenant, charges=1)
            self._start(f"pair-{name}", limited.pair, tenant, charges=1)
            self._start(f"rated-{name}", limited.rated, tenant, charges=1)
            self._start(f"undone-{name}", limited.undone, tenant, ends=RunState.FAILED)
        self._start(f"passed-{group}", limited.passed, charges=1)
        if group % 4 == 0:
            self._start(f"keeper-{group}", limited.keeper, self.chance.choice(_TENANTS), ends=RunState.CANCELLED)
            self._keepers.append(f"keeper-{group}")

    def send_some(self) -> None:
        """Edit the number, pause a run, resume another, cancel a run that holds its slot for ever."""
        if self.chance.random() < 0.5:
            self._edit(self.chance.randint(1, limited.MOST))
        if self.chance.random() < 0.3:
            self._close()
        if self.chance.random() < 0.3:
            self._open()
        if self.chance.random() < 0.5:
            self._pause()
        if self._paused and self.chance.random() < 0.5:
            self._resume(self.chance.choice(sorted(self._paused)))
        if self._keepers and self.chance.random() < 0.5:
            self._cancel(self._keepers.pop(0))

    def finish_sending(self) -> None:
        """End what waits for somebody."""
        for run_id in sorted(self._paused):
            self._resume(run_id)
        while self._keepers:
            self._cancel(self._keepers.pop())
        self._edit(limited.MOST)
        self._open()

    def wait(self, seconds: float) -> list[str]:
        """Wait until all runs have ended; return those that have not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not force(_open_runs):
                return []
            time.sleep(0.2)
        return force(_described)

    def _start(
        self, run_id: str, workflow: Any, *args: Any, ends: RunState = RunState.COMPLETED, charges: int = 0
    ) -> None:
        force(lambda: workflow.using(id=run_id).start(*args))
        self.expected[run_id] = ends.value
        self.charges += charges

    def _edit(self, at_once: int) -> None:
        with suppress(UnknownLimitError):  # no run has taken a slot of it yet
            force(lambda: set_limit("chaos-edited", at_once))
            self.acts["edits"] += 1

    def _close(self) -> None:
        with suppress(UnknownLimitError):  # no run has wanted a unit of it yet
            force(lambda: close_limit("chaos-rate", timezone.now() + timedelta(seconds=1)))
            self.acts["closings"] += 1

    def _open(self) -> None:
        with suppress(UnknownLimitError):
            force(lambda: open_limit("chaos-rate"))
            self.acts["openings"] += 1

    def _pause(self) -> None:
        open_runs = force(_open_runs)
        chosen = self.chance.choice([each for each in open_runs if each not in self._keepers] or [""])
        if not chosen:
            return
        with suppress(InvalidTransitionError):  # it has ended, or compensates
            force(lambda: get_run(chosen).pause())
            self._paused.add(chosen)
            self.acts["pauses"] += 1

    def _resume(self, run_id: str) -> None:
        with suppress(InvalidTransitionError):  # it has ended before the pause was heard
            force(lambda: get_run(run_id).resume())
        self._paused.discard(run_id)

    def _cancel(self, run_id: str) -> None:
        with suppress(InvalidTransitionError):  # a try before was heard
            force(lambda: get_run(run_id).cancel(reason="chaos"))
            self.acts["cancels"] += 1


def _open_runs() -> list[str]:
    return list(Run.objects.exclude(state__in=ENDED).order_by("pk").values_list("pk", flat=True))


def _described() -> list[str]:
    """Return what the rows say of the runs that have not ended."""
    return [
        f"{run.pk} {run.state} {run.summary} {list(run.slots.values_list('limit', 'key', 'is_held', 'place'))}"
        for run in Run.objects.exclude(state__in=ENDED)
    ]
