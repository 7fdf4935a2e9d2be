"""`durable queues`, `pause-queue`, `resume-queue`, `hold`, `release`."""

import pytest

from durable.models import OperatorAction
from tests.cli.conftest import Shell, Stage, state
from tests.cli.workflows import napping

pytestmark = pytest.mark.usefixtures("stage")


def test_a_queue_is_paused_listed_and_resumed(shell: Shell, stage: Stage) -> None:
    napping.using(id="one").start()
    done = shell("pause-queue", "default", "--reason", "bank is down")
    assert (done.status, done.out) == (0, "")
    assert "is paused" in done.err
    listed = shell("queues")
    assert listed.status == 0
    [row] = [line for line in listed.lines if line.startswith("default")]
    assert row.split()[:3] == ["default", "paused", "1"]
    assert "bank is down" in listed.err
    data = next(each for each in shell("queues", "-o", "json").all_json if each["name"] == "default")
    assert (data["is_paused"], data["due"]["number"], data["hold"]["reason"]) == (True, 1, "bank is down")
    assert shell("pause-queue", "default").status == 1
    assert shell("resume-queue", "default").status == 0
    again = shell("resume-queue", "default")
    assert again.status == 1
    assert "is not paused" in again.err
    assert OperatorAction.objects.filter(action="pause_queue", outcome="done", reason="bank is down").count() == 1


def test_every_list_says_that_the_queue_is_paused(shell: Shell, stage: Stage) -> None:
    napping.using(id="one", share="acme").start()
    shell("pause-queue", "default", "--reason", "bank is down")
    said = "is paused"
    assert said in shell("list").out
    assert said in shell("list", "-o", "json").json["explanation"]["headline"]
    assert said in shell("show", "one").out
    why = shell("why", "one").out
    assert said in why
    assert "turn in share" not in why, "it has none while the queue is paused"
    assert said in shell("doctor").out


def test_starts_are_held_and_released(shell: Shell, stage: Stage) -> None:
    assert shell("hold", napping.name, "--reason", "x").status == 0
    napping.using(id="one").start()
    assert state("one") == "paused"
    assert "new starts of" in shell("why", "one").out
    done = shell("release", napping.name)
    assert "1 run resumed" in done.err
    assert state("one") == "pending"
