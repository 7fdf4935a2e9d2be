"""One execution of a test that is watched: which steps it calls, what they do, and where it dies.

Owns what is in force in this process: at most one trial. Without one, a harness pays a look at a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from durable.core.current import current_step, is_in_step, running_place, running_run
from durable.core.effects import Call
from durable.core.records import RunRecord

#: The location of what the workflow's own code does.
BETWEEN_STEPS: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A death before or after a commit, from 1, of a harness of the test, from 0."""

    harness: int
    commit: int
    when: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where code of a run does something. `purpose` is "step" or "rollback"; `location` may be BETWEEN_STEPS."""

    harness: int
    run: str
    workflow: str
    location: str
    purpose: str


Kind = Literal["http", "mail", "mock", "insert", "update", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What has left the process. `life` is 0 before the death and 1 after it.

    Two effects with the same `key` are one to the receiver. `is_doubtful`: it may have changed nothing. `is_harmless`:
    doing it twice is doing it once, as with PUT.
    """

    place: Place
    life: int
    kind: Kind
    label: str
    key: str | None = None
    is_doubtful: bool = False
    is_harmless: bool = False
    database: str = ""


@dataclass(frozen=True, slots=True)
class StepCall:
    """A call of a step's function. `is_stand_in`: the test has put a mock in its place."""

    place: Place
    life: int
    is_stand_in: bool


@dataclass(slots=True)
class Trial:
    """One execution of a test. Without `death` nothing dies: what it does is what others are compared with."""

    death: Point | None = None
    life: int = 0
    calls: list[StepCall] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    harnesses: list[Any] = field(default_factory=list)
    #: The harnesses in force and their numbers, the innermost last; None for one that is not watched.
    active: list[tuple[Any, int | None]] = field(default_factory=list)
    #: By harness, in the order of their first calls.
    runs: dict[int, list[str]] = field(default_factory=dict)
    #: The states in which the harnesses have left their runs: (harness, run) -> state, error.
    ends: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict)
    #: The mocks that the test has put in the place of steps' functions.
    stand_ins: list[Any] = field(default_factory=list)
    #: The calls that are rolled back with their rows, if they die before their commit.
    atomic: set[Place] = field(default_factory=set)

    def commits(self) -> list[int]:
        """Return how many commits the passes of each harness have made."""
        return [each.commits for each in self.harnesses]

    def innermost(self) -> int | None:
        """Return the number of the innermost harness in force; None if there is none, or it is not watched."""
        return self.active[-1][1] if self.active else None

    def _place(self) -> Place | None:
        """Return where the code that runs here belongs to; None for the test's own code."""
        harness = self.innermost()
        run, workflow, _ = running_place()
        if harness is None or not run:
            return None
        if is_in_step():
            info = current_step()
            return Place(harness, run, workflow, info.location, info._purpose)
        return Place(harness, run, workflow, BETWEEN_STEPS, "step") if running_run() == run else None


_trial: Trial | None = None


def in_force() -> Trial | None:
    return _trial


@contextmanager
def watched(trial: Trial) -> Iterator[None]:
    """Put a trial in force for the block. Raises RuntimeError if there is one."""
    global _trial
    if _trial is not None:
        raise RuntimeError("a test is watched already: tests of one process are watched one after the other")
    _trial = trial
    try:
        yield
    finally:
        _trial = None


def enter(harness: Any, store: Any, *, is_watched: bool) -> None:
    """A harness comes into force."""
    if (trial := _trial) is None:
        return
    if not is_watched:
        trial.active.append((harness, None))
        return
    if harness not in trial.harnesses:
        trial.harnesses.append(harness)
    number = trial.harnesses.index(harness)
    trial.active.append((harness, number))
    if trial.death is not None and trial.life == 0 and trial.death.harness == number:
        store.arm_death(trial.death.commit, trial.death.when)


def leave(harness: Any, end_of: Callable[[str], tuple[str, str] | None]) -> None:
    """A harness is no longer in force. `end_of` returns the state and the error in which it leaves a run."""
    trial = _trial
    if trial is None or not trial.active or trial.active[-1][0] is not harness:
        return  # it came into force before this test, as that of a session's fixture
    if (number := trial.active.pop()[1]) is not None:
        for run in trial.runs.get(number, ()):
            if (end := end_of(run)) is not None:
                trial.ends[number, run] = end


def die() -> None:
    """The process dies: what comes from here on is the next worker's."""
    if _trial is not None:
        _trial.life = 1


def note_call(call: Call, workflow: str) -> None:
    """Note a call of a step's function that is about to be made."""
    if (trial := _trial) is None or (number := trial.innermost()) is None:
        return
    run = call.info.run_id
    place = Place(number, run, workflow, call.info.location, call.info._purpose)
    runs = trial.runs.setdefault(number, [])
    if run not in runs:
        runs.append(run)
    if call.record is not None:
        trial.atomic.add(place)
    if (mock := _mock_of(call.function)) is not None:
        trial.stand_ins.append(mock)
    trial.calls.append(StepCall(place, trial.life, mock is not None))


def is_stand_in(mock: Any) -> bool:
    """Return True if a step's function was called that is this mock."""
    return _trial is not None and any(each is mock for each in _trial.stand_ins)


def note_starts(started: Sequence[tuple[RunRecord, bool]]) -> None:
    """Note runs that a step has started; the flag says whether the run is new."""
    if _trial is not None and is_in_step():
        for run, is_new in started:
            if is_new:
                note("start", f"a start of {run.workflow}", key=run.id)


def note(kind: Kind, label: str, **details: Any) -> None:
    """Note an effect of the code that runs here."""
    if (trial := _trial) is None or (place := trial._place()) is None:
        return
    trial.effects.append(Effect(place=place, life=trial.life, kind=kind, label=label, **details))


def _mock_of(function: Any) -> Any:
    """Return the mock that a function is, or that it calls as an autospec does; None if it is the project's own."""
    for each in (function, getattr(function, "__dict__", {}).get("mock")):
        if any(kind.__module__ in ("unittest.mock", "mock.mock") for kind in type(each).__mro__):
            return each
    return None
