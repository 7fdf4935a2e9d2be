"""One trial after the other: load, a strike, the work after it, the verdict."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.e2e.workers import Workers
from tests.support.waiting import force
from tests.tools.hosts.cluster import Cluster
from tests.tools.hosts.ledger import Account
from tests.tools.hosts.load import Load
from tests.tools.hosts.servers import PATIENCE, until
from tests.tools.hosts.verdict import broken_promises

SETTINGS: Final = "tests.tools.hosts.settings"
WAYS: Final = ("pooled", "direct")
WORKERS: Final = 2  # a way, each with one run at once
SOME: Final = 5  # runs


@dataclass(frozen=True)
class Scenario:
    """What is tried. `strike` does it and returns when the cause is over.

    `may_lose`: the database may lose commits. `may_repeat` is how many calls may be under way in what is struck.
    """

    name: str
    told: str
    strike: Callable[[Study], None]
    may_lose: bool = False
    may_repeat: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. Times are in seconds."""

    scenario: Scenario
    standstill: float
    wait: float
    runs: int
    lost: int
    repeated: int
    problems: list[str]
    noted: str


class Study:
    """A cluster with workers, on which trials are made."""

    def __init__(self, cluster: Cluster, lease: float, directory: Path) -> None:
        self.cluster = cluster
        self.lease = lease
        self.log = directory / "workers.log"
        self.chance = random.Random(1)
        self.workers = {way: self._workers(way) for way in WAYS}
        self.load = Load("none")
        self.struck_at = 0.0
        self.noted = ""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, workers execute runs."""
        with self.workers["pooled"], self.workers["direct"]:
            yield

    def environment(self, way: str) -> dict[str, str]:
        return {**os.environ, **self.cluster.environment(way), "DURABLE_LEASE": str(self.lease)}

    def _workers(self, way: str) -> Workers:
        return Workers(WORKERS, self.environment(way), self.log, settings=SETTINGS)

    @contextmanager
    def worker_with_clock(self, seconds: float) -> Iterator[None]:
        """Inside, one more worker is there, whose clock is so far ahead."""
        [library] = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        clock = {"LD_PRELOAD": str(library), "FAKETIME": f"{seconds:+g}s", "DONT_FAKE_MONOTONIC": "1"}
        with Workers(1, {**self.environment("direct"), **clock}, self.log, settings=SETTINGS):
            yield

    def try_out(self, scenario: Scenario) -> Outcome:
        """Make a trial."""
        self.noted = ""
        self.load = Load(scenario.name.replace(" ", "-"))
        self.load.begin()
        self.load.wait_for_ends(SOME)
        self.strike_now()
        scenario.strike(self)
        self.work_goes_on()
        left = self.load.finish()
        self.cluster.heal()
        problems = force(
            lambda: broken_promises(self.load, left, may_lose=scenario.may_lose, may_repeat=scenario.may_repeat)
        )
        account = Account.of(self.load.started)
        return Outcome(
            scenario,
            standstill=account.longest_standstill(self.struck_at, self.load.is_over_at),
            wait=account.longest_wait(),
            runs=len(self.load.started),
            lost=len(self.load.lost),
            repeated=account.repeated,
            problems=problems,
            noted=self.noted,
        )

    def strike_now(self) -> None:
        """The strike is at this moment."""
        self.struck_at = time.monotonic()

    def work_goes_on(self) -> None:
        """Wait until runs have completed that were started from now on."""
        self.load.wait_for_ends(SOME, since=time.monotonic())

    def until_calling(self, run_id: str, number: int) -> None:
        """Wait until a run has begun a call."""
        until(lambda: any(each.number == number for each in Account.of([run_id]).begun), f"call {number} of {run_id}")

    def until_others_have_gone_on(self, run_ids: set[str]) -> None:
        """Wait until each of these runs has ended."""
        deadline = time.monotonic() + self.lease + 120
        while run_ids & set(self.load.unended()):
            assert time.monotonic() < deadline, f"these wait: {sorted(run_ids & set(self.load.unended()))}"
            time.sleep(0.2)

    @contextmanager
    def frozen_workers(self, way: str) -> Iterator[set[str]]:
        """Inside, all workers of this way are stopped; yield the runs whose calls are under way there."""
        children = self.workers[way].children
        pids = {each.pid for each in children}
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                _send(children, signal.SIGSTOP)
                account = Account.of(self.load.started.copy())
                if caught := {each.run for each in account.under_way if each.pid in pids}:
                    break
                assert time.monotonic() < deadline, "no call was under way"
                _send(children, signal.SIGCONT)
                time.sleep(self.chance.uniform(0.01, 0.1))  # another moment
            yield caught
        finally:
            _send(children, signal.SIGCONT)


def _send(processes: list[psutil.Process], what: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(what)


_HEAD = ("scenario", "stood still", "a run waited", "runs", "lost", "repeated", "verdict", "")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each outcome: seconds without any call, the most seconds between two calls of a run, numbers."""
    rows = [
        (
            each.scenario.name,
            f"{each.standstill:.1f} s",
            f"{each.wait:.1f} s",
            str(each.runs),
            str(each.lost),
            str(each.repeated),
            "BROKEN" if each.problems else "kept",
            each.noted,
        )
        for each in outcomes
    ]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in (_HEAD, *rows)
    )


def problems(outcomes: Sequence[Outcome]) -> str:
    """Return each promise that was broken, below its scenario; "" if none was."""
    return "\n".join(
        f"{each.scenario.name} ({each.scenario.told}):\n  " + "\n  ".join(each.problems)
        for each in outcomes
        if each.problems
    )
