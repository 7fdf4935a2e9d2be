"""Every scenario gives the trace of the reference engine."""

from __future__ import annotations

import pytest

from tests.conformance.compare import differences
from tests.conformance.known import KNOWN
from tests.conformance.play import Colour, play
from tests.conformance.scenarios import Scenario, cases, scenarios


@pytest.mark.parametrize(("scenario", "colour"), cases())
def test_gives_the_reference_trace(scenario: Scenario, colour: Colour) -> None:
    found = differences(scenario.program, scenario.trace, play(scenario, colour).trace)
    if (fault := KNOWN.get(scenario.id)) is not None:
        found = fault.unexplained(found)
    assert not found, f"scenario {scenario.id}:\n" + "\n".join(found)


def test_only_scenarios_are_listed() -> None:
    assert KNOWN.keys() <= {scenario.id for scenario in scenarios()}
