"""A message to the wrong run is deleted, or moved to the right one, before it is received."""

from __future__ import annotations

import pytest

from durable import Context, get_run, operations, runtime, workflow
from durable.core.errors import MessageConflictError, MessageNotPendingError
from durable.errors import InvalidTransitionError, RunNotFoundError
from durable.models import OperatorAction
from durable.operations.audit import Actor, acting_as
from durable.store import Store
from tests.support.stores import passed

pytestmark = pytest.mark.django_db


@workflow(name="tests.misdirected.waiting")
def waiting(ctx: Context) -> str:
    ctx.queue.next("go")
    message = ctx.queue.next("note")
    return f"{message.id} {message.body}"


@pytest.fixture(autouse=True)
def _begun(store: Store) -> None:
    for each in ("wrong", "right"):
        waiting.using(id=each).start()
        passed(runtime.current(), each)


def test_a_deleted_message_is_not_received() -> None:
    first = get_run("wrong").send("note", "mistaken", id="once")
    with acting_as(Actor("cli", label="ann"), reason="the wrong order"):
        operations.delete_message("wrong", first)
    row = runtime.current().store.message(first)
    assert row is None
    second = get_run("wrong").send("note", "meant", id="once")  # its id is free again
    get_run("wrong").send("go")
    passed(runtime.current(), "wrong")
    assert get_run("wrong").output == f"{second} meant"


def test_a_moved_message_is_received_by_the_other_run_under_its_id() -> None:
    message = get_run("wrong").send("note", {"order": 7}, id="once")
    operations.move_message("wrong", message, "right")
    for each in ("wrong", "right"):
        get_run(each).send("go")
        passed(runtime.current(), each)
    assert get_run("right").output == f"{message} {{'order': 7}}"
    assert get_run("wrong").state == "sleeping"


def test_what_a_run_has_received_stays_and_what_it_has_not_is_told() -> None:
    message = get_run("wrong").send("go")
    passed(runtime.current(), "wrong")
    with pytest.raises(MessageNotPendingError, match="has received the message"):
        operations.delete_message("wrong", message)
    with pytest.raises(MessageNotPendingError, match="has no message"):
        operations.delete_message("right", message)
    with pytest.raises(RunNotFoundError):
        operations.delete_message("nobody", message)


def test_a_message_of_a_run_that_a_worker_has_is_left_alone() -> None:
    message = get_run("wrong").send("go")
    at = runtime.current()
    now = at.now()
    assert at.store.claim_run("wrong", now=now, lease_until=now, worker="w") is not None
    with pytest.raises(InvalidTransitionError, match="a worker has the run"):
        operations.delete_message("wrong", message)
    found = at.store.message(message)
    assert found is not None
    assert found.state == "pending"


@pytest.mark.parametrize("target", ["nobody", "wrong", "ended", "has one"])
def test_a_move_that_is_refused_leaves_the_message_where_it_is(target: str) -> None:
    message = get_run("wrong").send("note", "x", id="once")
    if target == "ended":
        get_run("right").cancel()
    elif target == "has one":
        get_run("right").send("note", "x", id="once")
    to = target if target in ("nobody", "wrong") else "right"
    with pytest.raises((RunNotFoundError, ValueError, InvalidTransitionError, MessageConflictError)):
        operations.move_message("wrong", message, to)
    found = runtime.current().store.message(message)
    assert found is not None
    assert (found.run_id, found.state) == ("wrong", "pending")


def test_both_runs_have_it_in_the_audit_log(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["store"] == "memory":
        pytest.skip("the log of a harness is not in the database")
    message = get_run("wrong").send("note")
    with acting_as(Actor("cli", label="ann")):
        operations.move_message("wrong", message, "right")
        with pytest.raises(MessageNotPendingError):
            operations.delete_message("wrong", message)
    logged = OperatorAction.objects.order_by("id").values_list("action", "run_id", "outcome", "detail")
    told = f'message {message} to "note": moved'
    assert list(logged)[:2] == [
        ("move_message", "wrong", "done", f"{told} to run right"),
        ("move_message", "right", "done", f"{told} from run wrong"),
    ]
    assert list(logged)[2][:3] == ("delete_message", "wrong", "missing")
