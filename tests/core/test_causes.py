"""The cause of a failure: the same for failures of one kind, another for each other kind, whichever way a run fails."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from durable import Context, Continue, CriticalError, RollbackError
from durable.core.causes import MAX_PATTERN, numberless, pattern_of, place_of
from durable.core.errors import ErrorInfo, Origin
from durable.core.records import FailureRecord
from durable.core.transitions import TRANSITIONS
from durable.testing import Harness
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.ways_out import WAYS

PATTERNS = {
    "timeout 9": "timeout #",
    "order 12 of 13": "order # of #",
    "no such order: 550e8400-e29b-41d4-a716-446655440000": "no such order: #",
    "order-1086 at 0x7f3a failed": "order-# at # failed",
    "at 2026-11-22T09:15:02.123+00:00: refused": "at #: refused",
    "10.0.0.1:5432 refused": "# refused",
    "no mail to ana.b@example.org": "no mail to #",
    "  two\n  lines\t": "two lines",
    "\x1b[31mred\u202e": "\\x1b[#\\u202e",
    "": "",
}


@pytest.mark.parametrize("message", PATTERNS)
def test_a_pattern_leaves_out_what_differs(message: str) -> None:
    assert pattern_of(message) == PATTERNS[message]


def test_a_pattern_is_short_and_soon_made() -> None:
    assert len(pattern_of("a" * 1_000_000)) == MAX_PATTERN
    assert len(pattern_of("a1 b" * 1_000_000)) == MAX_PATTERN
    assert pattern_of("\udfff") == "\\udfff"


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("", ""),
        ("charge", "charge"),
        ("poll/~12/fetch", "poll / ~ / fetch"),
        ("a%2Fb/send~3", "a/b / send~3"),
        ("poll/%7E1", "poll / ~1"),
        ("a%0Ab", "a\\nb"),
    ],
)
def test_a_place_has_no_numbers_of_iterations(location: str, place: str) -> None:
    assert place_of(location) == place


@pytest.mark.parametrize(
    ("place", "folded"),
    [
        ("charge 17", "charge #"),
        ("images / image 057 / watermark", "images / image # / watermark"),
        ("order-42_3", "order-#_#"),
        ("page 550e8400-e29b-41d4-a716-446655440000", "page #"),
        ("upload to s3", "upload to s3"),
        ("oauth2 / 3ds", "oauth2 / 3ds"),
        ("poll / ~ / fetch", "poll / ~ / fetch"),
        ("", ""),
    ],
)
def test_numbered_places_are_one_and_words_stay(place: str, folded: str) -> None:
    assert numberless(place) == folded


# -- of runs


class GatewayTimeout(Exception):
    """What a step raises."""


class CardDeclined(CriticalError):
    """What a step raises for good."""


def raising(*errors: BaseException) -> Callable[..., Any]:
    """A function that raises the errors one after the other, the last again and again."""
    chosen = itertools.chain(errors, itertools.repeat(errors[-1]))

    def function(*_: object) -> Any:
        raise next(chosen)

    return function


def failure_of(workflow: Callable[[Context], Any], *, passes: int = 1) -> FailureRecord:
    """How a run of the workflow fails."""
    with Harness(now=NOW) as h:
        run = h.start(workflow)
        for _ in range(passes):
            h.run(run)
            h.advance(3600)
        found = h._store.failure(run.id)
        assert found is not None
        assert found.is_open
        assert (found.run_id, found.run_created_at) == (run.id, NOW)
        return found


def cause_of(workflow: Callable[[Context], Any], *, passes: int = 1) -> tuple[str, str, str]:
    cause = failure_of(workflow, passes=passes).cause
    return cause.place, cause.error_type, cause.pattern


def raises_after_a_step(ctx: Context) -> None:
    ctx.step("a", int)
    raise ValueError("order 7")


def makes_an_error_of_a_steps(ctx: Context) -> None:
    try:
        ctx.step("charge", raising(CardDeclined("no")))
    except CriticalError as error:
        raise RuntimeError("no order") from error


def raises_after_an_error_that_it_has_caught(ctx: Context) -> None:
    ctx.try_step("charge", raising(CardDeclined("no")))
    raise ValueError("why")


def fails_in_an_iteration(ctx: Context) -> None:
    def body(ctx: Context, state: int) -> Any:
        if state == 2:
            ctx.step("fetch", raising(RollbackError("no")))
        return Continue(state + 1)

    ctx.loop("poll", body, 0)


def fails_in_a_branch_of_a_branch(ctx: Context) -> None:
    def inner(ctx: Context) -> None:
        ctx.join("in", {"x": lambda c: c.step("label", raising(CardDeclined("no")))})

    ctx.join("out", {"y": inner})


CAUSES: dict[str, tuple[Callable[[Context], Any], tuple[str, str, str]]] = {
    "a step that is not retried": (
        lambda ctx: ctx.step("charge", raising(CardDeclined("no"))),
        ("charge", "CardDeclined", "no"),
    ),
    "code of the workflow": (raises_after_a_step, ("", "ValueError", "order #")),
    "an error made of a step's": (makes_an_error_of_a_steps, ("charge", "CardDeclined", "no")),
    "not a step that was caught": (raises_after_an_error_that_it_has_caught, ("", "ValueError", "why")),
    "an iteration without its number": (fails_in_an_iteration, ("poll / ~ / fetch", "RollbackError", "no")),
    "a branch of a branch": (fails_in_a_branch_of_a_branch, ("out / y / in / x / label", "CardDeclined", "no")),
    "code of a branch": (
        lambda ctx: ctx.join("both", {"a": raising(ValueError("why"))}),
        ("both / a", "ValueError", "why"),
    ),
    "a race that all have lost": (
        lambda ctx: ctx.race("which", {"a": lambda c: c.step("s", raising(CardDeclined("no")))}),
        ("which / a / s", "CardDeclined", "no"),
    ),
}


@pytest.mark.parametrize("failure", CAUSES)
def test_a_failure_is_explained_by(failure: str) -> None:
    workflow, cause = CAUSES[failure]
    assert cause_of(workflow) == cause


def test_an_exhausted_step_is_explained_by_its_last_error() -> None:
    fails = raising(GatewayTimeout("first 1"), GatewayTimeout("last 22"))

    def ship(ctx: Context) -> None:
        ctx.step("charge", fails, max_retries=1, retry_backoff_base=1)

    assert cause_of(ship, passes=2) == ("charge", "GatewayTimeout", "last #")


def test_numbered_steps_have_one_cause() -> None:
    def ship(number: int) -> Callable[[Context], Any]:
        return lambda ctx: ctx.step(f"charge {number}", raising(CardDeclined("no")))

    assert cause_of(ship(3)) == cause_of(ship(17)) == ("charge #", "CardDeclined", "no")


def test_numbered_branches_have_one_cause() -> None:
    def ship(failing: int) -> Callable[[Context], Any]:
        def image(number: int) -> Callable[[Context], Any]:
            does = raising(CardDeclined("no")) if number == failing else int
            return lambda c: c.step("watermark", does)

        return lambda ctx: ctx.join("images", {f"image {number:02}": image(number) for number in range(20)})

    assert cause_of(ship(3)) == cause_of(ship(17)) == ("images / image # / watermark", "CardDeclined", "no")


def test_a_join_is_explained_by_the_branch_that_failed_first() -> None:
    slow = raising(GatewayTimeout("1"), CardDeclined("later"))

    def ship(ctx: Context) -> None:
        ctx.join(
            "both",
            {
                "a": lambda c: c.step("charge", slow, max_retries=1, retry_backoff_base=60),
                "b": lambda c: c.step("label", raising(CardDeclined("first"))),
            },
        )

    assert cause_of(ship, passes=2) == ("both / b / label", "CardDeclined", "first")


def test_after_a_compensation_the_cause_is_that_of_the_failure() -> None:
    def ship(ctx: Context) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("reserve", int, rollback=undoing.undo)
        ctx.step("charge", raising(CardDeclined("no")))

    undoing.fails_left[:] = [ConnectionError("not yet")]  # so that another pass ends the compensation
    assert cause_of(ship, passes=2) == ("charge", "CardDeclined", "no")


def test_a_compensation_that_stops_is_explained_by_its_handler() -> None:
    def ship(ctx: Context) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("reserve", int, rollback=undoing.undo)
        ctx.step("charge", raising(CardDeclined("no")))

    undoing.fails_left[:] = [CriticalError("the warehouse is shut")]
    assert cause_of(ship) == ("reserve (rollback)", "CriticalError", "the warehouse is shut")


TOLD = {
    "raises": ("", "ValueError", "why"),
    "raises after steps": ("", "ValueError", "why"),
    "a rollback handler fails": ("charge (rollback)", "CriticalError", "no"),
    "a rollback handler fails that the code has called": ("charge (rollback)", "CriticalError", "no"),
    "diverges for too long": ("", "HistoryDivergedError", None),
    "diverges for too long while it compensates": ("(rollback)", "HistoryDivergedError", None),
    "has a mistake for too long": ("", "NameError", "name 'undefined_name' is not defined"),
    "crashes its workers": ("", "RunCrashedError", None),
    "crashes its workers while it compensates": ("(rollback)", "RunCrashedError", None),
}


@pytest.mark.parametrize("happens", WAYS)
def test_each_way_out_of_a_pass_that_fails_a_run_records_its_cause(happens: str) -> None:
    way, grace, transitions = WAYS[happens]
    with Harness(now=NOW, divergence_grace=grace, strict=False) as h:  # two ways diverge on purpose
        way(h)
        [run] = h._store._runs.values()
        found = h._store.failure(run.id)
    assert (run.state == "failed") == (happens in TOLD)
    assert any("failed" in TRANSITIONS[name].values() for name, _ in transitions) == (happens in TOLD)
    if happens not in TOLD:
        assert found is None
        return
    assert found is not None
    place, error_type, pattern = TOLD[happens]
    assert (found.cause.place, found.cause.error_type) == (place, error_type)
    assert found.cause.pattern == pattern if pattern is not None else found.cause.pattern


def origin_of(workflow: Callable[[Context], Any]) -> Origin | None:
    """What the error of a run of the workflow comes from."""
    with Harness(now=NOW) as h:
        run = h.start(workflow)
        h.run(run)
        record = h._store.get(run.id)
        assert record is not None
        error = record.error
        assert error is not None
        assert ErrorInfo.read(json.loads(json.dumps(error.data))) == error
        return error.origin


def test_the_error_of_a_run_has_the_failure_that_it_comes_from() -> None:
    def label(ctx: Context) -> None:
        ctx.join("sides", {"front/back": lambda c: c.step("label", raising(CardDeclined('branch "a": no')))})

    def ship(ctx: Context) -> None:
        ctx.join("images", {"a": lambda c: c.step("measure", int), "b": label})

    place = "images/b/sides/front%2Fback/label"
    assert origin_of(ship) == Origin(place, place, "CardDeclined", 'branch "a": no')


def test_the_failure_of_a_branchs_own_code_is_at_its_join() -> None:
    def broken(_ctx: Context) -> None:
        raise CardDeclined("no")

    def ship(ctx: Context) -> None:
        ctx.join("images", {"a; branch": broken, "b": lambda c: c.step("measure", int)})

    assert origin_of(ship) == Origin("images", "images/a; branch", "CardDeclined", "no")


def test_an_error_of_the_workflows_own_code_comes_from_no_operation() -> None:
    def ship(_ctx: Context) -> None:
        raise CardDeclined("no")

    assert origin_of(ship) is None
