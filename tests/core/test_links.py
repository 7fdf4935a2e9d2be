"""`ctx.link`: an address that is answered once, and the wait for the answer."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from durable import Break, Continue, link_tokens
from durable.core.errors import TOKEN
from durable.core.links import Address, HiddenTokens, queue_of
from durable.errors import LinkAddressError, LinkTimeoutError, MessageTimeoutError
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of

JSON = {"Content-Type": "application/json"}


def never(_body: bytes, _headers: Any) -> bool:
    return False


def forgets(_body: bytes, _headers: Any) -> None:
    """A function that forgets to say what it found."""


def ordering(given: list[str], **options: Any) -> Any:
    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid", **options)
        await ctx.step("ask the bank", given.append, paid.url)
        return await paid.wait("the bank's answer")

    return order


def answer(h: Harness, url: str, value: Any = 7) -> int:
    return h.open_link(url, json.dumps(value).encode(), JSON).status_code


def links(h: Harness, run: Any) -> Any:
    return h._store.links(run.id)


# -- one answer


def test_an_answer_wakes_the_run_that_waits(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given, timeout="3 days")), id="order-1")
    parked = h.run(run)
    assert (parked.state, parked.wake_at) == ("sleeping", h.now + timedelta(days=3))
    assert given[0].startswith("http")
    assert TOKEN.search(given[0])
    assert h.run_due() == 0
    assert answer(h, given[0], {"paid": True}) == 200
    assert h.run_due() == 1
    assert run.output == {"paid": True}
    [link] = links(h, run)
    assert (link.location, link.generation, link.expires_at) == ("paid", 0, h.now + timedelta(days=3))
    assert link.used_at == h.now


def test_an_answer_may_come_before_the_wait(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        await ctx.sleep("rest", 60)
        return await paid.wait("answer", timeout=0)

    run = h.start(flavour(order))
    h.run(run)
    answer(h, given[0])
    assert h.finish(run).output == 7


def test_it_is_opened_once_whatever_crashes(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    def drive(harness: Harness, handle: Any) -> None:
        harness.settle()
        answer(harness, given[-1])
        harness.finish(handle)
        assert len(links(harness, handle)) == 1

    assert h.crash_everywhere(flavour(ordering(given, timeout="1 hour")), drive=drive) >= 6
    assert all(TOKEN.search(each) for each in given)


def test_a_crashed_pass_gives_the_same_address_again(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given)))
    with h.crash_at(2), pytest.raises(SimulatedCrash):  # before the step is recorded
        h.run(run)
    h.run(run)
    assert len(given) == 2
    assert given[0] == given[1]
    assert answer(h, given[0]) == 200


def test_a_repeat_gets_the_same_answer_and_does_nothing(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given)))
    h.run(run)
    first = h.open_link(given[0], b"1", JSON)
    again = h.open_link(given[0], b"2", JSON)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    h.settle()
    assert run.output == 1
    assert h.open_link(given[0], b"3", JSON).content == first.content, "after the end of the run too"
    assert len(h._store.messages(run.id)) == 1


def test_a_second_wait_gets_no_second_answer(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        first = await paid.wait("first")
        try:
            return first, await paid.wait("second", timeout=60)
        except LinkTimeoutError:
            return first, "none"

    run = h.start(flavour(order))
    h.run(run)
    answer(h, given[0])
    assert h.finish(run).output == (7, "none")


# -- the end


def test_when_nobody_answers_it_raises_and_the_link_is_closed(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    caught: list[tuple[str, str]] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid", timeout="3 days")
        await ctx.step("ask", given.append, paid.url)
        try:
            await paid.wait("answer")
        except LinkTimeoutError as error:
            caught.append((error.wait, error.link))
        await ctx.sleep("rest", 60)
        return "gone on"

    run = h.start(flavour(order))
    h.run(run)
    h.advance("3 days")
    h.settle()
    assert answer(h, given[0]) == 410
    assert links(h, run)[0].closed_at == h.now
    assert h.finish(run).output == "gone on"
    assert caught == [("answer", "paid")] * 2, "replayed too"
    assert not issubclass(LinkTimeoutError, MessageTimeoutError)


def test_a_run_that_does_not_catch_it_fails_with_it(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(ordering([], timeout="3 days")))
    check_failed(h.finish(run), "LinkTimeoutError")


def test_an_answer_in_time_counts_however_late_the_worker_is(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given, timeout=60)))
    h.run(run)
    h.advance(59)
    answer(h, given[0])
    h.advance("1 day")
    assert h.run(run).output == 7


def test_an_answer_that_comes_while_the_wait_ends_is_not_lost(
    h: Harness, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is behind accepts an answer after the pass has looked and before it has closed the link."""
    given: list[str] = []
    run = h.start(flavour(ordering(given, timeout=60)))
    h.run(run)
    inbox = h._store.inbox
    looks: list[int] = []

    def look(*args: Any) -> Any:
        looks.append(1)
        found = inbox(*args)
        if len(looks) == 1:
            moment, h._now = h._now, h._now - timedelta(seconds=30)
            assert answer(h, given[0]) == 200
            h._now = moment
        return found

    h.advance(61)
    monkeypatch.setattr(h._store, "inbox", look)
    assert h.run(run).output == 7


def test_the_wait_may_end_before_the_link(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid", timeout="3 days")
        await ctx.step("ask", given.append, paid.url)
        try:
            return await paid.wait("first", timeout="1 hour")
        except LinkTimeoutError:
            return "later", await paid.wait("second")

    run = h.start(flavour(order))
    h.run(run)
    h.advance("2 hours")
    h.settle()
    assert answer(h, given[0]) == 200
    h.settle()
    assert run.output == ("later", 7)


def test_after_the_end_of_the_run_an_answer_is_late(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)

    run = h.start(flavour(order))
    h.finish(run)
    assert answer(h, given[0]) == 410
    waiting = h.start(flavour(ordering(given)))
    h.run(waiting)
    waiting.cancel("changed my mind")
    assert answer(h, given[-1]) == 410


def test_a_wait_for_any_queue_does_not_get_the_answer_of_a_link(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        other = await ctx.queue.next("any", names=[])
        return other.body, await paid.wait("answer")

    run = h.start(flavour(order))
    h.run(run)
    answer(h, given[0])
    h.settle()
    h.send(run, "news", "hello")
    h.settle()
    assert run.output == ("hello", 7)


def test_a_run_may_wait_for_any_queue_and_a_link_at_once(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        unused = await ctx.link("unused")
        await ctx.step("ask", given.extend, [paid.url, unused.url])

        async def answers(ctx: Any) -> Any:
            return await paid.wait("answer")

        async def messages(ctx: Any) -> Any:
            return (await ctx.queue.next("any", names=[])).body

        return await ctx.join("both", {"link": answers, "message": messages})

    run = h.start(flavour(order))
    assert h.run(run).waiting_for == []
    answer(h, given[1])
    assert h.run_due() == 0, "nobody waits for this one"
    answer(h, given[0])
    assert h.run_due() == 1
    h.send(run, "news", "hello")
    h.settle()
    assert run.output == {"link": 7, "message": "hello"}


def test_nothing_else_reaches_the_queue_of_a_link(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given)))
    assert h.run(run).waiting_for is None, "no message"
    with pytest.raises(ValueError, match="POST to its address"):
        h.send(run, links(h, run)[0].queue, "forged")
    with pytest.raises(ValueError, match="POST to its address"):
        h.send(run, queue_of("0" * 16, "paid"), "forged")


# -- where it may stand


def test_in_iterations_branches_and_blocks(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        async def round_(ctx: Any, number: int) -> Any:
            paid = await ctx.link("pa/id ☂", timeout="1 hour")
            await ctx.step("ask", given.append, paid.url)

            async def waits(ctx: Any) -> Any:
                return await paid.wait("answer")

            async def rests(ctx: Any) -> Any:
                await ctx.sleep("rest", "2 hours")

            async def block(ctx: Any) -> Any:
                both = await ctx.race("race", {"answer": waits, "rest": rests})
                return both.value

            value = (await ctx.try_block("block", block)).value
            return Break(value) if number else Continue(number + 1)

        return await ctx.loop("rounds", round_, state=0)

    run = h.start(flavour(order))
    h.settle()
    answer(h, given[0], "a")
    h.settle()
    answer(h, given[1], "b")
    h.settle()
    assert run.output == "b"
    assert [each.location for each in links(h, run)] == ["rounds/~0/pa%2Fid ☂", "rounds/~1/pa%2Fid ☂"]


# -- going back


def failing_once(given: list[str], fails: list[bool]) -> Any:
    async def order(ctx: Any) -> Any:
        await ctx.step("before", int)
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        value = await paid.wait("answer")
        if fails:
            fails.pop()
            raise OSError("broken")
        await ctx.step("ship", int)
        return value

    return order


def test_a_recovery_keeps_the_link_and_its_answer(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        await ctx.step("fail", fail, max_retries=0)
        return await paid.wait("answer")

    broken = [True]

    def fail() -> None:
        if broken:
            broken.pop()
            raise OSError

    run = h.start(flavour(order))
    assert h.run(run).state == "failed"
    assert answer(h, given[0]) == 410, "nobody waits"
    run.recover()
    h.settle()
    assert answer(h, given[0]) == 200
    h.settle()
    assert run.output == 7
    assert len(given) == 1


def test_a_replay_in_place_from_before_the_link_makes_its_address_dead(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(failing_once(given, [])))
    h.settle()
    answer(h, given[0], "old")
    h.settle()
    run.replay("before", in_place=True)
    h.settle()
    assert run.state == "sleeping", "the old answer is not the new link's"
    assert given[0] != given[1]
    repeated = answer(h, given[0], "again")
    assert repeated == 200, "it was used: a repeat gets the same answer"
    assert run.state == "sleeping"
    assert answer(h, given[1], "new") == 200
    h.settle()
    assert run.output == "new"
    assert [each.generation for each in links(h, run)] == [0, 1]


def test_an_unused_link_is_dead_after_a_replay_in_place(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(failing_once(given, [])))
    h.settle()
    run.pause()
    run.replay("before", in_place=True)
    assert answer(h, given[0]) == 410
    h.settle()
    assert answer(h, given[0]) == 410
    assert answer(h, given[1]) == 200


def test_a_replay_in_place_from_after_the_link_keeps_it(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(failing_once(given, [])))
    h.settle()
    answer(h, given[0], "first")
    h.settle()
    run.replay("answer", in_place=True)
    h.settle()
    assert run.output == "first", "the answer is received again"
    assert len(given) == 1


def test_a_replay_as_a_new_run_has_an_address_of_its_own(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(failing_once(given, [])))
    h.settle()
    run.pause()
    again = run.replay("ask")
    assert again.id != run.id
    h.settle()
    assert len(given) == 2
    assert given[0] != given[1]
    assert answer(h, given[1], "new") == 200
    h.settle()
    assert (again.output, run.state) == ("new", "paused")
    assert [each.run_id for each in links(h, again)] == [again.id]


def test_a_new_run_keeps_an_answer_that_was_received(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []
    run = h.start(flavour(failing_once(given, [])))
    h.settle()
    answer(h, given[0], "first")
    h.settle()
    for place in ("ship", "answer"):
        again = run.replay(place)
        h.settle()
        assert again.output == "first", place


# -- the token


def test_no_record_has_the_token(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        text = await ctx.step("write", lambda url: f"Pay at {url} please", paid.url)
        assert paid.url in text, "the run itself reads it whole"
        try:
            await ctx.step("fail", fail, paid.url, max_retries=0)
        except Exception as error:
            await ctx.step("tell", str, str(error))
        await ctx.sleep("rest", 60)
        raise OSError(f"no answer at {paid.url}")

    def fail(url: str) -> None:
        raise OSError(f"cannot reach {url}")

    run = h.start(flavour(order))
    h.finish(run)
    found = TOKEN.search(given[0])
    assert found is not None
    token = found.group()
    tables = repr(h._store._tables())
    assert token not in tables
    assert token[4:20] not in tables
    assert "dlk_hidden_" in tables
    assert "dlk_..." in tables


def test_a_child_and_a_message_get_the_address_itself(h: Harness, flavour: Flavour) -> None:
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        await ctx.queue.send("address", paid.url, to="other")
        return await paid.wait("answer")

    async def other(ctx: Any) -> Any:
        return (await ctx.queue.next("address")).body == given[0]

    waits = h.start(flavour(other), id="other")
    h.start(flavour(order))
    h.settle()
    assert waits.output is True


def asked_before_a_rotation(h: Harness, flavour: Flavour) -> tuple[Any, list[str]]:
    """Start a run that gives its link's address away with the old key, and again in its next pass. Return both."""
    given: list[str] = []

    async def order(ctx: Any) -> Any:
        paid = await ctx.link("paid")
        await ctx.step("ask", given.append, paid.url)
        await ctx.sleep("rest", 60)
        await ctx.step("ask again", given.append, paid.url)
        return await paid.wait("answer")

    with override_settings(SECRET_KEY="old", SECRET_KEY_FALLBACKS=[]):
        run = h.start(flavour(order))
        h.settle()
    h.advance(60)
    return run, given


def test_the_key_may_be_rotated_while_a_link_is_open(h: Harness, flavour: Flavour) -> None:
    run, given = asked_before_a_rotation(h, flavour)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"]):
        h.settle()
        assert given[0] == given[1]
        assert answer(h, given[0]) == 200
        h.settle()
        assert run.output == 7


def test_a_link_whose_key_is_gone_has_a_second_address_and_still_one_answer(h: Harness, flavour: Flavour) -> None:
    run, given = asked_before_a_rotation(h, flavour)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=[]):
        h.settle()
        assert given[0] != given[1]
        assert answer(h, given[0], "by the first") == 200
        assert answer(h, given[1], "by the second") == 200, "as a repeat"
        h.settle()
        assert run.output == "by the first"


def test_stand_ins_are_replaced_both_ways() -> None:
    hidden = HiddenTokens()
    token = "dlk_" + "a-_B" * 10 + "xyz"
    hidden.know("0" * 16, token)
    text = hidden.hide(f'["{token}", "x{token}"]')
    assert token not in text
    assert hidden.show(text) == f'["{token}", "x{token}"]'
    assert hidden.hide("dlk_ is no token") == "dlk_ is no token"


# -- mistakes


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        ("shop.nothing.here", "can be imported"),
        ("no path", "no path"),
        (7, "a function at the top level"),
        (lambda body, headers: True, "a function at the top level"),
    ],
)
def test_a_verify_that_nobody_can_import_stops_the_run(h: Harness, flavour: Flavour, verify: Any, message: str) -> None:
    run = h.start(flavour(ordering([], verify=verify)))
    assert message in error_of(h.run(run)).message


@pytest.mark.parametrize("verify", [never, f"{__name__}.never", f"{__name__}:never", f"{__name__}.forgets"])
def test_verify_decides_before_anything_is_stored(h: Harness, flavour: Flavour, verify: Any) -> None:
    given: list[str] = []
    run = h.start(flavour(ordering(given, verify=verify)))
    h.run(run)
    assert answer(h, given[0]) == 403
    assert h._store.messages(run.id) == []
    assert links(h, run)[0].used_at is None
    assert run.state == "sleeping"


def test_without_an_address_of_the_project_the_run_stops_and_goes_on_later(
    h: Harness, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = h.start(flavour(ordering([])))
    with monkeypatch.context() as patch:
        patch.setattr(link_tokens, "address", lambda *, in_test=False: Address(problem=link_tokens.NO_HOST))
        end = h.run(run)
    check_failed(end, LinkAddressError.__name__)
    run.recover()
    assert h.run(run).state == "sleeping"
