"""What Sentry's SDK reports of runs: each failed run once, with its exception, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.processes import WITHOUT_SERVERS, printed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def events() -> dict[str, dict[str, Any]]:
    """The events by run."""
    lines = printed("tests.foreign.reports", environment=WITHOUT_SERVERS).splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == 4, [each.get("logentry") for each in found]
    return {each["extra"]["run_id"]: each for each in found}


def test_a_failed_run_is_one_event_with_the_exception_and_its_stack(events: dict[str, dict[str, Any]]) -> None:
    assert sorted(events) == ["run-1", "run-2", "run-3", "run-4"]
    for event in events.values():
        cause, *_ = event["exception"]["values"]
        assert "charge" in [frame["function"] for frame in cause["stacktrace"]["frames"]]
        assert event["level"] == "error"
        assert event["extra"]["workflow"].startswith("reports.")


def test_each_cause_of_each_workflow_is_a_group(events: dict[str, dict[str, Any]]) -> None:
    """A tracker groups by the fingerprint, whose default is the type and the frames of the exception."""
    groups = {run: group_of(event) for run, event in events.items()}
    assert groups["run-1"] == groups["run-2"]
    assert len(set(groups.values())) == 3
    assert [events[run]["exception"]["values"][0]["type"] for run in ("run-1", "run-3")] == [
        "LookupError",
        "ValueError",
    ]
    assert default_group_of(events["run-4"]) == default_group_of(events["run-1"])  # of two workflows


def group_of(event: dict[str, Any]) -> tuple[Any, ...]:
    assert "{{ default }}" in event["fingerprint"]
    return (*event["fingerprint"], *default_group_of(event))


def default_group_of(event: dict[str, Any]) -> tuple[Any, ...]:
    cause = event["exception"]["values"][0]
    frames = cause["stacktrace"]["frames"]
    return (cause["type"], *((each["module"], each["function"], each["context_line"]) for each in frames))


def test_a_failure_that_is_compensated_keeps_its_exception(events: dict[str, dict[str, Any]]) -> None:
    assert events["run-4"]["exception"]["values"][0]["value"] == "no card for 7"
