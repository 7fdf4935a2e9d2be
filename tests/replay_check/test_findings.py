"""Real changes of code, and what the check says of a run that was recorded before."""

from __future__ import annotations

import dataclasses
import re
import sys
from enum import Enum
from typing import Any

import pytest
from cryptography.fernet import Fernet

from durable import AsyncContext, Break, Context, Continue, CriticalError, RollbackContext
from durable.crypto import FernetCodec
from durable.migrations import RenameStep
from durable.models import Entry, QueueMessage, Run
from durable.replay_check import RecordedRun, check_history
from durable.replay_check.findings import FindingKind
from tests.cli import workflows as others
from tests.renames.conftest import apply, no_names_left
from tests.replay_check.conftest import Deploys

pytestmark = pytest.mark.slow

__all__ = ["no_names_left"]

CALLED: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    CALLED.clear()


def work(name: str = "work") -> str:
    CALLED.append(name)
    return f"{name} done"


def does(ctx: Context, *names: str) -> None:
    """Do a step of each name; "wait" is a sleep.

    Call it in a lambda with the names: the advice looks for them in the code of the workflow.
    """
    for name in names:
        if name == "wait":
            ctx.sleep(name, "1 day")
        else:
            ctx.step(name, work, name)


def first(ctx: Context) -> None:
    does(ctx, "charge", "pack", "wait", "ship")


class TestAnOpenRun:
    @pytest.fixture(autouse=True)
    def _waiting(self, deploys: Deploys) -> None:
        deploys.begin(first)
        CALLED.clear()

    def test_of_unchanged_code_goes_on(self, deploys: Deploys) -> None:
        verdict = deploys.verdict()
        assert verdict.finding is None
        assert (verdict.operations, verdict.is_whole) == (3, False)
        assert CALLED == []

    def test_with_another_step_behind_the_one_that_waits_goes_on(self, deploys: Deploys) -> None:
        assert deploys.goes_on(lambda ctx: does(ctx, "charge", "pack", "wait", "mail"))

    def test_with_another_step_before_the_one_that_waits(self, deploys: Deploys) -> None:
        found = deploys.finding(lambda ctx: does(ctx, "charge", "weigh", "pack", "wait"))
        assert (found.kind, found.location) == (FindingKind.ADDED, "weigh")
        assert found.history == 'step "pack", sleep "wait"'
        assert found.code == 'comes to step "weigh"'
        assert found.add == ('if ctx.get_version("with weigh", 2) >= 2:', '    ctx.step("weigh", ...)')
        assert CALLED == []

        def mended(ctx: Context) -> None:
            ctx.step("charge", work)
            if ctx.get_version("with weigh", 2) >= 2:
                ctx.step("weigh", work)
            does(ctx, "pack", "wait")

        assert deploys.goes_on(mended)

    def test_without_a_step(self, deploys: Deploys) -> None:
        found = deploys.finding(lambda ctx: does(ctx, "charge", "wait"))
        assert (found.kind, found.location) == (FindingKind.SKIPPED, "wait")
        assert found.add == ('ctx.removed("pack", "step")',)
        assert 'write `ctx.removed("pack", "step")` where it was' in str(found)

        def mended(ctx: Context) -> None:
            ctx.step("charge", work)
            ctx.removed("pack", "step")
            ctx.sleep("wait", "1 day")

        assert deploys.goes_on(mended)

    def test_with_a_renamed_step(self, deploys: Deploys) -> None:
        found = deploys.finding(lambda ctx: does(ctx, "charge the card", "pack", "wait"))
        assert (found.kind, found.location) == (FindingKind.ADDED, "charge the card")
        assert found.add == (
            'if ctx.get_version("change of charge", 2) == 1:',
            '    ctx.step("charge", ...)',
            "else:",
            '    ctx.step("charge the card", ...)',
        )

        def mended(ctx: Context) -> None:
            is_before = ctx.get_version("change of charge", 2) == 1
            does(ctx, "charge" if is_before else "charge the card", "pack", "wait")

        assert deploys.goes_on(mended)

    def test_whose_code_would_end_the_process(self, deploys: Deploys) -> None:
        def leaves(ctx: Context) -> None:
            ctx.step("charge", work)
            sys.exit(1)

        assert deploys.finding(leaves).kind == FindingKind.EXCEPTION

    def test_with_a_step_that_has_become_a_sleep(self, deploys: Deploys) -> None:
        def other(ctx: Context) -> None:
            ctx.step("charge", work)
            ctx.sleep("pack", "1 hour")
            ctx.sleep("wait", "1 day")

        found = deploys.finding(other)
        assert (found.kind, found.location) == (FindingKind.KIND, "pack")
        assert (found.history, found.code) == ('step "pack"', 'comes to sleep "pack"')
        assert found.add == ('ctx.removed("pack", "step")',)

    def test_whose_code_ends_before(self, deploys: Deploys) -> None:
        found = deploys.finding(lambda ctx: does(ctx, "charge", "pack"))
        assert (found.kind, found.location, found.code) == (FindingKind.REMOVED, "wait", "ends before")
        assert found.add == ('ctx.removed("wait", "sleep")',)

    def test_with_a_name_used_twice(self, deploys: Deploys) -> None:
        assert deploys.finding(lambda ctx: does(ctx, "charge", "charge")).kind == FindingKind.USED_TWICE

    def test_in_another_order(self, deploys: Deploys) -> None:
        found = deploys.finding(lambda ctx: does(ctx, "charge", "wait", "pack"))
        assert found.kind == FindingKind.SKIPPED
        assert found.add[0] == 'if ctx.get_version("order of pack", 2) == 1:'

    def test_whose_code_raises(self, deploys: Deploys) -> None:
        def broken(ctx: Context) -> None:
            ctx.step("charge", work)
            raise KeyError("vat")

        found = deploys.finding(broken)
        assert found.kind == FindingKind.EXCEPTION
        assert "KeyError" in found.code

    def test_whose_code_fails_on_purpose_before_the_end_of_the_record(self, deploys: Deploys) -> None:
        def refuses(ctx: Context) -> None:
            ctx.step("charge", work)
            raise CriticalError("no")

        found = deploys.finding(refuses)
        assert (found.kind, found.location) == (FindingKind.EXCEPTION, "pack")
        assert (found.history, found.code) == ('step "pack", sleep "wait"', "raises CriticalError: no")

    def test_of_a_workflow_that_is_gone(self, deploys: Deploys) -> None:
        deploys.withdraw()
        found = deploys.finding()
        assert (found.kind, found.location) == (FindingKind.UNKNOWN_WORKFLOW, "")

    def test_whose_input_does_not_fit_any_more(self, deploys: Deploys) -> None:
        def with_argument(ctx: Context, order: int) -> None:
            ctx.step("charge", work)

        found = deploys.finding(with_argument)
        assert found.kind == FindingKind.SIGNATURE
        assert "missing a required argument: 'order'" in found.code

    def test_with_a_new_argument_that_has_a_default_goes_on(self, deploys: Deploys) -> None:
        def with_argument(ctx: Context, order: int = 0) -> None:
            first(ctx)

        assert deploys.goes_on(with_argument)


def apply_rename(mend: str) -> None:
    """Apply the migration's operation that the advice has."""
    (operation,) = re.findall(r"`(RenameStep\(.+?\))`", mend)
    apply(eval(operation, {"RenameStep": RenameStep}))


def price(order: int) -> int:
    return 12 * order


class TestChangesInPairs:
    """The advice, followed to the letter, fits the open runs, and binds what the code reads after it."""

    def before(self, ctx: Context, order: int = 7) -> str:
        cost = ctx.step("price", price, order)
        payment = ctx.step("charge", work, f"{cost} EUR")
        ctx.sleep("wait", "1 day")
        return payment

    @pytest.fixture(autouse=True)
    def _waiting(self, deploys: Deploys) -> None:
        deploys.begin(lambda ctx: self.before(ctx))

    def test_a_removed_step_before_a_renamed_one(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> str:
            payment = ctx.step("pay", work, "84 EUR")
            ctx.sleep("wait", "1 day")
            return payment

        found = deploys.finding(after)
        assert (found.kind, found.location) == (FindingKind.ADDED, "pay")
        assert found.add == (
            'ctx.removed("price", "step")',
            'if ctx.get_version("change of charge", 2) == 1:',
            '    ctx.step("charge", ...)',
            "else:",
            '    ctx.step("pay", ...)',
        )
        assert 'RenameStep("gate.order", "charge", "pay")' in found.mend
        assert "durable.migrations" in found.mend

        def kept(ctx: Context) -> str:
            ctx.removed("price", "step")
            if ctx.get_version("change of charge", 2) == 1:
                payment = ctx.step("charge", work, "84 EUR")
            else:
                payment = ctx.step("pay", work, "84 EUR")
            ctx.sleep("wait", "1 day")
            return payment

        def renamed(ctx: Context) -> str:
            ctx.removed("price", "step")
            return after(ctx)

        assert deploys.goes_on(kept)
        deploys.deploy(renamed)
        apply_rename(found.mend)
        assert deploys.goes_on()

    def test_an_ended_run_has_the_same_advice(self, deploys: Deploys) -> None:
        def before(ctx: Context) -> str:
            cost = ctx.step("price", price, 7)
            return ctx.step("charge", work, f"{cost} EUR")

        def after(ctx: Context) -> str:
            return ctx.step("pay", work, "84 EUR")

        def renamed(ctx: Context) -> str:
            ctx.removed("price", "step")
            return after(ctx)

        deploys.begin(before, id="ended")
        found = deploys.finding(after, of="ended")
        assert found.add[0] == 'ctx.removed("price", "step")'
        apply_rename(found.mend)
        deploys.deploy(renamed)
        verdict = deploys.verdict("ended", with_decision=True)
        assert (verdict.finding, verdict.decision, verdict.is_whole) == (None, None, True)

    def test_a_renamed_step_before_a_removed_one(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> None:
            ctx.step("quote", price, 7)
            ctx.sleep("wait", "1 day")

        found = deploys.finding(after)
        assert found.add[:2] == ('if ctx.get_version("change of price", 2) == 1:', '    ctx.step("price", ...)')
        assert 'RenameStep("gate.order", "price", "quote")' in found.mend
        apply_rename(found.mend)
        assert deploys.finding().add == ('ctx.removed("charge", "step")',)

    def test_steps_of_which_none_is_the_new_one_for_certain(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> None:
            ctx.step("pay", work, "99 EUR")
            ctx.sleep("wait", "1 day")

        found = deploys.finding(after)
        assert found.add == (
            'if ctx.get_version("change of price", 2) == 1:',
            '    ctx.step("price", ...)',
            '    ctx.step("charge", ...)',
            "else:",
            '    ctx.step("pay", ...)',
        )
        assert 'ctx.step("price", ...); ctx.step("charge", ...) else: ctx.step("pay", ...)`' in found.mend
        assert "RenameStep" not in found.mend

        def kept(ctx: Context) -> str:
            if ctx.get_version("change of price", 2) == 1:
                cost = ctx.step("price", price, 7)
                payment = ctx.step("charge", work, f"{cost} EUR")
            else:
                payment = ctx.step("pay", work, "99 EUR")
            ctx.sleep("wait", "1 day")
            return payment

        assert deploys.goes_on(kept)

    def test_several_steps_with_the_arguments_of_the_new_one(self, deploys: Deploys) -> None:
        def alike(ctx: Context) -> None:
            ctx.step("reserve", price, 7)
            ctx.step("charge", price, 7)
            ctx.sleep("wait", "1 day")

        def after(ctx: Context) -> None:
            ctx.step("pay", price, 7)
            ctx.sleep("wait", "1 day")

        deploys.begin(alike, id="alike")
        found = deploys.finding(after, of="alike")
        assert found.add[1:3] == ('    ctx.step("reserve", ...)', '    ctx.step("charge", ...)')
        assert 'if one of them is step "pay" under another name' in found.mend

    def test_an_inserted_step_before_a_removed_one(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> None:
            ctx.step("check", work)
            ctx.step("price", price, 7)
            ctx.sleep("wait", "1 day")

        def inserted(ctx: Context) -> None:
            if ctx.get_version("with check", 2) >= 2:
                ctx.step("check", work)
            ctx.step("price", price, 7)
            ctx.sleep("wait", "1 day")

        assert deploys.finding(after).add[0] == 'if ctx.get_version("with check", 2) >= 2:'
        assert deploys.finding(inserted).add == ('ctx.removed("charge", "step")',)

    def test_steps_in_the_other_order(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> None:
            ctx.step("price", price, 7)
            ctx.sleep("wait", "1 day")
            ctx.step("charge", work, "84 EUR")

        found = deploys.finding(after)
        assert found.add == (
            'if ctx.get_version("order of charge", 2) == 1:',
            '    ctx.step("charge", ...)',
            '    ctx.sleep("wait", ...)',
            "else:",
            '    ctx.sleep("wait", ...)',
            '    ctx.step("charge", ...)',
        )

        def kept(ctx: Context) -> None:
            ctx.step("price", price, 7)
            if ctx.get_version("order of charge", 2) == 1:
                ctx.step("charge", work, "84 EUR")
                ctx.sleep("wait", "1 day")
            else:
                ctx.sleep("wait", "1 day")
                ctx.step("charge", work, "84 EUR")

        assert deploys.goes_on(kept)

    @pytest.mark.parametrize("rename", ["sleep", "block", "loop"])
    def test_other_operations_under_another_name(self, deploys: Deploys, rename: str) -> None:
        def made(ctx: Context, name: str) -> None:
            def body(ctx: Context) -> None:
                ctx.step("charge", work)
                ctx.sleep("wait", "1 day")

            match rename:
                case "sleep":
                    ctx.sleep(name, "1 day")
                case "block":
                    ctx.try_block(name, body)
                case _:
                    ctx.loop(name, body)

        deploys.begin(lambda ctx: made(ctx, "old"), id="other")
        mend = deploys.finding(lambda ctx: made(ctx, "new"), of="other").mend
        assert 'RenameStep("gate.order", "old", "new")' in mend
        apply_rename(mend)
        assert deploys.goes_on(of="other")

    def test_a_step_in_a_loop_under_another_name(self, deploys: Deploys) -> None:
        def polls(ctx: Context, name: str) -> None:
            def body(ctx: Context) -> None:
                ctx.step(name, price, 7)
                ctx.sleep("wait", "1 day")

            ctx.loop("polling", body)

        deploys.begin(lambda ctx: polls(ctx, "poll"), id="polls")
        mend = deploys.finding(lambda ctx: polls(ctx, "look"), of="polls").mend
        assert 'RenameStep("gate.order", "polling/~/poll", "polling/~/look")' in mend
        apply_rename(mend)
        assert deploys.goes_on(of="polls")

    def test_values_that_are_encrypted_are_compared(self, deploys: Deploys) -> None:
        def after(ctx: Context) -> None:
            ctx.step("pay", work, "84 EUR")
            ctx.sleep("wait", "1 day")

        deploys.deploy(after)
        codec = FernetCodec(keys=[Fernet.generate_key().decode()])
        run, history = deploys.at.store.get("order-1"), deploys.at.store.load("order-1")
        assert run is not None
        run.input = codec.encode({"args": [], "kwargs": {}})
        for each in history:
            each.arguments = codec.encode({"price": (7,), "charge": ("84 EUR",), "wait": ()}[each.location])
            each.output = each.output and codec.encode(None)
        found = check_history(RecordedRun(run=run, entries=history, codec=codec)).finding
        assert found is not None
        assert 'RenameStep("gate.order", "charge", "pay")' in found.mend


class TestVersions:
    def test_a_version_that_the_code_does_not_have(self, deploys: Deploys) -> None:
        def third(ctx: Context) -> None:
            ctx.get_version("tax", 3)
            ctx.sleep("wait", "1 day")

        def second(ctx: Context) -> None:
            ctx.get_version("tax", 2)
            ctx.sleep("wait", "1 day")

        deploys.begin(third)
        assert deploys.goes_on()
        found = deploys.finding(second)
        assert (found.kind, found.location) == (FindingKind.UNKNOWN_VERSION, "tax")
        assert found.add == ('ctx.get_version("tax", 3)',)


class TestScopes:
    def test_branches(self, deploys: Deploys) -> None:
        def waits(ctx: Context, name: str) -> None:
            ctx.step(f"{name} first", work)
            ctx.sleep(f"{name} wait", "1 day")

        def before(ctx: Context) -> None:
            ctx.join("both", {"left": lambda ctx: waits(ctx, "left"), "right": lambda ctx: waits(ctx, "right")})

        def reordered(ctx: Context) -> None:
            ctx.join("both", {"right": lambda ctx: waits(ctx, "right"), "left": lambda ctx: waits(ctx, "left")})

        def one_changed(ctx: Context) -> None:
            ctx.join("both", {"left": lambda ctx: waits(ctx, "left"), "right": lambda ctx: waits(ctx, "other")})

        def one_more(ctx: Context) -> None:
            bodies = {name: (lambda ctx, name=name: waits(ctx, name)) for name in ("left", "right", "middle")}
            ctx.join("both", bodies)

        deploys.begin(before)
        assert deploys.goes_on()
        assert deploys.goes_on(reordered)
        found = deploys.finding(one_changed)
        assert (found.kind, found.location) == (FindingKind.ADDED, "both/right/other first")
        found = deploys.finding(one_more)
        assert found.kind == FindingKind.CHANGED
        assert "middle" in found.code

    def test_an_error_in_a_branch_that_has_not_failed(self, deploys: Deploys) -> None:
        def waits(ctx: Context) -> None:
            ctx.step("first", work)
            ctx.sleep("wait", "1 day")

        def before(ctx: Context) -> None:
            ctx.join("both", {"left": waits, "right": lambda ctx: ctx.sleep("wait", "1 day")})

        def raises(ctx: Context) -> None:
            ctx.sleep("wait", "1 day")
            raise AssertionError("not reached")

        def after(ctx: Context) -> None:
            def wrong(ctx: Context) -> None:
                ctx.step("first", work)
                raise KeyError("vat")

            ctx.join("both", {"left": wrong, "right": raises})

        deploys.begin(before)
        assert deploys.finding(after).kind == FindingKind.EXCEPTION

    @pytest.mark.parametrize("prune", [1, 100])
    def test_a_loop(self, deploys: Deploys, prune: int) -> None:
        def polls(ctx: Context, *steps: str) -> None:
            def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
                for each in steps:
                    ctx.step(each, work)
                if number == 5:
                    ctx.sleep("wait", "1 day")
                return Continue(number + 1)

            ctx.loop("polling", body, 0, history_prune_interval=prune)

        deploys.begin(lambda ctx: polls(ctx, "look", "note"))
        assert deploys.goes_on()
        found = deploys.finding(lambda ctx: polls(ctx, "look"))
        assert (found.kind, found.location) == (FindingKind.SKIPPED, "polling/~5/wait")
        assert 'at "polling / iteration 5 / wait"' in str(found)

    def test_what_is_inside_of_what_has_ended_may_change(self, deploys: Deploys) -> None:
        def before(ctx: Context) -> None:
            ctx.join("both", {"left": lambda ctx: ctx.step("a", work), "right": lambda ctx: ctx.step("b", work)})
            ctx.sleep("wait", "1 day")

        def after(ctx: Context) -> None:
            ctx.join("both", {"left": lambda ctx: ctx.step("c", work), "right": lambda ctx: None})
            ctx.sleep("wait", "1 day")

        deploys.begin(before)
        assert deploys.goes_on(after)

    def test_a_try_block(self, deploys: Deploys) -> None:
        def block(ctx: Context, name: str) -> None:
            result = ctx.try_block("paying", lambda ctx: ctx.step(name, work))
            assert result.ok
            ctx.sleep("wait", "1 day")

        deploys.begin(lambda ctx: block(ctx, "charge"))
        assert deploys.goes_on()
        found = deploys.finding(lambda ctx: block(ctx, "pay"))
        assert (found.kind, found.location) == (FindingKind.ADDED, "paying/pay")

    def test_an_async_workflow(self, deploys: Deploys) -> None:
        async def before(ctx: AsyncContext) -> None:
            await ctx.step("charge", work)
            await ctx.join("both", {"left": branch, "right": branch})

        async def branch(ctx: AsyncContext) -> None:
            await ctx.step("first", work)
            await ctx.sleep("wait", "1 day")

        async def after(ctx: AsyncContext) -> None:
            await ctx.join("both", {"left": branch, "right": branch})

        deploys.begin(before)
        assert deploys.goes_on()
        found = deploys.finding(after)
        assert found.add == ('await ctx.removed("charge", "step")',)

    def test_a_race(self, deploys: Deploys) -> None:
        def racing(ctx: Context, *names: str) -> None:
            won = ctx.race("first", {name: lambda ctx: ctx.sleep("nap", "1 day") for name in names})
            ctx.step(f"after {won.winner}", work)

        def decided(ctx: Context) -> None:
            ctx.race("first", {"slow": lambda ctx: ctx.sleep("nap", "1 day"), "quick": lambda ctx: ctx.step("s", work)})
            ctx.sleep("wait", "1 day")

        deploys.begin(lambda ctx: racing(ctx, "left", "right"))
        assert deploys.goes_on()
        assert deploys.finding(lambda ctx: racing(ctx, "left")).kind == FindingKind.CHANGED
        deploys.begin(decided, id="decided")
        assert deploys.goes_on(of="decided")
        found = deploys.finding(lambda ctx: racing(ctx, "slow", "quick"), of="decided")
        assert (found.kind, found.location) == (FindingKind.ADDED, "after quick")

    @pytest.mark.parametrize(("fork", "branches"), [("join", 1_000), ("race", 300)])
    def test_hundreds_of_branches(self, deploys: Deploys, fork: str, branches: int) -> None:
        def forks(ctx: Context, number: int = branches, changed: int | None = None) -> None:
            def branch(ctx: Context, own: int) -> None:
                ctx.step("first", work)
                ctx.step("other" if own == changed else "second", work)
                ctx.sleep("wait", "1 day")

            bodies = {f"b{own}": (lambda ctx, own=own: branch(ctx, own)) for own in range(number)}
            getattr(ctx, fork)("all", bodies)

        deploys.begin(forks)
        assert deploys.goes_on()
        middle, last = branches // 2, branches - 1
        found = deploys.finding(lambda ctx: forks(ctx, changed=middle))
        assert (found.kind, found.location) == (FindingKind.ADDED, f"all/b{middle}/other")
        found = deploys.finding(lambda ctx: forks(ctx, number=last))
        assert (found.kind, found.location) == (FindingKind.CHANGED, f"all/b{last}")
        assert f"(b{last} changed)" in found.code
        assert len(str(found)) < 1_000

    @pytest.mark.parametrize("is_decided", [True, False])
    def test_a_race_that_is_gone(self, deploys: Deploys, is_decided: bool) -> None:
        def before(ctx: Context) -> None:
            def naps(ctx: Context) -> None:
                ctx.sleep("nap", "1 day")

            def works(ctx: Context) -> None:
                ctx.step("look", work)

            ctx.step("begin", work)
            ctx.race("first", {"slow": naps, "other": works if is_decided else naps})
            ctx.sleep("wait", "1 day")

        def gone(ctx: Context) -> None:
            ctx.step("begin", work)
            ctx.sleep("wait", "1 day")

        def removed(ctx: Context) -> None:
            ctx.step("begin", work)
            ctx.removed("first", "race")
            ctx.sleep("wait", "1 day")

        def a_step(ctx: Context) -> None:
            ctx.step("begin", work)
            ctx.step("first", work)
            ctx.sleep("wait", "1 day")

        deploys.begin(before)
        found = deploys.finding(gone)
        assert found.history == 'race "first"'
        assert is_decided == (found.add == ('ctx.removed("first", "race")',))
        found = deploys.finding(a_step)
        assert (found.kind, found.location) == (FindingKind.KIND, "first")
        assert deploys.goes_on(removed)

    def test_children_and_maps(self, deploys: Deploys) -> None:
        def before(ctx: Context) -> None:
            ctx.start_child("mail", others.echo)
            ctx.map("all", others.echo, [(1,), (2,)])

        def other_child(ctx: Context) -> None:
            ctx.start_child("mail", others.napping)

        def other_inputs(ctx: Context) -> None:
            ctx.start_child("mail", others.echo)
            ctx.map("all", others.echo, [(1,), (2,), (3,)])

        deploys.begin(before)
        runs = Run.objects.count()
        assert runs == 4
        assert deploys.goes_on()
        for changed, location in ((other_child, "mail"), (other_inputs, "all")):
            found = deploys.finding(changed)
            assert (found.kind, found.location) == (FindingKind.CHANGED, location)
        assert Run.objects.count() == runs

    def test_a_message(self, deploys: Deploys) -> None:
        def before(ctx: Context) -> None:
            ctx.queue.send("note", {"to": "myself"})
            ctx.queue.next("note")
            ctx.queue.next("approval")

        def after(ctx: Context) -> None:
            ctx.queue.send("memo", {"to": "myself"})

        deploys.begin(before)
        before_count = QueueMessage.objects.count()
        assert deploys.goes_on()
        found = deploys.finding(after)
        assert (found.kind, found.location) == (FindingKind.CHANGED, "send~0")
        assert QueueMessage.objects.count() == before_count


def undo(rollback: RollbackContext, output: str) -> None:
    CALLED.append("undo")


def guarded(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("charge", work, rollback=undo)
    ctx.sleep("wait", "1 day")


class TestRollbacks:
    @pytest.fixture(autouse=True)
    def _waiting(self, deploys: Deploys) -> None:
        deploys.begin(guarded)
        CALLED.clear()

    def test_a_handler_that_is_gone(self, deploys: Deploys) -> None:
        assert deploys.goes_on()
        entry: Any = Entry.objects.get(location="charge")
        policy = {**entry.data["rollback"], "handler": f"{__name__}:undone"}
        Entry.objects.filter(pk=entry.pk).update(data={**entry.data, "rollback": policy})
        found = deploys.finding()
        assert (found.kind, found.location) == (FindingKind.HANDLER, "charge")

    def test_a_run_that_is_being_compensated_needs_its_handlers_only(self, deploys: Deploys) -> None:
        Run.objects.filter(pk="order-1").update(state="rolling_back", state_after_rollback="failed")
        assert deploys.goes_on(lambda ctx: None)
        assert CALLED == []


@dataclasses.dataclass
class Money:
    amount: int


class Colour(Enum):
    RED = "red"


class TestValues:
    @pytest.fixture(autouse=True)
    def _recorded(self, deploys: Deploys) -> None:
        def pays(ctx: Context) -> None:
            ctx.join("both", {"one": lambda ctx: ctx.step("price", lambda: Money(3)), "two": lambda ctx: None})
            ctx.sleep("wait", "1 day")

        deploys.begin(pays)

    def test_a_class_as_it_was(self, deploys: Deploys) -> None:
        assert deploys.goes_on()

    @pytest.mark.parametrize(
        ("replaced", "problem"),
        [
            (None, "Money"),
            (dataclasses.make_dataclass("Money", []), "has no field"),
            (dataclasses.make_dataclass("Money", [("amount", int), ("currency", str)]), "has no default"),
        ],
    )
    def test_a_class_that_has_changed_though_no_replay_comes_to_its_value(
        self, deploys: Deploys, monkeypatch: pytest.MonkeyPatch, replaced: Any, problem: str
    ) -> None:
        if replaced is None:
            monkeypatch.delattr(f"{__name__}.Money")
        else:
            monkeypatch.setattr(f"{__name__}.Money", replaced)
        from durable.codec import classes

        getattr(classes.find_class, "cache_clear", lambda: None)()
        found = deploys.finding()
        assert found.kind == FindingKind.VALUE
        assert problem in str(found)

    def test_a_field_with_a_default_goes_on(self, deploys: Deploys, monkeypatch: pytest.MonkeyPatch) -> None:
        fields: list[Any] = [("amount", int), ("currency", str, dataclasses.field(default="EUR"))]
        monkeypatch.setattr(f"{__name__}.Money", dataclasses.make_dataclass("Money", fields))
        assert deploys.goes_on()

    def test_a_text_that_is_damaged(self, deploys: Deploys) -> None:
        Entry.objects.filter(location="both/one/price").update(output="{not json")
        found = deploys.finding()
        assert (found.kind, found.location) == (FindingKind.VALUE, "both/one/price")


class TestEncryptedValues:
    def test_without_the_key(self, deploys: Deploys) -> None:
        keys = [FernetCodec(keys=[Fernet.generate_key().decode()]) for _ in range(2)]
        deploys.begin(first)
        run, history = deploys.at.store.get("order-1"), deploys.at.store.load("order-1")
        assert run is not None
        run.input = keys[0].encode({"args": [], "kwargs": {}})
        for each in history:
            each.arguments = None
            if each.output is not None:
                each.output = keys[0].encode("done")
        known, unknown = (check_history(RecordedRun(run=run, entries=history, codec=codec)).finding for codec in keys)
        assert known is None
        assert unknown is not None
        assert (unknown.kind, unknown.location) == (FindingKind.VALUE, "")
        assert "ENCRYPTION_KEYS" in unknown.mend


class TestAnEndedRun:
    def test_that_has_failed_may_go_on_otherwise_behind_its_record(self, deploys: Deploys) -> None:
        def fails(ctx: Context) -> None:
            ctx.step("charge", work)
            raise CriticalError("declined")

        def mended(ctx: Context) -> None:
            ctx.step("charge", work)
            ctx.step("ship", work)

        deploys.begin(fails)
        assert deploys.goes_on()
        assert deploys.goes_on(mended)

    def test_that_has_completed_and_now_raises(self, deploys: Deploys) -> None:
        def returns(ctx: Context) -> str:
            return ctx.step("charge", work)

        def raises(ctx: Context) -> None:
            ctx.step("charge", work)
            raise ValueError("no")

        deploys.begin(returns)
        assert deploys.finding(raises).kind == FindingKind.EXCEPTION


class TestNames:
    def test_hostile_names_and_texts(self, deploys: Deploys) -> None:
        name = '💶 "quoted" \\ / ~1 \u202e'

        def before(ctx: Context) -> None:
            ctx.step(name, work)
            ctx.sleep("wait", "1 day")

        deploys.begin(before)
        assert deploys.goes_on()

        def after(ctx: Context) -> None:
            ctx.sleep("wait", "1 day")

        found = deploys.finding(after)
        assert found.kind == FindingKind.SKIPPED
        (line,) = found.add
        assert line.startswith("ctx.removed(")

        def mended(ctx: Context) -> None:
            eval(line, {"ctx": ctx})
            ctx.sleep("wait", "1 day")

        assert deploys.goes_on(mended)
