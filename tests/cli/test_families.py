"""A parent that has completed with a failed child: what replays of it start again, and how to recover the child."""

from __future__ import annotations

import pytest

from durable.models import OperatorAction, Run
from tests.cli.conftest import Shell, Stage, state
from tests.cli.workflows import mended, night, steps

RECOVER = "durable recover --children-of one"
AGAIN = (
    '3 children of "cli.bill" are started again, as new runs with new idempotency keys: what those before did stays, and is '
    "done again"
)


@pytest.fixture
def parent(stage: Stage) -> Stage:
    """The parent "one", which has completed although one of its three children has failed."""
    stage.start(night, id="one")
    for number in range(3):
        stage.settle(f"one:bills:{number}")
    assert stage.settle("one").state == "completed"
    assert state("one:bills:1") == "failed"
    return stage


class TestReplay:
    @pytest.mark.parametrize("how", [[], ["--in-place"]], ids=["new", "in place"])
    def test_a_dry_run_lists_what_is_started_again(self, shell: Shell, parent: Stage, how: list[str]) -> None:
        done = shell("replay", "one", "bills", "--dry-run", *how)
        assert (done.status, Run.objects.count()) == (0, 4)
        assert done.lines[1] == AGAIN
        place = done.lines.index("children that are started again: 3")
        assert done.lines[place + 1] == "  bills: 3 of cli.bill"
        data = shell("replay", "one", "bills", "--dry-run", "-o", "json", *how).json
        assert data["starts"] == [{"location": "bills", "workflow": "cli.bill", "number": 3}]
        assert data["counts"]["started_children"] == 3

    def test_a_replay_from_behind_the_children_starts_none(self, shell: Shell, parent: Stage) -> None:
        done = shell("replay", "one", "report", "--dry-run")
        assert "started again" not in done.out
        assert "steps that run again: 1" in done.lines

    @pytest.mark.parametrize(("answer", "runs"), [("yes\n", 5), ("no\n", 4)])
    def test_the_question_names_the_number(self, shell: Shell, parent: Stage, answer: str, runs: int) -> None:
        done = shell("replay", "one", "bills", typed=answer)
        assert "Replay it, and start 3 children again?" in done.err
        assert AGAIN in done.err
        assert Run.objects.count() == runs

    def test_without_a_person_to_ask_nothing_is_started(self, shell: Shell, parent: Stage) -> None:
        assert (shell("replay", "one", "bills").status, Run.objects.count()) == (2, 4)

    def test_a_yes_says_it_beside_the_id(self, shell: Shell, parent: Stage) -> None:
        done = shell("replay", "one", "bills", "--yes", "--id", "two")
        assert (done.status, done.out, done.err) == (0, "two\n", f"{AGAIN}.\n")
        parent.settle("two")
        assert Run.objects.filter(parent="two", workflow="cli.bill").count() == 3
        assert shell("replay", "one", "report", "--yes", "--id", "three").err == ""

    def test_a_run_without_children_says_nothing_of_any(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        assert "children" not in shell("replay", "one", "a", "--dry-run").out


class TestRecover:
    def test_the_parent_is_refused_with_the_way_to_its_children(self, shell: Shell, parent: Stage) -> None:
        done = shell("recover", "one")
        assert (done.status, state("one")) == (1, "completed")
        assert f"1 child of it has failed: recover that with `{RECOVER}`" in done.err
        assert "its output stays as it is" in done.err
        assert "restart" not in done.err
        assert RECOVER in OperatorAction.objects.get(run_id="one").detail

    def test_the_way_works_and_leaves_the_parent_as_it_is(self, shell: Shell, parent: Stage) -> None:
        mended.append(True)
        before = Run.objects.values().get(pk="one")
        assert shell(*RECOVER.split()[1:]).status == 0
        assert parent.settle("one:bills:1").state == "completed"
        assert Run.objects.values().get(pk="one") == before
        assert "has ended: restart() begins a new one" in shell("recover", "one").err

    def test_a_run_without_children_is_told_as_before(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        assert "has ended: restart() begins a new one" in shell("recover", "one").err


class TestWhy:
    def test_it_says_how_many_have_failed_and_what_recovers_them(self, shell: Shell, parent: Stage) -> None:
        said = "1 of its 3 children has failed; its output stays as it is: python manage.py durable recover --children-of one"
        assert said in shell("why", "one").out
        assert said in shell("show", "one", "-o", "json").json["why"]

    def test_it_says_nothing_once_they_are_recovered(self, shell: Shell, parent: Stage) -> None:
        mended.append(True)
        shell(*RECOVER.split()[1:])
        parent.settle("one:bills:1")
        assert "children" not in shell("why", "one").out
