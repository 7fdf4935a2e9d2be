"""A replay from any place of any program: the code fits the history that stays, and what stays is not done again.

Every other scenario is played to its end and replayed from a place that is drawn by its id, as a new run or in place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from durable.core.records import ENDED
from durable.errors import InvalidTransitionError
from durable.testing import Harness
from tests.conformance import grammar
from tests.conformance.interpreter import START, WORKFLOWS
from tests.conformance.play import Colour, perform
from tests.conformance.recorder import Recorder, recording
from tests.conformance.scenarios import Scenario, cases, scenarios

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
    found = ends_wrong(scenario, done.again, output)
    found += [f"{path} was called again" for path in done.called if done.kept.get(path) == "completed"]
    if output is not None and is_certain(scenario):
        missing = set(done.plan.reruns) - set(done.called)  # a loop's pruned iterations are called too
        found += [f"{path} was not called again" for path in missing]
    return found


def ends_wrong(scenario: Scenario, run: Any, output: Any) -> list[str]:
    """Return what is wrong with the end of a run.

    `output` is what the scenario gave undisturbed, None if it did not complete.
    """
    if run.error is not None and run.error.type in _CONTRACT:
        return [f"it ended with {run.error}"]
    if output is not None and is_certain(scenario) and run.output != output:
        return [f"it gave {run.output}, not {output}"]
    return []


def is_certain(scenario: Scenario) -> bool:
    """Whether the program gives the same each time, whatever happens outside and however often its steps are called."""
    if any(isinstance(each, _OPEN) for each in grammar.operations(scenario.program)):
        return False
    steps = [each.step if isinstance(each, grammar.TryStep) else each for each in grammar.operations(scenario.program)]
    return not any(isinstance(each, grammar.Step) and each.fail for each in steps)


def locations(run: Any) -> list[str]:
    return [each.location for each in run.history()]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "colour"), cases()[::2])
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


@pytest.mark.slow
@pytest.mark.parametrize("scenario", scenarios()[::3], ids=lambda scenario: scenario.id)
def test_whatever_operators_do_one_after_the_other(scenario: Scenario) -> None:
    drawn = random.Random(f"{scenario.id} operators")
    with ExitStack() as worlds:
        h, run, _ = worlds.enter_context(played(scenario, drawn.choice(["sync", "async"])))
        output, acts = run.output, list[str]()
        for number in range(drawn.randint(2, 5)):
            worlds.enter_context(recording(f"again {number}", lambda: h.commits))
            run = _act(h, run, drawn, f"again {number}", acts)
        if run.state == "paused":
            run.resume()
        if run.state == "cancelled" and (places := locations(run)):
            run = run.replay(drawn.choice(places), in_place=True)
        _drive(h, run)
        found = [] if run.state == "cancelled" else ends_wrong(scenario, run, output)
        assert not found, f"scenario {scenario.id}, after {', '.join(acts)}:\n" + "\n".join(found)


def _act(h: Harness, run: Any, drawn: random.Random, new_id: str, acts: list[str]) -> Any:
    """One thing that an operator or the time does to the run; the run that goes on."""
    act = drawn.choice(["replay", "replay in place", "pass", "advance", "recover", "cancel", "pause"])
    places = locations(run)
    place = drawn.choice(places) if places else ""
    acts.append(f"{act} {place}" if act.startswith("replay") else act)
    if act == "pass":
        h.run(run)
    elif act == "advance":
        h.advance(drawn.choice([1, 60, 5000]))
    elif act.startswith("replay") and place:
        in_place = act == "replay in place"
        if not run.plan_replay(place).refusals_of(in_place=in_place):
            return run.replay(place, in_place=in_place, **({} if in_place else {"id": new_id}))
    elif act in ("recover", "cancel", "pause"):
        with suppress(InvalidTransitionError):
            getattr(run, act)()
    return run
