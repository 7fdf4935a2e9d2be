"""`durable settle`: one step, the steps of a cause, of all that wait; and `recover` of them."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Context, get_run, workflow
from durable.models import OperatorAction, Run
from tests.cli.conftest import Shell, Stage

pytestmark = pytest.mark.django_db

STATE = {"is_down": True}


def charge(number: int) -> str:
    if STATE["is_down"]:
        raise OSError("timeout")
    return f"r{number}"


@workflow(name="tests.cli.settling")
def order(ctx: Context, number: int) -> str:
    return ctx.step("charge", charge, number, once=True)


@workflow(name="tests.cli.held")
def booked(ctx: Context, number: int, when_exhausted: Any = "hold") -> str:
    return ctx.step("book", charge, number, max_retries=0, when_exhausted=when_exhausted)


@workflow(name="tests.cli.settling_both")
def both(ctx: Context, number: int) -> dict[str, str]:
    return ctx.join(
        "both",
        {
            "paid": lambda c: c.step("charge", charge, number, once=True),
            "booked": lambda c: c.step("book", charge, number, once=True),
        },
    )


@pytest.fixture(autouse=True)
def _down() -> None:
    STATE["is_down"] = True


def output(stage: Stage, run_id: str) -> Any:
    state = stage.settle(run_id).state
    return get_run(run_id).output if state == "completed" else state


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--done", '{"id": 7}'], {"id": 7}),
        (["--done", "null"], None),
        (["--done", "r-hand"], "r-hand"),
        (["--not-done"], "r1"),
        (["--fail"], "failed"),
    ],
)
def test_one_step_gets_an_answer(shell: Shell, stage: Stage, words: list[str], found: Any) -> None:
    stage.start(order, 1, id="run")
    STATE["is_down"] = False
    done = shell("settle", "run", "charge", *words, "--reason", "the bank says so")
    assert (done.status, done.err) == (0, "1 settled\n")
    assert output(stage, "run") == found
    assert OperatorAction.objects.get(source="cli").reason == "the bank says so"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "charge"], "give one of --done JSON | --not-done | --fail"),
        (["run", "charge", "--done", "1", "--fail"], "give one of"),
        (["run", "--fail"], "give the LOCATION of a step"),
        (["--fail"], "give either ids of runs or one of --cause, --place or --held"),
        (["run", "charge", "--held", "--fail"], "give either ids of runs or one of"),
    ],
)
def test_what_is_not_said_is_asked_for(shell: Shell, stage: Stage, words: list[str], why: str) -> None:
    stage.start(order, 1, id="run")
    done = shell("settle", *words)
    assert (done.status, why in done.err) == (2, True), done.err
    assert get_run("run").info().held


def test_what_is_no_json_and_a_step_that_does_not_wait_are_refused(shell: Shell, stage: Stage) -> None:
    stage.start(order, 1, id="run")
    done = shell("settle", "run", "charge", "--done", "{")
    assert (done.status, "that is not JSON" in done.err) == (1, True)
    assert shell("settle", "run", "charge", "--fail").status == 0
    again = shell("settle", "run", "charge", "--not-done")
    assert again.status == 1
    assert 'cannot settle step "charge" of run "run": it is not held' in again.err
    wrong = shell("settle", "run", "chrge", "--not-done")
    assert (wrong.status, "is it charge?" in wrong.err) == (1, True), wrong.err


def test_all_of_a_cause_and_all_that_wait(shell: Shell, stage: Stage) -> None:
    for number in range(3):
        stage.start(order, number, id=f"o{number}")
        stage.start(booked, number, id=f"b{number}")
    stage.start(booked, 9, "fail", id="failed")
    dry = shell("settle", "--held", "--fail", "--dry-run")
    assert dry.err.splitlines()[-1] == "6 would be done, nothing was"
    assert "b0: yes, it is held" in dry.out
    done = shell("settle", "--place", "charge", "--done", '"r"', "--expect", "3", "-o", "ids", "-y")
    assert (done.status, sorted(done.lines)) == (0, ["o0", "o1", "o2"])
    assert [output(stage, each) for each in done.lines] == ["r"] * 3
    STATE["is_down"] = False
    left = shell("recover", "--held", "-y", "-o", "ids")
    assert sorted(left.lines) == ["b0", "b1", "b2"]
    assert [output(stage, f"b{number}") for number in range(3)] == ["r0", "r1", "r2"]
    assert output(stage, "failed") == "failed"


def test_of_a_place_the_steps_there_alone_get_the_answer(shell: Shell, stage: Stage) -> None:
    stage.start(both, 1, id="run")
    done = shell("settle", "--place", "both / booked / book", "--done", '"r"', "-y")
    assert (done.status, done.err.splitlines()[-1]) == (0, "1 settled")
    assert [each.location for each in get_run("run").info().held] == ["both/paid/charge"]


def test_what_is_held_is_neither_replayed_nor_restarted_with_its_cause(shell: Shell, stage: Stage) -> None:
    stage.start(booked, 1, id="held")
    stage.start(booked, 9, "fail", id="failed")
    assert len(shell("restart", "--place", "book", "-y", "-o", "ids").lines) == 1
    assert len(shell("replay-failed", "--place", "book", "-y", "-o", "ids").lines) == 1
    assert set(Run.objects.exclude(replay_of=None).values_list("replay_of", flat=True)) == {"failed"}


def test_in_the_background_with_a_canary(shell: Shell, stage: Stage) -> None:
    for number in range(3):
        stage.start(order, number, id=f"o{number}")
    done = shell("settle", "--held", "--done", "false", "--canary", "1", "-y", "-o", "json")
    [bulk] = done.all_json
    shown = shell("bulk", bulk["bulk"])
    assert "Settle (it was done) 3 runs with a step that waits for a person" in shown.out


def test_a_restart_says_that_nobody_knows(shell: Shell, stage: Stage) -> None:
    stage.start(order, 1, id="run")
    done = shell("restart", "run")
    assert 'Nobody knows whether "charge" was done: it would be done again.' in done.err
