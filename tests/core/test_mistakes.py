"""A mistake in the workflow's own code stops the run and undoes nothing; the run continues once the code is fixed."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from durable import Break, CriticalError, RollbackError, get_run, workflow
from durable.checks import configuration
from durable.core.mistakes import MISTAKES
from durable.core.registry import registry
from durable.errors import RunFailedError
from durable.mistakes import error_classes
from durable.models import Run
from durable.testing import Harness, Pass
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.support.errors import check_failed

ledger: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    ledger.clear()
    yield
    ledger.clear()


def charge() -> str:
    ledger.append("charge")
    return "paid"


def refund(_rollback: Any, _output: Any) -> None:
    ledger.append("refund")


def undefined(_ctx: Any) -> None:
    print(undefined_name)  # type: ignore[name-defined]  # noqa: F821


def no_attribute(_ctx: Any) -> None:
    print(None.nothing)  # type: ignore[attr-defined]


def wrong_type(_ctx: Any) -> None:
    len(5)  # type: ignore[arg-type]


def missing_key(_ctx: Any) -> None:
    dict[str, int]()["key"]


def missing_index(_ctx: Any) -> None:
    list[int]()[1]


def missing_module(_ctx: Any) -> None:
    importlib.import_module("no_such_module_anywhere")


def broken_assertion(_ctx: Any) -> None:
    assert not MISTAKES, "there are some"


def endless(ctx: Any) -> None:
    endless(ctx)


def unfinished(_ctx: Any) -> None:
    raise NotImplementedError


def unbound(_ctx: Any) -> None:
    if ledger == ["never"]:
        found = 1
    print(found)


ERRORS: dict[str, Callable[[Any], None]] = {
    "NameError": undefined,
    "UnboundLocalError": unbound,
    "AttributeError": no_attribute,
    "TypeError": wrong_type,
    "KeyError": missing_key,
    "IndexError": missing_index,
    "ModuleNotFoundError": missing_module,
    "AssertionError": broken_assertion,
    "RecursionError": endless,
    "NotImplementedError": unfinished,
}


class Shop:
    """A workflow that charges, does `next` and is done; `following` is replaced to fix it."""

    def __init__(self, following: Callable[[Any], Any]) -> None:
        self.following = following

    def make(self) -> Callable[..., Any]:
        async def ship(ctx: Any) -> Any:
            await ctx.rollback_checkpoint("from here")
            await ctx.step("charge", charge, rollback=refund)
            found = self.following(ctx)
            if hasattr(found, "__await__"):
                await found
            await ctx.step("ship", lambda: ledger.append("ship"))
            return "shipped"

        return ship


def mended(_ctx: Any) -> None:
    return None


def stopped(h: Harness, flavour: Flavour, shop: Shop) -> tuple[Any, Pass]:
    run = h.start(flavour(shop.make()))
    return run, h.run(run)


def check_whole(end: Pass, kind: str) -> None:
    check_failed(end, kind)
    assert ledger == ["charge"]


@pytest.mark.parametrize("kind", ERRORS)
def test_a_mistake_stops_the_run_whole_and_it_goes_on_after_the_mend(h: Harness, flavour: Flavour, kind: str) -> None:
    shop = Shop(ERRORS[kind])
    run, end = stopped(h, flavour, shop)
    check_whole(end, kind)
    assert run.summary.startswith(f"stopped: {kind}")
    assert f"({__name__}." in run.summary, "the place"
    assert run.summary.endswith(
        "): a mistake in the code: nothing was undone because of it; fix the code, deploy, then recover"
    )
    run.recover()
    check_whole(h.run(run), kind)
    shop.following = mended
    run.recover()
    assert h.run(run).output == "shipped"
    assert ledger == ["charge", "ship"]


def test_a_query_in_the_body_of_an_async_workflow_undoes_nothing(h: Harness) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", charge, rollback=refund)
        return Run.objects.count()

    run = h.start(ship)
    check_whole(h.run(run), "SynchronousOnlyOperation")
    assert "sync_to_async" not in run.summary, "Django's advice leads away from steps"
    assert "put it into a step (tests.core.test_mistakes.test_a_query" in run.summary
    assert run.summary.endswith(
        "): a mistake in the code: nothing was undone because of it; fix the code, deploy, then recover"
    )


class Late(CriticalError, KeyError):
    pass


class Undo(RollbackError, TypeError):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("no"), RuntimeError("no"), ZeroDivisionError(), CriticalError("no"), Late("no"), Undo("no")]
)
def test_an_error_of_another_class_fails_the_run_and_is_compensated(
    h: Harness, flavour: Flavour, error: Exception
) -> None:
    def fail(_ctx: Any) -> None:
        raise error

    run, end = stopped(h, flavour, Shop(fail))
    assert (end.state, ledger) == ("failed", ["charge", "refund"])
    check_failed(end, type(error).__name__)
    assert "mistake" not in run.summary


def raise_of(error: Exception) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize("error", [KeyError("k"), NameError("n"), TypeError("t"), Late("no")])
@pytest.mark.parametrize("in_branch", [False, True])
def test_what_a_step_raises_is_a_failure_of_the_step(
    h: Harness, flavour: Flavour, error: Exception, in_branch: bool
) -> None:
    function = flavour.function(raise_of(error))

    async def fail(ctx: Any) -> Any:
        if in_branch:

            async def branch(ctx: Any) -> Any:
                await ctx.step("x", function, max_retries=0)

            return await ctx.join("j", {"a": branch})
        return await ctx.step("x", function, max_retries=0)

    _, end = stopped(h, flavour, Shop(fail))
    assert (end.state, ledger) == ("failed", ["charge", "refund"])


@pytest.mark.parametrize("kind", ["NameError", "KeyError", "TypeError"])
@pytest.mark.parametrize("scope", ["loop", "try", "join", "race", "nested"])
def test_a_mistake_in_a_body_stops_the_run_as_one(h: Harness, flavour: Flavour, kind: str, scope: str) -> None:
    code = {"wrong": ERRORS[kind]}

    async def body(ctx: Any) -> Any:
        await ctx.step("before", lambda: ledger.append("before"))
        code["wrong"](ctx)
        return Break("end") if scope == "loop" else "end"

    async def around(ctx: Any) -> Any:
        if scope == "loop":
            return await ctx.loop("l", body)
        if scope == "try":
            return (await ctx.try_block("t", body, catch=("step", "join", "race", "rollback"))).value
        if scope == "join":
            return (await ctx.join("j", {"a": body}))["a"]
        if scope == "race":
            return (await ctx.race("r", {"a": body})).value

        async def branch(ctx: Any) -> Any:
            return (await ctx.race("r", {"a": body})).value

        result = await ctx.try_block("t", partial(joined, branch))
        assert result.ok, result
        return result.value

    async def joined(branch: Any, ctx: Any) -> Any:
        return (await ctx.join("j", {"b": branch}))["b"]

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", charge, rollback=refund)
        return await around(ctx)

    run = h.start(flavour(ship))
    end = h.run(run)
    assert (end.state, ledger) == ("failed", ["charge", "before"])
    check_failed(end, kind)
    assert "a mistake in the code" in run.summary
    code["wrong"] = mended
    run.recover()
    assert h.finish(run).output == "end"
    assert ledger == ["charge", "before"]


def test_the_siblings_of_a_mistaken_branch_keep_what_they_did(h: Harness, flavour: Flavour) -> None:
    code = {"wrong": undefined}

    async def one(ctx: Any) -> Any:
        await ctx.step("one", lambda: ledger.append("one"))
        return 1

    async def two(ctx: Any) -> Any:
        code["wrong"](ctx)
        await ctx.step("two", lambda: ledger.append("two"))
        return 2

    async def three(ctx: Any) -> Any:
        await ctx.sleep("z", 60)
        await ctx.step("three", lambda: ledger.append("three"))
        return 3

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", charge, rollback=refund)
        return await ctx.join("j", {"one": one, "two": two, "three": three})

    run = h.start(flavour(ship))
    check_failed(h.finish(run), "NameError")
    code["wrong"] = mended
    run.recover()
    assert h.finish(run).output == {"one": 1, "two": 2, "three": 3}
    assert sorted(ledger) == ["charge", "one", "three", "two"]


def test_code_cannot_swallow_a_mistake_of_a_branch(h: Harness, flavour: Flavour) -> None:
    code = {"wrong": undefined}

    async def branch(ctx: Any) -> Any:
        code["wrong"](ctx)
        return 1

    async def swallow(ctx: Any) -> Any:
        try:
            return await ctx.join("j", {"a": branch})
        except Exception:
            return await ctx.step("instead", lambda: ledger.append("instead"))

    shop = Shop(swallow)
    run, end = stopped(h, flavour, shop)
    check_whole(end, "NameError")
    code["wrong"] = mended
    run.recover()
    assert h.run(run).output == "shipped"


def test_the_loser_of_a_race_may_be_mistaken(h: Harness, flavour: Flavour) -> None:
    async def quick(_ctx: Any) -> Any:
        return "quick"

    async def slow(ctx: Any) -> Any:
        try:
            await ctx.sleep("z", 60)
        finally:
            undefined(ctx)

    async def racing(ctx: Any) -> Any:
        await ctx.race("r", {"quick": quick, "slow": slow})

    _, end = stopped(h, flavour, Shop(racing))
    assert end.output == "shipped"


def test_what_code_raises_and_catches_itself_is_none(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.step("in", lambda: None)
        raise KeyError("mine")

    async def catching(ctx: Any) -> Any:
        try:
            await ctx.try_block("t", body)
        except KeyError:
            await ctx.step("caught", lambda: ledger.append("caught"))
        await ctx.sleep("z", 60)

    run, _ = stopped(h, flavour, Shop(catching))
    assert h.finish(run).output == "shipped"


def test_a_mistake_before_the_end_of_the_history_is_reported_as_one(h: Harness, flavour: Flavour) -> None:
    async def good(ctx: Any) -> Any:
        await ctx.step("a", lambda: ledger.append("a"))
        await ctx.sleep("z", 60)

    shop = Shop(good)
    run, _ = stopped(h, flavour, shop)
    shop.following = undefined
    check_failed(h.finish(run), "NameError")
    shop.following = good
    run.recover()
    assert h.finish(run).output == "shipped"
    assert ledger == ["charge", "a", "ship"]


def test_a_mistake_before_the_end_of_the_history_cannot_be_caught(h: Harness, flavour: Flavour) -> None:
    code: dict[str, Any] = {"wrong": mended}

    async def body(ctx: Any) -> Any:
        code["wrong"](ctx)
        await ctx.step("a", lambda: ledger.append("a"))

    async def catching(ctx: Any) -> Any:
        try:
            await ctx.try_block("t", body)
        except KeyError:
            return
        await ctx.sleep("z", 60)

    run, _ = stopped(h, flavour, Shop(catching))
    code["wrong"] = missing_key
    check_failed(h.finish(run), "KeyError")
    code["wrong"] = mended
    run.recover()
    assert h.finish(run).output == "shipped"


def test_a_failure_that_was_handled_stays_handled_after_a_mistake(h: Harness, flavour: Flavour) -> None:
    code = {"wrong": True}

    async def handling(ctx: Any) -> Any:
        try:
            await ctx.step("a", raise_of(ValueError("no")), max_retries=0)
        except Exception as error:
            if code["wrong"]:
                raise KeyError("typo") from error

    run, end = stopped(h, flavour, Shop(handling))
    check_whole(end, "KeyError")
    code["wrong"] = False
    run.recover()
    assert h.run(run).output == "shipped"
    [attempts] = [each.attempts for each in run.history() if each.location == "a"]
    assert attempts == 1


# -- what durable refuses


def two_arguments(one: int, two: int) -> None:
    ledger.append("called")


async def no_arguments() -> None:
    ledger.append("called")


class Callable2:
    def method(self, one: int) -> None:
        ledger.append("called")

    def __call__(self, one: int) -> None:
        ledger.append("called")


def keyword_only(one: int, *, two: int) -> None:
    ledger.append("called")


HUGE = 10**5000  # Python writes it down in no record

REFUSED: dict[str, Callable[[Any], Any]] = {
    "unknown option": lambda ctx: ctx.step("x", charge, max_retry=3),
    "option out of range": lambda ctx: ctx.step("x", charge, max_retries=-1),
    "unknown backoff": lambda ctx: ctx.step("x", charge, backoff="slow"),
    "timeout": lambda ctx: ctx.step("x", charge, timeout="ages"),
    "kind to catch": lambda ctx: ctx.try_step("x", charge, catch=("all",)),
    "argument too many": lambda ctx: ctx.step("x", charge, 1),
    "argument too few": lambda ctx: ctx.step("x", two_arguments, 1),
    "async function": lambda ctx: ctx.step("x", no_arguments, 1),
    "bound method": lambda ctx: ctx.step("x", Callable2().method),
    "instance": lambda ctx: ctx.step("x", Callable2(), 1, 2),
    "partial": lambda ctx: ctx.step("x", partial(two_arguments, 1), 2, 3),
    "keyword only": lambda ctx: ctx.step("x", keyword_only, 1),
    "class": lambda ctx: ctx.step("x", Callable2, 1),
    "try_step": lambda ctx: ctx.try_step("x", charge, 1),
    "handler": lambda ctx: ctx.step("x", charge, rollback=charge),
    "no function": lambda ctx: ctx.step("x", "charge"),
    "name": lambda ctx: ctx.step("x" * 129, charge),
    "empty name": lambda ctx: ctx.step("", charge),
    "sleep": lambda ctx: ctx.sleep("x", "forever"),
    "no duration": lambda ctx: ctx.sleep("x"),
    "naive moment": lambda ctx: ctx.sleep_until("x", NOW.replace(tzinfo=None)),
    "branches": lambda ctx: ctx.join("x", {"": charge}),
    "no branches": lambda ctx: ctx.race("x", {}),
    "version": lambda ctx: ctx.get_version("x", 0),
    "huge version": lambda ctx: ctx.get_version("x", HUGE),
    "huge count": lambda ctx: ctx.queue.next_batch("x", count=HUGE),
    "huge number of retries": lambda ctx: ctx.step("x", charge, max_retries=HUGE),
    "huge number of questions": lambda ctx: ctx.step("x", charge, once=True, verify=charge, verify_retries=HUGE),
    "huge map": lambda ctx: ctx.map("x", "tests.mistakes.child", [], at_once=HUGE),
    "kind": lambda ctx: ctx.removed("x", "stepp"),
    "loop": lambda ctx: ctx.loop("x", charge, history_prune_interval=0),
}


@pytest.mark.few_async
@pytest.mark.parametrize("call", REFUSED)
def test_what_durable_refuses_is_a_mistake_and_no_attempt(h: Harness, flavour: Flavour, call: str) -> None:
    shop = Shop(REFUSED[call])
    run, end = stopped(h, flavour, shop)
    assert end.state == "failed"
    assert end.error is not None
    assert end.error.type in ("TypeError", "ValueError")
    assert "a mistake in the code" in run.summary
    assert "(durable." not in run.summary
    assert ledger == ["charge"]
    assert [each.location for each in run.history()] == ["from here", "charge"], "nothing is recorded of it"
    shop.following = mended
    run.recover()
    assert h.run(run).output == "shipped"


@workflow(name="tests.mistakes.child")
def child(_ctx: Any) -> None:
    """Never executed."""


# An error against the contract: what the code does, and what it does once it is fixed.
CONTRACT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "PayloadError": (lambda ctx: ctx.step("x", object), lambda ctx: ctx.step("x", dict)),
    "OutsideStepError": (lambda _ctx: child.start(), mended),
}


@pytest.mark.parametrize("kind", CONTRACT)
def test_an_error_against_the_contract_says_that_nothing_was_undone(h: Harness, flavour: Flavour, kind: str) -> None:
    shop = Shop(CONTRACT[kind][0])
    run, end = stopped(h, flavour, shop)
    check_whole(end, kind)
    assert run.summary.startswith(f"stopped: {kind}: ")
    assert re.search(r"\(tests\.core\.[\w.<>]+, line \d+\)", run.summary), "the place"
    assert run.summary.endswith(": nothing was undone because of it; fix the code, deploy, then recover")
    assert run.info().is_mistake
    with pytest.raises(RunFailedError, match="was stopped: ") as caught:
        run.result(timeout=0)
    assert caught.value.is_mistake
    shop.following = CONTRACT[kind][1]
    run.recover()
    assert h.finish(run).output == "shipped"
    assert ledger == ["charge", "ship"]


def test_an_output_that_cannot_be_recorded_undoes_nothing(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", charge, rollback=refund)
        return object()

    run = h.start(flavour(ship))
    check_whole(h.run(run), "PayloadError")
    assert "nothing was undone because of it" in run.summary
    assert run.info().is_mistake


def test_code_that_diverges_is_not_called_a_mistake(h: Harness, flavour: Flavour) -> None:
    shop = Shop(lambda ctx: ctx.sleep("rest", 60))
    run, _ = stopped(h, flavour, shop)
    shop.following = lambda ctx: ctx.step("rest", charge)
    h.advance(60)
    check_whole(h.run(run), "HistoryDivergedError")
    assert not run.info().is_mistake


def test_the_message_says_what_fits(h: Harness, flavour: Flavour) -> None:
    _, end = stopped(h, flavour, Shop(REFUSED["argument too few"]))
    assert end.error is not None
    assert "step \"x\" cannot call two_arguments(one: 'int', two: 'int') -> 'None' with 1 argument" in end.error.message
    assert "missing a required argument: 'two'" in end.error.message


def decorated(*args: Any) -> Any:
    return two_arguments(args[0], 2)


decorated.__wrapped__ = two_arguments  # type: ignore[attr-defined]  # as functools.wraps does


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (print, ("x",)),
        (decorated, (1,)),
        (max, (1, 2)),
        (dict, ()),
        (partial(two_arguments, 1), (2,)),
        (partial(two_arguments, two=2), (1,)),
        (Callable2().method, (1,)),
        (partial(Callable2().method, 1), ()),
        (str.upper, ("a",)),
    ],
)
def test_what_can_be_called_is_called(h: Harness, flavour: Flavour, function: Any, args: Any) -> None:
    _, end = stopped(h, flavour, Shop(lambda ctx: ctx.step("x", function, *args)))
    assert end.output == "shipped"


def test_a_recorded_step_does_not_ask_what_its_function_takes(h: Harness, flavour: Flavour) -> None:
    code: dict[str, Any] = {"function": two_arguments}

    async def calling(ctx: Any) -> Any:
        await ctx.step("x", code["function"], 1, 2)
        await ctx.sleep("z", 60)

    run, _ = stopped(h, flavour, Shop(calling))
    code["function"] = charge
    assert h.finish(run).output == "shipped"


def test_an_input_that_no_longer_fits_is_a_mistake(h: Harness) -> None:
    async def before(ctx: Any, one: int) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", charge, rollback=refund)
        await ctx.sleep("z", 60)
        return one

    async def after(ctx: Any, one: int, two: int) -> Any:
        return one + two

    definition = workflow(name="mistakes.input")(before)
    try:
        run = h.start(definition, 1)
        h.run(run)
        definition.function = after
        end = h.finish(run)
        check_whole(end, "TypeError")
        definition.function = before
        run.recover()
        assert h.finish(run).output == 1
    finally:
        registry.unregister(definition)


# -- which classes


class Mine(ValueError):
    pass


def mine(_ctx: Any) -> None:
    raise Mine("mine")


@pytest.mark.parametrize(
    ("mistakes", "wrong", "is_one"),
    [
        ((), undefined, False),
        ((), REFUSED["unknown option"], False),
        ((Mine,), undefined, False),
        ((Mine,), mine, True),
        ((Mine,), REFUSED["unknown option"], True),
        ((ValueError,), mine, True),
        ((f"{__name__}.Mine",), mine, True),
        (("NameError",), undefined, True),
        (None, mine, False),
    ],
)
@pytest.mark.parametrize("by", ["setting", "workflow"])
def test_projects_and_workflows_say_which_classes_are_mistakes(
    mistakes: Any, wrong: Any, is_one: bool, by: str
) -> None:
    settings = {"MISTAKES": list(mistakes)} if by == "setting" and mistakes is not None else {"MISTAKES": [Mine]}
    if by == "setting" and mistakes is None:
        settings = {}
    name = "mistakes.chosen"
    chosen = mistakes if by == "workflow" else None
    if by == "workflow" and mistakes is None:
        settings = {}
    definition = workflow(name=name, mistakes=chosen)(Shop(wrong).make())
    try:
        with override_settings(DURABLE=settings), Harness(now=NOW) as h:
            run = h.start(definition)
            end = h.run(run)
            assert end.error is not None
            assert end.state == "failed"
            assert ("a mistake in the code" in run.summary) is is_one
            assert ledger == (["charge"] if is_one else ["charge", "refund"])
    finally:
        registry.unregister(definition)


@pytest.mark.parametrize("wrong", [KeyError, "KeyError", (1,), (BaseException,)])
def test_a_workflow_is_given_what_mistakes_are(wrong: Any) -> None:
    with pytest.raises(TypeError, match="mistakes is a tuple of classes of exceptions"):
        workflow(name="mistakes.wrong", mistakes=wrong)


@pytest.mark.parametrize("wrong", ["no.such.Error", "int", "nothing", "durable.workflow"])
def test_a_path_that_leads_nowhere_is_said(wrong: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="list of mistakes"):
        error_classes((wrong,))


@pytest.mark.parametrize("wrong", [("no.such.Error",), ("int",)])
def test_a_path_that_leads_nowhere_stops_no_worker_and_is_checked(
    h: Harness, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    definition = workflow(name="mistakes.nowhere", mistakes=wrong)(Shop(undefined).make())
    try:
        end = h.run(h.start(definition))
        check_whole(end, "NameError")
        assert "the default list of mistakes is in force" in caplog.text
        [found] = configuration.check_mistakes()
        assert (found.id, "list of mistakes" in str(found.msg)) == ("durable.E012", True)
    finally:
        registry.unregister(definition)
    assert configuration.check_mistakes() == []


@pytest.mark.parametrize(
    ("errors", "is_one"), [([ValueError(), NameError()], True), ([ValueError(), OSError()], False)]
)
def test_a_group_of_errors_is_a_mistake_if_one_of_them_is(
    h: Harness, flavour: Flavour, errors: list[Exception], is_one: bool
) -> None:
    def fail(_ctx: Any) -> None:
        raise ExceptionGroup("several", [ValueError(), ExceptionGroup("inner", errors)])

    run, _ = stopped(h, flavour, Shop(fail))
    assert ("a mistake in the code" in run.summary) is is_one
    assert ledger == (["charge"] if is_one else ["charge", "refund"])


# -- the grace period


def test_within_the_grace_period_another_worker_goes_on(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """A rolling deploy: one worker's code has the mistake, another's has not."""
    with Harness(now=NOW, divergence_grace=600) as h:
        shop = Shop(undefined)
        with caplog.at_level(logging.ERROR, logger="durable"):
            run, tried = stopped(h, flavour, shop)
        assert (tried.state, tried.error) == ("sleeping", None)
        assert tried.wake_at is not None
        assert tried.wake_at > h.now
        assert run.summary.startswith("a mistake in the code, trying again until the grace period ends: NameError: ")
        assert "tried again at" in caplog.text
        h.advance(60)
        assert h.run(run).state == "sleeping"
        assert ledger == ["charge"]
        shop.following = mended
        assert h.finish(run).output == "shipped"
        assert ledger == ["charge", "ship"]


def test_after_the_grace_period_it_stops_whole(flavour: Flavour) -> None:
    with Harness(now=NOW, divergence_grace=600) as h:
        shop = Shop(undefined)
        run, _ = stopped(h, flavour, shop)
        end = h.finish(run)
        check_whole(end, "NameError")
        assert 600 <= (h.now - NOW).total_seconds() <= 660
        run.recover()
        assert h.run(run).state == "sleeping", "a new grace period"
        shop.following = mended
        assert h.finish(run).output == "shipped"


def test_a_stopped_run_is_distinguished_from_a_failed_one(
    h: Harness, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    flags: list[bool] = []
    from durable.signals import run_failed

    def receive(sender: Any, *, is_mistake: bool, **_: Any) -> None:
        flags.append(is_mistake)

    run_failed.connect(receive)
    try:
        with caplog.at_level(logging.ERROR, logger="durable"):
            run, _ = stopped(h, flavour, Shop(undefined))
            assert f"run {run.id} of {get_run(run.id).workflow} stopped: a mistake in the code" in caplog.text
        stopped(h, flavour, Shop(raise_it))
    finally:
        run_failed.disconnect(receive)
    assert flags == [True, False]


def raise_it(_ctx: Any) -> None:
    raise ValueError("on purpose")


# -- what is no mistake, and expected


def test_a_failure_that_try_step_catches_is_no_warning(
    h: Harness, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.try_step("caught", raise_of(CriticalError("declined")))
        await ctx.try_step("retried", raise_of(ValueError("away")), max_retries=1)
        await ctx.try_step("passes", raise_of(CriticalError("no")), catch=("timeout",))

    with caplog.at_level(logging.INFO, logger="durable"):
        h.finish(h.start(flavour(ship)))
    found = [(each.levelname, each.location, each.args[2:4]) for each in caplog.records if hasattr(each, "location")]  # type: ignore[index]
    assert [each[:2] for each in found] == [
        ("INFO", "caught"),
        ("WARNING", "retried"),
        ("INFO", "retried"),
        ("WARNING", "passes"),
        ("ERROR", "passes"),
    ]


def test_a_new_grace_period_begins_once_code_was_right_for_a_while(flavour: Flavour) -> None:
    """A run that was paused, and resumed after the period was over, is tried again like any other."""
    with Harness(now=NOW, divergence_grace=600) as h:
        run, _ = stopped(h, flavour, Shop(undefined))
        run.pause()
        h.advance(3600)
        run.resume()
        assert h.run(run).state == "sleeping"
        assert h.finish(run).state == "failed"
        assert ledger == ["charge"]
