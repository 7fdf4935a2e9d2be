"""What beginners get wrong without a word from Python: each mistake is told, by name of its line or of both sides."""

from __future__ import annotations

import datetime
import inspect
import random
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from durable import AsyncContext, Context, Handle
from durable.core.effects import Ask
from durable.core.links import PeekAddress
from durable.core.simple_operations import PeekTags
from durable.drivers.host import Host
from durable.execution.passes import NotRecorded
from durable.lint import lint
from durable.testing import Harness, NotDeterministicError
from durable.testing.replays.counterparts import reordered
from durable.testing.replays.second import _Host
from tests.support.errors import check_failed


def say(what: object) -> str:
    return str(what)


def of_today() -> str:
    return f"report of {datetime.datetime.now().date()}"  # noqa: DTZ005  # as a beginner writes it


class TestTheFourSilentOnes:
    @pytest.mark.django_db
    def test_a_write_between_steps(self, h: Harness) -> None:
        def records(ctx: Context, name: str) -> None:
            ctx.step("greet", say, name)
            Group.objects.create(name=name)
            ctx.step("done", say, name)

        check_failed(h.run(h.start(records, "ada")), "OutsideStepError", "INSERT of auth_group")
        assert not Group.objects.exists()

    def test_the_clock_between_steps(self, h: Harness) -> None:
        def decides(ctx: Context) -> None:
            match timezone.now().month:  # the other clock is 200 days ahead: never in the same season
                case 12 | 1 | 2:
                    ctx.step("winter", say, "snow")
                case 3 | 4 | 5:
                    ctx.step("spring", say, "rain")
                case 6 | 7 | 8:
                    ctx.step("summer", say, "sun")
                case _:
                    ctx.step("autumn", say, "wind")

        with pytest.raises(NotDeterministicError) as told:
            h.run(h.start(decides))
        assert len(set(re.findall(r'step "(winter|spring|summer|autumn)"', str(told.value)))) == 2

    def test_a_lambda_that_captured_the_loops_variable(self, tmp_path: Path) -> None:
        # it does the same in each pass, so that only the linter can see it
        program = tmp_path / "workflows.py"
        program.write_text(
            "from durable import Context, workflow\n\n\n"
            "@workflow(name='first.captures')\n"
            "def captures(ctx: Context, names: list[str]) -> None:\n"
            "    branches = {}\n"
            "    for name in names:\n"
            "        branches[name] = lambda c: c.step('greet', print, name)\n"
            "    ctx.join('all', branches)\n"
        )
        assert "W135" in [each.id for each in lint([program])]

    def test_a_name_that_is_not_deterministic(self, h: Harness) -> None:
        def names(ctx: Context) -> None:
            ctx.step(f"import {time.time()}", say, "importing")

        with pytest.raises(NotDeterministicError, match=r'came to step "import .*came to step "import '):
            h.run(h.start(names))


class TestOthers:
    @pytest.mark.parametrize(
        "value",
        [
            random.random,
            uuid.uuid4,
            time.monotonic,
            time.time_ns,
            of_today,
            lambda: datetime.date.today().isoformat(),  # noqa: DTZ011  # as above
            lambda: timezone.localdate(),
        ],
    )
    def test_what_a_step_is_given(self, h: Harness, value: Callable[[], Any]) -> None:
        def gives(ctx: Context) -> None:
            ctx.step("say", say, value())

        with pytest.raises(NotDeterministicError, match=r'step "say".*args'):
            h.run(h.start(gives))

    def test_what_the_workflow_returns(self, h: Harness) -> None:
        def returns(ctx: Context) -> float:
            ctx.step("say", say, 1)
            return time.time()

        with pytest.raises(NotDeterministicError, match="the pass returned"):
            h.run(h.start(returns))

    def test_the_order_of_a_set(self, h: Harness) -> None:
        def mails(ctx: Context, orders: list[str]) -> None:
            for customer in {order.partition(" ")[0] for order in orders}:
                ctx.step(f"mail {customer}", say, customer)

        with pytest.raises(NotDeterministicError, match='step "mail '):
            h.run(h.start(mails, [f"customer-{number} order" for number in range(12)]))

    def test_the_order_of_a_set_that_is_put_together(self, h: Harness) -> None:
        def mails(ctx: Context, one: list[str], other: list[str]) -> None:
            for customer in set(one) | set(other):
                ctx.step(f"mail {customer}", say, customer)

        with pytest.raises(NotDeterministicError, match='step "mail '):
            h.run(h.start(mails, [f"ada-{each}" for each in range(6)], [f"ben-{each}" for each in range(6)]))

    def test_a_variable_that_a_step_has_filled(self, h: Harness) -> None:
        def collects(ctx: Context) -> None:
            pictures: list[str] = []
            ctx.step("first", lambda: pictures.append("first"))
            ctx.step("show", say, pictures)

        with pytest.raises(NotDeterministicError, match='step "show"'):
            h.run(h.start(collects))

    def test_async_code(self, h: Harness) -> None:
        async def decides(ctx: AsyncContext) -> None:
            await ctx.step("say", say, time.time())

        with pytest.raises(NotDeterministicError):
            h.run(h.start(decides))

    def test_a_run_that_parks(self, h: Harness) -> None:
        def sleeps(ctx: Context) -> None:
            ctx.step("say", say, time.time())
            ctx.sleep("a nap", 60)

        with pytest.raises(NotDeterministicError):
            h.run(h.start(sleeps))

    def test_a_body(self, h: Harness) -> None:
        def blocks(ctx: Context) -> None:
            ctx.try_block("try", lambda c: c.step("say", say, time.time()))

        with pytest.raises(NotDeterministicError, match='scope "try"'):
            h.run(h.start(blocks))


class TestRightCode:
    def test_it_passes(self, h: Harness) -> None:
        def ships(ctx: Context, orders: list[str]) -> list[str]:
            token = str(ctx.uuid4())
            ctx.step("token", say, token)
            chosen = ctx.random.choice(orders)
            if ctx.now() > datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC):
                ctx.step("chosen", say, chosen)
            for customer in sorted({order.partition(" ")[0] for order in orders}):
                ctx.step(f"mail {customer}", say, {customer, "always"})
            ctx.sleep("a nap", 60)
            ctx.join("both", {"a": lambda c: c.step("x", say, 1), "b": lambda c: c.sleep("y", 5)})
            return sorted(orders)

        run = h.start(ships, ["ada 1", "ben 2"])
        assert h.finish(run).output == ["ada 1", "ben 2"]

    def test_what_is_counted_outside_is_counted_once(self, h: Harness, capsys: pytest.CaptureFixture[str]) -> None:
        passes: list[str] = []
        number = 0

        def counts(ctx: Context) -> int:
            nonlocal number
            number += 1
            passes.append("pass")
            print("passing")
            ctx.logger.warning("passing")
            return ctx.step("three", int, "3")

        assert h.run(h.start(counts)).output == 3
        assert (passes, number) == (["pass"], 1)
        assert capsys.readouterr().out == "passing\n"

    def test_no_step_is_called_again_and_nothing_is_recorded(self, h: Harness) -> None:
        called: list[int] = []

        def steps(ctx: Context) -> None:
            ctx.step("a", lambda: called.append(1))
            ctx.queue.next("wait")

        run = h.start(steps)
        h.run(run)
        assert (called, h.commits) == ([1], h.commits)
        assert [entry.attempts for entry in run.history() if entry.kind == "step"] == [1]

    def test_the_harness_can_be_lenient(self) -> None:
        def gives(ctx: Context) -> None:
            ctx.step("say", say, time.time())

        with Harness(strict=False) as h:
            assert h.run(h.start(gives)).state == "completed"

    def test_dice_of_the_test_go_on_where_they_were(self, h: Harness) -> None:
        random.seed(7)
        expected = [random.random() for _ in range(2)]
        random.seed(7)

        def draws(ctx: Context) -> None:
            ctx.step("draw", random.random)
            random.random()  # durable: allow[W102] nothing is made of it

        h.run(h.start(draws))
        random.seed(7)
        assert [random.random() for _ in range(2)] == expected


class TestTheReplaysHost:
    def test_it_ends_the_replay_at_each_effect_of_a_host(self) -> None:
        effects = {
            name
            for name, method in vars(Host).items()
            if callable(method) and {"effect", "question"}.intersection(inspect.signature(method).parameters)
        }
        assert effects == {"save", "save_atomically", "ask"}
        assert _Host.save is _Host.save_atomically is _Host._end
        answered = {PeekTags.__name__, PeekAddress.__name__}  # without looking at the world
        questions = [each for each in Ask.__subclasses__() if each.__name__ not in answered]
        assert len(questions) >= 14
        for each in questions:
            with pytest.raises(NotRecorded):
                object.__new__(_Host).ask(object.__new__(each))

    @pytest.mark.parametrize("size", [10, 1000])
    def test_an_equal_set_of_texts_has_another_order(self, size: int) -> None:
        values = {f"value {number}" for number in range(size)}
        found = reordered(values)
        assert found == values
        assert type(found) is set
        assert list(found) != list(values)

    def test_a_set_of_numbers_keeps_its_order(self) -> None:
        numbers = {8, 1, 30}
        assert reordered(numbers) is numbers


class TestAfterEachCommit:
    def test_each_commit_is_replayed(self, h: Harness) -> None:
        def steps(ctx: Context) -> str:
            for number in range(3):
                ctx.step(f"step {number}", say, number)
            ctx.sleep("a nap", 60)
            return str(ctx.queue.next("go").body)

        def drive(trial: Harness, handle: Handle[Any]) -> None:
            trial.send(handle, "go", "went")
            trial.finish(handle)

        assert h.assert_deterministic(steps, drive=drive) >= 6

    def test_a_difference_is_told(self, h: Harness) -> None:
        def forgets(ctx: Context) -> None:
            ctx.step("first", say, 1)
            ctx.step(f"now {time.time()}", say, 1)

        with pytest.raises(NotDeterministicError):
            h.assert_deterministic(forgets)

    async def test_from_an_async_test(self, h: Harness) -> None:
        async def steps(ctx: AsyncContext) -> str:
            return await ctx.step("say", say, "it")

        assert await h.aassert_deterministic(steps) >= 1
