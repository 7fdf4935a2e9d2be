"""Every scenario gives the trace of the reference engine, and a crash changes nothing but the time it takes.

Every program is played once undisturbed, and again for some of its commits: the process dies there, and a fresh pass
goes on at the same moment. Each pass, the history and the calls that were recorded are then those of the undisturbed
play. So a function is called again only if the record of its call was never committed, and no recorded call is lost.

How a call fails depends on its number. A crash before a commit loses the record of the calls since the last commit;
nothing will ever show them, so the recorder forgets them, and the calls that are made instead get their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

import pytest

from tests.conformance.compare import changes, differences
from tests.conformance.known import KNOWN
from tests.conformance.play import Colour, Crash, Played, play
from tests.conformance.recorder import Recorder
from tests.conformance.scenarios import Scenario, cases, scenarios

#: How often each program is crashed. The commits are drawn by its id, so they are the same ones each time; all commits
#: of all programs in both colours are 23,000 crashes, which is a matter of minutes.
SAMPLE: dict[Colour, int] = {"sync": 2, "async": 1}

_undisturbed: dict[tuple[str, Colour], Played] = {}


def undisturbed(scenario: Scenario, colour: Colour) -> Played:
    """The play without a crash, the same one for each test."""
    if (scenario.id, colour) not in _undisturbed:
        _undisturbed[scenario.id, colour] = play(scenario, colour)
    return _undisturbed[scenario.id, colour]


def crashes(scenario: Scenario, colour: Colour, commits: int) -> Iterator[Crash]:
    """The crashes to try on a play with so many commits: one before a commit, the next one after another commit."""
    drawn = random.Random(f"{scenario.id} {colour}")
    whens: list[Literal["before", "after"]] = drawn.sample(["before", "after"], SAMPLE[colour])
    for number, commit in enumerate(drawn.sample(range(1, commits + 1), min(SAMPLE[colour], commits))):
        yield Crash(commit, whens[number])


def changes_by(scenario: Scenario, colour: Colour, crash: Crash, undisturbed: Played) -> list[str]:
    crashed = play(scenario, colour, crash)
    assert crashed.crashed, f"scenario {scenario.id} made no commit {crash.commit}"
    return changes(scenario.program, undisturbed.trace, crashed.trace)


@pytest.mark.parametrize(("scenario", "colour"), cases())
def test_gives_the_reference_trace(scenario: Scenario, colour: Colour) -> None:
    found = differences(scenario.program, scenario.trace, undisturbed(scenario, colour).trace)
    if (fault := KNOWN.get(scenario.id)) is not None:
        found = fault.unexplained(found)
    assert not found, f"scenario {scenario.id}:\n" + "\n".join(found)


def test_only_scenarios_are_listed() -> None:
    assert KNOWN.keys() <= {scenario.id for scenario in scenarios()}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "colour"), cases())
def test_a_crash_changes_nothing(scenario: Scenario, colour: Colour) -> None:
    played = undisturbed(scenario, colour)
    assert played.commits
    for crash in crashes(scenario, colour, played.commits):
        found = changes_by(scenario, colour, crash, played)
        assert not found, f"scenario {scenario.id}, {crash}:\n" + "\n".join(found)


def test_an_unrecorded_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenarios()[1]  # steps beside and within a loop, in few commits
    played = undisturbed(scenario, "sync")
    monkeypatch.setattr(Recorder, "forget_since", lambda recorder, commits: None)
    commits = range(1, played.commits)
    lost = [changes_by(scenario, "sync", Crash(commit, "before"), played) for commit in commits]
    kept = [changes_by(scenario, "sync", Crash(commit, "after"), played) for commit in commits]
    assert any("is too many" in text for found in lost for text in found)
    assert not any(kept)
