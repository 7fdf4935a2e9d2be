"""A fault of the store at any call changes nothing in what a program comes to.

Each program of the conformance suite is played undisturbed, and again with the store failing at one call of its passes;
then in random pairs of calls. The passes, the history and the recorded calls are those of the undisturbed play. The
harness itself refuses to call a step again whose result is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.conformance.compare import changes
from tests.conformance.interpreter import START, WORKFLOWS
from tests.conformance.play import Colour, _Player
from tests.conformance.recorder import recording
from tests.conformance.scenarios import Scenario, scenarios
from tests.conformance.trace import Trace, entry_traces
from tests.faults.injection import HOWS, Fault, FaultyHarness, MemoryWorld

pytestmark = pytest.mark.slow

#: Every so-manieth program is played with faults; all of them, at all of their calls, are a matter of half an hour.
STRIDE: dict[Colour, int] = {"sync": 3, "async": 12}


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a play, and what it asked of the store."""

    trace: Trace
    calls: list[str]
    struck: list[str]


def play(scenario: Scenario, colour: Colour, faults: Sequence[Fault] = (), *, counts_crashes: bool = True) -> Played:
    harness = FaultyHarness(START, store=MemoryWorld(), counts_crashes=counts_crashes)
    with harness:
        handle = harness.start(WORKFLOWS[colour], scenario.source, id=scenario.id)
        with recording(scenario.id, lambda: harness.inner.commits) as recorder:
            harness.on_loss = lambda: recorder.forget_since(harness.inner.commits)
            player = _Player(harness, handle, recorder)
            harness.faulty.only_passes = True
            harness.faulty.arm(faults)
            passes = player.perform(scenario)
        with harness.faulty.quiet():
            trace = Trace(passes=passes, entries=entry_traces(handle.history()))
        return Played(trace, list(harness.faulty.calls), list(harness.faulty.struck))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_fault_at_any_call_changes_nothing(colour: Colour, how: str) -> None:
    chance = random.Random(f"{colour} {how}")
    struck = set()
    for scenario in scenarios()[HOWS.index(how) :: STRIDE[colour] * 2]:
        undisturbed = play(scenario, colour)
        fault = Fault(chance.randint(1, len(undisturbed.calls)), how)  # type: ignore[arg-type]
        faulty = play(scenario, colour, [fault])
        found = changes(scenario.program, undisturbed.trace, faulty.trace)
        assert not found, f"scenario {scenario.id}, {fault} of {undisturbed.calls}:\n" + "\n".join(found)
        struck.update(faulty.struck)
    assert struck >= {f"{how} commit", f"{how} claim_run"}, struck


@settings(max_examples=60)
@given(data=st.data())
def test_two_faults_change_nothing(data: st.DataObject) -> None:
    scenario = data.draw(st.sampled_from(scenarios()), label="scenario")
    undisturbed = play(scenario, "sync")
    calls = st.integers(1, len(undisturbed.calls) + 3)
    pair = data.draw(st.lists(st.builds(Fault, calls, st.sampled_from(HOWS)), min_size=2, max_size=2), label="faults")
    faulty = play(scenario, "sync", pair, counts_crashes=False)
    note(f"scenario {scenario.id}: {faulty.calls}, struck {faulty.struck}")
    assert changes(scenario.program, undisturbed.trace, faulty.trace) == []
