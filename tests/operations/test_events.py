"""`durable.publish` in the caller's transactions, what it starts, and how a broadcast goes on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import durable
from durable import AsyncContext, Break, Context, Continue, event, get_run, workflow
from durable.core.errors import OutsideStepError
from durable.core.events import delivery
from durable.errors import EventConflictError, OperationDeniedError, PayloadError
from durable.inspection.published import list_waits
from durable.models import Event, EventKey, EventWait, OperatorAction, QueueMessage, Run
from durable.operations import events
from durable.operations.audit import Actor, acting_as
from durable.runtime import Runtime
from durable.testing import Harness
from durable.worker.timer import Sweep
from tests.support.plans import read
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.django_db

LONG = "x" * 190


@workflow(name="events.wait")
def wait(ctx: Context, key: str = "7") -> Any:
    return ctx.event("paid", "events.paid", key=key, within="1 hour")


@workflow(name="events.receipt", on=event("events.paid"))
def receipt(ctx: Context, body: Any) -> Any:
    return body


@workflow(name="events.other_receipt", on=event("events.paid"))
async def other_receipt(ctx: AsyncContext, body: Any, note: str = "none") -> Any:
    return [body, note]


@workflow(name="events.never", on=event("events.sent"))
def never(ctx: Context, body: Any) -> Any:
    raise AssertionError("of another event")


@pytest.fixture
def committed(transactional_db: None) -> Iterator[Runtime]:
    with in_force() as at:
        yield at


def waiting(number: int) -> list[str]:
    handles = [wait.start() for _ in range(number)]
    settle()
    assert EventWait.objects.count() == number
    return [each.id for each in handles]


def delivered(ids: list[str]) -> int:
    found = list(QueueMessage.objects.filter(run__in=ids).values_list("run", flat=True))
    assert len(found) == len(set(found)), "a run has got it twice"
    return len(found)


# -- the caller's transaction


def publish_in_vain() -> None:
    with transaction.atomic():
        durable.publish("events.paid", "in vain", key="7", id="a")
        raise OSError("broken")


def test_nothing_is_seen_before_the_commit(committed: Runtime) -> None:
    ids = waiting(2)
    with transaction.atomic():
        durable.publish("events.paid", 1, key="7")
        assert Run.objects.get(pk=ids[0]).wake_at is None
        assert delivered(ids) == 0
    assert delivered(ids) == 2
    settle()
    assert [get_run(each).output for each in ids] == [1, 1]
    assert EventWait.objects.count() == 0
    assert Event.objects.get().delivered == 2


def test_a_rollback_takes_everything_back(committed: Runtime) -> None:
    ids = waiting(1)
    with pytest.raises(OSError, match="broken"):
        publish_in_vain()
    assert delivered(ids) == Event.objects.count() == EventKey.objects.count() == 0
    assert not Run.objects.filter(pk="events.receipt:a").exists()
    assert durable.publish("events.paid", 2, key="7", id="a").is_new
    assert delivered(ids) == 1


def test_a_savepoint_that_is_rolled_back_published_nothing(committed: Runtime) -> None:
    ids = waiting(1)
    with transaction.atomic():
        with pytest.raises(OSError, match="broken"):
            publish_in_vain()
        with transaction.atomic():
            durable.publish("events.paid", "yes", key="7", id="a")
    settle()
    assert get_run(ids[0]).output == "yes"
    assert get_run("events.receipt:a").output == "yes"


def test_from_an_event_loop(committed: Runtime) -> None:
    ids = waiting(1)
    assert async_to_sync(durable.apublish)("events.paid", 1, key="7", id="a") == ("a", True)
    assert async_to_sync(durable.apublish)("events.paid", 1, key="7", id="a") == ("a", False)
    assert delivered(ids) == 1


def test_a_conflict_and_a_huge_body_publish_nothing(at: Runtime) -> None:
    durable.publish("events.paid", {"a": 1, "b": 2}, key="7", id="a")
    assert not durable.publish("events.paid", {"b": 2, "a": 1}, key="7", id="a").is_new, "the same body"
    with pytest.raises(EventConflictError, match="another key"):
        durable.publish("events.paid", {"a": 1, "b": 2}, key="8", id="a")
    with pytest.raises(EventConflictError, match="another body"):
        durable.publish("events.paid", 1, key="7", id="a")
    with pytest.raises(PayloadError):
        durable.publish("events.paid", "x" * (2 << 20), key="7")
    assert Event.objects.count() == 1


def test_it_is_refused_between_two_steps_without_an_id() -> None:
    def between(ctx: Any) -> Any:
        try:
            durable.publish("events.paid", 1, key="7")
        except OutsideStepError as error:
            return str(error)

    def with_an_id(ctx: Any) -> Any:
        durable.publish("events.sent.quietly", 1, key="7", id=f"{ctx.run_id}.sent")

    def in_a_step(ctx: Any) -> Any:
        return ctx.step("publish", lambda: durable.publish("events.sent.quietly", 1, key="7").id)

    with Harness() as h:
        assert "step" in h.finish(h.start(between)).output
        assert h.finish(h.start(with_an_id)).state == "completed"
        assert h.finish(h.start(in_a_step)).state == "completed"
        assert len(h._store._events) == 2


# -- what an event starts


def test_each_event_starts_each_workflow_once(committed: Runtime) -> None:
    for _ in range(2):
        durable.publish("events.paid", {"n": 1}, key="7", id="a")
    durable.publish("events.paid", {"n": 2}, key="8", id="b")
    settle()
    outputs = {run.id: run.output for run in Run.objects.order_by("id")}
    assert sorted(outputs) == [
        f"events.{workflow}:{event_id}" for workflow in ("other_receipt", "receipt") for event_id in "ab"
    ]
    assert get_run("events.receipt:a").output == {"n": 1}
    assert get_run("events.other_receipt:b").output == [{"n": 2}, "none"]


def test_an_event_that_was_forgotten_starts_no_second_run(at: Runtime) -> None:
    durable.publish("events.paid", 1, key="7", id="a")
    Event.objects.all().delete()
    assert durable.publish("events.paid", 1, key="7", id="a").is_new
    assert Run.objects.count() == 2


def test_a_long_id_still_makes_an_id_of_a_run(at: Runtime) -> None:
    durable.publish("events.paid", 1, key="7", id=LONG)
    durable.publish("events.paid", 1, key="7", id=f"{LONG}.")
    assert Run.objects.count() == 4
    assert max(len(each) for each in Run.objects.values_list("id", flat=True)) <= 200


@pytest.mark.parametrize("source", ["events.paid", 7, event])
def test_on_wants_an_event(source: Any) -> None:
    with pytest.raises(TypeError, match=r'on=event\("order.paid"\)'):
        workflow(name="events.wrong", on=source)(lambda ctx, body: None)


def test_on_wants_a_function_of_the_body() -> None:
    def two(ctx: Any, one: int, two: int) -> None: ...

    for function in (lambda ctx: None, two):
        with pytest.raises(TypeError, match="with its body alone"):
            workflow(name="events.wrong", on=event("events.wrong"))(function)
    with pytest.raises(ValueError, match="an event's name"):
        event("")


# -- people


def test_an_operator_needs_the_permission_and_is_logged(at: Runtime, django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("ada")
    with acting_as(Actor("api", user=user), reason="by hand"), pytest.raises(OperationDeniedError):
        durable.publish("events.paid", 1, key="7", id="a")
    assert not Event.objects.exists()
    root = django_user_model.objects.create_superuser("root")
    with acting_as(Actor("api", user=root), reason="by hand"):
        durable.publish("events.paid", 1, key="7", id="a")
    denied, done = OperatorAction.objects.order_by("id")
    assert (denied.action, denied.outcome) == ("publish", "denied")
    assert (done.outcome, done.subject_kind, done.subject, done.reason) == ("done", "event", "events.paid", "by hand")
    assert 'key "7"' in done.detail


# -- broadcasts


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BATCH", 3)
    monkeypatch.setattr(events, "MOST_AT_ONCE", 6)


@pytest.mark.usefixtures("few")
def test_the_publisher_gives_it_to_a_bounded_number_and_the_sweep_to_the_rest(committed: Runtime) -> None:
    ids = waiting(10)
    durable.publish("events.paid", 1, key="7")
    assert delivered(ids) == 6
    assert Event.objects.get().is_open
    assert events.deliver_open(0.0) == 3, "as many as the time allows"
    assert events.deliver_open(60.0) == 1
    assert delivered(ids) == 10
    assert Event.objects.get().delivered == 10
    assert not Event.objects.get().is_open
    settle()
    assert {get_run(each).output for each in ids} == {1}


@workflow(name="events.parent")
def parent(ctx: Context) -> None:
    ctx.start_child("listens", wait)
    ctx.queue.next("end")


@pytest.mark.parametrize("how", ["event", "sweep"])
def test_the_wait_of_a_child_that_the_database_cancels_gets_nothing_and_goes(committed: Runtime, how: str) -> None:
    handle = parent.start()
    settle()
    assert EventWait.objects.count() == 1
    assert len(list_waits(limit=9)) == 1
    handle.send("end", None)
    settle()
    [child] = handle.children()
    assert (handle.state, child.state) == ("completed", "cancelled")
    assert list_waits(limit=9) == []
    if how == "event":
        durable.publish("events.paid", 1, key="7", id="a")
        found = Event.objects.get()
        assert (found.delivered, found.is_open) == (0, False)
    else:
        Sweep(committed.store).tick(committed.now())
    assert not EventWait.objects.exists()
    assert delivered([child.id]) == 0


@pytest.mark.usefixtures("few")
def test_a_publisher_that_dies_after_its_commit_leaves_all_to_the_sweep(
    committed: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = waiting(4)
    monkeypatch.setattr(events, "_deliver_safely", lambda *_: None)
    durable.publish("events.paid", 1, key="7")
    assert delivered(ids) == 0
    Sweep(committed.store).tick(committed.now())
    assert delivered(ids) == 4


def test_an_error_of_a_delivery_is_not_the_callers(
    committed: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = waiting(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(committed.store), "send", lambda *_: 1 / 0)
        durable.publish("events.paid", 1, key="7")
    assert "a worker will give it to the runs that wait" in caplog.text
    assert delivered(ids) == 0
    assert events.deliver_open(60.0) == 1


def test_an_event_that_cannot_be_read_does_not_hold_up_others(
    committed: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = waiting(1)
    monkeypatch.setattr(events, "_deliver_safely", lambda *_: None)
    other = wait.start(key="8")
    settle()
    durable.publish("events.paid", 1, key="7", id="broken")
    durable.publish("events.paid", 2, key="8", id="whole")

    def reading(event: Any, *args: Any, **options: Any) -> Any:
        if event.id == "broken":
            raise PayloadError("the body", "", "it cannot be decrypted", "bring the key back")
        return delivery(event, *args, **options)

    monkeypatch.setattr("durable.operations.events.delivery", reading)
    assert events.deliver_open(60.0) == 1
    assert "broken" in caplog.text
    assert (delivered(ids), delivered([other.id])) == (0, 1)
    monkeypatch.undo()
    assert events.deliver_open(60.0) == 1


def test_the_sweep_forgets_old_events(at: Runtime, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "EVENTS_KEPT": timedelta(hours=1)}
    durable.publish("events.sent.quietly", 1, key="7", id="old")
    durable.publish("events.sent.quietly", 2, key="8", id="new")
    Event.objects.filter(event_id="old").update(published_at=at.now() - timedelta(hours=1, seconds=1))
    Sweep(at.store).tick(at.now())
    assert [each.event_id for each in Event.objects.all()] == ["new"]
    assert [each.key for each in EventKey.objects.all()] == ["8"]


@pytest.mark.postgres
def test_a_sweep_without_open_events_reads_no_event(at: Runtime) -> None:
    """It asks once, of an index that has the open ones alone, however many events are kept."""
    rows = [
        Event(name="events.kept", key=str(each), event_id=str(each), body="1", published_at=at.now(), is_open=False)
        for each in range(5_000)
    ]
    Event.objects.bulk_create(rows)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_event")
    with CaptureQueriesContext(connection) as queries:
        assert events.deliver_open(60.0) == 0
    assert len(queries) == 1
    assert read(queries, "durable_event") == 0


def test_an_order_of_deliveries_that_a_lock_has_turned_around(
    committed: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first event is put off, as by a run that is locked. The second must not pass it: a loop would not see it."""

    @workflow(name="events.watch")
    def watch(ctx: Context) -> Any:
        def turn(c: Context, got: list[int]) -> Break | Continue:
            seen = [*got, c.event("next", "events.news", key="7", within="1 hour")]
            return Break(seen) if len(seen) == 2 else Continue(seen)

        return ctx.loop("watch", turn, state=[])

    handle = watch.start()
    settle()
    with monkeypatch.context() as patch:
        patch.setattr(events, "_deliver_safely", lambda *_: None)
        durable.publish("events.news", 1, key="7")
    durable.publish("events.news", 2, key="7")
    settle()
    assert handle.output == [1, 2]
