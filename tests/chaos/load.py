"""The runs of the chaos: started, sent to and watched by a client that is as stubborn as a queue of web requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import transaction

from durable.core.records import ENDED
from durable.models import Entry, QueueMessage, Run
from tests.chaos import workflows
from tests.support.waiting import force

#: What the starts say of the ranks of their runs, in turn: eight kinds of runs have each of them at times.
RANKS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"priority": "10 min"},
    {"share": "a"},
    {"priority": "-1 hour"},
    {"share": "b", "weight": 2},
    {"share": "a", "priority": "5 s"},
    {"share": "c"},
)


@dataclass
class Load:
    """Groups of runs, one of each kind.

    `expected` says what each run id has to come to, `ranks` what its start has said of its rank.
    """

    expected: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, dict[str, Any]] = field(default_factory=dict)
    charges: int = 0
    groups: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    def begin_a_group(self) -> None:
        """Start one run of each kind."""
        group = self.groups
        self.groups += 1
        ids = {name: f"{name}-{group}" for name in ("count", "collect", "nap", "ping", "pong", "parallel", "wander")}
        self._start(ids["count"], workflows.count, 8, output=8, charges=8)
        self._start(ids["collect"], workflows.collect, 9, output=list(range(9)))
        self._numbers[ids["collect"]] = 0
        self._start(ids["nap"], workflows.nap, 0.3, output="naps")
        # the one that waits comes first: a message to a run that does not exist yet is an error
        self._start(ids["pong"], workflows.pair, ids["ping"], 5, begins=False, output=list(range(5)))
        self._start(ids["ping"], workflows.pair, ids["pong"], 5, begins=True, output=list(range(5)))
        branches = dict.fromkeys(("one", "two", "three"), "charged")
        self._start(ids["parallel"], workflows.parallel, output={"joined": branches, "winner": "short"}, charges=3)
        self._start(ids["wander"], workflows.wander, 3, output=3, charges=6)
        self._start(f"undo-{group}", workflows.undo, output="undone", charges=3)
        self._start_and_take_back(group)

    def send_some(self) -> None:
        """The next number to each run that collects them."""
        for run_id, number in list(self._numbers.items()):
            force(lambda run_id=run_id, number=number: self._send(run_id, number))  # type: ignore[misc]  # bound here
            self._numbers[run_id] += 1
            if self._numbers[run_id] == 9:
                del self._numbers[run_id]

    def finish_sending(self) -> None:
        """All the numbers that are left."""
        while self._numbers:
            self.send_some()

    def wait(self, seconds: float) -> list[str]:
        """Until all runs have ended; those that have not, and what their rows say."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not (left := force(self._unended)):
                return []
            time.sleep(0.2)
        return [force(lambda run_id=run_id: _described(run_id)) for run_id in left]  # type: ignore[misc]  # bound here

    def _start(self, run_id: str, workflow: Any, *args: Any, output: Any, charges: int = 0, **kwargs: Any) -> None:
        rank = RANKS[len(self.ranks) % len(RANKS)]
        force(lambda: workflow.using(id=run_id, **rank).start(*args, **kwargs))
        self.ranks[run_id] = rank
        self.expected[run_id] = output
        self.charges += charges

    def _start_and_take_back(self, group: int) -> None:
        """A start inside a transaction that is rolled back must not happen."""

        def start() -> None:
            with transaction.atomic():
                workflows.count.using(id=f"never-{group}").start(1)
                transaction.set_rollback(True)

        force(start)

    def _send(self, run_id: str, number: int) -> None:
        from durable import get_run

        get_run(run_id).send("numbers", number, id=f"number {number}")

    def _unended(self) -> list[str]:
        return list(Run.objects.exclude(state__in=ENDED).values_list("pk", flat=True))


def _described(run_id: str) -> str:
    run = Run.objects.values().get(pk=run_id)
    entries = Entry.objects.filter(run=run_id).order_by("ordinal")
    messages = QueueMessage.objects.filter(run=run_id).order_by("order")
    return "\n".join(
        [
            str(run),
            *map(str, entries.values_list("location", "kind", "metadata__status", "data")),
            *map(str, messages.values_list("order", "queue", "state", "received_by", "sent_at")),
        ]
    )
