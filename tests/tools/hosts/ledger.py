"""What was done outside of the database: a file with a line for each event, in the order in which they happened.

Steps note there when they begin and end, as a bank would. A line is one write to the end of the file, so lines of
several processes do not mix. `HOSTS_LEDGER` in the environment names the file.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One event: the call `number` of a run began or ended, in the process `pid`.

    `at` is of the machine's monotonic clock, in seconds.
    """

    what: str
    run: str
    number: int
    key: str
    at: float
    pid: int


def _path() -> Path:
    return Path(os.environ["HOSTS_LEDGER"])


def note(what: str, run: str, number: int, key: str) -> None:
    """Add a line."""
    text = json.dumps(asdict(Line(what, run, number, key, time.monotonic(), os.getpid())))
    file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def read() -> list[Line]:
    """Return all lines."""
    path = _path()
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Account:
    """What the ledger says of some runs."""

    lines: list[Line]

    @classmethod
    def of(cls, runs: Iterable[str]) -> Account:
        wanted = set(runs)
        return cls([each for each in read() if each.run in wanted])

    @property
    def begun(self) -> list[Line]:
        return [each for each in self.lines if each.what == "begin"]

    @property
    def repeated(self) -> int:
        """How many calls were made again."""
        return len(self.begun) - len({(each.run, each.number) for each in self.begun})

    @property
    def under_way(self) -> list[Line]:
        """The calls that have begun and not ended."""
        ended = {(each.run, each.number, each.pid) for each in self.lines if each.what == "end"}
        return [each for each in self.begun if (each.run, each.number, each.pid) not in ended]

    def missing(self, run: str, calls: int) -> list[int]:
        """Return the calls of a run that were never made to their end."""
        ended = {each.number for each in self.lines if each.run == run and each.what == "end"}
        return [number for number in range(calls) if number not in ended]

    def made_after_their_record(self) -> list[str]:
        """Return the calls that began after a later one of the same run had: they were recorded by then."""
        furthest: dict[str, int] = defaultdict(lambda: -1)
        found = []
        for each in self.begun:
            if each.number < furthest[each.run]:
                found.append(f"call {each.number} of {each.run} was made after call {furthest[each.run]} had begun")
            furthest[each.run] = max(furthest[each.run], each.number)
        return found

    def with_several_keys(self) -> list[str]:
        """Return the calls whose repetitions had another idempotency key."""
        keys: dict[tuple[str, int], set[str]] = defaultdict(set)
        for each in self.begun:
            keys[each.run, each.number].add(each.key)
        return [
            f"call {number} of {run} had {len(found)} keys" for (run, number), found in keys.items() if len(found) > 1
        ]

    def longest_standstill(self, since: float, to: float) -> float:
        """Return the most seconds in which no call began, between two moments."""
        moments = [since, *(each.at for each in self.begun if since < each.at < to), to]
        return max(after - before for before, after in pairwise(moments))

    def longest_wait(self) -> float:
        """Return the most seconds between two calls of a run."""
        of_runs: dict[str, list[float]] = defaultdict(list)
        for each in self.begun:
            of_runs[each.run].append(each.at)
        return max((after - before for found in of_runs.values() for before, after in pairwise(found)), default=0.0)
