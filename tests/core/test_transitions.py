"""The life of a run: each transition in each state, against the table, and each way out of a pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from durable.core import journal, transitions
from durable.core.errors import InvalidTransitionError
from durable.core.records import ENDED, RunRecord, RunState
from durable.core.transitions import NEVER_WRITTEN, TRANSITIONS, starts_of
from durable.store.rules import row_rules
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.core.ways_out import WAYS
from tests.support.transitions import CALLS, KEPT, ODD, ends, odd_run, patched

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = [each.name for each in fields(RunRecord)]
#: What `ENDED` runs have in common: no worker, no deadline, no wait, no request.
CLEARED_BY_AN_END: dict[str, Any] = {
    "worker": "",
    "lease_expires_at": None,
    "wake_at": None,
    "waiting_for": "",
    "pending_request": "",
}


def test_each_function_has_its_row_in_the_table() -> None:
    functions = [each for each in vars(transitions).values() if isinstance(each, FunctionType)]
    own = {each.__name__ for each in functions if each.__module__ == transitions.__name__}
    public = {name for name in own if not name.startswith("_")} - {"starts_of"}
    assert set(TRANSITIONS) == public == set(CALLS)


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("name", [each for each in TRANSITIONS if each != "started"])
def test_a_transition_leads_where_the_table_says_and_starts_nowhere_else(name: str, state: RunState) -> None:
    run = odd_run(state)
    after = TRANSITIONS[name].get(state)
    if after is None:
        with pytest.raises(InvalidTransitionError, match=f'"{name}" may not start') as caught:
            CALLS[name](run)
        assert caught.value.allowed == starts_of(name)
        assert run == odd_run(state)
    else:
        row = patched(run, CALLS[name](run))
        assert row.state == after
        row_rules.check(row)  # the constraints of the row hold
        assert run == odd_run(state), "a transition changes nothing by itself"


def test_a_new_run_is_in_the_state_of_the_table() -> None:
    assert TRANSITIONS["started"] == {None: CALLS["started"](odd_run("pending"))["state"]}


def test_each_state_is_reached_and_left() -> None:
    reached = {end for arrows in TRANSITIONS.values() for start, end in arrows.items() if start != end}
    left = {start for arrows in TRANSITIONS.values() for start, end in arrows.items() if start != end}
    assert reached == set(RunState)
    assert left == {None, *RunState}


def test_the_diagram_is_the_table() -> None:
    drawn: dict[str, dict[str | None, str]] = {}
    for line in (transitions.__doc__ or "").splitlines():
        if arrow := re.fullmatch(r" +([a-z_, ]+?) +--(\w+)--> +(\w+)", line):
            for start in arrow[1].split(", "):
                target = start if arrow[3] == "same" else arrow[3]
                arrows = drawn.setdefault(arrow[2], {})
                assert start not in arrows, line
                arrows[None if start == "new" else start] = target
    assert drawn == TRANSITIONS
    assert list(drawn) == list(TRANSITIONS)


# -- which columns are written


def test_each_column_has_an_odd_value() -> None:
    """A new column gets one, and a place in `durable.core.transitions`: the transitions that write it, or none."""
    assert list(ODD) == COLUMNS
    for each in fields(RunRecord):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        assert ODD[each.name] != default or each.name == "state"


def test_each_column_is_written_by_a_transition_or_never() -> None:
    written = {
        column
        for name, arrows in TRANSITIONS.items()
        for state in arrows
        for column in CALLS[name](odd_run(state or RunState.PENDING))
    }
    assert written.isdisjoint(NEVER_WRITTEN)
    assert sorted(written | NEVER_WRITTEN) == sorted(COLUMNS), (
        "say of each column which transitions set it and which reset it, or add it to NEVER_WRITTEN"
    )


def test_each_transition_to_another_state_says_what_it_keeps() -> None:
    leading = {name for name, arrows in TRANSITIONS.items() if any(start != end for start, end in arrows.items())}
    assert set(KEPT) == leading - {"started"}


@pytest.mark.parametrize("name", KEPT)
def test_a_transition_to_another_state_writes_each_column_or_keeps_it_on_purpose(name: str) -> None:
    written = {column for state in starts_of(name) for column in CALLS[name](odd_run(state))}
    assert written.isdisjoint(KEPT[name])
    assert sorted(written | KEPT[name] | NEVER_WRITTEN) == sorted(COLUMNS), (
        f"let the transition `{name}` write the column, or say in KEPT that it keeps it"
    )


@pytest.mark.parametrize("name", [each for each in TRANSITIONS if ends(each)])
def test_an_end_leaves_no_worker_no_deadline_no_wait_and_no_request(name: str) -> None:
    for state in starts_of(name):
        patch = CALLS[name](odd_run(state))
        assert {column: patch.get(column) for column in CLEARED_BY_AN_END} == CLEARED_BY_AN_END
        assert patch["finished_at"] is not None


@pytest.mark.parametrize("name", ["rollback_begun", "cancel_rollback_begun", "cancelled_with_rollback"])
def test_a_compensation_waits_for_no_message_and_has_a_grace_period_of_its_own(name: str) -> None:
    for state in starts_of(name):
        row = patched(odd_run(state), CALLS[name](odd_run(state)))
        assert (row.waiting_for, row.diverged_at) == ("", None)
        assert row.state_after_rollback in ENDED


def test_a_recovered_run_has_no_reason_of_a_cancel() -> None:
    """A compensation goes on being one of a cancel, and keeps the reason."""
    assert CALLS["recovered"](odd_run(RunState.FAILED))["request_reason"] == ""
    assert "request_reason" not in CALLS["rollback_recovered"](odd_run(RunState.FAILED))


def test_only_progress_a_recovery_and_a_replay_reset_the_count_of_crashes() -> None:
    resetting = {
        name
        for name in TRANSITIONS
        for state in starts_of(name)
        if patched(odd_run(state), CALLS[name](odd_run(state))).crashes == 0
    }
    assert resetting == {"progressed", "recovered", "rollback_recovered", "replayed", "undone_by_parent"}
    for state in starts_of("crash_limit_reached"):
        assert CALLS["crash_limit_reached"](odd_run(state))["crashes"] == ODD["crashes"]


@pytest.mark.parametrize("name", ["recovered", "rollback_recovered", "replayed"])
def test_what_reopens_an_ended_run_makes_it_due_without_its_end(name: str) -> None:
    for state in ENDED & set(TRANSITIONS[name]):
        row = patched(odd_run(state), CALLS[name](odd_run(state)))
        assert row.wake_at is not None
        assert (row.finished_at, row.crashes, row.diverged_at, row.pending_request) == (None, 0, None, "")


def test_a_replay_in_place_leaves_of_a_row_what_a_new_run_has() -> None:
    """Besides what is kept on purpose: the counts that only rise, and when it was first claimed."""
    kept = {"input", "queue", "fence", "change_seq", "message_count", "started_at", "generations", "summary", "wake_at"}
    fresh = RunRecord(id="", workflow="", queue="", input="", created_at=ODD["created_at"])
    for state in starts_of("replayed"):
        row = patched(odd_run(state), CALLS["replayed"](odd_run(state)))
        different = {each for each in COLUMNS if getattr(row, each) != getattr(fresh, each)}
        assert different - NEVER_WRITTEN == kept


def test_verbs_from_outside_are_noticed_by_a_pass_that_is_about_to_park() -> None:
    verbs = list(TRANSITIONS)[1 : list(TRANSITIONS).index("claimed")]
    for name in verbs:
        for state in starts_of(name):
            changes = 2 if name == "sent_to" else 1
            assert CALLS[name](odd_run(state))["change_seq"] == ODD["change_seq"] + changes, name


@pytest.mark.parametrize("state", RunState)
def test_only_a_message_that_the_run_waits_for_makes_it_due_and_never_an_ended_run(state: RunState) -> None:
    run = odd_run(state)
    assert "wake_at" not in transitions.sent_to(run, count=1, awaited_since=None)
    assert ("wake_at" in CALLS["sent_to"](run)) is (state not in ENDED)
    assert transitions.sent_to(run, count=1, awaited_since=None, is_noticed=False)["change_seq"] == run.change_seq


def test_every_patch_of_a_run_is_made_by_a_transition() -> None:
    """A dict of columns that is written elsewhere says only that nothing changes: it keeps `change_seq`."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "durable").rglob("*.py"))
        if re.search(r"\b(RunChange|Save|Batch)\(", text := path.read_text())  # to parse them all takes long
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("RunChange", "Save", "Batch")
        for value in [*call.args, *(each.value for each in call.keywords)]
        if isinstance(value, ast.Dict)
        if {key.value for key in value.keys if isinstance(key, ast.Constant)} != {"change_seq"}
    ]
    assert found == []


# -- each way out of a pass: it writes the transition that the table has for it, and leads where the table says


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
