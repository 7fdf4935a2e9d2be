"""The load of families, keys and schedules.

Starts, messages, cancels and recovers, by a client that does not give up.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from durable import Schedule, get_run
from durable.core.records import ENDED
from durable.errors import InvalidTransitionError, KeyConflictError, RunNotFoundError
from durable.models import Run
from durable.operations.schedules import verbs
from project.shop.models import Product
from tests.chaos.families import workflows as families
from tests.support.waiting import force

KEYS: Final = 3
OVERLAPS: Final = ("skip", "queue", "allow", "replace")
_LAST: Final = 4  # clicks of one basket
SIZE: Final = 4


@dataclass
class FamilyLoad:
    """Groups of families. `expected` says what each run has to come to; `clicks` what was sent to each key."""

    chance: random.Random
    expected: dict[str, Any] = field(default_factory=dict)
    clicks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    starts: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    charges: int = 0
    _to_cancel: list[str] = field(default_factory=list)
    _to_recover: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Make a schedule for each way to overlap: one tick a second, and runs that take about as long."""
        force(lambda: Product.objects.create(slug="mended", name="mended", price=0))
        for overlap in OVERLAPS:
            Schedule.objects.create(
                name=f"chaos-{overlap}",
                workflow=families.tick.name,
                args=[0.8],
                rule="every 1 second",
                overlap=overlap,
            )

    def begin_a_group(self) -> None:
        """Start one family of each kind."""
        group = self.groups
        self.groups += 1
        output = [100, *range(SIZE)]
        self._start(f"family-{group}", families.family, SIZE, output=output)
        self._start(f"mapped-{group}", families.mapped, 2 * SIZE, output=[*range(1, 2 * SIZE, 2), -SIZE])
        self._start(f"leaving-{group}", families.leaving, output=f"leaving-{group}:left")
        self._start(f"losing-{group}", families.losing, output="fast")
        self._start(f"careful-{group}", families.careful, output="mended")
        self._to_recover.append(f"careful-{group}")
        self._start(f"orphans-{group}", families.orphans, SIZE, output="cancelled")
        self._start(f"stopped-{group}", families.family, SIZE, output="stopped")
        self._to_cancel += [f"orphans-{group}", f"stopped-{group}"]

    def send_some(self) -> None:
        """A click, a debounced start and a replacing one for each key; now and then a cancel, and recoveries."""
        for number in range(KEYS):
            self._click(f"k{number}", is_last=len(self.clicks[f"k{number}"]) % _LAST == _LAST - 1)
            count = self.starts["quiet"] + 1
            quiet = families.quiet.using(key=f"k{number}", debounce=0.4, at_most=2)
            force(lambda quiet=quiet, count=count: quiet.start(count))  # type: ignore[misc]  # bound here
            self.starts["quiet"] += 1
            self._replace(f"k{number}")
        if self._to_cancel and self.chance.random() < 0.7:
            self._cancel(self._to_cancel.pop(self.chance.randrange(len(self._to_cancel))))
        self._recover()

    def finish_sending(self) -> None:
        """End what waits for somebody: cancel the rest, mend what fails, send the last clicks, pause the schedules."""
        for overlap in OVERLAPS:
            force(lambda overlap=overlap: self._pause(f"chaos-{overlap}"))  # type: ignore[misc]  # bound here
        while self._to_cancel:
            self._cancel(self._to_cancel.pop())
        force(lambda: Product.objects.filter(slug="mended").update(price=1))
        for number in range(KEYS):
            if force(lambda number=number: families.basket.open_run(key=f"k{number}")):  # type: ignore[misc]
                self._click(f"k{number}", is_last=True)
            if (held := force(lambda number=number: families.single.open_run(key=f"k{number}"))) is not None:  # type: ignore[misc]
                self._cancel(held.id)

    def wait(self, seconds: float) -> list[str]:
        """Recover what has failed until all runs have ended; those that have not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._recover()
            if not self._to_recover and not force(_open_runs):
                return []
            time.sleep(0.2)
        return [*force(_open_runs), *(f"not recovered: {each}" for each in self._to_recover)]

    def _start(self, run_id: str, workflow: Any, *args: Any, output: Any) -> None:
        force(lambda: workflow.using(id=run_id).start(*args))
        self.expected[run_id] = output

    def _click(self, key: str, *, is_last: bool) -> None:
        number = len(self.clicks[key])
        self.clicks[key].append(number)
        body = {"n": number, "last": is_last}
        force(lambda: families.basket.using(key=key).start_or_send("click", body))

    def _replace(self, key: str) -> None:
        with suppress(KeyConflictError, InvalidTransitionError):  # one that ends just now
            self.starts["single"] += 1
            count = self.starts["single"]
            force(lambda: families.single.using(key=key, if_open="replace").start(count))

    def _cancel(self, run_id: str) -> None:
        with suppress(InvalidTransitionError):  # it has ended, or a try before was heard
            force(lambda: get_run(run_id).cancel(reason="chaos"))

    def _recover(self) -> None:
        failed = force(lambda: set(Run.objects.filter(pk__in=self._to_recover).values_list("pk", "state")))
        for run_id, state in failed:
            if state == "failed":
                with suppress(InvalidTransitionError, RunNotFoundError):
                    force(lambda run_id=run_id: get_run(run_id).recover())  # type: ignore[misc]  # bound here
            elif state == "completed":
                self._to_recover.remove(run_id)

    def _pause(self, name: str) -> None:
        if not Schedule.objects.get(name=name).paused:
            verbs.pause(name)


def _open_runs() -> list[str]:
    return list(Run.objects.exclude(state__in=ENDED).values_list("pk", flat=True))
