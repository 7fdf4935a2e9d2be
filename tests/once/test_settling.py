"""Steps that wait for a person are settled: one by one, many at once, for a cause, with a canary; what plans say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from durable import Context, Found, Unknown, get_run, workflow
from durable.core.location import display_location
from durable.core.tally import HELD
from durable.errors import InvalidTransitionError, OutsideStepError, StaleRunError
from durable.inspection import held as held_here
from durable.inspection.actions import verb_note
from durable.inspection.bulks import failed_again, find_bulk
from durable.inspection.causes import causes_among
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Chosen, Filtered
from durable.models import Cause, Failure, OperatorAction, Run
from durable.operations import Actor, acting_as, bulk, plan_replay, replay, settle
from durable.operations.audit import revision
from durable.operations.bulk_decisions import Canary, go_on
from durable.operations.settle import settle_held
from durable.testing import Harness
from tests.support.errors import check_failed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOWN: set[str] = set()  # banks that do not answer
CALLS: list[int] = []
ANSWERS: list[Any] = []


def charge(order: int, amount: int) -> str:
    CALLS.append(order)
    if "bank" in DOWN:
        raise OSError("timeout")
    return f"r{order}"


def find_charge(order: int, amount: int) -> Any:
    return ANSWERS.pop(0) if ANSWERS else Unknown()


def book(order: int) -> str:
    if "ledger" in DOWN:
        raise OSError("no ledger")
    return f"b{order}"


@workflow(name="tests.settling.order")
def order(ctx: Context, number: int) -> str:
    return ctx.step("charge", charge, number, 990, once=True)


@workflow(name="tests.settling.asked")
def asked(ctx: Context, number: int) -> str:
    return ctx.step("charge", charge, number, 990, once=True, verify=find_charge)


@workflow(name="tests.settling.booked")
def booked(ctx: Context, number: int, when_exhausted: Any = "hold") -> str:
    return ctx.step("book", book, number, max_retries=0, when_exhausted=when_exhausted)


@workflow(name="tests.settling.both")
def both(ctx: Context, number: int) -> dict[str, str]:
    return ctx.join(
        "all",
        {
            "pay": lambda c: c.step("charge", charge, number, 990, once=True),
            "book": lambda c: c.step("book", book, number, max_retries=0, when_exhausted="hold"),
        },
    )


@pytest.fixture(autouse=True)
def _banks() -> Iterator[None]:
    DOWN.update({"bank", "ledger"})
    yield
    for each in (DOWN, CALLS, ANSWERS):
        each.clear()


@pytest.fixture
def h(db: None) -> Iterator[Harness]:
    with Harness(now=NOW, store="database") as harness:
        yield harness


def held_runs(h: Harness, count: int, of: Any = order, name: str = "r") -> list[str]:
    ids = [f"{name}{number:02}" for number in range(count)]
    of.start_many([(number,) for number in range(count)], ids=ids)
    h.settle()
    assert all(h.held(each) for each in ids)
    return ids


def of_cause(place: str) -> Filtered:
    [cause] = Cause.objects.filter(place=place)
    return Filtered(RunCriteria(cause=cause.fingerprint))


def outputs(ids: list[str]) -> list[Any]:
    return [get_run(each).output if get_run(each).state == "completed" else get_run(each).state for each in ids]


def refusals(bulk_id: str) -> dict[str, str]:
    rows = OperatorAction.objects.filter(bulk_id=bulk_id).exclude(outcome="done")
    return dict(rows.values_list("run_id", "detail"))


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "as a new run"])
def test_a_replay_from_one_held_step_keeps_the_others_among_what_waits_for_a_person(h: Harness, in_place: bool) -> None:
    [run] = held_runs(h, 1, both)
    DOWN.discard("ledger")
    replayed = replay(run, "all/book/book", in_place=in_place).id
    h.settle()
    assert (replayed == run) == in_place
    assert [each.location for each in h.held(replayed)] == ["all/pay/charge"]
    assert Failure.objects.get(run_id=replayed).is_held
    assert replayed in {each.id for each in held_here.held_runs()}
    assert get_run(replayed).info().held
    get_run(replayed).settle("all/pay/charge", done="by hand")
    h.settle()
    assert get_run(replayed).state == "completed"
    assert not Failure.objects.get(run_id=replayed).is_held


@workflow(name="tests.settling.then_waits")
def then_waits(ctx: Context, number: int) -> str:
    ctx.step("charge", charge, number, 990, once=True)
    return ctx.queue.next("go on").name


def test_a_replay_in_place_from_the_only_held_step_takes_the_run_from_what_waits_for_a_person(h: Harness) -> None:
    [run] = held_runs(h, 1, then_waits)
    DOWN.clear()
    replay(run, "charge", in_place=True)
    h.settle()
    assert h.peek(run).waiting_for == ["go on"]
    assert not Failure.objects.get(run_id=run).is_held
    assert run not in {each.id for each in held_here.held_runs()}


REMOVED: list[bool] = []  # whether the code has its steps no more


@workflow(name="tests.settling.shortened")
def shortened(ctx: Context, number: int) -> str:
    if REMOVED:
        ctx.removed("all", "join")
    else:
        both.function(ctx, number)
    return ctx.queue.next("go on").name


def test_held_steps_that_the_code_has_no_more_wait_for_nobody(h: Harness) -> None:
    [run] = held_runs(h, 1, shortened)
    REMOVED.append(True)
    get_run(run).wake()
    h.settle()
    REMOVED.clear()
    assert h.peek(run).waiting_for == ["go on"]
    assert not Failure.objects.get(run_id=run).is_held
    assert {each.location: each.status for each in get_run(run).history() if "/" in each.location} == {
        "all/pay/charge": "unknown",
        "all/book/book": "exhausted",
    }
    assert plan_replay(run, "all").notes[0] == 'nobody knows whether "all/pay/charge" was done: it would be done again'


@workflow(name="tests.settling.exhausted", when_exhausted="hold")
def exhausted(ctx: Context, number: int) -> str:
    return ctx.step("book", book, number, max_retries=0)


def race(ctx: Context, *branches: str, order: Any) -> str:
    bodies: dict[str, Callable[[Context], str]] = {
        "pay": lambda c: c.step("charge", charge, order, 990, once=True, verify=find_charge),
        "cancel": lambda c: c.queue.next("cancel").name,
    }
    first = ctx.race("first", {each: bodies[each] for each in branches})
    ctx.queue.next("go on")
    return first.winner


@workflow(name="tests.settling.raced")
def raced(ctx: Context, number: int) -> str:
    return race(ctx, "pay", "cancel", order=number)


@workflow(name="tests.settling.raced_behind")
def raced_behind(ctx: Context, number: int) -> str:
    return race(ctx, "cancel", "pay", order=number)


@pytest.mark.parametrize("of", [raced, raced_behind], ids=["before the winner", "behind the winner"])
@pytest.mark.parametrize(("answer", "left"), [(Unknown(), ["unknown"]), (Found("r0"), [])], ids=["unknown", "done"])
def test_a_held_step_that_loses_a_race_is_asked_about_and_waits_for_nobody(
    h: Harness, of: Any, answer: Any, left: list[str]
) -> None:
    [run] = held_runs(h, 1, of)
    ANSWERS.append(answer)
    h.send(run, "cancel")
    h.settle()
    handle = get_run(run)
    assert [each.status for each in handle.history() if each.location == "first/pay/charge"] == left
    assert not ANSWERS
    assert not Failure.objects.get(run_id=run).is_held
    assert run not in {each.id for each in held_here.held_runs()}
    handle.pause()
    assert handle.info().held == ()
    handle.resume()
    with pytest.raises(InvalidTransitionError):
        handle.recover()
    h.send(run, "go on")
    assert h.finish(run).output == "cancel"


class Unrecordable:
    """An order that the codec refuses."""


@workflow(name="tests.settling.raced_with_unrecordable")
def raced_with_unrecordable(ctx: Context, number: int) -> str:
    return race(ctx, "cancel", "pay", order=Unrecordable())


def test_a_lost_step_is_not_asked_about_with_the_text_of_its_arguments(h: Harness) -> None:
    [run] = held_runs(h, 1, raced_with_unrecordable)
    ANSWERS.append(Found("of another order"))
    h.send(run, "cancel")
    h.settle()
    assert [each.status for each in get_run(run).history() if each.location == "first/pay/charge"] == ["unknown"]
    assert ANSWERS, "nobody was asked"


@workflow(name="tests.settling.with_rollback")
def with_rollback(ctx: Context, number: int) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.join(
        "all",
        {
            "pay": lambda c: c.step("charge", charge, number, 990, once=True, rollback=refund),
            "book": lambda c: c.step("book", str, number, max_retries=0, rollback=refund),
        },
    )


def refund(_rollback: Any, _output: Any) -> None:
    if "refunds" in DOWN:
        raise OSError("no refunds")


class TestARunThatFailedAtItsDeadlineWithAHeldStep:
    """It is recovered or replayed, and the step has not been settled meanwhile."""

    def failed(self, h: Harness, of: Any) -> str:
        DOWN.update(("bank", "ledger"))
        run = of.using(deadline="1 hour").start(1)
        h.settle()
        h.advance("1 hour")
        h.settle()
        assert run.state == "failed"
        DOWN.clear()
        return str(run.id)

    def test_asks_verify_again_when_it_is_recovered(self, h: Harness) -> None:
        run = self.failed(h, asked)
        ANSWERS.append(Found("found"))
        get_run(run).recover()
        h.settle()
        assert (get_run(run).state, get_run(run).output, CALLS) == ("completed", "found", [1])

    def test_has_all_its_attempts_again_when_it_is_recovered(self, h: Harness) -> None:
        run = self.failed(h, exhausted)
        get_run(run).recover()
        h.settle()
        assert get_run(run).output == "b1"

    @pytest.mark.parametrize("verb", ["recover", "replay"])
    def test_is_among_what_waits_for_a_person_again_if_nobody_else_knows(self, h: Harness, verb: str) -> None:
        run = self.failed(h, both)
        get_run(run).recover() if verb == "recover" else replay(run, "all/book/book", in_place=True)
        h.settle()
        assert [each.location for each in h.held(run)] == ["all/pay/charge"]
        assert Failure.objects.get(run_id=run).is_held
        assert run in {each.id for each in held_here.held_runs()}
        settle(run, "all/pay/charge", done="by hand")
        h.settle()
        assert get_run(run).state == "completed"


def test_a_compensation_that_is_recovered_waits_for_a_person_again(h: Harness) -> None:
    DOWN.add("refunds")
    run = with_rollback.start(1)
    h.settle()
    run.cancel(rollback=True)
    h.settle()
    assert run.state == "failed"  # the step that was done could not be undone
    DOWN.clear()
    run.recover()
    h.settle()
    assert (run.state, [each.location for each in h.held(run)]) == ("rolling_back", ["all/pay/charge"])
    assert Failure.objects.get(run_id=run.id).is_held
    run.settle("all/pay/charge", done="r1")
    h.settle()
    assert run.state == "cancelled"


class TestOneRun:
    def test_all_its_held_steps_are_settled_in_one_change(self, h: Harness) -> None:
        [run] = held_runs(h, 1, both)
        settle_held(run, done="by hand")
        h.settle()
        assert get_run(run).output == {"pay": "by hand", "book": "by hand"}
        [row] = OperatorAction.objects.filter(action="settle")
        assert row.detail == 'steps "all / pay / charge", "all / book / book": it was done'

    def test_an_answer_about_an_earlier_attempt_is_refused(self, h: Harness) -> None:
        [run] = held_runs(h, 1)
        seen = revision(Run.objects.get(pk=run))
        get_run(run).settle("charge", not_done=True)
        h.settle()
        [again] = h.held(run)
        assert again.attempt == 2, "nobody knows whether this one was done"
        with acting_as(Actor("cli", label="ops"), expected=seen), pytest.raises(StaleRunError):
            get_run(run).settle("charge", not_done=True)
        h.settle()
        assert h.held(run) == [again]

    def test_a_paused_run_tells_what_waits(self, h: Harness) -> None:
        [run] = held_runs(h, 1)
        get_run(run).pause()
        assert [each.location for each in get_run(run).info().held] == ["charge"]

    def test_those_at_a_place_alone(self, h: Harness) -> None:
        [run] = held_runs(h, 1, both)
        settle_held(run, place="all / book / book", done="by hand")
        h.settle()
        assert [each.location for each in h.held(run)] == ["all/pay/charge"]

    @pytest.mark.parametrize(
        ("place", "word"), [("", "none of its steps waits"), ("x", "none of its steps at x waits")]
    )
    def test_a_run_without_one_is_refused_in_words(self, h: Harness, place: str, word: str) -> None:
        [run] = held_runs(h, 1)
        settle(run, "charge", fail=True)
        with pytest.raises(InvalidTransitionError, match=word):
            settle_held(run, place=place, fail=True)

    def test_workflow_code_settles_in_a_step_only(self, h: Harness) -> None:
        [run] = held_runs(h, 1)

        def between(ctx: Context) -> None:
            settle_held(run, fail=True)

        def within(ctx: Context) -> None:
            ctx.step("settle", lambda: settle_held(run, done="in a step"))

        failed = h.start(between)
        h.finish(failed)
        check_failed(failed, OutsideStepError.__name__)
        h.finish(h.start(within))
        h.settle()
        assert outputs([run]) == ["in a step"]


class TestMany:
    def test_twelve_runs_of_a_cause_at_once(self, h: Harness) -> None:
        ids = held_runs(h, 12)
        chosen = of_cause("charge")
        assert bulk.eligible("settle", chosen).count == 12
        with acting_as(Actor("cli", label="ops"), reason="the bank has told us"):
            report = bulk.apply("settle", chosen, done="r-hand", expected=12)
        h.settle()
        assert outputs(ids) == ["r-hand"] * 12
        assert sorted(CALLS) == list(range(12)), "nothing was called again"
        found = find_bulk(report.bulk_id)
        assert found is not None
        assert (found.verb, found.done.number, found.refused.number) == ("settle", 12, 0)
        rows = OperatorAction.objects.filter(bulk_id=report.bulk_id)
        assert {(row.action, row.outcome, row.reason) for row in rows} == {("settle", "done", "the bank has told us")}

    @pytest.mark.parametrize(
        ("answer", "ends"), [({"not_done": True}, ["r0", "r1"]), ({"fail": True}, ["failed"] * 2)], ids=["not", "fail"]
    )
    def test_the_other_answers(self, h: Harness, answer: dict[str, Any], ends: list[str]) -> None:
        ids = held_runs(h, 2)
        DOWN.clear()
        assert bulk.apply("settle", ids, **answer).done == 2
        h.settle()
        assert outputs(ids) == ends

    @pytest.mark.parametrize("answer", [None, False, 0, "", [], {}])
    def test_any_value_is_a_result(self, h: Harness, answer: Any) -> None:
        ids = held_runs(h, 1)
        bulk.apply("settle", of_cause("charge"), done=answer)
        h.settle()
        assert outputs(ids) == [answer]

    @pytest.mark.parametrize("answers", [{}, {"done": 1, "fail": True}, {"not_done": True, "fail": True}])
    def test_one_answer_is_needed(self, h: Harness, answers: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="one answer"):
            bulk.apply("settle", held_runs(h, 1), **answers)

    def test_all_runs_without_a_filter_are_refused(self, h: Harness) -> None:
        with pytest.raises(ValueError, match="cannot be taken back"):
            bulk.apply("settle", Filtered(RunCriteria()), fail=True)

    def test_the_steps_of_the_cause_alone(self, h: Harness) -> None:
        held_runs(h, 3, both)
        places = {cause.place: Filtered(RunCriteria(cause=cause.fingerprint)) for cause in Cause.objects.all()}
        found = {place: chosen.page(None, 10)[0] for place, chosen in places.items()}  # of the step held last
        for place, ids in found.items():
            bulk.apply("settle", places[place], done=place)
            h.settle()
            left = {display_location(each.location) for run in ids for each in h.held(run)}
            assert left == ({"all / pay / charge", "all / book / book"} - {place} if ids else set())

    def test_what_does_not_wait_is_left_alone_in_words(self, h: Harness) -> None:
        [first, second, third] = held_runs(h, 3)
        settle(first, "charge", fail=True)  # somebody else was faster
        get_run(second).cancel()
        report = bulk.apply("settle", [first, second, third], not_done=True)
        assert report.done == 1
        told = refusals(report.bulk_id)
        assert "none of its steps waits for a person" in told[first]
        assert "cannot settle a run that is cancelled" in told[second]

    def test_a_result_that_cannot_be_recorded_is_refused_for_each(self, h: Harness) -> None:
        ids = held_runs(h, 2)
        report = bulk.apply("settle", ids, done=object())
        assert (report.done, {each.outcome for each in report.refused}) == (0, {"invalid"})


class TestWhichRuns:
    def test_of_a_cause_the_failed_and_the_held_are_recovered(self, h: Harness) -> None:
        held = held_runs(h, 2, booked)
        failed = booked.using(id="failed").start(9, "fail")
        h.settle()
        chosen = of_cause("book")
        found = {verb: bulk.eligible(verb, chosen).count for verb in ("recover", "settle", "replay")}
        assert found == {"recover": 3, "settle": 2, "replay": 1}
        assert [each.number for each in causes_among(chosen, bulk.allowed_states("settle"))] == [2]
        assert [each.number for each in causes_among(chosen, bulk.allowed_states("replay"))] == [1]
        DOWN.clear()
        report = bulk.apply("recover", chosen, expected=3)
        h.settle()
        assert outputs([*held, failed.id]) == ["b0", "b1", "b9"]
        assert refusals(report.bulk_id) == {}

    def test_a_bulk_reads_the_runs_of_its_verb_alone(self, h: Harness) -> None:
        held_runs(h, 2, booked)
        booked.using(id="failed").start(9, "fail")
        h.settle()
        chosen = of_cause("book")

        def read(verb: str) -> list[str]:
            return sorted(chosen.narrowed(bulk.allowed_states(verb)).page(None, 10)[0])

        assert read("recover") == ["failed", "r00", "r01"]
        assert read("settle") == ["r00", "r01"]
        assert read("replay") == ["failed"]

    def test_a_filter_of_another_kind_has_the_failed_ones(self, h: Harness) -> None:
        held_runs(h, 2, booked)
        booked.start(9, "fail")
        h.settle()
        chosen = Filtered(RunCriteria(workflow=booked.name))
        assert bulk.eligible("recover", chosen).count == 1
        assert bulk.eligible("recover", chosen).left_alone == (("sleeping", 2),)
        assert bulk.eligible("settle", chosen).count == 0

    @pytest.mark.parametrize("kind", [list, lambda ids: Chosen(tuple(ids))], ids=["ids", "counted"])
    def test_runs_that_were_chosen_one_by_one(self, h: Harness, kind: Callable[[list[str]], Any]) -> None:
        ids = [*held_runs(h, 2, booked), booked.using(id="failed").start(9, "fail").id, "nobody"]
        h.settle()
        recover, settling = (bulk.eligible(verb, kind(ids)) for verb in ("recover", "settle"))
        assert (recover.count, recover.left_alone) == (3, (("", 1),))
        assert (settling.count, sorted(settling.left_alone)) == (2, [("", 1), ("failed", 1)])
        assert sorted(settling.shown) == ids[:2]
        assert HELD in bulk.allowed_states("recover") & bulk.allowed_states("settle")


class TestCanary:
    def test_a_recovery_stops_when_its_first_runs_wait_again(self, h: Harness) -> None:
        ids = held_runs(h, 5, booked)
        report = bulk.apply("recover", of_cause("book"), canary=Canary(first=2, stop_after=2))
        assert report.run_id is not None
        h.settle()
        h.advance("1 min")
        h.settle()
        found = find_bulk(report.bulk_id)
        assert found is not None
        assert found.stopped == (2, 0)
        assert failed_again(report.bulk_id, "recover").count() == 2
        DOWN.clear()
        go_on(report.run_id)
        h.settle()
        assert (
            sorted(map(str, outputs(ids))) == ["b0", "b1", "b2", "sleeping", "sleeping"]
            or outputs(ids).count("sleeping") == 2
        )

    def test_a_settling_goes_on_when_its_first_runs_have_ended(self, h: Harness) -> None:
        ids = held_runs(h, 4)
        bulk.apply("settle", of_cause("charge"), done="r", canary=Canary(first=1))
        h.settle()
        h.advance("1 min")
        h.settle()
        assert outputs(ids) == ["r"] * 4


class TestPlans:
    def test_a_replay_would_do_it_again(self, h: Harness) -> None:
        [run] = held_runs(h, 1)
        assert plan_replay(run, "charge").notes[0] == 'nobody knows whether "charge" was done: it would be done again'
        given = plan_replay(run, "charge", with_output=True)
        assert not any("nobody knows" in each for each in given.notes)

    def test_a_step_beside_it_goes_on_waiting(self, h: Harness) -> None:
        [run] = held_runs(h, 1, both)
        notes = plan_replay(run, "all/book/book").notes
        assert '"all/pay/charge" waits for a person, and goes on waiting: settle it in the run that goes on' in notes

    def test_what_is_used_up_is_no_question(self, h: Harness) -> None:
        [run] = held_runs(h, 1, booked)
        assert not any("nobody knows" in each for each in plan_replay(run, "book").notes)

    def test_an_unknown_outcome_in_a_lost_branch_is_named(self, h: Harness) -> None:
        def code(ctx: Context) -> None:
            ctx.race(
                "first",
                {
                    "pay": lambda c: c.step("charge", charge, 1, 990, once=True),
                    "wait": lambda c: c.sleep("wait", "1 min"),
                },
            )
            ctx.queue.next("end")

        run = h.start(code)
        h.settle()
        h.advance("2 min")
        h.settle()
        found = plan_replay(run.id, "end").notes
        assert any('"first/pay/charge"' in each for each in found), found

    def test_a_long_history_says_the_same(self, h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        [run] = held_runs(h, 1, both)
        short = plan_replay(run, "all").notes
        monkeypatch.setattr(sys.modules["durable.operations.replay"], "_SHORT", 0)
        assert plan_replay(run, "all").notes == short
        assert 'nobody knows whether "all/pay/charge" was done: it would be done again' in short

    def test_a_restart_and_a_cancel_say_it(self, h: Harness) -> None:
        [run] = held_runs(h, 1)
        row = Run.objects.get(pk=run)
        assert verb_note(row, "restart") == 'Nobody knows whether "charge" was done: it would be done again'
        assert verb_note(row, "cancel") == 'Nobody knows whether "charge" was done, and nobody will be asked any more'
        assert verb_note(row, "wake") == ""
        get_run(run).cancel()
        row.refresh_from_db()
        assert verb_note(row, "cancel") == ""
        assert verb_note(row, "restart").startswith('Nobody knows whether "charge" was done')

    def test_recover_asks_verify_first(self, h: Harness) -> None:
        ids = held_runs(h, 2, asked)
        ANSWERS[:] = [Found("found"), Unknown("no idea")]
        assert bulk.apply("recover", of_cause("charge")).run_id is not None
        h.settle()
        assert sorted(outputs(ids)) == ["found", "sleeping"]
        assert len(CALLS) == 2


class TestTheFilterOfHeldRuns:
    def test_all_that_wait_are_settled_whatever_their_cause(self, h: Harness) -> None:
        ids = [*held_runs(h, 2), *held_runs(h, 2, booked, "b")]
        booked.using(id="failed").start(9, "fail")
        h.settle()
        chosen = Filtered(RunCriteria(is_held=True))
        found = {
            verb: bulk.eligible(verb, chosen).count for verb in ("settle", "recover", "replay", "cancel", "resume")
        }
        assert found == {"settle": 4, "recover": 4, "replay": 0, "cancel": 4, "resume": 0}
        bulk.apply("settle", chosen, done="by hand", expected=4)
        h.settle()
        assert outputs([*ids, "failed"]) == ["by hand"] * 4 + ["failed"]

    def test_with_another_condition(self, h: Harness) -> None:
        held_runs(h, 2)
        held_runs(h, 3, booked, "b")
        chosen = Filtered(RunCriteria(is_held=True, workflow=booked.name))
        assert bulk.eligible("settle", chosen).by_workflow == ((booked.name, 3),)
        assert bulk.eligible("settle", Filtered(RunCriteria(is_held=True, states=frozenset({"paused"})))).count == 0
