"""With bound payloads a value is read where it was recorded and nowhere else; what durable copies itself can be read.

`Tables` plays an attacker who can write to the tables: it puts one row's ciphertext into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from cryptography.fernet import Fernet
from django.core.management import call_command
from django.test import Client

import durable
from durable import Break, Context, Continue, Handle, RollbackContext, event, get_run, operations, runtime, workflow
from durable.context import AsyncContext
from durable.core.places import Place
from durable.crypto import FernetCodec
from durable.errors import EventConflictError, PayloadError
from durable.models import Entry, Event, QueueMessage, Run
from durable.operations import events
from durable.runtime import Runtime
from durable.store.memory import MemoryStore
from tests.support.stores import in_force, passed

KEY, NEW_KEY = Fernet.generate_key(), Fernet.generate_key()
CALLS: list[Any] = []
MORE = "more/of %"  # a name that is escaped in locations and rows


def do(name: Any) -> Any:
    CALLS.append(name)
    return name


def undo(context: RollbackContext, output: Any) -> None:
    CALLS.append(["undone", *context.args, output])


def turn(ctx: Context, total: int) -> Break | Continue:
    message = ctx.queue.next(MORE, completable=True)
    message.complete(["thanks", message.body])
    ctx.step("add", do, message.body)
    return Break(total + message.body) if message.body == 0 else Continue(total + message.body)


@workflow(name="tests.bound.order")
def order(ctx: Context, number: int) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", do, f"charge {number}", rollback=undo)
    ctx.step("check", do, f"check {number}")
    ctx.join(
        "both",
        {
            "left": lambda scope: scope.step("l", do, f"left {number}"),
            "right": lambda scope: scope.step("r", do, f"right {number}"),
        },
    )
    first = ctx.queue.next("first").body
    total = ctx.loop("items", turn, state=number * 10, history_prune_interval=2, history_size=1)
    ctx.queue.send("note", total)
    ctx.step("close", do, f"close {number}")
    return [first, total, ctx.queue.next("note").body]


@workflow(name="tests.bound.asynchronous")
async def asynchronous(ctx: AsyncContext, number: int) -> Any:
    await ctx.step("charge", do, f"charge {number}")
    first = (await ctx.queue.next("first")).body
    await ctx.step("close", do, f"close {number}")
    return [first, number]


@workflow(name="tests.bound.label")
def label(ctx: Context, number: int) -> Any:
    return {"secret label": ctx.step("buy", do, f"label {number}")}


@workflow(name="tests.bound.parent")
def parent(ctx: Context, number: int) -> Any:
    sent = ctx.start_child("sent", label, number + 1)
    called = ctx.child("called", label, number)
    waited = sent.result("waited")
    ctx.step("close", do, f"close {number}")
    return [called, waited]


@workflow(name="tests.bound.mapping")
def mapping(ctx: Context, number: int) -> Any:
    found = ctx.map("labels", label, [(number + each,) for each in range(3)], at_once=2)
    ctx.step("close", do, f"close {number}")
    return found.outputs


def codec(bind: str, *keys: bytes) -> FernetCodec:
    return FernetCodec(keys=keys or [KEY], bind=bind)


@pytest.fixture(params=["memory", "database"])
def base(request: pytest.FixtureRequest, db: None) -> Iterator[Runtime]:
    CALLS.clear()
    with in_force() as at:
        yield replace(at, store=MemoryStore()) if request.param == "memory" else at


@pytest.fixture
def at(base: Runtime) -> Iterator[Runtime]:
    yield from _using(base, codec("require"))


def _using(base: Runtime, chosen: Any) -> Iterator[Runtime]:
    at = replace(base, codec=chosen, divergence_grace=0, short_sleep=0)
    runtime.activate(at)
    yield at
    runtime.deactivate(at)


@dataclass
class Tables:
    """Reads and writes the columns of the tables, whatever the store."""

    at: Runtime

    def read(self, row: Row) -> Any:
        found = self._found(row)
        return getattr(found, row.column)

    def write(self, row: Row, value: Any) -> None:
        if not isinstance(self.at.store, MemoryStore):
            found = self._found(row)
            type(found)._default_manager.filter(pk=found.pk).update(**{row.column: value})
            return
        changed = replace(self._found(row), **{row.column: value})
        if row.message:
            self.at.store._messages[row.message] = changed
        elif row.location:
            self.at.store._entries[row.run_id][row.location] = changed
        else:
            self.at.store._runs[row.run_id] = changed

    def _found(self, row: Row) -> Any:
        store = self.at.store
        if isinstance(store, MemoryStore):
            if row.message:
                return store._messages[row.message]
            return store._entries[row.run_id][row.location] if row.location else store._runs[row.run_id]
        if row.message:
            return QueueMessage.objects.get(pk=row.message)
        if row.location:
            return Entry.objects.get(run_id=row.run_id, location=row.location)
        return Run.objects.get(pk=row.run_id)


@dataclass(frozen=True)
class Row:
    run_id: str
    column: str
    location: str = ""
    message: str = ""


def drive(at: Runtime, run: Handle) -> None:
    """Pass the run until it waits or ends."""
    passed(at, run.id)


def waiting(at: Runtime, number: int) -> Handle:
    """A run in the second iteration of its loop."""
    run = order.using(id=f"order-{number}").start(number)
    run.send("first", f"first {number}")
    run.send(MORE, number)
    drive(at, run)
    assert run.waiting_for == [MORE]
    CALLS.clear()
    return run


def finished(at: Runtime, number: int) -> Handle:
    run = waiting(at, number)
    run.send(MORE, 0)
    drive(at, run)
    assert run.output == [f"first {number}", number * 11, number * 11]
    CALLS.clear()
    return run


def entry(run: Handle, location: str, column: str = "output") -> Row:
    return Row(run.id, column, location)


def whole(location: str, column: str = "output", within: str = "") -> Callable[[Tables, Handle, Handle], None]:
    """A swap of a column of the entry at `location` for that of the other run, or, with `within`, of another entry."""

    def swap(tables: Tables, run: Handle, other: Handle) -> None:
        source = entry(run, within, column) if within else entry(other, location, column)
        assert tables.read(source)
        tables.write(entry(run, location, column), tables.read(source))

    return swap


def inside(location: str, change: Callable[[Any, Any], None]) -> Callable[[Tables, Handle, Handle], None]:
    """A swap of something in the data of the entry at `location`."""

    def swap(tables: Tables, run: Handle, other: Handle) -> None:
        mine, others = (tables.read(entry(each, location, "data")) for each in (run, other))
        mine = {**mine, "received": [dict(each) for each in mine.get("received", ())]}
        change(mine, others)
        tables.write(entry(run, location, "data"), mine)

    return swap


def _put_left(mine: Any, branch: Any) -> None:
    mine["branches"] = {**mine["branches"], "left": branch}


Swap = Callable[[Tables, Handle, Handle], None]
SWAPS: dict[str, Swap] = {
    "input": lambda tables, run, other: tables.write(Row(run.id, "input"), tables.read(Row(other.id, "input"))),
    "step output": whole("charge"),
    "step output within the run": whole("charge", within="check"),
    "step output of a branch for a step": whole("check", within="both/left/l"),
    "arguments for an output": lambda tables, run, other: tables.write(
        entry(run, "charge"), tables.read(entry(run, "charge", "arguments"))
    ),
    "loop state": inside("items", lambda mine, others: mine.update(state=others["state"])),
    "branch output": inside("both", lambda mine, others: _put_left(mine, others["branches"]["left"])),
    "branch output within the run": inside("both", lambda mine, _others: _put_left(mine, mine["branches"]["right"])),
    "received body": inside(
        "first", lambda mine, others: mine["received"][0].update(body=others["received"][0]["body"])
    ),
    "received message": inside("first", lambda mine, others: mine.update(received=others["received"])),
}


def assert_stopped(run: Handle) -> None:
    """The run has failed because of a swapped value, before anything was executed."""
    assert (CALLS, run.state) == ([], "failed")
    assert "belongs to another row or field" in str(run.error)


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_a_swapped_value_stops_the_run_before_anything_is_executed(at: Runtime, swap: Swap) -> None:
    run, other = waiting(at, 1), waiting(at, 2)
    swap(Tables(at), run, other)
    run.send(MORE, 0)
    drive(at, run)
    assert_stopped(run)
    other.send(MORE, 0)
    drive(at, other)
    assert other.output == ["first 2", 22, 22]


@pytest.mark.parametrize("is_within", [False, True])
def test_a_swapped_body_in_the_inbox_stops_the_run(at: Runtime, *, is_within: bool) -> None:
    run, other = waiting(at, 1), waiting(at, 2)
    mine = operations.send(run.id, MORE, 7).id
    others = operations.send(run.id if is_within else other.id, MORE, 0).id
    tables = Tables(at)
    tables.write(Row(run.id, "body", message=mine), tables.read(Row(run.id, "body", message=others)))
    drive(at, run)
    assert_stopped(run)


def test_a_message_that_was_moved_to_another_run_or_queue_stops_it(at: Runtime) -> None:
    run = waiting(at, 1)
    moved = operations.send(run.id, "elsewhere", 0).id
    Tables(at).write(Row(run.id, "queue", message=moved), MORE)
    drive(at, run)
    assert_stopped(run)


def test_a_swapped_output_is_not_shown(at: Runtime) -> None:
    run, other = finished(at, 1), finished(at, 2)
    tables = Tables(at)
    tables.write(Row(run.id, "output"), tables.read(Row(other.id, "output")))
    ways: tuple[Callable[[], Any], ...] = (lambda: run.output, lambda: run.result(0), lambda: run.info().output)
    for shown in ways:
        with pytest.raises(PayloadError, match="belongs to another row or field"):
            shown()
    tables.write(Row(run.id, "output"), tables.read(Row(run.id, "input")))
    with pytest.raises(PayloadError, match="belongs to another row or field"):
        run.result(0)
    whole("close")(Tables(at), run, other)
    with pytest.raises(PayloadError, match="belongs to another row or field"):
        run.history()


def test_a_swapped_response_is_not_given(at: Runtime) -> None:
    run, other = waiting(at, 1), waiting(at, 2)
    mine, others = (operations.send(each.id, MORE, 3, idempotency_id="ask").id for each in (run, other))
    for each in (run, other):
        drive(at, each)
    assert run.ask(MORE, 3, timeout=0, id="ask") == ["thanks", 3]
    tables = Tables(at)
    tables.write(Row(run.id, "response", message=mine), tables.read(Row(run.id, "response", message=others)))
    with pytest.raises(PayloadError, match="belongs to another row or field"):
        run.ask(MORE, 3, timeout=0, id="ask")


@pytest.mark.parametrize("column", ["arguments", "output"])
def test_a_handler_is_not_called_with_swapped_values(at: Runtime, column: str) -> None:
    run, other = waiting(at, 1), waiting(at, 2)
    whole("charge", column)(Tables(at), run, other)
    for each in (run, other):
        each.cancel(rollback=True)
        drive(at, each)
    assert CALLS == [["undone", "charge 2", "charge 2"]]
    assert other.state == "cancelled"


@pytest.mark.parametrize(
    ("swap", "copy"),
    [
        (SWAPS["input"], lambda run: run.restart()),
        (SWAPS["input"], lambda run: run.replay("close")),
        (whole("charge"), lambda run: run.replay("close")),
        (whole("items"), lambda run: run.replay("close")),
    ],
    ids=["the input, by a restart", "the input, by a replay", "a step", "a loop"],
)
def test_what_was_swapped_is_not_copied(at: Runtime, swap: Swap, copy: Callable[[Handle], object]) -> None:
    run, other = finished(at, 1), finished(at, 2)
    swap(Tables(at), run, other)
    with pytest.raises(PayloadError, match="belongs to another row or field"):
        copy(run)


# -- what operators see


@pytest.fixture
def shown(db: None) -> Iterator[Runtime]:
    CALLS.clear()
    with in_force() as at:
        yield from _using(at, codec("require"))


PAGES = (
    "/admin/durable/run/order-1/change/",
    "/admin/durable/run/order-1/export/",
    "/admin/durable/run/order-1/step/?at=charge",
    "/admin/durable/run/order-1/step/?at=both",
    "/admin/durable/run/order-1/step/?at=items",
    "/admin/durable/run/order-1/step/?at=first",
    "/admin/durable/run/order-1/step/?at=send~0",
    "/api/runs/order-1?expand=input,output",
    "/api/runs/order-1/result",
    "/api/runs/order-1/entries?payloads=true",
    "/api/runs/order-1/messages",
    "durable show order-1",
    "durable show order-1 --payloads",
    "durable result order-1",
)


def _page(client: Client, address: str) -> str:
    if address.startswith("durable "):
        out = StringIO()
        call_command(*address.split(), stdout=out)
        return out.getvalue()
    response = client.get(address)
    assert response.status_code == 200, address
    return response.getvalue().decode()


def test_operators_see_values_where_they_belong(shown: Runtime, admin_client: Client) -> None:
    run = finished(shown, 1)
    replayed = run.replay("close")
    drive(shown, replayed)
    for each in (run, replayed):
        for address in PAGES:
            page = _page(admin_client, address.replace("order-1", each.id))
            assert "unreadable" not in page, address
            assert "belongs to another" not in page, address
    assert "charge 1" in _page(admin_client, PAGES[1])
    assert "first 1" in _page(admin_client, PAGES[9])


def test_operators_see_that_a_value_was_moved(shown: Runtime, admin_client: Client) -> None:
    run, other = finished(shown, 1), finished(shown, 2)
    tables = Tables(shown)
    whole("charge")(tables, run, other)
    tables.write(Row(run.id, "input"), tables.read(Row(other.id, "input")))
    for address in (PAGES[1], PAGES[2], PAGES[7], PAGES[9]):
        page = _page(admin_client, address)
        assert "belongs to another row or field" in page, address
        assert "charge 2" not in page


# -- durable's own copies


def test_a_restart_has_the_input(at: Runtime) -> None:
    assert began_again(at, finished(at, 1).restart()) == ["again", 10, 10]


def test_a_replay_as_a_new_run_reads_the_history_that_it_keeps(at: Runtime) -> None:
    run = finished(at, 1)
    again = run.replay("close")
    assert _values(run, "close") == _values(again, "close")
    drive(at, again)
    assert again.output == run.output
    assert CALLS == ["close 1"]
    third = again.replay("close")
    drive(at, third)
    assert third.output == run.output


def test_a_replay_of_a_run_in_its_loop_keeps_messages_and_responses(at: Runtime) -> None:
    run = waiting(at, 1)
    sent = operations.send(run.id, "unread", {"a": 1}).id
    again = run.replay("first")
    drive(at, again)
    assert again.waiting_for == [MORE]
    again.send(MORE, 0)
    drive(at, again)
    assert again.output == run_to_end(at, run)
    bodies = [
        at.decode(each.body, Place(again.id, "message", f"{len(each.id)}:{each.id}/{each.queue}"))
        for each in at.store.messages(again.id)
    ]
    assert {"a": 1} in bodies
    assert sent not in {each.id for each in at.store.messages(again.id)}


@workflow(name="tests.bound.refuse")
def refuse(ctx: Context) -> None:
    ctx.queue.next("order", completable=True).refuse("out of stock")
    ctx.step("close", do, "close")


def test_a_replay_as_a_new_run_reads_why_a_message_was_refused(at: Runtime) -> None:
    run = refuse.using(id="refusing").start()
    run.send("order", 1)
    drive(at, run)
    again = run.replay("close")
    drive(at, again)
    for each in (run, again):
        assert each.state == "completed"
        assert each.history()[0].data["received"][0]["refused"] == "out of stock"
        (message,) = at.store.messages(each.id)
        place = Place(each.id, "response", f"{len(message.id)}:{message.id}/{message.queue}")
        assert (message.state, at.decode(message.response, place)) == ("refused", "out of stock")


def began_again(at: Runtime, again: Handle) -> Any:
    """The output of a restarted run that gets another first message, and no number."""
    again.send("first", "again")
    return run_to_end(at, again)


def run_to_end(at: Runtime, run: Handle) -> Any:
    run.send(MORE, 0)
    drive(at, run)
    return run.output


def _values(run: Handle, before: str) -> list[Any]:
    shown = []
    for each in run.history():
        if each.location == before:
            break
        data = {**each.data, "received": [{**one, "id": ""} for one in each.data.get("received", ())]}
        shown.append((each.location, {**data, "to": "", "message_id": ""}))
    return shown


def test_replays_in_place_and_recoveries_read_what_stays(at: Runtime) -> None:
    run = finished(at, 1)
    run.replay("close", in_place=True)
    drive(at, run)
    assert (run.state, CALLS) == ("completed", ["close 1"])
    CALLS.clear()
    other = waiting(at, 2)
    whole("check")(Tables(at), other, run)
    good = at.store.history(other.id)
    other.send(MORE, 0)
    drive(at, other)
    assert other.state == "failed"
    [check] = [each for each in good if each.location == "check"]
    token = at.encode("check 2", "the output", Place(other.id, "output", "check"))
    assert check.output != token
    Tables(at).write(entry(other, "check"), token)
    other.recover()
    drive(at, other)
    assert other.output == ["first 2", 22, 22]


def test_starting_and_sending_again_compare_values(at: Runtime) -> None:
    first = order.using(id="same").start(1)
    assert order.using(id="same").start(1).id == first.id
    sent = operations.send(first.id, "first", {"a": 1}, idempotency_id="m")
    assert operations.send(first.id, "first", {"a": 1}, idempotency_id="m") == (sent.id, False)


def test_async_workflows_and_calls(at: Runtime) -> None:
    run, other = asynchronous.using(id="a").start(1), asynchronous.using(id="b").start(2)
    for each in (run, other):
        drive(at, each)
    whole("charge")(Tables(at), run, other)
    CALLS.clear()
    for each in (run, other):
        each.send("first", "x")
        drive(at, each)
    assert (CALLS, run.state) == (["close 2"], "failed")
    assert async_to_sync(get_run(other.id).aresult)(0) == ["x", 2]


# -- outputs of children


def family(at: Runtime, number: int, *, is_read: bool = True) -> Handle:
    """A parent whose children have completed; it has read their outputs unless that is for later."""
    run = parent.using(id=f"parent-{number}").start(number)
    drive(at, run)
    for child in run.children():
        drive(at, child)
    drive(at, run)  # the second wait begins where the first has ended
    if is_read and run.state == "sleeping":
        drive(at, run)
    return run


def test_a_parent_reads_the_outputs_of_its_children(at: Runtime) -> None:
    run = family(at, 1)
    assert run.output == [{"secret label": "label 1"}, {"secret label": "label 2"}]
    outputs = {each.location: each.data.get("output") for each in run.history()}
    assert (outputs["called"], outputs["waited"]) == ({"secret label": "label 1"}, {"secret label": "label 2"})
    recorded = Tables(at).read(entry(run, "called"))
    assert "secret" not in recorded
    assert recorded != Tables(at).read(Row(f"{run.id}:called", "output")), "it is bound to its place in the parent"


def test_what_is_copied_of_a_childs_output_can_be_read(at: Runtime) -> None:
    run = family(at, 1)
    CALLS.clear()
    again = run.replay("close")
    drive(at, again)
    assert again.output == run.output
    assert CALLS == ["close 1"]
    assert _values(again, "called") == _values(run, "called")
    run.replay("close", in_place=True)
    drive(at, run)
    assert run.output == again.output


def test_a_swapped_output_of_a_child_is_not_given_to_its_parent(at: Runtime) -> None:
    run, other = (parent.using(id=f"parent-{number}").start(number) for number in (1, 2))
    tables = Tables(at)
    for each in (run, other):
        drive(at, each)
        for child in each.children():
            drive(at, child)
    CALLS.clear()
    tables.write(Row(f"{run.id}:called", "output"), tables.read(Row(f"{other.id}:called", "output")))
    drive(at, run)
    assert_stopped(run)


@pytest.mark.parametrize("swap", [whole("called"), whole("called", within="waited"), whole("waited")])
def test_a_swapped_record_of_a_childs_output_stops_the_parent(at: Runtime, swap: Swap) -> None:
    run, other = family(at, 1), family(at, 2)
    CALLS.clear()
    run.replay("close", in_place=True)
    swap(Tables(at), run, other)
    drive(at, run)
    assert_stopped(run)


def mapped(at: Runtime, number: int) -> Handle:
    """A parent whose children of a map have completed, each when it was due; it has not read them yet."""
    run = mapping.using(id=f"mapping-{number}").start(number)
    drive(at, run)
    while due := [each for each in run.children() if each.state == "pending"]:
        drive(at, due[0])
    assert {each.state for each in run.children()} == {"completed"}
    CALLS.clear()
    return run


def test_a_parent_reads_the_outputs_of_a_map_and_so_do_its_copies(at: Runtime) -> None:
    run = mapped(at, 1)
    drive(at, run)
    expected = [{"secret label": f"label {number}"} for number in (1, 2, 3)]
    assert run.output == expected
    again = run.replay("close")
    drive(at, again)
    assert again.output == expected
    assert CALLS == ["close 1", "close 1"]
    assert _values(again, "labels") == _values(run, "labels")


def test_a_swapped_output_of_a_map_stops_the_parent(at: Runtime) -> None:
    run, other = mapped(at, 1), mapped(at, 10)
    tables = Tables(at)
    first, others = run.children()[0], other.children()[0]
    tables.write(Row(first.id, "output"), tables.read(Row(others.id, "output")))
    drive(at, run)
    assert_stopped(run)


# -- events


@workflow(name="tests.bound.paid")
def paid(ctx: Context) -> Any:
    body = ctx.event("paid", "tests.bound.paid", key="7", within="1 hour")
    ctx.step("close", do, body)
    return body


@workflow(name="tests.bound.receipt", on=event("tests.bound.receipt"))
def receipt(ctx: Context, body: Any) -> Any:
    return ctx.step("print", do, body)


def _swap_bodies(at: Runtime, first: str, second: str) -> None:
    """Give the first event the body of the second one."""
    if isinstance(at.store, MemoryStore):
        events = {each.id: each for each in at.store._events}
        at.store._change_event(events[first], body=events[second].body)
        return
    Event.objects.filter(event_id=first).update(body=Event.objects.get(event_id=second).body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_event_is_read_by_the_run_that_gets_it_and_by_its_copies(at: Runtime, when: str) -> None:
    run = paid.using(id="paid").start()
    if when == "after":
        drive(at, run)
    durable.publish("tests.bound.paid", {"secret": 1}, key="7", id="a")
    drive(at, run)
    assert run.output == {"secret": 1}
    copies = [run.replay("close"), run.replay("paid")]
    for each in copies:
        drive(at, each)
    assert [each.output for each in copies] == [{"secret": 1}] * 2
    assert CALLS == [{"secret": 1}] * 3


def test_a_replay_in_place_gets_a_bound_event_again(at: Runtime) -> None:
    run = paid.using(id="paid").start()
    drive(at, run)
    durable.publish("tests.bound.paid", 1, key="7")
    drive(at, run)
    run.replay("paid", in_place=True)
    drive(at, run)
    assert (run.output, CALLS) == (1, [1, 1])


def test_an_event_starts_a_run_whose_input_is_its_own(at: Runtime) -> None:
    for _ in range(2):
        published = durable.publish("tests.bound.receipt", {"a": 1, "b": 2}, key="7", id="a")
    assert published == ("a", False), "the bodies have been compared"
    with pytest.raises(EventConflictError, match="another body"):
        durable.publish("tests.bound.receipt", {"a": 1}, key="7", id="a")
    run = get_run("tests.bound.receipt:a")
    drive(at, run)
    assert run.output == {"a": 1, "b": 2}


def test_a_swapped_body_of_an_event_is_given_to_nobody(at: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    durable.publish("tests.bound.paid", 1, key="7", id="a")
    durable.publish("tests.bound.paid", 2, key="8", id="b")
    _swap_bodies(at, "a", "b")
    run = paid.using(id="paid").start()
    drive(at, run)
    assert (CALLS, run.state) == ([], "failed")
    assert run.error is not None
    assert "belongs to another row or field than the event" in run.error.message
    with pytest.raises(PayloadError, match="belongs to another row or field"):
        durable.publish("tests.bound.paid", 1, key="7", id="a")


def test_a_swapped_body_is_left_to_nobody_by_the_sweep(
    at: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = paid.using(id="paid").start()
    drive(at, run)
    monkeypatch.setattr(events, "_deliver_safely", lambda *_: None)
    durable.publish("tests.bound.paid", 1, key="7", id="a")
    durable.publish("tests.bound.paid", 2, key="8", id="b")
    _swap_bodies(at, "a", "b")
    assert events.deliver_open(60.0) == 0
    assert "cannot be given to the runs that wait" in caplog.text
    assert run.state == "sleeping"


@pytest.mark.parametrize(("first", "second"), [("off", "accept"), ("require", "off"), ("accept", "require")])
def test_an_event_outlives_a_change_of_binding(
    base: Runtime, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.setattr(events, "_deliver_safely", lambda *_: None)
    for at in _using(base, codec(first)):
        run = paid.using(id="paid").start()
        drive(at, run)
        durable.publish("tests.bound.paid", {"a": 1, "b": 2}, key="7", id="a")
    for at in _using(base, codec(second)):
        assert not durable.publish("tests.bound.paid", {"b": 2, "a": 1}, key="7", id="a").is_new
        assert events.deliver_open(60.0) == 1
        drive(at, run)
        assert run.output == {"a": 1, "b": 2}


# -- moving to it


def test_what_was_recorded_before_is_read_until_binding_is_required(base: Runtime) -> None:
    off, accept, require = codec("off"), codec("accept"), codec("require")
    for at in _using(base, off):
        run = waiting(at, 1)
    for at in _using(base, accept):
        again = run.restart()
        assert run_to_end(at, run) == ["first 1", 11, 11]
        replayed = run.replay("close")
        drive(at, replayed)
    for at in _using(base, require):
        assert [each.output for each in (run, replayed)] == [["first 1", 11, 11]] * 2  # written since
        with pytest.raises(PayloadError, match='"accept"'):
            run.history()
        with pytest.raises(PayloadError, match='"accept"'):
            run.restart()
        assert replayed.history()
        assert began_again(at, again) == ["again", 10, 10]


def test_binding_can_be_turned_off_again(base: Runtime) -> None:
    for at in _using(base, codec("require")):
        run = waiting(at, 1)
    for at in _using(base, codec("off")):
        run_to_end(at, run)
        assert run.output == ["first 1", 11, 11]
        copies = [run.restart(), run.replay("close")]
        drive(at, copies[1])
        assert copies[1].output == run.output
    for at in _using(base, codec("accept")):
        assert began_again(at, copies[0]) == ["again", 10, 10]
        assert copies[1].history()


def test_keys_rotate(base: Runtime) -> None:
    for at in _using(base, codec("require", KEY)):
        run = waiting(at, 1)
    for at in _using(base, codec("require", NEW_KEY, KEY)):
        assert run_to_end(at, run) == ["first 1", 11, 11]
        again = run.restart()
    for at in _using(base, codec("require", NEW_KEY)):
        assert began_again(at, again) == ["again", 10, 10]
