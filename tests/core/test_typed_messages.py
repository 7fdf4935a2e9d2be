"""Messages with types: `ctx.queue.next(name, of)`, and what a workflow declares by `@workflow(messages=...)`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from durable import QueueMessage, Workflow, get_run
from durable.core.records import MessageState
from durable.errors import MessageBodyError, MessageNotAcceptedError, MessageRefusedError, RaceError
from durable.testing import Harness
from tests.core.flavours import Flavour
from tests.core.typed_bodies import Approval, Profile
from tests.support.errors import check_failed, error_of


def declared(h: Harness, function: Any, name: str, **messages: Any) -> Workflow[Any, Any]:
    """A workflow that this harness knows alone."""
    definition: Workflow[Any, Any] = Workflow(function, name, messages=messages)
    h._local[name] = definition
    return definition


def states(h: Harness, run_id: str) -> list[str]:
    return [each.state for each in h._store.messages(run_id)]


# -- the type of a receive


@pytest.mark.parametrize("body", [{"by": 7}, Approval(7)])
def test_a_body_is_of_the_type_in_each_pass(h: Harness, flavour: Flavour, body: Any) -> None:
    seen: list[Any] = []

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("approved", Approval)
        seen.append(message.body)
        await ctx.sleep("cool off", "1 hour")
        batch = await ctx.queue.next_batch("more", of=Approval, names=["approved"], count=2)
        return [message.body.by, *(each.body.by for each in batch)]

    run = h.start(flavour(ship), id="run")
    h.send(run, "approved", body)
    h.send(run, "approved", {"by": 8})
    assert h.finish(run).output == [7, 8]
    assert len(seen) >= 2
    assert set(seen) == {Approval(7)}


def test_a_body_that_does_not_fit_is_an_ordinary_error_and_is_consumed(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        try:
            await ctx.queue.next("first", Approval, names=["approved"])
        except MessageBodyError as error:
            found = (error.queue, error.message_id, error.field, [str(each) for each in error.faults])
        await ctx.sleep("cool off", "1 hour")
        return [*found, (await ctx.queue.next("second", Approval, names=["approved"])).body.by]

    run = h.start(flavour(ship), id="run")
    bad = h.send(run, "approved", {"by": "seven"})
    h.send(run, "approved", {"by": 8})
    output = h.finish(run).output
    assert output == ["approved", bad, "by", ["by: expected a whole number, found text"], 8]
    assert states(h, "run") == [MessageState.RECEIVED, MessageState.RECEIVED]


def test_the_error_stays_whatever_the_type_has_become(lenient: Harness, flavour: Flavour) -> None:
    of: list[Any] = [Approval]

    async def ship(ctx: Any) -> Any:
        try:
            found = (await ctx.queue.next("approved", of[0])).body
        except MessageBodyError as error:
            found = error.field
        await ctx.sleep("cool off", "1 hour")
        return found

    run = lenient.start(flavour(ship), id="run")
    lenient.send(run, "approved", {"by": "seven"})
    lenient.run(run)
    of[0] = dict
    assert lenient.finish(run).output == "by"


def test_a_body_that_older_code_received_as_another_type_stops_the_run_whole(
    lenient: Harness, flavour: Flavour
) -> None:
    of: list[Any] = [None]

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("approved", of[0])
        await ctx.sleep("cool off", "1 hour")
        return str(message.body)

    run = lenient.start(flavour(ship), id="run")
    lenient.send(run, "approved", {"by": "seven"})
    assert lenient.run(run).state == "sleeping"
    of[0] = Approval
    check_failed(lenient.finish(run), "HistoryDivergedError", "by: expected a whole number, found text")
    of[0] = dict
    run.recover()
    assert lenient.finish(run).output == "{'by': 'seven'}"


def test_a_run_that_failed_of_it_receives_the_message_again_when_it_is_recovered(
    lenient: Harness, flavour: Flavour
) -> None:
    of: list[Any] = [Approval]

    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("approved", of[0])).body

    run = lenient.start(flavour(ship), id="run")
    lenient.send(run, "approved", {"by": "seven"})
    check_failed(lenient.finish(run), "MessageBodyError")
    of[0] = dict
    run.recover()
    assert lenient.finish(run).output == {"by": "seven"}


def test_a_batch_ends_before_a_body_that_does_not_fit(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        first = await ctx.queue.next_batch("first", Approval, names=["q"], count=5)
        try:
            await ctx.queue.next_batch("second", Approval, names=["q"], count=5)
        except MessageBodyError as error:
            bad = error.message_id
        third = await ctx.queue.next_batch("third", Approval, names=["q"], count=5)
        return [[each.body.by for each in first], bad, [each.body.by for each in third]]

    run = h.start(flavour(ship), id="run")
    for number in (1, 2):
        h.send(run, "q", {"by": number})
    bad = h.send(run, "q", {"by": "three"})
    for number in (4, 5):
        h.send(run, "q", {"by": number})
    assert h.finish(run).output == [[1, 2], bad, [4, 5]]


def test_each_message_is_received_once_whatever_crashes(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = []
        for number in range(3):
            try:
                found.append((await ctx.queue.next(f"wait {number}", Approval, names=["q"])).body.by)
            except MessageBodyError as error:
                found.append(error.field)
            await ctx.step(f"step {number}", lambda: 1)
        return found

    def drive(harness: Harness, handle: Any) -> None:
        for number, by in enumerate([1, "two", 3]):
            harness.send(handle, "q", {"by": by}, id=f"message {number}")
        harness.finish(handle)

    assert h.crash_everywhere(flavour(ship), drive=drive) >= 6


def test_branches_get_the_messages_behind_one_that_does_not_fit(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def receive(c: Any) -> Any:
            try:
                return [each.body.by for each in await c.queue.next_batch("wait", Approval, names=["q"], count=3)]
            except MessageBodyError as error:
                return error.field

        return await ctx.join("all", {"a": receive, "b": receive, "c": receive})

    run = h.start(flavour(ship), id="run")
    for by in (1, "two", 3):
        h.send(run, "q", {"by": by})
    assert h.finish(run).output == {"a": [1], "b": "by", "c": [3]}


def test_a_race_of_waits_that_fail_names_them(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def receive(c: Any) -> Any:
            return (await c.queue.next("approved", Approval)).body.by

        try:
            await ctx.race("first", {"a": receive})
        except RaceError as error:
            return error.errors["a"].type
        return None

    run = h.start(flavour(ship), id="run")
    h.send(run, "approved", 7)
    assert h.finish(run).output == "MessageBodyError"


def test_a_completable_message_that_does_not_fit_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        with suppress(MessageBodyError):
            await ctx.queue.next("quote", Approval, completable=True)
        message = await ctx.queue.next("again", Approval, names=["quote"], completable=True)
        await message.complete(message.body.by)
        return "done"

    run = h.start(flavour(ship), id="run")
    with pytest.raises(MessageRefusedError, match="by: expected a whole number, found text"):
        run.ask("quote", {"by": "seven"}, timeout=5)
    assert run.ask("quote", {"by": 8}, timeout=5) == 8
    assert states(h, "run") == [MessageState.REFUSED, MessageState.COMPLETED]


def test_queues_are_given_by_position_as_before(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        first = await ctx.queue.next("first", ["a", "b"], 60)
        batch = await ctx.queue.next_batch("batch", ("a",), 2, 60)
        return [first.body, *(each.body for each in batch)]

    run = h.start(flavour(ship), id="run")
    h.send(run, "b", 1)
    h.send(run, "a", 2)
    assert h.finish(run).output == [1, 2]


def test_what_is_no_type_is_refused_at_once(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour.calling(lambda ctx: ctx.queue.next("approved", of=object())), id="run")
    assert "is not a type that a message can have" in error_of(h.run(run)).message


def test_a_message_has_a_type_of_its_own() -> None:
    assert str(QueueMessage[Approval]).endswith("QueueMessage[tests.core.typed_bodies.Approval, NoneType]")


# -- what a workflow declares


def test_a_receive_without_a_type_has_the_declared_one(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        first = await ctx.queue.next("verdict", names=["approved", "rejected"])
        second = await ctx.queue.next("verdict 2", names=["approved", "rejected"])
        return [first.body, second.body]

    run = h.start(declared(h, flavour(ship), "tests.ship", approved=Approval, rejected=None), id="run")
    h.send(run, "approved", {"by": 7})
    h.send(run, "rejected")
    assert h.finish(run).output == [Approval(7), None]


@pytest.mark.parametrize(
    ("queue", "body", "expected"),
    [
        ("approvd", {"by": 7}, 'the workflow tests.ship accepts no message "approvd"; did you mean "approved"?'),
        ("zzz", {"by": 7}, 'the workflow tests.ship accepts no message "zzz"; it declares "approved", "profile"'),
        (
            "approved",
            {"by": "seven", "nte": ""},
            (
                'the workflow tests.ship accepts no such body of a message to "approved": by: expected a whole number, found text; '
                'nte: is not a field of Approval, did you mean "note"?'
            ),
        ),
    ],
)
def test_a_send_that_is_not_accepted_stores_nothing(
    h: Harness, flavour: Flavour, queue: str, body: Any, expected: str
) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.next("approved")

    run = h.start(declared(h, flavour(ship), "tests.ship", approved=Approval, profile=Profile), id="run")
    for send in (run.send, run.ask, lambda queue, body: h.send(run, queue, body)):
        with pytest.raises(MessageNotAcceptedError) as caught:
            send(queue, body)
        assert str(caught.value) == expected
    assert states(h, "run") == []
    run.send("profile", {"name": "Ada", "age": 36})
    assert h._store.messages("run")[0].body == '{"name":"Ada","age":36}'


def test_the_code_that_waits_for_an_undeclared_message_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.next("aproved")

    run = h.start(declared(h, flavour(ship), "tests.ship", approved=Approval), id="run")
    error = h.run(run).error
    assert error is not None
    assert 'the workflow declares no message "aproved"' in error.message
    assert 'did you mean "approved"?' in error.message


def test_a_wait_that_was_recorded_before_the_declaration_goes_on(lenient: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("verdict", names=["approved", "old"])).body

    run = lenient.start(declared(lenient, flavour(ship), "tests.ship", approved=Approval, old=object), id="run")
    lenient.run(run)
    lenient.send(run, "old", [1])
    declared(lenient, flavour(ship), "tests.ship", approved=Approval)
    assert lenient.finish(run).output == [1]


def test_a_process_that_does_not_know_the_workflow_stores_any_message(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        try:
            await ctx.queue.next("approved")
        except MessageBodyError as error:
            return error.field

    workflow = declared(h, flavour(ship), "tests.ship", approved=Approval)
    run = h.start(workflow, id="run")
    del h._local["tests.ship"]
    run.send("approved", {"by": "seven"})
    h._local["tests.ship"] = workflow
    assert h.finish(run).output == "by"


def test_sends_of_workflows_are_compared_too(h: Harness, flavour: Flavour) -> None:
    async def other(ctx: Any) -> Any:
        return (await ctx.queue.next("approved")).body.by

    async def ship(ctx: Any) -> Any:
        found: list[Any] = []
        for queue, body, to in [
            ("approvd", {"by": 1}, "other"),
            ("approved", {"by": "x"}, "other"),
            ("donne", 1, None),
            ("approved", {"by": 7}, "other"),
        ]:
            try:
                await ctx.queue.send(queue, body, to=to)
                found.append("sent")
            except MessageNotAcceptedError as error:
                found.append(error.nearest or error.faults[0].at)
            await ctx.sleep(f"{len(found)}", 60)
        return found

    h.start(declared(h, flavour(other), "tests.other", approved=Approval), id="other")
    run = h.start(declared(h, flavour(ship), "tests.ship", done=int), id="run")
    assert h.finish(run).output == [("approved",), "by", ("done",), "sent"]
    assert h.finish("other").output == 7
    assert states(h, "run") == []


def test_a_refused_send_is_tried_again_when_the_run_is_recovered(lenient: Harness, flavour: Flavour) -> None:
    body: list[Any] = ["seven"]

    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("approved", {"by": body[0]})
        return (await ctx.queue.next("approved")).body.by

    run = lenient.start(declared(lenient, flavour(ship), "tests.ship", approved=Approval), id="run")
    check_failed(lenient.finish(run), "MessageNotAcceptedError")
    body[0] = 7
    run.recover()
    assert lenient.finish(run).output == 7


def test_a_start_that_sends_starts_nothing_for_a_message_that_is_not_accepted(h: Harness, flavour: Flavour) -> None:
    workflow = declared(h, flavour.calling(lambda ctx: ctx.queue.next("approved")), "tests.ship", approved=Approval)
    with pytest.raises(MessageNotAcceptedError):
        workflow.using(id="run", key="k").start_or_send("approved", {"by": "seven"})
    with pytest.raises(Exception, match="there is no run"):
        get_run("run")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["approved"], "messages are names with the types of their bodies"),
        ({"approved": 3}, 'the message "approved" is declared as 3, and 3 is not a type that a message can have'),
        ({"approved": "Approval"}, "not a type that a message can have"),
    ],
)
def test_a_declaration_is_refused_where_it_is_made(messages: Any, expected: str) -> None:
    def ship(ctx: Any) -> None: ...

    with pytest.raises(TypeError, match=expected):
        Workflow(ship, "tests.ship", messages=messages)
