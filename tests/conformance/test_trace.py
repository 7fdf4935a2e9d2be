"""The comparison finds what is wrong: each kind of difference is made on purpose, and has to be reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.compare import call_differences, changes, differences, same_json
from tests.conformance.grammar import Body
from tests.conformance.known import Fault
from tests.conformance.reading import read_program
from tests.conformance.scenarios import scenarios
from tests.conformance.trace import EntryTrace, PassTrace, Trace, error_name, read_trace

PROGRAM = read_program(
    [
        {"op": "step", "name": "pay", "value": {"n": 1}, "fail": ["error"], "rollback": True},
        {"op": "sleep", "name": "rest", "ms": 500},
        {"op": "next", "name": "answer", "names": ["alpha", "beta"]},
        {"op": "loop", "name": "again", "until": 0, "body": [{"op": "step", "name": "turn", "value": True}]},
    ]
)
TRACE = read_trace(
    {
        "passes": [
            {
                "state": "sleeping",
                "sleep_until_ms": 500,
                "waiting_for": ["beta", "alpha"],
                "calls": [["pay", 1], ["pay", 2]],
                "rollbacks": [],
            },
            {"state": "failed", "error": "Error", "message": "boom", "calls": [], "rollbacks": [["pay", {"n": 1}]]},
            {"state": "completed", "output": [1, {"k": True}], "calls": [["again/~0/turn", 1]], "rollbacks": []},
        ],
        "entries": [
            {"key": "pay", "kind": "step", "status": "completed", "attempts": 2},
            {"key": "rest", "kind": "sleep", "state": "completed"},
            {"key": "answer", "kind": "message", "received": [{"m": 1}]},
            {"key": "again", "kind": "loop", "status": "completed", "iteration": 0},
            {"key": "again/~0/turn", "kind": "step", "status": "completed", "attempts": 1},
        ],
    }
)


def with_pass(number: int, **changes: Any) -> Trace:
    passes = list(TRACE.passes)
    passes[number] = replace(passes[number], **changes)
    return replace(TRACE, passes=tuple(passes))


def with_entry(location: str, entry: EntryTrace | None) -> Trace:
    entries = {**TRACE.entries, location: entry}
    return replace(TRACE, entries={key: value for key, value in entries.items() if value is not None})


def test_a_trace_conforms_to_itself() -> None:
    assert differences(PROGRAM, TRACE, TRACE) == []


@pytest.mark.parametrize(
    ("wrong", "difference"),
    [
        (with_pass(0, state="completed"), "pass 1: state"),
        (with_pass(0, sleep_until_ms=501), "pass 1: sleep_until_ms: expected 500, got 501"),
        (with_pass(0, sleep_until_ms=None), "pass 1: sleep_until_ms"),
        (with_pass(0, waiting_for=("alpha",)), "pass 1: waiting_for"),
        (with_pass(0, waiting_for=()), "pass 1: waiting_for"),
        (with_pass(0, waiting_for=None), "pass 1: waiting_for"),
        (with_pass(0, calls=(("pay", 1),)), "pass 1: call ('pay', 2) is missing"),
        (with_pass(0, calls=(("pay", 1), ("pay", 2), ("pay", 3))), "pass 1: call ('pay', 3) is too many"),
        (with_pass(0, calls=(("pay", 1), ("pay", 2), ("pay", 2))), "pass 1: call ('pay', 2) was made twice"),
        (with_pass(0, calls=(("pay", 2), ("pay", 1))), "pass 1: call ('pay', 2) came before ('pay', 1)"),
        (with_pass(1, error="CriticalError"), "pass 2: error: expected 'Error', got 'CriticalError'"),
        (with_pass(1, message="bang"), "pass 2: message"),
        (with_pass(1, rollbacks=()), "pass 2: rollbacks"),
        (with_pass(1, rollbacks=(("pay", {"n": True}),)), "pass 2: rollbacks"),
        (with_pass(2, output=[1, {"k": 1}]), "pass 3: output"),
        (with_pass(2, output=[1, {}]), "pass 3: output"),
        (replace(TRACE, passes=TRACE.passes[:2]), "pass 3: is missing"),
        (replace(TRACE, passes=(*TRACE.passes, TRACE.passes[0])), "pass 4: expected none"),
        (with_entry("rest", None), "entry rest: is missing"),
        (with_entry("more", EntryTrace("step")), "entry more: expected none"),
        (
            with_entry("rest", EntryTrace("step", {"status": "completed", "attempts": 1})),
            "entry rest: expected a sleep",
        ),
        (with_entry("rest", EntryTrace("sleep", {"state": "pending"})), "entry rest: state"),
        (with_entry("pay", EntryTrace("step", {"status": "failed", "attempts": 2})), "entry pay: status"),
        (with_entry("pay", EntryTrace("step", {"status": "completed", "attempts": 3})), "entry pay: attempts"),
        (with_entry("answer", EntryTrace("message", {"received": []})), "entry answer: received"),
        (with_entry("again", EntryTrace("loop", {"status": "completed", "iteration": 1})), "entry again: iteration"),
        (with_entry("again", EntryTrace("loop", {"status": "completed"})), "entry again: iteration"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reports_what_is_wrong(wrong: Trace, difference: str) -> None:
    found = differences(PROGRAM, TRACE, wrong)
    assert len(found) == 1
    assert found[0].startswith(difference)


def test_a_known_fault_explains_what_it_names_and_has_to_show() -> None:
    fault = Fault("so it is", ("pass 2", "entry a: status"))
    assert fault.unexplained(["pass 2: output", "pass 2: state", "entry a: status: wrong"]) == []
    assert fault.unexplained(["pass 2: output", "entry a: status: wrong", "pass 3: state"]) == ["pass 3: state"]
    assert fault.unexplained(["pass 2: output"]) == ["no longer: entry a: status"]


@pytest.mark.parametrize(
    "wrong",
    [
        with_pass(0, calls=(("pay", 1),)),
        with_pass(0, calls=(("pay", 1), ("pay", 2), ("pay", 3))),
        with_pass(0, sleep_until_ms=499),
        with_pass(0, waiting_for=None),
        with_pass(1, message="bang"),
        with_pass(1, rollbacks=()),
        with_pass(2, output=None),
        replace(TRACE, passes=TRACE.passes[:2]),
        replace(TRACE, passes=(*TRACE.passes, TRACE.passes[0])),
        with_entry("rest", None),
        with_entry("more", EntryTrace("step")),
        with_entry("pay", EntryTrace("step", {"status": "completed", "attempts": 1})),
    ],
    ids=lambda wrong: "",
)
def test_tells_what_a_crash_changed(wrong: Trace) -> None:
    assert changes(PROGRAM, TRACE, TRACE) == []
    assert changes(PROGRAM, TRACE, wrong)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (0, False), (1, 1.0), ([1], (1,)), ({"a": 1}, {"a": 1, "b": 1}), ([1], [1, 1]), (None, 0)],
)
def test_what_is_not_the_same_json(one: Any, other: Any) -> None:
    assert same_json(one, one)
    assert not same_json(one, other)
    assert not same_json(other, one)
    assert not same_json({"k": [one]}, {"k": [other]})


def test_every_class_but_the_engines_is_a_plain_error() -> None:
    assert error_name("RuntimeError") == "Error"
    assert error_name("StepExhaustedError") == "StepExhaustedError"


# -- branches


def step(name: str, **fields: Any) -> dict[str, Any]:
    return {"op": "step", "name": name, "value": None, **fields}


BRANCHES = read_program(
    [
        step("first"),
        {
            "op": "join",
            "name": "both",
            "branches": {
                "left": [step("a"), {"op": "try", "name": "block", "body": [step("b")]}],
                "right": [{"op": "loop", "name": "turns", "until": 1, "body": [step("c")]}],
            },
        },
        step("last"),
    ]
)
CALLS = [
    ("first", 1),
    ("both/left/a", 1),
    ("both/left/block/b", 1),
    ("both/right/turns/~0/c", 1),
    ("both/right/turns/~1/c", 1),
    ("last", 1),
]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5], [0, 3, 4, 1, 2, 5]])
def test_branches_may_interleave(order: list[int]) -> None:
    assert call_differences(BRANCHES, CALLS, [CALLS[each] for each in order]) == []


@pytest.mark.parametrize("order", [[1, 0, 2, 3, 4, 5], [0, 2, 1, 3, 4, 5], [0, 1, 2, 4, 3, 5], [0, 1, 2, 3, 5, 4]])
def test_what_is_not_concurrent_keeps_its_order(order: list[int]) -> None:
    (found,) = call_differences(BRANCHES, CALLS, [CALLS[each] for each in order])
    assert "came before" in found


RACE = read_program(
    [
        {
            "op": "race",
            "name": "fast",
            "branches": [["left", [step("a", fail=["error"]), step("b")]], ["right", [step("c")]]],
        }
    ]
)


def race(
    *passes: list[tuple[str, int]], winner: str | None = "right", left: str = "running", step_c: str = "running"
) -> Trace:
    """A trace of the race with these calls in its passes."""
    return Trace(
        passes=tuple(PassTrace(state="sleeping", calls=tuple(calls)) for calls in passes),
        entries={
            "fast": EntryTrace("race", {"winner": winner, "branches": {"left": left, "right": "completed"}}),
            "fast/right/c": EntryTrace("step", {"status": step_c, "attempts": 1}),
        },
    )


EXPECTED = race([("fast/left/a", 1)], [("fast/left/a", 2), ("fast/left/b", 1), ("fast/right/c", 1)])


def test_a_loser_may_be_stopped_before_calls_of_the_deciding_pass() -> None:
    got = race([("fast/left/a", 1)], [("fast/left/a", 2), ("fast/right/c", 1)], left="cancelled", step_c="completed")
    assert differences(RACE, EXPECTED, got) == []


@pytest.mark.parametrize(
    ("wrong", "difference"),
    [
        (race([], [("fast/right/c", 1)], step_c="completed"), "pass 1: call ('fast/left/a', 1) is missing"),
        (race([("fast/left/a", 1)], [], step_c="completed"), "pass 2: call ('fast/right/c', 1) is missing"),
        (
            race([("fast/left/a", 1)], [("fast/left/a", 3), ("fast/right/c", 1)], step_c="completed"),
            "pass 2: call ('fast/left/a', 3) is too many",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_loser_makes_the_calls_of_earlier_passes_and_no_others(wrong: Trace, difference: str) -> None:
    assert differences(RACE, EXPECTED, wrong) == [difference]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"winner": "left"}, "entry fast: winner"),
        ({"winner": None}, "entry fast: winner"),
        ({"left": "failed"}, "entry fast: branch left"),
        ({"left": "completed"}, "entry fast: branch left"),
        ({"step_c": "failed"}, "entry fast/right/c: status"),
        ({"step_c": "running"}, "entry fast/right/c: status"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_race_is_compared_by_its_winner_and_outcomes(changes: dict[str, Any], difference: str) -> None:
    got = race(*(list(each.calls) for each in EXPECTED.passes), **{"step_c": "completed", **changes})
    (found,) = differences(RACE, EXPECTED, got)
    assert found.startswith(difference)


# -- the whole file


def as_ours(program: Body, trace: Trace) -> Trace:
    """The reference's trace, with an end for the steps that it calls running though they have ended."""
    entries = dict(trace.entries)
    for location, entry in trace.entries.items():
        if entry.kind == "step" and entry.fields["status"] == "running":
            ends = [replace(entry, fields={**entry.fields, "status": status}) for status in ("completed", "failed")]
            wrong = [differences(program, trace, replace(trace, entries={**entries, location: end})) for end in ends]
            entries[location] = min(zip(wrong, ends, strict=True), key=lambda pair: len(pair[0]))[1]
    return replace(trace, entries=entries)


def wrong_traces(trace: Trace) -> Iterator[Trace]:
    """The trace with a pass, a state or an entry too few, or with a call or an entry too many."""
    *others, last = trace.passes
    yield replace(trace, passes=tuple(others))
    yield replace(trace, passes=(*others, replace(last, state="cancelled")))
    yield replace(trace, passes=(*others, replace(last, output=[last.output])))
    yield replace(trace, passes=(*others, replace(last, calls=(*last.calls, ("nowhere", 1)))))
    for location in trace.entries:
        yield replace(trace, entries={key: entry for key, entry in trace.entries.items() if key != location})
    yield replace(trace, entries={**trace.entries, "nowhere": EntryTrace("step")})


def test_no_scenario_passes_with_a_wrong_trace() -> None:
    for scenario in scenarios():
        right = as_ours(scenario.program, scenario.trace)
        assert differences(scenario.program, scenario.trace, right) == [], scenario.id
        for wrong in wrong_traces(right):
            assert differences(scenario.program, scenario.trace, wrong), (scenario.id, wrong)
