"""A crash at a commit, before it or after it, changes nothing but the time it takes.

Every program is played once undisturbed, and again for some of its commits: the process dies there, and a fresh pass
goes on at the same moment. Each pass, the history and the calls that were recorded are then those of the undisturbed
play. So a function is called again only if the record of its call was never committed, and no recorded call is lost.

How a call fails depends on its number. A crash before a commit loses the record of the calls since the last commit;
nothing will ever show them, so the recorder forgets them, and the calls that are made instead get their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.conformance.compare import changes
from tests.conformance.play import Colour, Crash, Played, play
from tests.conformance.recorder import Recorder
from tests.conformance.scenarios import Scenario, cases, scenarios

#: At how many commits of each program it is crashed. They are drawn by its id, so they are the same ones each time; all
#: commits of all programs in both colours are 23,000 crashes, which is a matter of minutes.
SAMPLE: dict[Colour, int] = {"sync": 2, "async": 1}


def crashes(scenario: Scenario, colour: Colour, commits: int) -> Iterator[Crash]:
    """The crashes to try on a play with so many commits."""
    drawn = random.Random(f"{scenario.id} {colour}").sample(range(1, commits + 1), min(SAMPLE[colour], commits))
    for commit in sorted(drawn):
        yield Crash(commit, "before")
        yield Crash(commit, "after")


def changes_by(scenario: Scenario, colour: Colour, crash: Crash, undisturbed: Played) -> list[str]:
    crashed = play(scenario, colour, crash)
    assert crashed.crashed, f"scenario {scenario.id} made no commit {crash.commit}"
    return changes(scenario.program, undisturbed.trace, crashed.trace)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "colour"), cases())
def test_a_crash_changes_nothing(scenario: Scenario, colour: Colour) -> None:
    undisturbed = play(scenario, colour)
    assert undisturbed.commits
    for crash in crashes(scenario, colour, undisturbed.commits):
        found = changes_by(scenario, colour, crash, undisturbed)
        assert not found, f"scenario {scenario.id}, {crash}:\n" + "\n".join(found)


def test_an_unrecorded_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenarios()[0]
    undisturbed = play(scenario, "sync")
    monkeypatch.setattr(Recorder, "forget_since", lambda recorder, commits: None)
    lost = [
        changes_by(scenario, "sync", Crash(commit, "before"), undisturbed) for commit in range(1, undisturbed.commits)
    ]
    kept = [
        changes_by(scenario, "sync", Crash(commit, "after"), undisturbed) for commit in range(1, undisturbed.commits)
    ]
    assert any("is too many" in text for found in lost for text in found)
    assert not any(kept)
