"""Every scenario, played by a sync and by an async workflow, gives the trace of the reference engine."""

from __future__ import annotations

import pytest

from tests.conformance.compare import differences
from tests.conformance.known import KNOWN
from tests.conformance.play import Colour, play
from tests.conformance.scenarios import Scenario, scenarios


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.id)
def test_gives_the_reference_trace(scenario: Scenario, colour: Colour) -> None:
    found = differences(scenario.program, scenario.trace, play(scenario, colour).trace)
    if (fault := KNOWN.get(scenario.id)) is not None:
        found = fault.unexplained(found)
    assert not found, f"scenario {scenario.id}:\n" + "\n".join(found)


def test_only_scenarios_are_listed() -> None:
    assert KNOWN.keys() <= {scenario.id for scenario in scenarios()}
