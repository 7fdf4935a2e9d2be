"""The check says of changed programs what a worker's next pass comes to, and nothing of programs that are as they were.

Programs of the conformance suite are played for some passes. Then one place of a program is changed: the check replays
the records with it, and so does a pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from durable import runtime
from durable.testing import Harness
from tests.conformance.grammar import Advance, Run, SendMessage
from tests.conformance.interpreter import START, WORKFLOWS
from tests.conformance.recorder import recording
from tests.conformance.scenarios import Scenario, scenarios
from tests.replay_check.conftest import OTHERWISE, has_diverged, kept, verdict_of

pytestmark = pytest.mark.slow

NEW: list[Callable[[str], dict[str, Any]]] = [
    lambda name: {"op": "sleep", "name": name, "ms": 5000},
    lambda name: {"op": "step", "name": name, "value": 1},
    lambda name: {"op": "version", "name": name, "latest": 2},
    lambda name: {"op": "checkpoint", "name": name},
    lambda name: {"op": "try", "name": name, "body": []},
    lambda name: {"op": "loop", "name": name, "until": 1, "body": []},
    lambda name: {"op": "join", "name": name, "branches": {"a": []}},
]


def bodies(body: list[Any]) -> Iterator[list[Any]]:
    """Each list of operations of the program."""
    yield body
    for each in body:
        yield from bodies(each.get("body") or []) if isinstance(each.get("body"), list) else ()
        branches = each.get("branches", {})
        for branch in branches.values() if isinstance(branches, dict) else (inner for _, inner in branches):
            yield from bodies(branch)


def changed(program: list[Any], drawn: random.Random) -> list[Any]:
    """The program with one change."""
    found = deepcopy(program)
    body = drawn.choice(list(bodies(found)))
    forks = [each["branches"] for inner in bodies(found) for each in inner if each["op"] == "join"]
    change = drawn.choice(["add", "end", "kind", "name", "order", "remove", "branch"]) if body else "add"
    place = drawn.randrange(len(body)) if body else 0
    if change == "branch" and forks:
        branches = drawn.choice(forks)
        branches["renamed"] = branches.pop(drawn.choice(sorted(branches))) if branches else []
    elif change == "add":
        body.insert(place, drawn.choice(NEW)("new"))
    elif change == "end":
        del body[place:]
    elif change == "kind":
        body[place] = drawn.choice(NEW)(body[place].get("name", "new"))
    elif change == "name" and "name" in body[place]:
        body[place]["name"] = "renamed"
    elif change == "order":
        body.append(body.pop(place))
    else:
        del body[place]
    return found


def play(harness: Harness, scenario: Scenario, passes: int) -> str:
    """Play the scenario until its run has had so many passes, or has ended; return the state."""
    state = "pending"
    for action in scenario.actions:
        if passes == 0 or state in ("completed", "failed"):
            return state
        match action:
            case Run():
                state, passes = harness.run(scenario.id).state, passes - 1
            case Advance():
                harness.advance(timedelta(milliseconds=action.ms))
            case SendMessage():
                harness.send(scenario.id, action.queue, action.body)
    return harness.run(scenario.id).state if state not in ("completed", "failed") else state


@pytest.mark.parametrize("number", range(8))
def test_it_says_what_a_pass_comes_to(number: int) -> None:
    told = 0
    for scenario in scenarios()[number::8]:
        drawn = random.Random(f"{scenario.id} {number}")
        with (
            Harness(now=START, short_sleep=0, strict=False) as h,
            recording(scenario.id, partial(getattr, h, "commits")),
        ):
            h.start(WORKFLOWS[drawn.choice(["sync", "async"])], scenario.source, id=scenario.id)
            state = play(h, scenario, drawn.randint(1, 5))
            assert verdict_of(scenario.id).finding is None, f"scenario {scenario.id}, {state}, as it was"
            if state in ("completed", "failed"):
                continue
            program = changed(scenario.source, drawn)
            at = runtime.current()
            row: Any = at.store
            row._runs[scenario.id].input = at.codec.encode({"args": [program], "kwargs": {}})
            found = verdict_of(scenario.id).finding
            h.run(scenario.id)
            if found is None or found.kind not in OTHERWISE:
                said = f"{scenario.id}: {found}, {kept(scenario.id).error}, {program}"
                assert (found is not None) == has_diverged(scenario.id), said
            told += found is not None
    assert told > 5
