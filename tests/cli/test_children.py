"""A parent that has completed with a failed child: what replays of it start again, and how to recover the child."""

from __future__ import annotations

import pytest

from durable.cli import verb_command
from durable.models import OperatorAction, Run
from tests.cli.conftest import Shell, Stage, state
from tests.cli.workflows import failing, mended, night, stopped

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


BOTH = (
    '5 children of "cli.bill" are started again, as new runs with new idempotency keys: what those before did stays, and is '
    "done again"
)
SAMPLE = f"{AGAIN}. This was counted for 1 of 3 runs: the others may start more"


@pytest.fixture
def failures(stage: Stage) -> Stage:
    """Runs "one" and "two", which have failed in maps of three and of two children, and "plain", which has none."""
    for run_id, size in (("one", 3), ("two", 2)):
        stage.start(stopped, size, id=run_id)
        for number in range(2):
            stage.settle(f"{run_id}:bills:{number}")
        assert stage.settle(run_id).state == "failed"
    stage.start(failing, id="plain")
    return stage


@pytest.mark.usefixtures("failures")
class TestReplayFailed:
    IDS = ("one", "two", "plain")

    def test_a_dry_run_says_it_of_each_run_and_of_all(self, shell: Shell) -> None:
        before = Run.objects.count()
        done = shell("replay-failed", *self.IDS, "one:bills:0", "--dry-run")
        assert done.lines == [
            "one: yes, it is failed; it starts 3 children again",
            "two: yes, it is failed; it starts 2 children again",
            "plain: yes, it is failed",
            "one:bills:0: no, it is completed",
        ]
        assert done.err == f"3 would be done, nothing was\n{BOTH}.\n"
        told = shell("replay-failed", *self.IDS, "one:bills:0", "--dry-run", "-o", "json").all_json
        assert [each.get("starts") for each in told] == [3, 2, 0, None]
        assert shell("replay-failed", *self.IDS, "--dry-run", "-o", "ids").lines == list(self.IDS)
        assert Run.objects.count() == before

    def test_beyond_its_bound_a_dry_run_says_for_how_many(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verb_command, "_PLANNED", 1)
        done = shell("replay-failed", *self.IDS, "--dry-run")
        assert done.lines[1] == "two: yes, it is failed"
        assert done.err.endswith(f"{SAMPLE}.\n")
        data = shell("replay-failed", *self.IDS, "--dry-run", "-o", "json").all_json
        assert [each["starts"] for each in data] == [3, None, None]

    @pytest.mark.parametrize(("answer", "made"), [("yes\n", 3), ("no\n", 0)])
    def test_the_question_has_the_number_and_the_note_comes_first(self, shell: Shell, answer: str, made: int) -> None:
        before = Run.objects.count()
        done = shell("replay-failed", *self.IDS, typed=answer)
        asked = done.err.index("Replay-failed 3 runs, and start 5 children again?")
        assert done.err.index(BOTH) < asked
        assert Run.objects.count() - before == made

    def test_one_run_is_asked_about_if_it_starts_children(self, shell: Shell) -> None:
        assert "Replay-failed 1 run, and start 3 children again?" in shell("replay-failed", "one", typed="no\n").err
        assert shell("replay-failed", "plain", typed="").status == 0
        assert Run.objects.filter(replay_of__isnull=False).values_list("replay_of", flat=True).get() == "plain"

    @pytest.mark.parametrize("how", [["--yes"], []], ids=["yes", "no terminal"])
    def test_where_nobody_is_asked_it_is_said_before_it_is_done(
        self, shell: Shell, failures: Stage, how: list[str]
    ) -> None:
        done = shell("replay-failed", *self.IDS, *how)
        assert done.err.startswith(f"{BOTH}.\n")
        made = [run_id for run_id in done.lines if "children" not in run_id]
        assert len(made) == 3
        bulk_id = OperatorAction.objects.order_by("id")[0].run_id
        assert "children that are started again: 5" in shell("bulk", bulk_id).lines
        assert shell("bulk", bulk_id, "-o", "json").json["started_children"] == 5
        for run_id in made:
            failures.settle(run_id)
        assert Run.objects.filter(parent__in=made, workflow="cli.bill").count() == 5

    def test_ids_that_arrive_one_by_one_say_it_one_by_one(self, shell: Shell) -> None:
        done = shell("replay-failed", "-", piped="one\nplain\n")
        assert done.err.count("started again") == 1
        assert f"{AGAIN}.\n" in done.err

    def test_a_cause_in_the_background_says_it_first(self, shell: Shell) -> None:
        place = Run.objects.get(pk="one").failure.cause.place
        done = shell("replay-failed", "--place", place, "--canary", "1")
        assert done.err.startswith(f"{BOTH}.\n")
        assert "It is done in the background" in done.err
        assert shell("bulk", done.out.strip(), "-o", "json").json["started_children"] == 0, "none was done so far"


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
        assert "children" not in shell("why", "one").out


class TestWhy:
    def test_it_says_how_many_have_failed_and_what_recovers_them(self, shell: Shell, parent: Stage) -> None:
        said = "1 of its 3 children has failed; its output stays as it is: python manage.py durable recover --children-of one"
        assert said in shell("why", "one").out
        assert said.removeprefix("1 of") in shell("show", "one", "-o", "json").json["explanation"]["detail"]
