"""`durable replay-check`: its output, its exit status, its choice of runs, and that it leaves everything as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.db.utils import DatabaseError

from durable import Break, Context, Continue, CriticalError, get_run, workflow
from durable.core import registry
from durable.models import Attempt, Child, Entry, EntryMetadata, OperatorAction, QueueMessage, Run
from durable.replay_check.read_only import is_refused_write, snapshot
from tests.cli.conftest import Shell, Stage

CALLED: list[str] = []


def work(name: str = "work") -> str:
    CALLED.append(name)
    return name


class Code:
    """The code of one workflow, replaced at each `deploy`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._made: dict[str, Any] = {}

    def deploy(self, function: Callable[..., Any], name: str = "gate.cli") -> None:
        self.withdraw(name)
        self._made[name] = workflow(name=name)(function)

    def withdraw(self, name: str = "gate.cli") -> None:
        if name in self._made:
            registry.registry.unregister(self._made.pop(name))

    def start(self, *args: Any, id: str, name: str = "gate.cli") -> Run:
        return self.stage.start(self._made[name], *args, id=id)

    def withdraw_all(self) -> None:
        for each in list(self._made):
            self.withdraw(each)


@pytest.fixture
def code(stage: Stage) -> Iterator[Code]:
    CALLED.clear()
    made = Code(stage)
    yield made
    made.withdraw_all()


def waiting(ctx: Context, *steps: str) -> None:
    for each in steps:
        ctx.step(each, work, each)
    ctx.sleep("wait", "1 day")


def choosing(ctx: Context, amount: int) -> str:
    if amount < 10:
        return ctx.step("ship", work, "ship")
    return ctx.step("refund", work, "refund")


def rows() -> dict[str, list[Any]]:
    kinds = (Run, Entry, EntryMetadata, Attempt, QueueMessage, Child, OperatorAction)
    return {kind.__name__: list(kind.objects.order_by("pk").values()) for kind in kinds}


class TestWhatItSays:
    def test_one_line_for_the_runs_that_would_diverge_in_the_same_way(self, shell: Shell, code: Code) -> None:
        code.deploy(lambda ctx, *steps: waiting(ctx, *steps))
        for number in range(7):
            code.start("charge", "pack", id=f"order-{number}")
        code.start("charge", "wrap", id="order-7")
        code.deploy(lambda ctx, *steps: waiting(ctx, "charge"))
        done = shell("replay-check", "--open")
        assert done.status == 1
        several, one = done.lines
        assert several.startswith("7 runs of gate.cli (order-")
        assert several.endswith(
            ', ...): at "wait" the history has step "pack", the code comes to sleep "wait"; '
            'write `ctx.removed("pack", "step")` where it was, until the runs that have it have ended'
        )
        named = several.partition("(")[2].partition(", ...)")[0].split(", ")
        assert len(set(named)) == 5
        assert set(named) < {f"order-{number}" for number in range(7)}
        assert one == (
            'order-7 (gate.cli, sleeping): at "wait" the history has step "wrap", the code comes to sleep "wait"; '
            'write `ctx.removed("wrap", "step")` where it was, until the runs that have it have ended'
        )
        assert done.err == "8 runs checked, 8 would diverge.\n"

    def test_iterations_and_the_values_in_errors_make_no_other_groups(self, shell: Shell, code: Code) -> None:
        def looping(ctx: Context, number: int) -> None:
            def body(context: Context, state: int) -> Break | Continue[int]:
                context.step("look", work)
                if state == number:
                    context.sleep("wait", "1 day")
                return Continue(state + 1) if state < number else Break()

            ctx.loop("days", body, state=0)

        code.deploy(looping)
        for number in (1, 2):
            code.start(number, id=f"order-{number}")

        def without_looking(ctx: Context, number: int) -> None:
            def body(context: Context, state: int) -> Break | Continue[int]:
                context.sleep("wait", "1 day")
                return Continue(state + 1)

            ctx.loop("days", body, state=0)

        code.deploy(without_looking)
        (line,) = shell("replay-check").lines
        assert line.startswith("2 runs of gate.cli (order-")
        assert ': at "days / ~ / wait" the history has step "look", the code comes to sleep "wait"; ' in line

        def mistaken(ctx: Context, number: int) -> None:
            raise KeyError(number)

        code.deploy(mistaken)
        (line,) = shell("replay-check").lines
        assert line.startswith("2 runs of gate.cli (order-")
        assert "raises KeyError: " in line

    def test_json_has_each_finding_and_the_ids_of_all_runs_of_a_group(self, shell: Shell, code: Code) -> None:
        code.deploy(lambda ctx: waiting(ctx, "charge"))
        for number in range(7):
            code.start(id=f"order-{number}")
        code.deploy(lambda ctx: waiting(ctx))
        done = shell("replay-check", "-o", "json")
        found = done.json
        assert (done.status, found["checked"]) == (1, 7)
        assert {each["kind"] for each in found["findings"]} == {"skipped"}
        assert found["findings"][0]["add"] == ['ctx.removed("charge", "step")']
        (group,) = found["groups"]
        assert (group["workflow"], group["kind"], group["place"], group["count"]) == ("gate.cli", "skipped", "wait", 7)
        assert sorted(group["runs"]) == sorted(each["run_id"] for each in found["findings"])
        assert sorted(group["runs"]) == [f"order-{number}" for number in range(7)]
        assert group["message"] == shell("replay-check").lines[0]

    def test_nothing_where_all_is_fine(self, shell: Shell, code: Code) -> None:
        code.deploy(lambda ctx: waiting(ctx, "charge"))
        code.start(id="order-1")
        done = shell("replay-check")
        assert (done.status, done.out, done.err) == (0, "", "1 run checked, none would diverge.\n")

    def test_a_name_that_nobody_knows(self, shell: Shell) -> None:
        done = shell("replay-check", "--workflow", "gate.none")
        assert done.status == 2
        assert "gate.none" in done.err

    @pytest.mark.parametrize("given", [("--jobs", "0"), ("--ended", "-1"), ("--ended", "many")])
    def test_numbers_that_are_none(self, shell: Shell, given: tuple[str, str]) -> None:
        done = shell("replay-check", *given)
        assert done.status != 0
        assert "whole number" in done.err or "at least one process" in done.err

    def test_a_history_that_cannot_be_read_is_not_fine(self, shell: Shell, code: Code) -> None:
        code.deploy(lambda ctx: waiting(ctx))
        code.start(id="order-1")
        Entry.objects.filter(run="order-1").update(data={"state": "pending"})  # without the deadline
        done = shell("replay-check")
        assert done.status == 2
        assert done.out.startswith("order-1 (gate.cli, sleeping): not checked: KeyError")
        code.start(id="order-2")
        Entry.objects.filter(run="order-2").update(data={"state": "pending"})
        (line,) = shell("replay-check").lines
        assert line.startswith("2 runs of gate.cli (order-")
        assert "): not checked: KeyError" in line
        done = shell("replay-check", "--diff", "-o", "markdown")
        assert done.status == 2
        assert "**2 open runs could not be checked.**" in done.lines
        assert "all go on" not in done.out

    def test_what_was_found_before_ctrl_c(self, shell: Shell, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
        code.deploy(lambda ctx: waiting(ctx, "charge"))
        for number in range(3):
            code.start(id=f"order-{number}")
        seen: list[str] = []

        def interrupted(ctx: Context) -> None:
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append("one")

        code.deploy(interrupted)
        done = shell("replay-check", "--format", "json")
        assert done.status == 130
        assert len(done.json["findings"]) == 2
        assert "interrupted" in done.err


class TestItsChoice:
    def test_of_each_sequence_of_operations_one(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        code.start(50, id="rare")
        for number in range(12):
            code.start(1, id=f"usual-{number}")

        code.deploy(lambda ctx, amount: ctx.step("ship", work))
        done = shell("replay-check", "--ended", "2", "--format", "json")
        assert done.status == 1
        assert [each["run_id"] for each in done.json["findings"]] == ["rare"]
        assert "2 of 13 ended runs are checked" in done.err

    def test_only_some_workflows(self, shell: Shell, code: Code) -> None:
        for name in ("gate.one", "gate.two"):
            code.deploy(lambda ctx: waiting(ctx, "charge"), name)
            code.start(id=f"of {name}", name=name)
            code.withdraw(name)
        done = shell("replay-check", "--workflow", "gate.two", "--format", "json")
        assert [each["run_id"] for each in done.json["findings"]] == ["of gate.two"]
        done = shell("replay-check", "--workflow", "gate.one", "gate.two", "--format", "json")
        assert done.json["checked"] == 2


class TestTheDifferenceOfDecisions:
    def test_groups_them_by_the_first_operation_that_differs(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        for number in range(10):
            code.start(number, id=f"order-{number}")

        code.deploy(lambda ctx, amount: ctx.step("ship" if amount < 7 else "refund", work))
        done = shell("replay-check", "--diff")
        assert done.status == 1
        (line,) = done.lines
        assert line.startswith(
            'in 3 of 10 runs of gate.cli the new code would have done step "refund" instead of step "ship": order-'
        )
        assert done.err == (
            "Compared with 10 ended runs: 7 to the end, the others up to the first operation that differs or that the "
            "record does not answer.\n"
        )
        (group,) = shell("replay-check", "--diff", "--format", "json").json["decisions"]
        assert (group["place"], group["count"], group["of"]) == ("refund", 3, 10)
        assert set(group["runs"]) == {"order-7", "order-8", "order-9"}

    def test_the_text_of_a_comment_says_what_would_stop_too(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        for number in range(10):
            code.start(number, id=f"order-{number}")
        code.deploy(lambda ctx: waiting(ctx, "charge"), name="gate.open")
        for number in range(3):
            code.start(id=f"open `{number}` @ada", name="gate.open")
        code.deploy(lambda ctx, amount: ctx.step("ship" if amount < 7 else "refund", work))
        code.deploy(lambda ctx: waiting(ctx, "pay"), name="gate.open")
        done = shell("replay-check", "--diff", "-o", "markdown")
        assert done.status == 1
        marker, title, stops, *block = (each for each in done.lines if each)
        assert (marker, title) == ("<!-- durable replay-check -->", "### Recorded runs with this change")
        assert stops == "**3 open runs: 0 go on, the code of this change would stop 3.**"
        assert block[0] == "```text"
        assert block[1].startswith("3 runs of gate.open (open `")
        assert block[2] == "```"
        assert block[3] == "**10 ended runs: it decides otherwise in 3.**"
        assert block[4] == "```text"
        assert block[5].startswith("in 3 of 10 runs of gate.cli the new code would have done step")
        assert block[6:] == ["```"]

    def test_the_text_of_a_comment_where_all_is_fine(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        code.start(1, id="order-1")
        code.deploy(lambda ctx: waiting(ctx, "charge"), name="gate.open")
        code.start(id="open-1", name="gate.open")
        done = shell("replay-check", "--diff", "-o", "markdown")
        assert done.status == 0
        assert [each for each in done.lines if each][2:] == [
            "1 open run: all go on with this change.",
            "1 ended run: it decides as before in all that could be compared.",
        ]
        assert [each for each in shell("replay-check", "-o", "markdown").lines if each][2:] == [
            "2 recorded runs: all go on with this change."
        ]

    def test_no_id_ends_the_block_of_a_comment(self, shell: Shell, code: Code) -> None:
        code.deploy(lambda ctx: waiting(ctx, "charge"))
        code.start(id="a ```` <img src=x> @all")
        code.deploy(lambda ctx: waiting(ctx, "pay"))
        lines = shell("replay-check", "--diff", "-o", "markdown").lines
        first, last = (number for number, line in enumerate(lines) if line.startswith("`````"))
        assert lines[first] == "`````text"
        assert lines[last] == "`````"
        assert "<img src=x> @all" in lines[first + 1]
        assert not any("<img" in line for line in [*lines[:first], *lines[last:]])

    def test_json_has_the_ids_of_all_runs_of_a_decision(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        for number in range(10):
            code.start(number, id=f"order-{number}")
        code.deploy(lambda ctx, amount: ctx.step("ship" if amount < 3 else "refund", work))
        (line,) = shell("replay-check", "--diff").lines
        assert line.startswith("in 7 of 10 runs of gate.cli ")
        assert line.endswith(", ...")
        assert line.count("order-") == 5
        (group,) = shell("replay-check", "--diff", "--format", "json").json["decisions"]
        assert sorted(group["runs"]) == [f"order-{number}" for number in range(3, 10)]

    def test_says_what_goes_on_behind_the_end(self, shell: Shell, code: Code) -> None:
        code.deploy(choosing)
        code.start(1, id="order-1")

        def mails(ctx: Context, amount: int) -> str:
            choosing(ctx, amount)
            return ctx.step("mail", work)

        code.deploy(mails)
        done = shell("replay-check", "--diff")
        assert done.lines == [
            'in 1 of 1 runs of gate.cli the new code would have gone on with step "mail" instead of completing: order-1'
        ]
        assert shell("replay-check").status == 0  # a run that is open goes on in this way

    def test_says_where_the_result_or_the_failure_is_another(self, shell: Shell, code: Code) -> None:
        def fails(ctx: Context, amount: int) -> str:
            if amount:
                raise CriticalError("declined")
            return "fine"

        code.deploy(fails)
        code.start(0, id="order-0")
        code.start(1, id="order-1")
        code.deploy(lambda ctx, amount: "well")
        assert sorted(shell("replay-check", "--diff").lines) == [
            "in 1 of 2 runs of gate.cli the new code would have completed instead of failing with CriticalError: order-1",
            "in 1 of 2 runs of gate.cli the new code would have returned another result instead of the recorded one: order-0",
        ]


class TestNothingIsDone:
    def test_nothing_is_called_or_written(self, shell: Shell, code: Code) -> None:
        def much(ctx: Context) -> None:
            ctx.step("charge", work)
            ctx.queue.send("note", "text")
            ctx.queue.next("note")
            ctx.child("child", "gate.child")
            ctx.step("ship", work)

        code.deploy(lambda ctx: ctx.sleep("wait", "1 day"), "gate.child")
        code.deploy(much)
        code.start(id="order-1")
        before = rows()
        CALLED.clear()
        assert shell("replay-check").status == 0
        code.deploy(lambda ctx: waiting(ctx, "other"))
        assert shell("replay-check").status == 1
        assert rows() == before
        assert CALLED == []

    def test_a_read_between_steps_is_let_through(self, shell: Shell, code: Code) -> None:
        Group.objects.create(name="staff")

        def reads(ctx: Context) -> None:
            if Group.objects.filter(name="staff").exists():  # durable: allow[W109] the code under test
                ctx.step("charge", work)
            ctx.sleep("wait", "1 day")

        code.deploy(reads)
        code.start(id="order-1")
        assert shell("replay-check").status == 0

    @pytest.mark.parametrize("is_allowed", [False, True])
    def test_a_write_between_steps_is_refused_and_told(self, shell: Shell, code: Code, is_allowed: bool) -> None:
        code.deploy(lambda ctx: waiting(ctx, "charge"))
        code.start(id="order-1")

        def writes(ctx: Context) -> None:
            ctx.step("charge", work)
            if is_allowed:
                Group.objects.create(name="by the check")  # durable: allow[W109] the code under test
            else:
                Group.objects.create(name="by the check")
            ctx.sleep("wait", "1 day")

        code.deploy(writes)
        done = shell("replay-check", "--format", "json")
        (finding,) = done.json["findings"]
        assert finding["kind"] == "effect"
        assert not Group.objects.filter(name="by the check").exists()

    def test_a_start_and_a_send_with_ids_are_taken_for_done(self, shell: Shell, code: Code) -> None:
        def starts(ctx: Context) -> None:
            ctx.step("charge", work)
            other.using(id=f"{ctx.run_id}-other").start()
            get_run("order-0").send("note", "text", id=f"{ctx.run_id}-note")
            waiting(ctx, "ship")

        other = workflow(name="gate.other")(lambda ctx: None)
        try:
            code.deploy(lambda ctx: waiting(ctx))
            code.start(id="order-0")
            code.deploy(starts)
            code.start(id="order-1")
            Run.objects.get(pk="order-1-other").delete()
            before = rows()
            findings = shell("replay-check", "--open", "--format", "json").json["findings"]
            assert [each["run_id"] for each in findings] == ["order-0"]  # which has no record of the steps
            assert rows() == before
        finally:
            registry.registry.unregister(other)

    def test_what_code_prints_does_not_come_between(self, shell: Shell, code: Code) -> None:
        def prints(ctx: Context) -> None:
            print("hello")  # the code under test
            waiting(ctx, "charge")

        code.deploy(prints)
        code.start(id="order-1")
        assert json.loads(shell("replay-check", "--format", "json").out)["checked"] == 1

    def test_the_database_refuses_writes_meanwhile(self, db: None) -> None:
        with pytest.raises(DatabaseError) as refused, snapshot("default"):
            Group.objects.create(name="by the check")
        assert is_refused_write(refused.value)
        Group.objects.create(name="afterwards")

    def test_the_transaction_cannot_be_made_writable_again(self, db: None) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("of PostgreSQL")
        with snapshot("default"), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            with pytest.raises(DatabaseError, match="read-write"):
                cursor.execute("SET TRANSACTION READ WRITE")
