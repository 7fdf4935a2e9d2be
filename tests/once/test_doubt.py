"""Runs of a database that went back in time: what they may have done already is asked about before they do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import pytest

import durable
from durable import Break, Context, Continue, CriticalError, Found, NotDone, Unknown, current_step, workflow
from durable.testing import Harness, SimulatedCrash

LEDGER: Final[list[str]] = []
"""What was done outside, by idempotency key. No database takes it back."""
KNOWN: Final[list[bool]] = [True]


def do(*_args: Any) -> str:
    key = current_step().idempotency_key
    LEDGER.append(key)
    return f"{current_step().location} done"


def find(*_args: Any) -> Any:
    if not KNOWN[0]:
        return Unknown()
    done = current_step().idempotency_key in LEDGER
    return Found(f"{current_step().location} done") if done else NotDone()


def undo(_rollback: durable.RollbackContext, output: str) -> None:
    LEDGER.append(f"undone: {output}")


ASKED: Final[dict[str, Any]] = {"once": True, "verify": find}


@pytest.fixture(autouse=True)
def _outside() -> None:
    LEDGER.clear()
    KNOWN[0] = True


class Backup:
    """The rows of a harness as they are now."""

    def __init__(self, h: Harness) -> None:
        self._store: Any = h._store
        self._tables = self._store._tables()

    def restore(self) -> None:
        """Put them back. What has happened outside stays."""
        self._store._put_back(self._tables)


def to_the_end(h: Harness, run: durable.Handle) -> None:
    """Pass the run until it has ended, whatever the time."""
    h.settle()
    while (moment := run.wake_at) is not None:
        h.advance_to(moment)
        h.settle()


def lose(h: Harness, run: durable.Handle) -> None:
    """Let the run go on to its end, and the database back to where it is now; its runs are in doubt."""
    backup = Backup(h)
    to_the_end(h, run)
    backup.restore()
    h.put_in_doubt()


# -- what is asked


def in_a_row(ctx: Context) -> list[str]:
    return [ctx.step(name, do, **ASKED) for name in ("a", "b", "c")]


def after_a_nap(ctx: Context) -> list[str]:
    first = ctx.step("a", do, **ASKED)
    ctx.sleep("nap", "1 minute")
    return [first, ctx.step("b", do, **ASKED), ctx.step("c", do, **ASKED)]


def in_branches(ctx: Context) -> list[str]:
    def branch(at: Context) -> list[str]:
        return [at.step("x", do, **ASKED), at.step("y", do, **ASKED)]

    found = ctx.join("both", {"one": branch, "two": branch})
    return [*found["one"], *found["two"], ctx.step("last", do, **ASKED)]


def in_a_race(ctx: Context) -> list[str]:
    def quick(at: Context) -> list[str]:
        return [at.step("x", do, **ASKED), at.step("y", do, **ASKED)]

    def never(at: Context) -> None:
        at.queue.next("never")

    won = ctx.race("first", {"quick": quick, "never": never})
    return [*cast("list[str]", won.value), ctx.step("last", do, **ASKED)]


def in_a_loop(ctx: Context) -> list[str]:
    def each(at: Context, done: list[str]) -> Any:
        done = [*done, at.step("x", do, **ASKED)]
        return Break(done) if len(done) == 4 else Continue(done)

    return [*ctx.loop("all", each, [], history_prune_interval=1, history_size=1), ctx.step("last", do, **ASKED)]


def in_a_block(ctx: Context) -> list[str]:
    def body(at: Context) -> list[str]:
        return [at.step("x", do, **ASKED), at.step("y", do, **ASKED)]

    return [*cast("list[str]", ctx.try_block("both", body).value), ctx.step("last", do, **ASKED)]


CODES: Final[list[Callable[[Context], list[str]]]] = [
    in_a_row,
    after_a_nap,
    in_branches,
    in_a_race,
    in_a_loop,
    in_a_block,
]


@pytest.mark.parametrize("code", CODES, ids=lambda each: each.__name__)
def test_wherever_the_database_goes_back_to_nothing_is_done_twice_and_nothing_is_lost(
    code: Callable[[Context], list[str]],
) -> None:
    with Harness() as h:
        run = h.start(code)
        before = h.commits
        to_the_end(h, run)
        commits, usual, wanted = h.commits - before, run.output, len(LEDGER)
    for backed_up in range(1, commits):
        for lost in range(commits - backed_up + 1):
            LEDGER.clear()
            with Harness() as h:
                run = h.start(code)
                _until(h, run, backed_up)
                backup = Backup(h)
                if lost:
                    _until(h, run, lost)
                backup.restore()
                h.put_in_doubt()
                to_the_end(h, run)
                case = f"backed up after {backed_up} commits, {lost} lost"
                assert (run.state, run.output) == ("completed", usual), case
                assert len(LEDGER) == len(set(LEDGER)) == wanted, case


def _until(h: Harness, run: durable.Handle, commits: int) -> None:
    """Pass the run until it has made so many commits more, and let its worker die then."""
    with h.crash_at(commits, "after"):
        try:
            to_the_end(h, run)
        except SimulatedCrash:
            return


@pytest.mark.parametrize("code", CODES, ids=lambda each: each.__name__)
def test_a_run_in_doubt_survives_crashes(code: Callable[[Context], list[str]]) -> None:
    """In doubt from its start on, when all was done or nothing was: killed at each commit."""
    for is_done in (False, True):
        number = 0
        while True:
            LEDGER.clear()
            number += 1
            with Harness() as h:
                run = h.start(code)
                if is_done:
                    lose(h, run)
                else:
                    h.put_in_doubt()
                try:
                    with h.crash_at(number):
                        to_the_end(h, run)
                    assert number > 4
                    break
                except SimulatedCrash:
                    to_the_end(h, run)
                assert run.state == "completed"
                assert len(LEDGER) == len(set(LEDGER)), number


class TestAStepInDoubt:
    def test_without_verify_waits_for_a_person_who_says_that_it_was_done(self, h: Harness) -> None:
        run = h.start(lambda ctx: ctx.step("a", do))
        lose(h, run)
        h.settle()
        [held] = h.held(run)
        assert (held.location, held.reason, held.attempt) == ("a", "unknown", 0)
        assert "went back in time" in str(held.error)
        assert h._store.attempts(run.id) == []
        h.settle_step(run, "a", done="it was")
        h.settle()
        assert (run.output, len(LEDGER)) == ("it was", 1)

    def test_that_was_not_done_is_a_plain_one_again_with_all_its_attempts(self, h: Harness) -> None:
        tries = iter(range(9))

        def fails(*_args: Any) -> str:
            if next(tries) < 2:
                raise ConnectionError("away")
            return do()

        def code(ctx: Context) -> list[str]:
            return [ctx.step("a", fails, max_retries=2), ctx.step("b", do)]

        run = h.start(code)
        h.put_in_doubt()
        h.settle()
        h.settle_step(run, "a", not_done=True)
        to_the_end(h, run)
        assert run.output == ["a done", "b done"]
        [first, _] = run.history()
        assert (first.attempts, "once" in first.data) == (3, False)

    def test_may_fail_by_a_persons_word_and_what_follows_is_in_doubt_too(self, h: Harness) -> None:
        def code(ctx: Context) -> str:
            ctx.try_step("a", do, catch=["exhausted"])
            return ctx.step("b", do)

        run = h.start(code)
        h.put_in_doubt()
        h.settle()
        h.settle_step(run, "a", fail=True)
        h.settle()
        assert [each.location for each in h.held(run)] == ["b"]

    def test_that_fails_now_may_have_failed_then_so_that_what_follows_is_in_doubt(self, h: Harness) -> None:
        """The code charges another card if the first is declined: it was, and the second was charged."""

        def declined() -> str:
            raise CriticalError("declined")

        def code(ctx: Context) -> str:
            if ctx.try_step("first", declined, once=True, verify=find, not_done=CriticalError).ok:
                return "first"
            return ctx.step("second", do, **ASKED)  # type: ignore[no-any-return]

        run = h.start(code)
        lose(h, run)
        to_the_end(h, run)
        assert (run.output, len(LEDGER)) == ("second done", 1)

    def test_that_has_failed_before_is_asked_about_before_its_next_attempt(self, h: Harness) -> None:
        tries = iter(range(9))

        def fails_once() -> str:
            if next(tries) == 0:
                raise ConnectionError("away")
            return do()

        run = h.start(lambda ctx: ctx.step("a", fails_once))
        h.settle()
        lose(h, run)
        to_the_end(h, run)
        assert [(each.location, each.attempt) for each in h.held(run)] == [("a", 1)]
        h.settle_step(run, "a", done="a done")
        to_the_end(h, run)
        assert (run.output, len(LEDGER)) == ("a done", 1)

    def test_of_which_verify_does_not_know_waits_for_a_person(self, h: Harness) -> None:
        KNOWN[0] = False
        run = h.start(in_a_row)
        lose(h, run)
        h.settle()
        assert [each.location for each in h.held(run)] == ["a"]
        KNOWN[0] = True
        run.recover()  # asks again
        to_the_end(h, run)
        assert (run.state, len(LEDGER)) == ("completed", 3)

    def test_that_was_held_before_is_settled_once(self, h: Harness) -> None:
        """A person who says after the restore that it was not done is not asked again."""

        def lost() -> str:
            raise TimeoutError

        calls = iter([lost, do])

        def code(ctx: Context) -> list[str]:
            return [ctx.step("a", lambda: next(calls)(), once=True), ctx.step("b", do)]

        run = h.start(code)
        h.settle()
        h.put_in_doubt()
        h.settle_step(run, "a", not_done=True)
        to_the_end(h, run)
        assert (run.output, h.held(run)) == (["a done", "b done"], [])

    def test_is_asked_about_in_a_rollback_before_it_is_undone(self, h: Harness) -> None:
        @workflow(name="doubt.undone")
        def undone(ctx: Context) -> None:
            ctx.rollback_checkpoint("paid")
            ctx.step("a", do, **ASKED, rollback=undo)

        KNOWN[0] = False
        run = undone.start()
        lose(h, run)
        h.settle()
        assert len(h.held(run)) == 1
        run.cancel(rollback=True)
        h.settle()
        assert len(LEDGER) == 1, "nobody knows whether it was done: the rollback waits too"
        KNOWN[0] = True
        run.recover()
        h.settle()
        assert (run.state, LEDGER[1:]) == ("cancelled", ["undone: a done"])


class TestNotInDoubt:
    @pytest.mark.django_db
    def test_are_atomic_and_ephemeral_steps(self, h: Harness) -> None:
        def code(ctx: Context) -> None:
            ctx.step("atomic", lambda: None, atomic=True)
            ctx.step("ephemeral", lambda: None, ephemeral=True)

        run = h.start(code)
        h.put_in_doubt()
        h.settle()
        assert run.state == "completed"

    def test_is_what_follows_a_step_that_was_not_done(self, h: Harness) -> None:
        def code(ctx: Context) -> list[str]:
            return [ctx.step("a", do, **ASKED), ctx.step("b", do)]

        run = h.start(code)
        h.put_in_doubt()
        h.settle()
        assert run.output == ["a done", "b done"]
        assert h._store.limits(run.id).in_doubt is None  # type: ignore[union-attr]  # it was put in doubt

    def test_is_what_follows_a_sleep_that_has_lasted_through_the_lost_time(self, h: Harness) -> None:
        def code(ctx: Context) -> str:
            ctx.sleep("nap", "30 days")
            return ctx.step("a", do)

        run = h.start(code)
        h.settle()
        h.advance("1 day")
        h.put_in_doubt()
        to_the_end(h, run)
        assert run.output == "a done"

    def test_is_no_step_behind_a_sleep_that_began_after_the_restore(self, h: Harness) -> None:
        def code(ctx: Context) -> str:
            ctx.sleep("nap", "1 day")
            return ctx.step("a", do)

        run = h.start(code)
        h.put_in_doubt()
        to_the_end(h, run)
        assert [each.location for each in h.held(run)] == ["a"]

    def test_is_one_branch_because_another_one_had_not_got_there(self, h: Harness) -> None:
        """Each branch has a doubt of its own; behind the join it is over if it is over in one."""

        def code(ctx: Context) -> list[str]:
            def first(at: Context) -> str:
                return at.step("a", do, **ASKED)  # type: ignore[no-any-return]

            def second(at: Context) -> str:
                return at.step("b", do)

            found = ctx.join("both", {"first": first, "second": second})
            return [*found.values(), ctx.step("last", do)]

        run = h.start(code)
        h.put_in_doubt()
        h.settle()
        assert [each.location for each in h.held(run)] == ["both/second/b"]
        h.settle_step(run, "both/second/b", done="b was done")
        h.settle()
        assert run.output == ["both/first/a done", "b was done", "last done"]

    def test_is_a_run_that_starts_after_the_restore(self, h: Harness) -> None:
        h.put_in_doubt()
        assert h.run(h.start(lambda ctx: ctx.step("a", do))).output == "a done"


class TestChildren:
    def test_that_a_run_in_doubt_starts_are_in_doubt(self, h: Harness) -> None:
        @workflow(name="doubt.child")
        def child(ctx: Context, number: int) -> str:
            return ctx.step("a", do, **ASKED)  # type: ignore[no-any-return]

        @workflow(name="doubt.parent")
        def parent(ctx: Context) -> list[str]:
            one = ctx.child("one", child, 0)
            found = ctx.map("all", child, [(1,), (2,), (3,)], at_once=2)
            return [one, *found.outputs]

        run = parent.start()
        lose(h, run)
        to_the_end(h, run)
        assert run.output == ["a done"] * 4
        assert len(LEDGER) == len(set(LEDGER)) == 4

    def test_that_were_there_are_in_doubt_themselves(self, h: Harness) -> None:
        @workflow(name="doubt.member")
        def member(ctx: Context, number: int) -> str:
            ctx.sleep("nap", "1 minute")
            return ctx.step("a", do)

        @workflow(name="doubt.whole")
        def whole(ctx: Context) -> list[str]:
            return list(ctx.map("all", member, [(1,), (2,), (3,)], at_once=2).outputs)

        run = whole.start()
        h.settle()
        backup = Backup(h)
        h.advance("1 minute")
        h.settle()
        assert len(LEDGER) == 2
        backup.restore()
        h.put_in_doubt()
        h.settle()
        children = [f"{run.id}:all:{number}" for number in range(3)]
        assert [len(h.held(each)) for each in children] == [1, 1, 0], "two have places, which the third waits for"


def test_a_second_restore_puts_all_in_doubt_again(h: Harness) -> None:
    def code(ctx: Context) -> list[str]:
        first = ctx.step("a", do, **ASKED)
        ctx.queue.next("go")
        return [first, ctx.step("b", do)]

    run = h.start(code)
    h.put_in_doubt()
    h.settle()
    h.advance("1 hour")
    h.put_in_doubt()
    h.send(run, "go")
    h.settle()
    assert [each.location for each in h.held(run)] == ["b"]


@pytest.mark.parametrize("is_open", [True, False], ids=["before the decision", "after the decision"])
def test_a_failed_run_that_was_recovered_in_the_lost_time_is_in_doubt_if_it_is_recovered_again(
    h: Harness, is_open: bool
) -> None:
    fails = [True]

    def fail_once() -> str:
        if fails[0]:
            raise CriticalError
        return do()

    run = h.start(lambda ctx: ctx.step("a", fail_once))
    h.settle()
    backup = Backup(h)
    fails[0] = False
    run.recover()
    h.settle()
    backup.restore()
    assert (run.state, len(LEDGER)) == ("failed", 1)
    if is_open:
        run.recover()
    h.put_in_doubt()
    if not is_open:
        run.recover()
    h.settle()
    assert [each.location for each in h.held(run)] == (["a"] if is_open else [])
    assert len(LEDGER) == (1 if is_open else 2)


def test_verify_of_a_step_that_a_replay_has_copied_is_asked_by_the_key_of_the_attempt(h: Harness) -> None:
    """The new run has keys of its own, which the other side has never seen: it would say that nothing was done."""
    fails = [True]

    def lost() -> str:
        do()
        raise TimeoutError

    def other() -> str:
        if fails[0]:
            raise ConnectionError
        return "other done"

    def code(ctx: Context) -> dict[str, Any]:
        return ctx.join(
            "all",
            {
                "pay": lambda at: at.step("a", lost, **ASKED),
                "book": lambda at: at.step("b", other, max_retries=0, when_exhausted="hold"),
            },
        )

    KNOWN[0] = False
    run = h.start(code)
    h.settle()
    KNOWN[0], fails[0] = True, False
    again = run.replay("all/book/b")
    h.settle()
    assert [each.location for each in h.held(again)] == ["all/pay/a"]
    again.recover()
    h.settle()
    assert again.output == {"pay": "all/pay/a done", "book": "other done"}
    assert len(LEDGER) == 1
