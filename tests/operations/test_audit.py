"""Permissions, and what the audit log says: done, denied and refused actions, from every source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.db.models import Model

from durable import Context, Handle, get_run, operations, workflow
from durable.core.records import ActionRecord, RunChange
from durable.errors import (
    DurableError,
    InvalidTransitionError,
    OperationDeniedError,
    PayloadError,
    RunConflictError,
    RunNotFoundError,
    StalePlanError,
    StaleRunError,
)
from durable.inspection.actions import ActionCriteria, search_actions
from durable.models import OperatorAction, Run
from durable.operations import Actor, acting_as, audit
from durable.runtime import Runtime
from durable.testing import Harness
from tests.operations.conftest import NOW

Verb = Callable[[Handle], Any]


@workflow(name="tests.audit.order")
def order(ctx: Context, number: int) -> int:
    ctx.step("charge", lambda: number)
    message = ctx.queue.next("approval", ["approved"])
    if message.body == "fail":
        raise ValueError("failed")
    return number


ROOT = Actor("admin", User(username="root", is_superuser=True))
ANONYMOUS = Actor("api", AnonymousUser())


def waiting(h: Harness) -> Handle:
    """A run that waits for a message, started by the application."""
    handle = order.using(id="o").start(1)
    h.settle()
    return handle


def failed(h: Harness) -> Handle:
    handle = waiting(h)
    handle.send("approved", "fail")
    h.settle()
    return handle


def paused(h: Harness) -> Handle:
    handle = waiting(h)
    h._store._actions.clear()
    handle.pause()
    h._store._actions.clear()
    return handle


#: action: how the run comes to be, the verb, the states before and after
VERBS: dict[str, tuple[Callable[[Harness], Handle], Verb, str, str]] = {
    "send": (waiting, lambda run: run.send("approved", "yes"), "sleeping", "sleeping"),
    "wake": (waiting, lambda run: run.wake(), "sleeping", "sleeping"),
    "move": (waiting, lambda run: run.move("high"), "sleeping", "sleeping"),
    "pause": (waiting, lambda run: run.pause(), "sleeping", "paused"),
    "resume": (paused, lambda run: run.resume(), "paused", "pending"),
    "cancel": (waiting, lambda run: run.cancel(), "sleeping", "cancelled"),
    "recover": (failed, lambda run: run.recover(), "failed", "pending"),
    "restart": (failed, lambda run: run.restart(), "failed", "failed"),
    "replay": (failed, lambda run: run.replay("charge"), "failed", "failed"),
}
IN_PLACE = (failed, lambda run: run.replay("charge", in_place=True), "failed", "pending")


def the_row(h: Harness) -> ActionRecord:
    [row] = h.actions
    return row


# -- done


@pytest.mark.parametrize(("action", "case"), [*VERBS.items(), ("replay", IN_PLACE)])
def test_what_an_operator_does_is_logged(h: Harness, action: str, case: Any) -> None:
    make, verb, before, after = case
    run = make(h)
    with acting_as(ROOT, reason="ticket 7"):
        verb(run)
    row = the_row(h)
    assert (row.action, row.run_id, row.source, row.outcome) == (action, "o", "admin", "done")
    assert (row.before, row.after, row.reason, row.actor_label) == (before, after, "ticket 7", "root")
    assert row.created_at == NOW


def test_a_start_by_an_operator_is_logged(h: Harness) -> None:
    with acting_as(Actor("cli", label="ops@host"), reason="by hand"):
        order.start_many([(1,), (2,)], ids=["a", "b"])
        order.using(id="a").start(1)
    rows = [(row.action, row.run_id, row.before, row.after, row.actor_label) for row in h.actions]
    assert rows == [
        ("start", "a", "", "pending", "ops@host"),
        ("start", "b", "", "pending", "ops@host"),
        ("start", "a", "pending", "pending", "ops@host"),
    ]
    assert h.actions[2].detail == "tests.audit.order: was there already"


def test_a_question_by_an_operator_is_logged_and_what_it_sets_off_is_not(h: Harness) -> None:
    seen: list[object] = []

    def answer(ctx: Any) -> None:
        message = ctx.queue.next("q", ["quote"], completable=True)
        ctx.step("look", lambda: seen.append(audit.acting()))
        ctx.step("steer", lambda: get_run("other").pause())
        message.complete(7)

    order.using(id="other").start(1)
    run = h.start(answer, id="o")
    with acting_as(ROOT):
        assert run.ask("quote", timeout=5) == 7
        assert audit.acting() is not None
    assert seen == [None]
    assert [(row.action, row.source, row.actor_label) for row in h.actions] == [
        ("ask", "admin", "root"),
        ("pause", "code", "run o"),
    ]


def test_a_replay_says_from_where_and_as_what(h: Harness) -> None:
    run = failed(h)
    with acting_as(ROOT):
        new = run.replay("charge")
    assert the_row(h).detail == f'from "charge", as run {new.id}'


def test_a_cancel_takes_the_operators_reason(h: Harness) -> None:
    run = waiting(h)
    with acting_as(ROOT, reason="customer called"):
        run.cancel()
    assert run.summary == "cancelled: customer called"


# -- from code


def test_what_code_steers_is_logged_and_what_it_starts_and_sends_is_not(h: Harness) -> None:
    run = waiting(h)
    run.send("approved", "fail")
    h.settle()
    assert h.actions == []
    run.recover()
    run.cancel("enough")
    with suppress(InvalidTransitionError):
        run.cancel()
    rows = [(row.action, row.source, row.outcome, row.reason, row.actor_label) for row in h.actions]
    assert rows == [("recover", "code", "done", "", ""), ("cancel", "code", "done", "enough", "")]


# -- denied


@pytest.mark.parametrize("action", VERBS)
def test_without_the_permission_nothing_happens_and_the_log_says_so(h: Harness, action: str) -> None:
    make, verb, before, _ = VERBS[action]
    run = make(h)
    kept = (h._store.get("o"), run.history(), h._store.messages("o"), list(h._store._runs))
    with acting_as(ANONYMOUS, reason="why not"), pytest.raises(OperationDeniedError) as caught:
        verb(run)
    assert (h._store.get("o"), run.history(), h._store.messages("o"), list(h._store._runs)) == kept
    assert isinstance(caught.value, PermissionDenied)  # Django answers it with 403
    assert isinstance(caught.value, DurableError)
    assert caught.value.permission == audit.PERMISSIONS[action]
    row = the_row(h)
    assert (row.action, row.outcome, row.before, row.after) == (action, "denied", before, before)
    assert (row.source, row.actor_label, row.reason) == ("api", "AnonymousUser", "why not")
    assert f"needs the permission durable.{audit.PERMISSIONS[action]}" in row.detail


def test_a_start_without_the_permission(h: Harness) -> None:
    with acting_as(ANONYMOUS), pytest.raises(OperationDeniedError):
        order.using(id="x").start(1)
    assert list(h._store._runs) == []
    assert (the_row(h).run_id, the_row(h).outcome) == ("x", "denied")


def test_a_denied_action_says_nothing_of_the_run(h: Harness) -> None:
    """Whether a run exists is not shown to users that may not act on it."""
    waiting(h)
    messages = set()
    for run_id in ("o", "missing"):
        with acting_as(ANONYMOUS), pytest.raises(OperationDeniedError) as caught:
            Handle(run_id).pause()
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("actor", "allowed"),
    [
        (Actor("cli"), True),
        (Actor("code"), True),
        (Actor("admin"), False),
        (Actor("api", label="token"), False),
        (Actor("cli", AnonymousUser()), False),
        (Actor("admin", User(username="x", is_superuser=True)), True),
        (Actor("admin", User(username="x", is_superuser=True, is_active=False)), False),
    ],
)
def test_permissions(actor: Actor, allowed: bool) -> None:
    assert {actor.may(each) for each in audit.PERMISSIONS.values()} == {allowed}


def test_a_source_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="one of admin, api, cli, code, not 'web'"):
        Actor("web")


# -- refused


def too_long(_run: Handle) -> None:
    Handle("x" * 500).pause()


@pytest.mark.parametrize(
    ("verb", "error", "outcome", "run_id", "state"),
    [
        (lambda run: run.resume(), InvalidTransitionError, "refused", "o", "sleeping"),
        (lambda run: run.recover(), InvalidTransitionError, "refused", "o", "sleeping"),
        (lambda run: Handle("none").pause(), RunNotFoundError, "missing", "none", ""),
        (lambda run: Handle("none").send("a"), RunNotFoundError, "missing", "none", ""),
        (lambda run: run.replay("nowhere"), DurableError, "missing", "o", "sleeping"),
        (lambda run: run.replay("charge", plan_hash="x"), StalePlanError, "stale", "o", "sleeping"),
        (lambda run: run.send("approved", lambda: 1), PayloadError, "invalid", "o", "sleeping"),
        (lambda run: run.send("", 1), ValueError, "invalid", "o", "sleeping"),
        (lambda run: order.using(id="o").start(2), RunConflictError, "conflict", "o", "sleeping"),
        (lambda run: order.using(id="o").start(*[]), TypeError, "invalid", "o", "sleeping"),
        (lambda run: run.restart(id="o"), RunConflictError, "conflict", "o", "sleeping"),
        (too_long, RunNotFoundError, "missing", "", ""),
    ],
)
def test_what_is_refused_is_logged(
    h: Harness, verb: Verb, error: type[Exception], outcome: str, run_id: str, state: str
) -> None:
    run = waiting(h)
    with acting_as(ROOT), pytest.raises(error) as caught:
        verb(run)
    row = the_row(h)
    assert (row.outcome, row.run_id, row.before, row.after) == (outcome, run_id, state, state)
    assert row.detail == str(caught.value)


# -- as it was seen


def seen(run: Handle) -> str:
    return audit.revision(operations.record(run.id))


@pytest.mark.parametrize("action", VERBS)
def test_a_run_that_has_moved_on_is_left_alone(h: Harness, action: str) -> None:
    make, verb, before, _ = VERBS[action]
    run = make(h)
    revision = seen(run)
    h._store.change("o", lambda run, entries: RunChange(run={}))
    with acting_as(ROOT, expected=revision), pytest.raises(StaleRunError, match="has changed since") as caught:
        verb(run)
    assert isinstance(caught.value, InvalidTransitionError)
    assert (caught.value.state, run.state, the_row(h).outcome) == (before, before, "stale")
    h._store._actions.clear()
    with acting_as(ROOT, expected=seen(run)):
        verb(run)
    assert the_row(h).outcome == "done"


def test_a_double_click_does_it_once(h: Harness) -> None:
    run = waiting(h)
    with acting_as(ROOT, expected=seen(run)):
        run.wake()
        with pytest.raises(StaleRunError):
            run.wake()


def test_a_heartbeat_and_a_pass_that_changes_nothing_are_no_move(h: Harness) -> None:
    run = waiting(h)
    revision = seen(run)
    h.run(run)
    assert seen(run) == revision
    claimed = h._store.claim_run("o", now=NOW, lease_until=NOW, worker="w")
    assert claimed is not None
    running = seen(run)
    assert running != revision
    h._store.renew([("o", claimed.fence)], datetime(2026, 1, 2, tzinfo=UTC))
    assert seen(run) == running


# -- on a database


@pytest.fixture
def operator(db: None) -> User:
    """A user that may operate runs, and nothing else."""
    user = User.objects.create_user("olga", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="operate_run"))
    return user


def rows() -> list[tuple[str, str, str, str]]:
    return list(OperatorAction.objects.order_by("id").values_list("action", "outcome", "before", "after"))


def test_the_change_and_its_row_are_one_transaction(at: Runtime, operator: User) -> None:
    run = order.using(id="o").start(1)
    with suppress(ZeroDivisionError), transaction.atomic(), acting_as(Actor("admin", operator)):
        run.pause()
        run.send("approved", "yes")
        raise ZeroDivisionError
    assert (run.state, rows(), at.store.messages("o")) == ("pending", [], [])
    with acting_as(Actor("admin", operator)):
        run.pause()
        run.send("approved", "yes")
    assert (run.state, rows()) == (
        "paused",
        [("pause", "done", "pending", "paused"), ("send", "done", "paused", "paused")],
    )


def test_without_its_row_a_change_does_not_happen(at: Runtime, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    run = order.using(id="o").start(1)

    def broken(actions: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(type(at.store), "log", lambda store, actions: broken(actions))
    verbs: list[Callable[[], Any]] = [
        run.pause,
        lambda: run.send("approved"),
        run.restart,
        lambda: order.using(id="new").start(1),
    ]
    with acting_as(Actor("cli")):
        for verb in verbs:
            with pytest.raises(ConnectionError):
                verb()
    assert (run.state, at.store.messages("o"), Run.objects.count()) == ("pending", [], 1)


def test_a_refusal_is_logged_although_it_rolls_back_the_transaction(at: Runtime, operator: User) -> None:
    run = order.using(id="o").start(1)
    with acting_as(Actor("admin", operator)):
        with suppress(OperationDeniedError), transaction.atomic():
            run.restart()
        with suppress(InvalidTransitionError), transaction.atomic():
            run.recover()
    assert rows() == [("restart", "denied", "pending", "pending"), ("recover", "refused", "pending", "pending")]


def test_a_user_of_another_database_is_named_and_not_referred_to(at: Runtime) -> None:
    run = order.using(id="o").start(1)
    root = User.objects.create_superuser("root")
    root._state.db = "users"
    with acting_as(Actor("api", root, label="token 3")):
        run.pause()
    [row] = OperatorAction.objects.all()
    assert (row.actor, row.actor_label, row.source) == (None, "root (token 3)", "api")


class ReplicaOfUsers:
    """A router that has users read from a replica of the database in which they are written."""

    def db_for_read(self, model: type[Model], **hints: object) -> str | None:
        return "replica" if model is User else None

    def db_for_write(self, model: type[Model], **hints: object) -> str | None:
        return "default" if model is User else None


def test_a_user_read_from_a_replica_is_referred_to_and_found(at: Runtime, settings: Any) -> None:
    run = order.using(id="o").start(1)
    root = User.objects.create_superuser("root")
    settings.DATABASE_ROUTERS = [ReplicaOfUsers()]
    root._state.db = "replica"
    with acting_as(Actor("api", root, label="token 3")):
        run.pause()
    [row] = search_actions(ActionCriteria(person="root"))
    assert (row.actor_id, row.actor_label) == (root.pk, "root (token 3)")


class MigratedPastAPooler:
    """A router of a project that migrates over an alias of its own, which leads to the same database."""

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return db == "direct"


@pytest.mark.parametrize("routers", [[], [MigratedPastAPooler()]], ids=["plain", "migrated over another alias"])
def test_the_log_outlives_the_user(at: Runtime, operator: User, settings: Any, routers: list[Any]) -> None:
    run = order.using(id="o").start(1)
    with acting_as(Actor("admin", operator)):
        run.pause()
    settings.DATABASE_ROUTERS = routers
    operator.delete()
    connection.check_constraints()
    [row] = OperatorAction.objects.all()
    assert (row.actor, row.actor_label) == (None, "olga")


def test_from_async_code(at: Runtime) -> None:
    async def steer() -> None:
        handle = await order.using(id="o").astart(1)
        with acting_as(Actor("cli", label="ops")):
            await handle.apause()
            with suppress(InvalidTransitionError):
                await handle.arecover()

    async_to_sync(steer)()
    assert rows() == [("pause", "done", "pending", "paused"), ("recover", "refused", "paused", "paused")]
