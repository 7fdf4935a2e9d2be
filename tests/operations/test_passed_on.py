"""Messages of `start_or_send` that a run has not received when it completes, in each store: another run gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.utils import timezone

from durable import CriticalError, Handle, runtime, workflow
from durable.core.errors import RunFailedError
from durable.core.places import of_message
from durable.core.records import Message
from durable.crypto import FernetCodec
from durable.inspection.explanation import explain_fully
from durable.inspection.findings import collect_findings
from durable.inspection.run_facts import key_note, key_of
from durable.inspection.workers import worker_overview
from durable.models import Run
from durable.store import Store
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.django_db

#: What happens in the step after the last look into the inbox.
meanwhile: list[Callable[[], object]] = []


def happen() -> None:
    while meanwhile:
        meanwhile.pop(0)()


@workflow(name="tests.passed_on.collects")
def collects(ctx: Any, number: int = 0, *, at_most: int = 10) -> Any:
    found = ctx.queue.next_batch("items", names=["add"], count=at_most, timeout=0)
    ctx.step("something else", happen)
    return [number, [each.body for each in found]]


@workflow(name="tests.passed_on.fails")
def fails(ctx: Any) -> Any:
    ctx.step("something else", happen)
    ctx.step("fails", fail)
    return ctx.queue.next("add").body


broken = [True]


def fail() -> None:
    if broken[0]:
        raise CriticalError("not today")


@pytest.fixture(autouse=True)
def _as_it_began() -> None:
    meanwhile.clear()
    broken[:] = [True]


@pytest.fixture
def run_all(store: Store) -> Callable[[], object]:
    return settle


def send(body: str, number: int = 0, *, queue: str = "add", **options: Any) -> Handle:
    return collects.using(key="k").start_or_send(queue, body, number, **options)


def inbox(run: Handle) -> list[tuple[str, str]]:
    """The messages of a run, and what has become of each."""
    at = runtime.current()
    return [(_body(each), str(each.state)) for each in at.store.messages(run.id)]


def _body(message: Message) -> str:
    found = runtime.current().decode(message.body, of_message(message.run_id, "message", message.id, message.queue))
    return str(found)


def test_what_arrives_after_the_last_look_goes_to_another_run(run_all: Callable[[], object]) -> None:
    first = send("a", 1)
    others: list[Handle] = []
    meanwhile[:] = [lambda: others.append(send("b", 2)), lambda: others.append(send("c", 3))]
    run_all()
    assert others == [first, first]
    assert first.output == [1, ["a"]]
    assert inbox(first) == [("a", "received")]
    second = first.passed_on_to
    assert second is not None
    assert second.state == "completed"
    assert second.output == [2, ["b", "c"]], "with the arguments of the first message that is left"
    assert inbox(second) == [("b", "received"), ("c", "received")]


def test_each_run_takes_one(run_all: Callable[[], object]) -> None:
    first = send("0", at_most=1)
    for number in range(1, 5):
        assert send(str(number), at_most=1) == first
    run_all()
    seen: list[Any] = []
    run: Handle | None = first
    while run is not None:
        seen.append(run.output)
        run = run.passed_on_to
    assert seen == [[0, ["0"]], [0, ["1"]], [0, ["2"]], [0, ["3"]], [0, ["4"]]], "in the order in which they were sent"


def test_what_no_run_wants_is_tried_once_more_and_stays(run_all: Callable[[], object]) -> None:
    first = send("unwanted", queue="nobody")
    run_all()
    assert first.passed_on_to is None, "the run began with it"
    assert inbox(first) == [("unwanted", "pending")]
    first = send("a")
    meanwhile[:] = [lambda: send("unwanted", queue="nobody")]
    run_all()
    second = first.passed_on_to
    assert second is not None
    assert second.passed_on_to is None
    assert inbox(second) == [("unwanted", "pending")]


def test_a_message_that_was_sent_to_the_run_itself_and_those_of_a_cancelled_run_stay(
    run_all: Callable[[], object],
) -> None:
    first = send("a")
    meanwhile[:] = [lambda: first.send("add", "to this run")]
    run_all()
    assert first.passed_on_to is None
    assert inbox(first) == [("a", "received"), ("to this run", "pending")]
    cancelled = send("b")
    cancelled.cancel()
    run_all()
    assert cancelled.passed_on_to is None
    assert inbox(cancelled) == [("b", "pending")]


def test_a_failed_run_keeps_them_for_its_recovery(run_all: Callable[[], object]) -> None:
    first = fails.using(key="k").start()
    meanwhile[:] = [lambda: fails.using(key="k").start_or_send("add", "a")]
    run_all()
    with pytest.raises(RunFailedError):
        first.result(timeout=0)
    assert first.passed_on_to is None
    broken[:] = [False]
    first.recover()
    run_all()
    assert first.output == "a"


def test_the_other_run_starts_as_the_first_did(run_all: Callable[[], object]) -> None:
    how = collects.using(key="k", tags={"customer": "7"}, deadline="1 hour", priority="10 min")
    first = how.start_or_send("add", "a")
    meanwhile[:] = [lambda: send("b")]
    run_all()
    second = first.passed_on_to
    assert second is not None
    store = runtime.current().store
    assert store.tags([second.id]) == {second.id: {"customer": "7"}}
    assert store.rankings([second.id])[second.id].priority == "10 min"
    limits = store.limits(second.id)
    assert limits is not None
    assert limits.length == 3600


def test_texts_that_belong_to_their_place(run_all: Callable[[], object]) -> None:
    """Whatever moves to another run can be read there, and there alone."""
    bound = replace(runtime.current(), codec=FernetCodec(keys=[Fernet.generate_key()], bind="require"))
    runtime.activate(bound)
    try:
        first = send("a", 1, at_most=1)
        meanwhile[:] = [lambda: send("b", 2, at_most=1), lambda: send("c", 3)]
        run_all()
        second = first.passed_on_to
        assert second is not None
        third = second.passed_on_to
        assert third is not None
        assert [each.output for each in (first, second, third)] == [[1, ["a"]], [2, ["b"]], [3, ["c"]]]
    finally:
        runtime.deactivate(bound)


def test_the_page_why_and_the_doctor_say_it() -> None:
    with in_force():
        first = send("a", at_most=1)
        meanwhile[:] = [lambda: send("b"), lambda: first.send("add", "to this run"), lambda: first.send("add", "too")]
        settle()
        second = first.passed_on_to
        assert second is not None
        told = why(first)
        assert "2 messages were never received" in told
        assert f'What was sent to its key and it had not received was passed on to run "{second.id}"' in told
        assert "never received" not in why(second)
        key = key_of(Run.objects.get(pk=second.id))
        assert key is not None
        assert "began with what the one before it had not received" in key_note(key, timezone.now())
        assert findings() == {}

        unwanted = send("c", queue="nobody")
        cancelled = collects.using(key="another").start_or_send("add", "d")
        cancelled.cancel()
        settle()
        assert "1 message was never received" in why(unwanted)
        assert "1 message was never received" in why(cancelled)
        assert findings() == {"messages_left": [unwanted.id]}


def why(run: Handle) -> str:
    return explain_fully(Run.objects.get(pk=run.id), timezone.now()).text


def findings() -> dict[str, list[str]]:
    found = collect_findings(timezone.now(), worker_overview())
    return {each.kind: [run_id for run_id, _ in each.runs] for each in found if each.kind == "messages_left"}
