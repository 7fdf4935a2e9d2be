"""Each way out of a pass: it writes the transition that the table has for it, and leads where the table says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable.core import journal, transitions
from durable.core.records import RunRecord
from durable.core.transitions import TRANSITIONS
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.core.ways_out import WAYS

#: The transitions that a pass makes, in the order of the table.
OF_A_PASS = list(TRANSITIONS)[list(TRANSITIONS).index("progressed") :]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the pass makes of the run from here on: each transition and the state in which it starts."""
    found: list[tuple[str, str]] = []

    def noted(name: str) -> Callable[..., Any]:
        function = getattr(transitions, name)

        def note(run: RunRecord, *args: Any, **kwargs: Any) -> Any:
            if run.id:  # not the example from which a module that is imported just now takes what a completion writes
                found.append((name, str(run.state)))
            return function(run, *args, **kwargs)

        return note

    for name in OF_A_PASS:
        monkeypatch.setattr(transitions, name, noted(name))
    monkeypatch.setattr(journal, "progressed", transitions.progressed)
    return found


@pytest.mark.parametrize("happens", WAYS)
def test_a_way_out_of_a_pass(made: list[tuple[str, str]], happens: str) -> None:
    way, grace, expected = WAYS[happens]
    with Harness(now=NOW, divergence_grace=grace, strict=False) as h:  # two ways diverge on purpose
        way(h)
        [run] = h._store._runs.values()
    assert made == expected
    name, start = expected[-2 if expected[-1][0] == "progressed" else -1]
    assert run.state == {str(key): end for key, end in TRANSITIONS[name].items()}[start]


def test_every_transition_of_a_pass_happens_in_one_of_them() -> None:
    happened = {each for _, _, expected in WAYS.values() for each in expected}
    assert happened == {(name, str(state)) for name in OF_A_PASS for state in TRANSITIONS[name]}
