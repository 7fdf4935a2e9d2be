"""Which runs are checked, and in which order."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from durable import Context, Continue
from durable.models import Run
from durable.replay_check.reading import open_runs, sampled_runs, workflows_with_runs
from tests.replay_check.conftest import NAME, Deploys


def waits(ctx: Context, times: int, *steps: str) -> None:
    for each in steps:
        ctx.step(each, print)

    def again(ctx: Context, number: int) -> Continue[int]:
        ctx.step("look", print)
        if number + 1 == times:
            ctx.sleep("wait", "1 day")
        return Continue(number + 1)

    ctx.loop("looking", again, 0)


def ends(ctx: Context, *steps: str) -> None:
    for each in steps:
        ctx.step(each, print)


def test_of_open_runs_one_of_each_path_comes_first(deploys: Deploys) -> None:
    deploys.deploy(waits)
    for number in range(4):
        deploys.start(number + 1, "usual", id=f"usual-{number}")  # as often as it likes, in the same way
    deploys.start(1, "rare", id="rare")
    for number in range(4, 8):
        deploys.start(1, "usual", id=f"usual-{number}")
    total, ids = open_runs([])
    found = list(ids)
    assert (total, len(found), len(set(found))) == (9, 9, 9)
    assert "rare" in found[:2]


def test_of_open_runs_those_of_other_workflows_are_left_out(deploys: Deploys) -> None:
    deploys.deploy(waits)
    deploys.start(1, id="run")
    assert open_runs(["gate.other"])[0] == 0
    assert open_runs([NAME])[0] == 1
    assert list(workflows_with_runs()) == [NAME]


def test_a_sample_has_each_sequence_of_kinds_and_then_the_newest(deploys: Deploys) -> None:
    deploys.deploy(ends)
    now = timezone.now()
    for age, (name, steps) in enumerate({"one": ["a"], "two": ["a", "b"], "three": ["a", "b", "c"]}.items()):
        for number in range(3):
            deploys.start(*steps, id=f"{name}-{number}")
            ended_at = now - timedelta(hours=age, minutes=3 - number)
            Run.objects.filter(pk=f"{name}-{number}").update(finished_at=ended_at)
    assert sampled_runs([], 3) == (9, ["one-2", "two-2", "three-2"])
    assert sampled_runs([], 5) == (9, ["one-2", "two-2", "three-2", "one-1", "one-0"])
    assert sampled_runs([], 100)[1][3:] == ["one-1", "one-0", "two-1", "two-0", "three-1", "three-0"]
    assert sampled_runs([], 0) == (0, [])
