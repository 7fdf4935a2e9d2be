"""A replay from any place of any program: the code fits the history that stays, and what stays is not done again.

Every scenario is played to its end and replayed from a place that is drawn by its id, as a new run or in place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from durable.core.entries import ENDED
from durable.testing import Harness
from tests.conformance import grammar
from tests.conformance.interpreter import START, WORKFLOWS
from tests.conformance.play import Colour, perform
from tests.conformance.recorder import Recorder, recording
from tests.conformance.scenarios import Scenario, scenarios

_CONTRACT = {"HistoryDivergedError", "EntryInProgressError", "OpenTransactionError"}
#: What the world outside decides: a program with one of these may go another way the second time.
_OPEN = (grammar.Next, grammar.NextBatch, grammar.Race, grammar.SleepUntil)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The run that was played, the one that was replayed, the plan, and what its steps' functions were called for."""

    first: Any
    again: Any
    plan: Any
    kept: dict[str, str]  # the status of each entry that stayed
    called: list[str]


@contextmanager
def played(scenario: Scenario, colour: Colour) -> Iterator[tuple[Harness, Any, Recorder]]:
    """The scenario, with all that happens to it from outside, in a harness that is in force."""
    with Harness(now=START, short_sleep=0) as h:
        run = h.start(WORKFLOWS[colour], scenario.source, id=scenario.id)
        with recording(scenario.id, lambda: h.commits) as recorder:
            perform(h, run, recorder, scenario)
            yield h, run, recorder


def replayed(h: Harness, run: Any, recorder: Recorder, location: str, *, in_place: bool) -> Replayed | None:
    """The run replayed from there; None where that is refused."""
    plan = run.plan_replay(location)
    before = {each.location for each in run.history()}
    assert set(plan.kept) | set(plan.removed) == before
    assert not set(plan.kept) & set(plan.removed)
    if plan.refusals_of(in_place=in_place):
        return None
    again = run.replay(location, in_place=in_place, plan_hash=plan.hash, **({} if in_place else {"id": "again"}))
    kept = {each.location: each.status for each in again.history()}
    assert kept.keys() == set(plan.kept)
    with nullcontext(recorder) if in_place else recording("again", lambda: h.commits) as world:
        begun = len(world.calls)
        _drive(h, again)
        return Replayed(run, again, plan, kept, [call.path for call in world.calls[begun:]])


def _drive(h: Harness, run: Any) -> None:
    for _ in range(50):
        if run.state in ENDED:
            return
        h.settle()
        if run.wake_at is None:  # it waits for a message
            return
        h.advance((run.wake_at - h.now).total_seconds())


def problems(scenario: Scenario, done: Replayed, output: Any) -> list[str]:
    """What is wrong with a replay."""
    found = []
    error = done.again.error
    if error is not None and error.type in _CONTRACT:
        found.append(f"it ended with {error}")
    found += [f"{path} was called again" for path in done.called if done.kept.get(path) == "completed"]
    is_closed = not any(isinstance(each, _OPEN) for each in grammar.operations(scenario.program))
    if is_closed and output is not None and not _has_failures(scenario):
        if done.again.output != output:
            found.append(f"it gave {done.again.output}, not {output}")
        missing = set(done.plan.reruns) - set(done.called)  # a loop's pruned iterations are called too
        found += [f"{path} was not called again" for path in missing]
    return found


def _has_failures(scenario: Scenario) -> bool:
    steps = [each.step if isinstance(each, grammar.TryStep) else each for each in grammar.operations(scenario.program)]
    return any(isinstance(each, grammar.Step) and each.fail for each in steps)


def locations(run: Any) -> list[str]:
    return [each.location for each in run.history()]


@pytest.mark.parametrize(
    ("scenario", "colour"),
    [
        *(pytest.param(each, "sync", id=f"{each.id}-sync") for each in scenarios()),
        # what differs between the colours is not what a replay leaves
        *(pytest.param(each, "async", id=f"{each.id}-async") for each in scenarios()[::5]),
    ],
)
def test_a_replay_fits_and_does_nothing_twice(scenario: Scenario, colour: Colour) -> None:
    drawn = random.Random(f"{scenario.id} {colour}")
    with played(scenario, colour) as (h, run, recorder):
        if not (places := locations(run)):
            return
        output = run.output
        place, in_place = drawn.choice(places), drawn.random() < 0.5
        done = replayed(h, run, recorder, place, in_place=in_place)
        if done is not None:
            found = problems(scenario, done, output)
            assert not found, f"scenario {scenario.id}, from {place}, in place: {in_place}:\n" + "\n".join(found)
