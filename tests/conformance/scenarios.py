"""The scenarios: programs, what happens to them from outside, and the traces of the reference engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.conformance.grammar import Action, Body, Json
from tests.conformance.reading import read_actions, read_program
from tests.conformance.trace import Trace, read_trace

_FILE = Path(__file__).with_name("scenarios.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the file. `source` is the program as JSON, the input of the interpreter's workflows."""

    id: str
    source: Json
    program: Body
    actions: tuple[Action, ...]
    trace: Trace


def read_scenario(line: str) -> Scenario:
    """The scenario of one line. Raises GrammarError, KeyError or TypeError for what is not of the grammar."""
    found = json.loads(line)
    return Scenario(
        id=found["id"],
        source=found["program"],
        program=read_program(found["program"]),
        actions=read_actions(found["actions"]),
        trace=read_trace(found["trace"]),
    )


@cache
def scenarios() -> tuple[Scenario, ...]:
    """All scenarios of the file."""
    return tuple(read_scenario(line) for line in _FILE.read_text(encoding="utf-8").splitlines())


def cases() -> list[ParameterSet]:
    """Scenario and colour: each scenario for a sync workflow, and every fifth for an async one.

    Both drive the same engine, and tests/core tries each operation with both.
    """
    return [
        *(pytest.param(each, "sync", id=f"{each.id}-sync") for each in scenarios()),
        *(pytest.param(each, "async", id=f"{each.id}-async") for each in scenarios()[::5]),
    ]
