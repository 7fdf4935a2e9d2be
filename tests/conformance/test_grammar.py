"""The grammar reads every scenario and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.grammar import (
    Advance,
    Loop,
    Race,
    Recover,
    Run,
    SendMessage,
    Step,
    TryStep,
    operations,
)
from tests.conformance.reading import GrammarError, read_actions, read_program
from tests.conformance.scenarios import scenarios

STEP = {"op": "step", "name": "a", "value": 1}


def test_reads_all_scenarios() -> None:
    found = scenarios()
    assert len(found) == 620
    assert len({scenario.id for scenario in found}) == 620
    kinds = {type(operation) for scenario in found for operation in operations(scenario.program)}
    assert len(kinds) == 14


def test_reads_nested_operations() -> None:
    (loop,) = read_program(
        [
            {
                "op": "loop",
                "name": "l",
                "until": 2,
                "size": 3,
                "body": [
                    {"op": "race", "name": "r", "branches": [["b", [{**STEP, "op": "try_step", "catch": ["timeout"]}]]]}
                ],
            }
        ]
    )
    step = TryStep(step=Step(name="a", value=1), catch=("timeout",))
    assert loop == Loop(name="l", until=2, size=3, body=(Race(name="r", branches=(("b", (step,)),)),))
    assert list(operations((loop,))) == [loop, loop.body[0], step]


def test_reads_actions() -> None:
    assert read_actions(
        [{"do": "run"}, {"do": "advance", "ms": 5}, {"do": "message", "queue": "q", "body": None}, {"do": "recover"}]
    ) == (Run(), Advance(ms=5), SendMessage(queue="q", body=None), Recover())


def test_numbers_the_failures_of_calls_from_one() -> None:
    step = Step(name="a", value=1, fail=("error", "timeout"))
    assert [step.failure_of(call) for call in (1, 2, 3)] == ["error", "timeout", None]


@pytest.mark.parametrize(
    ("program", "refusal"),
    [
        ({}, "expected a list"),
        (["step"], "expected an object"),
        ([{"op": "leap", "name": "a"}], "unknown operation 'leap'"),
        ([{"op": "step", "name": "a"}], "'value' is missing"),
        ([{**STEP, "retries": 1}], r"unknown fields \['retries'\]"),
        ([{**STEP, "name": 1}], "expected str"),
        ([{**STEP, "max_retries": True}], "expected int"),
        ([{**STEP, "ephemeral": 1}], "expected bool"),
        ([{**STEP, "fail": ["often"]}], "unknown failure 'often'"),
        ([{**STEP, "fail": "error"}], "expected a list"),
        ([{"op": "join", "name": "j", "branches": []}], "expected an object"),
        ([{"op": "race", "name": "r", "branches": [["b"]]}], r"expected \[name, body\]"),
        ([{"op": "next", "name": "n", "names": [1]}], "expected texts"),
        (
            [{"op": "try", "name": "t", "body": [{"op": "sleep", "name": "s"}]}],
            r"program\[0\].body\[0\]: the field 'ms'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_what_is_not_of_the_grammar(program: Any, refusal: str) -> None:
    with pytest.raises(GrammarError, match=refusal):
        read_program(program)


@pytest.mark.parametrize(
    ("action", "refusal"), [({"do": "stop"}, "unknown action"), ({"do": "run", "ms": 1}, "unknown fields")]
)
def test_refuses_unknown_actions(action: Any, refusal: str) -> None:
    with pytest.raises(GrammarError, match=refusal):
        read_actions([action])
