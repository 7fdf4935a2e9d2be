"""Steps whose second call would do harm, on a virtual clock: what is known of an attempt, and who is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import durable
from durable import Context, CriticalError, Found, NotDone, Unknown, current_step, signals
from durable.core.options import options_of
from durable.errors import EntryNotFoundError, InvalidTransitionError, StepExhaustedError
from durable.testing import Harness, SimulatedCrash
from tests.support.errors import check_failed


class BankError(Exception):
    """The bank has not said what it did."""


class Declined(Exception):
    """The bank says that it did nothing."""


class Bank:
    """What the outside has: receipts by order. Errors come after the work, or before it."""

    def __init__(self) -> None:
        self.receipts: dict[int, str] = {}
        self.calls: list[tuple[int, int]] = []
        self.asked: list[tuple[int, int]] = []
        self.keys: list[str] = []
        self.answers: Iterator[Any] = itertools.repeat("truth")
        self.errors: Iterator[tuple[str, Exception] | None] = iter(())

    def charge(self, order: int, amount: int) -> str:
        self.calls.append((order, amount))
        self.keys.append(current_step().idempotency_key)
        when, error = next(self.errors, None) or ("never", None)
        if when == "before" and error is not None:
            raise error
        self.receipts[order] = f"r{len(self.calls)}"
        if error is not None:
            raise error
        return self.receipts[order]

    def find(self, order: int, amount: int) -> Found[str] | NotDone | Unknown:
        self.asked.append((order, amount))
        self.keys.append(current_step().idempotency_key)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        if answer != "truth":
            return answer  # type: ignore[no-any-return]
        return Found(self.receipts[order]) if order in self.receipts else NotDone("no such charge")


@pytest.fixture
def bank() -> Bank:
    return Bank()


def charging(bank: Bank, *, verify: bool = True, **options: Any) -> Callable[[Context], str]:
    if verify:
        options["verify"] = bank.find

    def code(ctx: Context) -> str:
        return ctx.step("charge", bank.charge, 42, 990, once=True, **options)  # type: ignore[no-any-return]

    return code


def to_the_end(h: Harness, run: durable.Handle) -> None:
    """Pass the run until nothing is due any more, whatever the time."""
    h.settle()
    while (moment := run.wake_at) is not None:
        h.advance_to(moment)
        h.settle()


class TestWhatIsKnown:
    def test_a_return_is_recorded_with_one_commit_more(self, h: Harness, bank: Bank) -> None:
        run = h.start(charging(bank))
        before = h.commits
        assert h.run(run).output == "r1"
        assert h.commits - before == 3  # the intent, the record, the end
        assert bank.asked == []

    def test_the_intent_is_there_before_the_call(self, h: Harness) -> None:
        found: list[Any] = []

        def look() -> None:
            [entry] = run.history()
            found.append((entry.status, entry.attempts, entry.data["once"]["key"], current_step().idempotency_key))

        def code(ctx: Context) -> None:
            ctx.step("look", look, once=True)

        run = h.start(code)
        h.finish(run)
        [(status, attempts, key, own)] = found
        assert (status, attempts) == ("running", 1)
        assert key == own

    @pytest.mark.parametrize("error", [NotDone("declined"), Declined()], ids=["NotDone", "a class of not_done"])
    def test_an_error_that_says_that_nothing_happened_is_tried_again(
        self, h: Harness, bank: Bank, error: Exception
    ) -> None:
        bank.errors = iter([("before", error)])
        run = h.start(charging(bank, not_done=Declined))
        h.finish(run)
        assert run.output == "r2"
        assert (len(bank.calls), bank.asked) == (2, [])

    def test_a_step_that_is_never_done_fails_when_its_retries_are_used_up(self, h: Harness, bank: Bank) -> None:
        bank.errors = itertools.repeat(("before", NotDone("declined")))
        run = h.start(charging(bank, max_retries=2))
        h.finish(run)
        assert (run.state, len(bank.calls), bank.asked) == ("failed", 3, [])
        assert run.error is not None
        assert run.error.origin is not None
        assert (run.error.origin.type, run.error.origin.message) == ("NotDone", "declined")

    def test_a_group_says_that_nothing_happened_if_each_of_its_errors_does(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter(
            [
                ("before", ExceptionGroup("all", [NotDone(), NotDone()])),
                ("after", ExceptionGroup("some", [NotDone(), BankError()])),
            ]
        )
        run = h.start(charging(bank))
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r2", 2, 1)


class TestVerify:
    @pytest.mark.parametrize(
        "error", [BankError("timeout"), CriticalError("no"), ValueError("x"), durable.RetryLater("1 min")]
    )
    def test_any_other_error_asks_and_what_was_done_is_recorded(self, h: Harness, bank: Bank, error: Exception) -> None:
        bank.errors = iter([("after", error)])
        run = h.start(charging(bank))
        assert h.run(run).output == "r1"
        assert (bank.calls, bank.asked) == ([(42, 990)], [(42, 990)])
        assert len(set(bank.keys)) == 1, "verify asks by the key of the attempt"

    def test_what_was_not_done_is_tried_again(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", BankError("timeout"))])
        run = h.start(charging(bank))
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r2", 2, 1)

    def test_not_done_may_be_raised(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", BankError("timeout"))])
        bank.answers = iter([NotDone("raised")])
        run = h.start(charging(bank))
        h.finish(run)
        assert (run.output, len(bank.calls)) == ("r2", 2)

    def test_a_dead_worker_asks(self, h: Harness, bank: Bank) -> None:
        run = h.start(charging(bank))
        with h.crash_at(2, "before"), pytest.raises(SimulatedCrash):
            h.run(run)
        assert (len(bank.calls), bank.asked) == (1, [])
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r1", 1, 1)

    def test_a_death_between_intent_and_call_is_not_done(self, h: Harness, bank: Bank) -> None:
        run = h.start(charging(bank))
        with h.crash_at(1, "after"), pytest.raises(SimulatedCrash):
            h.run(run)
        assert bank.calls == []
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r1", 1, 1)

    def test_a_death_in_the_call_without_a_verify_is_left_to_a_person(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("after", SimulatedCrash("in the call"))])  # type: ignore[list-item]  # no Exception
        run = h.start(lambda ctx: ctx.step("charge", bank.charge, 7, 990, once=True))
        with pytest.raises(SimulatedCrash):
            h.run(run)
        h.settle()
        assert [each.reason for each in h.held(run)] == ["unknown"]
        assert bank.calls == [(7, 990)]

    def test_a_death_in_the_last_attempt_is_left_to_a_person(self, h: Harness, bank: Bank) -> None:
        calls: list[int] = []

        def ship() -> None:
            calls.append(len(calls))
            if len(calls) == 1:
                raise SimulatedCrash("before it is committed that it has begun")
            raise SimulatedCrash("in the call")

        run = h.start(lambda ctx: ctx.step("ship", ship, max_retries=0, when_exhausted="hold"))
        for _ in range(2):  # after a crash each attempt is committed before it begins
            with pytest.raises(SimulatedCrash):
                h.run(run)
        h.settle()
        assert [each.reason for each in h.held(run)] == ["exhausted"]
        assert len(calls) == 2

    def test_a_verify_that_raises_is_asked_again_with_the_steps_backoff(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("after", BankError("timeout"))])
        bank.answers = iter([ValueError("away"), ValueError("away"), "truth"])
        run = h.start(charging(bank, retry_backoff_base=10, backoff="constant"))
        began = h.now
        assert h.run(run).wake_at == began + timedelta(seconds=10)
        assert "asking again whether attempt 1 was done" in run.summary
        assert h.held(run) == []
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r1", 1, 3)
        assert h.now == began + timedelta(seconds=20)

    @pytest.mark.parametrize("answer", [None, "yes", True])
    def test_another_answer_is_an_error_of_verify(self, h: Harness, bank: Bank, answer: object) -> None:
        bank.errors = iter([("after", BankError("timeout"))])
        bank.answers = iter([answer])
        run = h.start(charging(bank, verify_retries=0))
        h.run(run)
        [held] = h.held(run)
        assert held.error is not None
        expected = "verify has failed: TypeError: verify returns Found(value), NotDone(reason) or Unknown(reason)"
        assert expected in held.error.message

    def test_an_output_that_cannot_be_recorded_is_asked_about(self, h: Harness) -> None:
        def code(ctx: Context) -> object:
            return ctx.step("work", object, once=True, verify=lambda: Found("text"))

        run = h.start(code)
        assert h.run(run).output == "text"

    def test_a_found_value_that_cannot_be_recorded_is_left_to_a_person(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("after", BankError("timeout"))])
        bank.answers = iter([Found(object())])
        run = h.start(charging(bank))
        h.run(run)
        assert [each.reason for each in h.held(run)] == ["unknown"]


class TestAPerson:
    def held(self, h: Harness, bank: Bank, **options: Any) -> Any:
        bank.errors = iter([("after", BankError("timeout"))])
        bank.answers = iter([Unknown("the bank is away"), "truth"])
        run = h.start(charging(bank, **options))
        h.run(run)
        return run

    def test_a_verify_that_does_not_know_leaves_it_to_a_person(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        [held] = run.info().held
        assert (held.location, held.reason, held.attempt, held.since) == ("charge", "unknown", 1, h.now)
        assert (held.error.type, held.error.message) == (
            "BankError",
            "timeout; verify says: it is unknown whether it was done: the bank is away",
        )
        assert run.state == "sleeping"
        assert run.wake_at is None
        assert "waits for a person: nobody knows whether attempt 1 was done" in run.summary
        h.advance("365 days")
        assert h.run_due() == 0

    @pytest.mark.parametrize("verify", [True, False])
    def test_without_an_answer_a_person_is_asked(self, h: Harness, bank: Bank, verify: bool) -> None:
        run = self.held(h, bank, verify=verify)
        assert [each.reason for each in h.held(run)] == ["unknown"]

    def test_it_was_done(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        run.settle("charge", done="by hand")
        assert (run.info().held, h.held(run)) == ((), [])
        h.finish(run)
        assert (run.output, len(bank.calls)) == ("by hand", 1)
        [entry] = run.history()
        assert entry.data["given"]["at"] == h.now.isoformat()
        assert entry.error is None

    def test_it_was_done_with_none(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        run.settle("charge", done=None)
        assert (h.finish(run).state, run.output) == ("completed", None)

    def test_it_was_not(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank, max_retries=0)
        run.settle("charge", not_done=True)
        h.finish(run)
        assert (run.output, len(bank.calls)) == ("r2", 2)

    def test_it_fails(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        h.settle_step(run, "charge", fail=True)
        h.finish(run)
        assert (run.state, len(bank.calls)) == ("failed", 1)
        assert run.error.type == "StepExhaustedError"

    def test_recover_asks_verify_first(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        run.recover()
        assert h.held(run) == []
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r1", 1, 2)

    def test_what_verify_has_said_before_is_told_no_more(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        bank.answers = iter([Unknown("no such day")])
        run.recover()
        h.settle()
        [held] = run.info().held
        assert held.error is not None
        assert held.error.message == "timeout; verify says: it is unknown whether it was done: no such day"

    def test_recover_is_refused_where_nobody_can_be_asked(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank, verify=False)
        with pytest.raises(InvalidTransitionError, match="it has no verify that could be asked; settle it"):
            run.recover()

    def test_one_answer_is_needed(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        for given in ({}, {"done": 1, "fail": True}, {"not_done": True, "fail": True}):
            with pytest.raises(ValueError, match="settle a step with one answer"):
                run.settle("charge", **given)

    @pytest.mark.parametrize("location", [None, 7], ids=["none", "a number"])
    def test_a_location_is_text(self, h: Harness, bank: Bank, location: Any) -> None:
        run = self.held(h, bank)
        with pytest.raises(TypeError, match=r"a location is text, as handle.history\(\) shows it, not"):
            run.settle(location, fail=True)
        assert [each.location for each in h.held(run)] == ["charge"]

    def test_a_name_that_is_no_location_is_answered_with_what_is_held(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        with pytest.raises(EntryNotFoundError, match=r'recorded nothing at "the payment of March"; is it charge\?'):
            run.settle("the payment of March", fail=True)

    def test_what_is_not_held_is_not_settled(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        with pytest.raises(EntryNotFoundError, match="is it charge"):
            run.settle("chrage", fail=True)
        run.settle("charge", fail=True)
        with pytest.raises(InvalidTransitionError, match="it is not held, it is exhausted"):
            run.settle("charge", fail=True)
        h.finish(run)
        with pytest.raises(InvalidTransitionError, match="cannot settle a run that is failed"):
            run.settle("charge", fail=True)

    def test_unknown_timeout_fails_the_step_then(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank, unknown_timeout="2 days")
        assert run.wake_at == h.now + timedelta(days=2)
        h.advance("1 day")
        assert h.run_due() == 0
        h.advance("1 day")
        with pytest.raises(InvalidTransitionError, match="its unknown_timeout is over"):
            run.settle("charge", done="late")
        h.settle()
        assert run.state == "failed"

    def test_unknown_timeout_may_say_what_is_done_then(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank, unknown_timeout=("2 days", "fail"))
        assert run.wake_at == h.now + timedelta(days=2)
        h.advance("2 days")
        h.settle()
        assert run.state == "failed"

    def test_with_fail_alone_nobody_is_asked(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank, unknown_timeout="fail")
        h.settle()
        check_failed(run, "StepExhaustedError")
        assert bank.answers is not None
        assert next(bank.answers) == "truth", "verify was asked first"

    @pytest.mark.parametrize("verify", [True, False])
    def test_with_fail_alone_nobody_is_told_that_a_person_is_awaited(
        self, h: Harness, bank: Bank, caplog: pytest.LogCaptureFixture, verify: bool
    ) -> None:
        heard: list[str] = []

        def hear_held(**_details: Any) -> None:
            heard.append("held")

        def hear_failed(**_details: Any) -> None:
            heard.append("failed")

        signals.step_held.connect(hear_held)
        signals.step_failed.connect(hear_failed)
        try:
            run = self.held(h, bank, verify=verify, unknown_timeout="fail")
            h.settle()
        finally:
            signals.step_held.disconnect(hear_held)
            signals.step_failed.disconnect(hear_failed)
        assert (run.state, heard) == ("failed", ["failed"])
        assert "waits for a person" not in caplog.text

    @pytest.mark.parametrize("given", [("2 days", "wait"), ("2 days",), "soon"])
    def test_unknown_timeout_that_says_something_else_is_refused(self, h: Harness, bank: Bank, given: Any) -> None:
        run = h.start(charging(bank, unknown_timeout=given))
        h.run(run)
        check_failed(run, "ValueError", "unknown_timeout")

    @pytest.mark.parametrize("way", ["by a person", "unknown_timeout"])
    def test_a_recovery_of_a_step_that_failed_asks_first(self, h: Harness, bank: Bank, way: str) -> None:
        run = self.failed(h, bank, way)
        run.recover()
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r1", 1, 2)

    @pytest.mark.parametrize("way", ["by a person", "unknown_timeout"])
    def test_if_it_was_not_done_the_recovery_tries_it_with_all_attempts(self, h: Harness, bank: Bank, way: str) -> None:
        run = self.failed(h, bank, way, max_retries=0)
        bank.receipts.clear()
        run.recover()
        h.finish(run)
        assert (run.output, len(bank.calls), len(bank.asked)) == ("r2", 2, 2)

    @pytest.mark.parametrize("way", ["by a person", "unknown_timeout"])
    def test_a_recovery_asks_a_person_where_there_is_no_verify(self, h: Harness, bank: Bank, way: str) -> None:
        run = self.failed(h, bank, way, verify=False)
        run.recover()
        h.settle()
        assert [(each.location, each.reason) for each in h.held(run)] == [("charge", "unknown")]
        assert len(bank.calls) == 1
        run.settle("charge", not_done=True)
        h.finish(run)
        assert (run.output, len(bank.calls)) == ("r2", 2)

    def failed(self, h: Harness, bank: Bank, way: str, **options: Any) -> Any:
        """A run that failed while nobody knew whether its step was done; `verify` knows by now."""
        if way == "unknown_timeout":
            options["unknown_timeout"] = "2 days"
        run = self.held(h, bank, **options)
        if way == "unknown_timeout":
            h.advance("2 days")
        else:
            run.settle("charge", fail=True)
        h.finish(run)
        assert (run.state, len(bank.calls)) == ("failed", 1)
        return run

    def test_a_cancel_ends_it(self, h: Harness, bank: Bank) -> None:
        run = self.held(h, bank)
        run.cancel("the customer has gone")
        assert (run.state, run.info().held) == ("cancelled", ())


class TestHeldWhenExhausted:
    def code(self, bank: Bank, **options: Any) -> Callable[[Context], str]:
        def code(ctx: Context) -> str:
            return str(ctx.step("charge", bank.charge, 42, 990, max_retries=1, **options))

        return code

    def test_the_run_stays_open(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", BankError("away"))] * 2)
        run = h.start(self.code(bank, when_exhausted="hold"))
        to_the_end(h, run)
        [held] = run.info().held
        assert (held.location, held.reason, held.attempt) == ("charge", "exhausted", 2)
        assert (run.state, run.wake_at) == ("sleeping", None)
        assert "waits for a person: its attempts are used up (BankError)" in run.summary
        run.recover()
        h.finish(run)
        assert (run.output, len(bank.calls)) == ("r3", 3)

    def test_it_has_all_its_attempts_again(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", BankError("away"))] * 4)
        run = h.start(self.code(bank, when_exhausted="hold"))
        to_the_end(h, run)
        run.settle("charge", not_done=True)
        to_the_end(h, run)
        assert [each.attempt for each in h.held(run)] == [2]
        assert len(bank.calls) == 4

    def test_the_workflow_may_say_so_for_all_its_steps(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", BankError("away"))] * 2)

        @durable.workflow(name="once.holding", when_exhausted="hold")
        def holding(ctx: Context) -> str:
            return ctx.step("charge", bank.charge, 42, 990, max_retries=1)

        run = h.start(holding)
        to_the_end(h, run)
        assert [each.reason for each in h.held(run)] == ["exhausted"]
        run.settle("charge", done="by hand")
        h.finish(run)
        assert run.output == "by hand"

    def test_the_workflows_default_leaves_what_the_code_wants_as_a_value(self, h: Harness, bank: Bank) -> None:
        bank.errors = itertools.repeat(("before", BankError("away")))

        @durable.workflow(name="once.asking", when_exhausted="hold")
        def asking(ctx: Context, own: bool) -> bool:
            options: Any = {"when_exhausted": "hold"} if own else {}
            return ctx.try_step("charge", bank.charge, 42, 990, max_retries=0, **options).ok

        values = h.start(asking, False)
        own = h.start(asking, True)
        h.settle()
        assert values.output is False
        assert [each.reason for each in h.held(own)] == ["exhausted"]
        own.settle("charge", fail=True)
        h.finish(own)
        assert own.output is False

    def test_what_the_code_has_decided_fails(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("before", CriticalError("never"))])
        run = h.start(self.code(bank, when_exhausted="hold"))
        to_the_end(h, run)
        assert run.state == "failed"

    def test_a_timeout_is_held_too(self, h: Harness) -> None:
        import time

        def code(ctx: Context) -> None:
            ctx.step("slow", time.sleep, 5, timeout=0.05, when_exhausted="hold")

        run = h.start(code)
        to_the_end(h, run)
        [held] = h.held(run)
        assert held.error is not None
        assert (held.reason, held.error.type) == ("exhausted", "StepTimeoutError")
        run.settle("slow", fail=True)
        h.finish(run)
        assert run.error is not None
        assert run.error.origin is not None
        assert run.error.origin.type == "StepTimeoutError"

    def test_no_end_of_retries_prints_no_number(self, h: Harness, bank: Bank) -> None:
        bank.errors = itertools.repeat(("before", BankError("away")))

        def code(ctx: Context) -> str:
            return ctx.step("charge", bank.charge, 42, 990, max_retries=None, when_exhausted="hold")

        run = h.start(code)
        for _ in range(20):
            h.run_due()
            h.advance("1 min")
        assert run.state == "sleeping"
        assert h.held(run) == []
        assert " of " not in run.summary


class TestBesideOthers:
    def test_other_branches_of_a_join_go_on(self, h: Harness, bank: Bank) -> None:
        bank.errors = iter([("after", BankError("timeout"))])

        def code(ctx: Context) -> Any:
            return ctx.join(
                "both",
                {
                    "pay": lambda c: c.step("charge", bank.charge, 42, 990, once=True),
                    "wait": lambda c: (c.queue.next("go"), c.step("more", lambda: "did"))[1],
                },
            )

        run = h.start(code)
        h.settle()
        h.send(run, "go", "go")
        h.settle()
        assert run.state == "sleeping"
        assert [each.location for each in h.held(run)] == ["both/pay/charge"]
        run.settle("both/pay/charge", done="r1")
        h.finish(run)
        assert run.output == {"pay": "r1", "wait": "did"}

    def test_a_held_branch_loses_a_race(self, h: Harness, bank: Bank) -> None:
        """Cancel at any time works in an outage."""
        bank.errors = itertools.repeat(("before", BankError("away")))

        def code(ctx: Context) -> Any:
            found = ctx.race(
                "pay or cancel",
                {
                    "pay": lambda c: c.step("charge", bank.charge, 42, 990, max_retries=0, when_exhausted="hold"),
                    "cancel": lambda c: c.queue.next("cancel"),
                },
            )
            return found.winner

        run = h.start(code)
        h.settle()
        assert [each.reason for each in h.held(run)] == ["exhausted"]
        h.send(run, "cancel", "please")
        h.finish(run)
        assert run.output == "cancel"
        assert run.info().held == ()

    def test_an_unknown_outcome_of_the_loser_is_asked_about_and_kept_if_nobody_knows(
        self, h: Harness, bank: Bank
    ) -> None:
        bank.errors = itertools.repeat(("after", BankError("away")))
        bank.answers = iter([ValueError("away")] * 3)

        def code(ctx: Context) -> Any:
            found = ctx.race(
                "pay or cancel",
                {
                    "pay": lambda c: c.step("charge", bank.charge, 42, 990, once=True, verify=bank.find),
                    "cancel": lambda c: c.sleep("patience", 0.05),
                },
            )
            return found.winner

        run = h.start(code)
        h.finish(run)
        assert run.output == "cancel"
        assert {each.location: each.status for each in run.history()} == {
            "pay or cancel": "completed",
            "pay or cancel/pay/charge": "unknown",
            "pay or cancel/cancel/patience": "completed",
        }


OUTSIDE: dict[str, Any] = {}


def pay(order: int) -> str:
    OUTSIDE["paid"] = OUTSIDE.get("paid", 0) + 1
    if error := OUTSIDE.get("error"):
        raise error
    return f"paid {order}"


def find_payment(order: int) -> Found[str] | NotDone | Unknown:
    OUTSIDE["asked"] = OUTSIDE.get("asked", 0) + 1
    return OUTSIDE["answers"].pop(0)  # type: ignore[no-any-return]


def pay_back(rollback: durable.RollbackContext, output: str) -> None:
    OUTSIDE.setdefault("paid back", []).append((rollback.args, output))


class TestRollback:
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        OUTSIDE.clear()

    def stuck(self, h: Harness, *answers: Any) -> Any:
        """A run that is being cancelled with its rollback, while nobody knows whether its step was done."""
        OUTSIDE.update(error=BankError("timeout"), answers=list(answers))

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            return ctx.step("pay", pay, 7, once=True, verify=find_payment, rollback=pay_back)

        run = h.start(code)
        h.run(run)
        assert [each.reason for each in h.held(run)] == ["unknown"]
        run.cancel(rollback=True)
        return run

    def test_while_nobody_knows_the_compensation_waits_for_a_person(self, h: Harness) -> None:
        run = self.stuck(h, Unknown())
        h.settle()
        assert (run.state, OUTSIDE.get("paid back")) == ("rolling_back", None)
        assert [each.location for each in run.info().held] == ["pay"]

    def test_what_was_done_is_undone(self, h: Harness) -> None:
        run = self.stuck(h, Unknown())
        h.settle()
        run.settle("pay", done="paid by hand")
        h.finish(run)
        assert (run.state, OUTSIDE["paid back"]) == ("cancelled", [((7,), "paid by hand")])

    @pytest.mark.parametrize("answer", [{"not_done": True}, {"fail": True}])
    def test_what_was_not_done_is_not_undone(self, h: Harness, answer: Any) -> None:
        run = self.stuck(h, Unknown())
        h.settle()
        run.settle("pay", **answer)
        h.finish(run)
        assert (run.state, OUTSIDE.get("paid back"), OUTSIDE["paid"]) == ("cancelled", None, 1)

    @pytest.mark.parametrize("answer", [Found("found"), NotDone()])
    def test_recover_asks_again_in_the_rollback(self, h: Harness, answer: Any) -> None:
        run = self.stuck(h, Unknown(), answer)
        h.settle()
        run.recover()
        h.finish(run)
        assert run.state == "cancelled"
        assert OUTSIDE.get("paid back") == ([((7,), "found")] if isinstance(answer, Found) else None)

    @pytest.mark.parametrize("answer", [Found("found"), NotDone()])
    def test_a_death_in_the_call_is_asked_about_before_it_is_undone(self, h: Harness, answer: Any) -> None:
        OUTSIDE.update(answers=[answer])

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            return ctx.step("pay", pay, 7, once=True, verify=find_payment, rollback=pay_back)

        run = h.start(code)
        with h.crash_at(2, "before"), pytest.raises(SimulatedCrash):
            h.run(run)
        run.cancel(rollback=True)
        h.finish(run)
        assert run.state == "cancelled"
        assert OUTSIDE.get("paid back") == ([((7,), "found")] if isinstance(answer, Found) else None)
        assert OUTSIDE["asked"] == 1

    def test_an_unknown_timeout_does_not_end_the_wait(self, h: Harness) -> None:
        OUTSIDE.update(error=BankError("timeout"))

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            return ctx.step("pay", pay, 7, once=True, rollback=pay_back, unknown_timeout="1 hour")

        run = h.start(code)
        h.run(run)
        run.cancel(rollback=True)
        h.settle()
        h.advance("2 hours")
        h.settle()
        assert (run.state, run.wake_at) == ("rolling_back", None)
        run.settle("pay", done="paid by hand")
        h.finish(run)
        assert (run.state, OUTSIDE["paid back"]) == ("cancelled", [((7,), "paid by hand")])

    def test_an_answer_is_heard_before_the_rollback_has_come_to_the_step(self, h: Harness) -> None:
        OUTSIDE.update(error=BankError("timeout"))

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            return ctx.step("pay", pay, 7, once=True, rollback=pay_back, unknown_timeout="1 hour")

        run = h.start(code)
        h.run(run)
        run.cancel(rollback=True)
        h.advance("2 hours")
        run.settle("pay", done="paid by hand")
        h.finish(run)
        assert (run.state, OUTSIDE["paid back"]) == ("cancelled", [((7,), "paid by hand")])

    def test_an_answer_in_a_pause_is_heard(self, h: Harness) -> None:
        run = self.stuck(h, Unknown())
        h.settle()
        run.pause()
        run.settle("pay", fail=True)
        run.resume()
        h.finish(run)
        assert (run.state, OUTSIDE.get("paid back")) == ("cancelled", None)

    def test_verify_of_such_a_step_has_to_be_importable(self) -> None:
        with pytest.raises(TypeError, match="recorded by name, so that another process can ask"):
            options_of({"once": True, "verify": lambda: Unknown(), "rollback": pay_back})


def pay_or_undo(ctx: Context) -> str:
    """The code gives up a step of which nobody knows whether it was done, undoes what there is, and goes on."""
    ctx.rollback_checkpoint("here")
    try:
        ctx.step("pay", pay, 7, once=True, verify=find_payment, rollback=pay_back)
    except StepExhaustedError as error:
        ctx.compensate("gave up")
        ctx.sleep("rest", 60)
        return error.last_error.message
    return "paid"


class TestCompensationByTheCode:
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        OUTSIDE.clear()

    def given_up(self, h: Harness, *answers: Any) -> Any:
        """A run whose person has failed the step; the answers are those that `verify` gives then."""
        OUTSIDE.update(error=BankError("timeout"), answers=[Unknown(), *answers])
        run = h.start(pay_or_undo)
        h.run(run)
        run.settle("pay", fail=True)
        h.settle()
        return run

    def step(self, run: Any) -> Any:
        [found] = [each for each in run.history() if each.location == "pay"]
        return found

    @pytest.mark.parametrize(
        ("answer", "paid_back"), [(Found("found"), [((7,), "found")]), (NotDone("never seen"), None)], ids=str
    )
    def test_what_verify_says_then_leaves_the_failure_that_the_code_has_handled(
        self, h: Harness, answer: Any, paid_back: Any
    ) -> None:
        run = self.given_up(h, answer)
        h.finish(run)
        assert (run.state, run.output) == ("completed", "timeout; verify says: it is unknown whether it was done")
        assert (OUTSIDE.get("paid back"), OUTSIDE["paid"]) == (paid_back, 1)
        assert "said_by" in self.step(run).data["failure"]

    @pytest.mark.parametrize(
        ("answer", "paid_back"),
        [({"done": "by hand"}, [((7,), "by hand")]), ({"not_done": True}, None), ({"fail": True}, None)],
        ids=str,
    )
    def test_what_a_person_says_then_leaves_it_too(self, h: Harness, answer: Any, paid_back: Any) -> None:
        run = self.given_up(h, Unknown())
        assert [each.location for each in run.info().held] == ["pay"]
        run.wake()
        h.settle()
        assert [each.location for each in run.info().held] == ["pay"]
        run.settle("pay", **answer)
        h.finish(run)
        assert (run.state, run.output) == ("completed", "timeout; verify says: it is unknown whether it was done")
        assert (OUTSIDE.get("paid back"), OUTSIDE["paid"], OUTSIDE["asked"]) == (paid_back, 1, 2)
        assert self.step(run).status == ("completed" if "done" in answer else "exhausted")

    def test_recover_asks_again(self, h: Harness) -> None:
        run = self.given_up(h, Unknown(), Found("found"))
        run.recover()
        h.finish(run)
        assert (run.state, OUTSIDE["paid back"], OUTSIDE["paid"]) == ("completed", [((7,), "found")], 1)
        assert "said_by" in self.step(run).data["failure"]

    @pytest.mark.parametrize("answer", [Found("found"), NotDone()], ids=str)
    def test_recover_tries_it_again_where_the_code_has_raised_the_failure_behind_that(
        self, h: Harness, answer: Any
    ) -> None:
        OUTSIDE.update(error=BankError("timeout"), answers=[Unknown(), answer])

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            try:
                return ctx.step("pay", pay, 7, once=True, verify=find_payment, rollback=pay_back)
            except StepExhaustedError:
                ctx.compensate("gave up")
                raise

        run = h.start(code)
        h.run(run)
        run.settle("pay", fail=True)
        h.finish(run)
        assert run.state == "failed"
        before = self.step(run).data["once"]["key"]
        del OUTSIDE["error"]
        run.recover()
        h.finish(run)
        assert (run.state, OUTSIDE["paid"]) == ("completed", 2)
        has_new_key = self.step(run).data["once"]["key"] != before
        assert has_new_key == isinstance(answer, Found), "a payment that was paid back has another key"

    def test_a_death_at_any_commit_changes_nothing(self, h: Harness) -> None:
        def code(ctx: Context) -> str:
            answer = Found("found") if "failed" in OUTSIDE else Unknown()
            OUTSIDE.update(error=BankError("timeout"), answers=[answer, answer])
            ctx.rollback_checkpoint("here")
            try:
                ctx.step("pay", pay, 7, once=True, verify=find_payment, rollback=pay_back, unknown_timeout="fail")
            except StepExhaustedError:
                OUTSIDE.update(failed=True, answers=[Found("found"), Found("found")])
                ctx.compensate("gave up")
                ctx.sleep("rest", 60)
                return "handled"
            return "paid"

        def check() -> Any:
            assert OUTSIDE.get("paid", 0) <= 1
            found = OUTSIDE["paid back"][0]
            OUTSIDE.clear()
            return found

        assert h.crash_everywhere(code, check=check) > 4

    @pytest.mark.parametrize(
        ("answer", "paid_back"),
        [({"done": "by hand"}, [((7,), "by hand")]), ({"not_done": True}, None), ({"fail": True}, None)],
        ids=str,
    )
    def test_a_step_that_has_lost_its_race_is_settled_once(self, h: Harness, answer: Any, paid_back: Any) -> None:
        OUTSIDE.update(error=BankError("timeout"))

        def code(ctx: Context) -> str:
            ctx.rollback_checkpoint("here")
            bodies: Any = {
                "pay": lambda c: c.step("pay", pay, 7, once=True, rollback=pay_back),
                "cancel": lambda c: c.sleep("patience", 60),
            }
            winner = ctx.race("first", bodies).winner
            ctx.compensate("gave up")
            return str(winner)

        run = h.start(code)
        h.settle()
        h.advance("2 min")
        h.settle()
        assert [each.location for each in run.info().held] == ["first/pay/pay"]
        run.settle("first/pay/pay", **answer)
        h.finish(run)
        assert (run.output, OUTSIDE.get("paid back"), OUTSIDE["paid"]) == ("cancel", paid_back, 1)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"once": True, "atomic": True}, "an atomic step is done exactly once by itself"),
            ({"once": True, "ephemeral": True}, "leave out ephemeral=True"),
            ({"verify": print}, "verify= is of a step with once=True"),
            ({"not_done": ValueError}, "not_done= is of a step with once=True"),
            ({"unknown_timeout": "1 day"}, "unknown_timeout= is of a step with once=True"),
            ({"verify_retries": 3}, "verify_retries= is of a step with once=True"),
            ({"once": True, "verify_retries": 3}, "verify_retries= is of verify="),
            ({"once": True, "verify": print, "verify_retries": -1}, "at least 0"),
            ({"when_exhausted": "wait"}, 'when_exhausted is "fail" or "hold"'),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, options: Any, problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            options_of(options)

    @pytest.mark.parametrize("options", [{"once": True, "verify": 7}, {"once": True, "not_done": (3,)}])
    def test_what_has_another_type_is_refused(self, options: Any) -> None:
        with pytest.raises(TypeError):
            options_of(options)

    def test_a_workflow_says_fail_or_hold(self) -> None:
        with pytest.raises(ValueError, match='when_exhausted is "fail" or "hold"'):
            durable.workflow(when_exhausted="wait")(lambda ctx: None)  # type: ignore[call-overload]


def test_the_error_of_a_failed_step_can_be_caught(h: Harness, bank: Bank) -> None:
    bank.errors = iter([("after", BankError("timeout"))])

    def code(ctx: Context) -> str:
        try:
            return ctx.step("charge", bank.charge, 42, 990, once=True)
        except StepExhaustedError:
            return "failed by hand"

    run = h.start(code)
    h.run(run)
    run.settle("charge", fail=True)
    h.finish(run)
    assert run.output == "failed by hand"


def test_crash_everywhere_never_charges_twice(h: Harness) -> None:
    charges: list[str] = []

    def charge() -> str:
        charges.append(current_step().idempotency_key)
        return "charged"

    def find() -> Found[str] | NotDone:
        return Found("charged") if current_step().idempotency_key in charges else NotDone()

    def code(ctx: Context) -> str:
        return ctx.step("charge", charge, once=True, verify=find)

    def number_of_charges() -> int:
        number = len(charges)
        charges.clear()
        return number

    assert h.crash_everywhere(code, check=number_of_charges) == 6
