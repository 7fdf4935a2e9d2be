"""The load of flow: the families' load, and parents that verbs strike in whatever state they are in."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Max

from durable import get_run
from durable.core.records import ENDED, RunState
from durable.errors import (
    EntryNotFoundError,
    InvalidTransitionError,
    KeyConflictError,
    ReplayRefusedError,
    RunConflictError,
    RunNotFoundError,
    StalePlanError,
)
from durable.models import Entry, Run
from tests.chaos.families.load import FamilyLoad
from tests.chaos.flow import workflows as flow
from tests.chaos.load import RANKS
from tests.support.waiting import force

_PARENTS: Final = 10  # so many that are open are enough
_PROGRESS: Final = 40  # entries that are recorded between two rounds of verbs
_PROGRESS_WITHIN: Final = 15.0  # seconds
_FAMILIES: Final = 4  # a group of families comes with every so many groups of parents
_OPEN: Final = tuple(each for each in RunState if each not in ENDED)
#: What a verb says of a run to which it does not apply: that it has ended, runs, has no such place, or lost its key.
_REFUSALS: Final = (
    InvalidTransitionError,
    ReplayRefusedError,
    StalePlanError,
    EntryNotFoundError,
    RunNotFoundError,
    KeyConflictError,
    RunConflictError,
)


@dataclass
class FlowLoad:
    """Groups of parents, with families beside them.

    `ends` says how each parent ends, `struck` which ones a verb has changed.
    """

    chance: random.Random
    families: FamilyLoad
    ends: dict[str, str] = field(default_factory=dict)
    struck: set[str] = field(default_factory=set)
    acts: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    _is_over: bool = False
    _seen: int = 0

    def begin_a_group(self) -> None:
        """Start a parent for each way to end, in turn, and a run that has a key which children want."""
        group = self.groups
        self.groups += 1
        if group % _FAMILIES == 0:
            self.families.begin_a_group()
        for number in range(
            2 if force(lambda: Run.objects.open().filter(workflow="chaos.asking").count()) < _PARENTS else 0
        ):
            self._begin(group, flow.ENDS[(2 * group + number) % len(flow.ENDS)])
        if group % 2:
            key = f"k{self.chance.randrange(flow.KEYS)}"
            force(lambda: flow.paid.using(id=f"single-{group}", key=key).start("completes"))

    def _begin(self, group: int, end: str) -> None:
        run_id, options = f"asking-{group}-{end}", dict(RANKS[group % len(RANKS)])
        if end == "late":
            options["deadline"] = self.chance.uniform(0.5, 5)
        force(lambda: flow.asking.using(id=run_id, **options).start(group, end))
        self.ends[run_id] = end

    def send_some(self) -> None:
        """What the families are sent, at times, and verbs: to parents in any state, and to a child."""
        self._wait_for_progress()
        if self.groups % 2 == 0:
            self.families.send_some()
        self._recover(self._one_of("chaos.asking", RunState.FAILED))
        self._again(self._one_of("chaos.asking", *_OPEN, *ENDED))
        self._anew(self._one_of("chaos.asking", *_OPEN, *ENDED))
        self._pause(self._one_of("chaos.asking", *_OPEN))
        self.chance.choice((self._cancel, self._recover))(self._one_of("chaos.asking", *_OPEN, RunState.FAILED))
        self.chance.choice((self._cancel, self._pause))(self._one_of("chaos.paid", *_OPEN))
        self._resume()

    def finish_sending(self) -> None:
        """End what waits for somebody; from now on what fails until it is mended does not fail."""
        self._is_over = True
        self.families.finish_sending()

    def wait(self, seconds: float) -> list[str]:
        """Resume, wake, recover and cancel what waits for it, until all runs have ended; those that have not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._resume()
            for run_id in force(_lookers):
                self._do("wakes", run_id, lambda run_id=run_id: get_run(run_id).wake())  # type: ignore[misc]  # bound here
            for run_id in force(_sleepers):
                self._cancel(run_id)
            unmended = force(_unmended)
            for run_id in unmended:
                self._recover(run_id)
            if not unmended and not self.families.wait(0.5):
                return []
        return [*force(_unended), *(f"not recovered: {each}" for each in force(_unmended))]

    def _wait_for_progress(self) -> None:
        """Let the runs get on a little between two faults, however slow the machine is.

        The verbs are to find them in all states.
        """
        deadline = time.monotonic() + _PROGRESS_WITHIN
        while (newest := force(_newest_entry)) < self._seen + _PROGRESS and time.monotonic() < deadline:
            time.sleep(0.05)
        self._seen = newest

    # -- the verbs

    def _one_of(self, workflow: str, *states: RunState) -> str:
        """A run in one of these states that has recorded something, at random; "" if there is none."""
        begun = Run.objects.filter(workflow=workflow, state__in=states, entries__isnull=False).distinct()
        found = force(lambda: sorted(begun.values_list("pk", flat=True)))
        return self.chance.choice(found) if found else ""

    def _do(self, name: str, run_id: str, verb: Callable[[], object]) -> None:
        """Do what a verb does; its answer may have been lost, and it then be refused as done already."""
        if not run_id:
            return
        self.struck.add(run_id)
        try:
            force(verb)
        except _REFUSALS:
            self.acts["refused verbs"] += 1
        else:
            self.acts[name] += 1

    def _cancel(self, run_id: str) -> None:
        with_rollback = self.chance.random() < 0.5
        self._do("cancels", run_id, lambda: get_run(run_id).cancel("chaos", rollback=with_rollback))

    def _recover(self, run_id: str) -> None:
        self._do("recovers", run_id, lambda: get_run(run_id).recover())

    def _pause(self, run_id: str) -> None:
        self._do("pauses", run_id, lambda: get_run(run_id).pause())

    def _again(self, run_id: str) -> None:
        """Replay the run in place, from any of its operations."""
        self._do("replays in place", run_id, lambda: get_run(run_id).replay(self._place(run_id), in_place=True))

    def _anew(self, run_id: str) -> None:
        """Replay it as another run, whose id makes a repeated call the same one."""
        place, new_id = self._place(run_id), f"{run_id}+"
        self._do("replays", run_id, lambda: get_run(run_id).replay(place, id=new_id))

    def _place(self, run_id: str) -> str:
        places = force(
            lambda: list(Entry.objects.filter(run=run_id).order_by("ordinal").values_list("location", flat=True))
        )
        return self.chance.choice(places) if places else ""

    def _resume(self) -> None:
        paused = force(
            lambda: list(Run.objects.filter(state=RunState.PAUSED).order_by("pk").values_list("pk", flat=True))
        )
        for run_id in paused:
            if self._is_over or self.chance.random() < 0.3:
                self._do("resumes", run_id, lambda run_id=run_id: get_run(run_id).resume())  # type: ignore[misc]  # bound here


def _newest_entry() -> int:
    return Entry.objects.aggregate(newest=Max("pk"))["newest"] or 0


def _lookers() -> list[str]:
    """Replays that undo their originals' children. The end of these wakes no other run: it looks once a minute."""
    waiting = Run.objects.filter(state=RunState.ROLLING_BACK, replay_of__isnull=False).exclude(waiting_for="")
    return list(waiting.values_list("pk", flat=True))


def _sleepers() -> list[str]:
    """Parents that sleep until somebody ends them."""
    found = Entry.objects.filter(run__workflow="chaos.asking", location="for ever").exclude(run__state__in=ENDED)
    return list(found.exclude(run__state=RunState.ROLLING_BACK).values_list("run", flat=True))


def _unmended() -> list[str]:
    """Parents that have failed for want of being mended, and what was stopped in its compensation."""
    failed = Run.objects.filter(state=RunState.FAILED, workflow__in=("chaos.asking", "chaos.paid"))
    unmended = failed.filter(workflow="chaos.asking", error__contains="not mended").values_list("pk", flat=True)
    return [*unmended, *failed.exclude(state_after_rollback="").values_list("pk", flat=True)]


def _unended() -> list[str]:
    return [f"{run.pk} {run.state} {run.summary}" for run in Run.objects.exclude(state__in=ENDED)]
