"""SIGKILL after each commit of a family: the next process comes to the same end, whatever commit was the last."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.faults.killed_scenarios import CHILDREN

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def survived(environment: dict[str, str], scenario: str) -> tuple[dict[str, Any], int]:
    """Return what the scenario comes to, which is the same with kills, and how many there were."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.killed_commits", scenario],
        env={**environment, "DJANGO_SETTINGS_MODULE": "tests.faults.settings", "E2E_MAX_CRASHES": "1000000"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout)
    assert answer["killed"] == answer["undisturbed"]
    return answer["killed"], answer["kills"]


def test_a_key_is_taken_refused_handed_on_and_freed(child_environment: dict[str, str]) -> None:
    found, kills = survived(child_environment, "keys")
    assert {run_id: (state, output) for run_id, state, output, _ in found["runs"]} == {
        "first": ("cancelled", None),
        "refused": ("completed", '"refused: first"'),
        "replacing": ("completed", '"replacing:child~1"'),
        "replacing:child": ("cancelled", None),
        "replacing:child~1": ("completed", '"replacing:child~1"'),
        "after": ("completed", '"after:child"'),
        "after:child": ("completed", '"after:child"'),
    }
    assert found["written"] == ["after:child", "first", "replacing:child", "replacing:child~1"]
    assert found["open keys"] == []
    assert kills >= 20


def test_a_map_is_compensated(child_environment: dict[str, str]) -> None:
    found, kills = survived(child_environment, "compensation")
    children = [f"undone:bills:{number}" for number in range(CHILDREN)]
    assert {run_id: state for run_id, state, _, _ in found["runs"]} == {"undone": "failed"} | dict.fromkeys(
        children, "cancelled"
    )
    assert found["written"] == sorted([*children, *(f"{each} undone" for each in children)])
    assert (found["counts"], found["left"]) == ([[0, 0, CHILDREN, 0]], [0, 0])
    assert kills >= 5 * CHILDREN


def test_a_map_is_recovered_in_batches(child_environment: dict[str, str]) -> None:
    found, kills = survived(child_environment, "recovery")
    children = [f"recovered:bills:{number}" for number in range(CHILDREN)]
    assert {run_id: state for run_id, state, _, _ in found["runs"]} == dict.fromkeys(
        ["recovered", *children], "completed"
    )
    assert found["written"] == ["mended", *children]
    assert (found["counts"], found["left"]) == ([[CHILDREN, 0, 0, 0]], [0, 0])
    assert kills >= 5 * CHILDREN


def test_a_run_tags_itself_and_its_children(child_environment: dict[str, str]) -> None:
    found, kills = survived(child_environment, "tags")
    assert [state for run_id, state, _, _ in found["runs"] if run_id == "tagged"] == ["completed"]
    tags: dict[str, dict[str, str]] = {}
    for run_id, name, value in found["tags"]:
        tags.setdefault(run_id, {})[name] = value
    assert tags.pop("tagged") == {"stage": "done", "sum": "3", "tenant": "acme"}
    children = [run_id for run_id, *_ in found["runs"] if run_id != "tagged"]
    assert tags == {each: {"part": "1" if "child" in each else "2"} for each in children}
    assert len(children) == 6, "the replay in place has started them anew"
    assert kills >= 20


def test_the_rows_of_an_on_end_agree_with_the_runs(child_environment: dict[str, str]) -> None:
    found, kills = survived(child_environment, "ends")
    states = {run_id: state for run_id, state, _, _ in found["runs"]}
    outcomes = {"returns": "completed", "fails": "failed", "waits": "completed", "waits cancelled": "cancelled"}
    ends = {
        **outcomes,
        **{f"{each}:child": "completed" if each == "waits" else "cancelled" for each in outcomes},
    }
    assert states == {**ends, **{f"after {each}": "completed" for each in ends}}
    noted = [f"{run_id} {state}" for run_id, state in ends.items()]
    assert found["written"] == sorted([*noted, *outcomes, *(f"after {each}" for each in ends)])
    assert kills >= 50
