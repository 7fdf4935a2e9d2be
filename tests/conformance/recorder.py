"""What a run's step functions and rollback handlers did, apart from what the engine recorded of it.

The recorder lives outside the engine, as the world that a step acts on does. It numbers the calls of a step's function
over the run's whole life, and forgets calls on demand: see `forget_since`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.conformance.grammar import Json


@dataclass(frozen=True, slots=True)
class Call:
    """The call with this number (from 1) of the step function at `path`, when `commits` commits had been made."""

    path: str
    number: int
    commits: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """A call of the rollback handler of the step at `path`, when `commits` commits had been made."""

    path: str
    output: Json
    commits: int


@dataclass(slots=True)
class Recorder:
    """The calls of one run, oldest first. `commits` tells how many commits its passes have made so far."""

    commits: Callable[[], int]
    calls: list[Call] = field(default_factory=list)
    rollbacks: list[Rollback] = field(default_factory=list)

    def next_number(self, path: str) -> int:
        """The number that the next call of the step at `path` will have."""
        return 1 + sum(call.path == path for call in self.calls)

    def called(self, path: str) -> int:
        """Record a call of the step at `path`; its number."""
        number = self.next_number(path)
        self.calls.append(Call(path, number, self.commits()))
        return number

    def rolled_back(self, path: str, output: Json) -> None:
        """Record a call of the rollback handler of the step at `path`."""
        self.rollbacks.append(Rollback(path, output, self.commits()))

    def forget_since(self, commits: int) -> None:
        """Forget what was called since this many commits had been made.

        A crash before a commit loses the record of the calls since the last one, and the next pass makes them
        again. How a call fails depends on its number, so it has to be the same number again.
        """
        self.calls[:] = [call for call in self.calls if call.commits < commits]
        self.rollbacks[:] = [rollback for rollback in self.rollbacks if rollback.commits < commits]


_RECORDERS: dict[str, Recorder] = {}


@contextmanager
def recording(run_id: str, commits: Callable[[], int]) -> Iterator[Recorder]:
    """A recorder that the run's step functions and rollback handlers find by its id."""
    recorder = Recorder(commits)
    _RECORDERS[run_id] = recorder
    try:
        yield recorder
    finally:
        del _RECORDERS[run_id]


def recorder_of(run_id: str) -> Recorder:
    """The recorder of this run; KeyError outside of `recording`."""
    return _RECORDERS[run_id]
