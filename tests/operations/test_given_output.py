"""The output of a step, and another input, given by hand: who may, what it changes, and what it cannot change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import override_settings

from durable import Break, Context, Continue, Handle, RollbackContext, workflow
from durable.core.control_flow import LeaseLost
from durable.core.records import Batch
from durable.errors import OperationDeniedError, ReplayRefusedError, RunConflictError, StalePlanError
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.export import exported
from durable.inspection.payloads import recorded_input, shown_arguments
from durable.inspection.tree import history_tree
from durable.models import Entry, OperatorAction, Run
from durable.operations import Actor, acting_as
from durable.operations.start import arguments_of
from durable.runtime import Runtime
from tests.support.stores import in_force, passed

CALLS: list[str] = []
OPS = Actor("cli", label="ops")


def check(number: int) -> dict[str, Any]:
    CALLS.append(f"check {number}")
    raise RuntimeError("the scoring service is away")


def ship(verdict: dict[str, Any]) -> str:
    CALLS.append("ship")
    return f"shipped as {verdict['by']}"


def undo(_rollback: RollbackContext, _output: Any) -> None:
    CALLS.append("undo")


@workflow(name="tests.given.order")
def order(ctx: Context, number: int) -> str:
    ctx.step("load", lambda: CALLS.append("load"))
    verdict = ctx.step("check", check, number, max_retries=0)
    return ctx.step("ship", ship, verdict)


@workflow(name="tests.given.branches")
def branches(ctx: Context) -> dict[str, Any]:
    return ctx.join(
        "both",
        {
            "left": lambda scope: scope.step("check", check, 1, max_retries=0),
            "right": lambda scope: scope.step("ship", ship, {"by": "right"}),
        },
    )


@workflow(name="tests.given.odd")
def odd(ctx: Context, kind: str) -> Any:
    ctx.rollback_checkpoint("from here")
    if kind == "rollback":
        return ctx.step("it", check, 1, max_retries=0, rollback=undo)
    if kind == "atomic":
        return ctx.step("it", check, 1, max_retries=0, atomic=True)
    if kind == "atomic, tried again":
        return ctx.step("it", check, 1, max_retries=1, retry_backoff_base=1_000_000, atomic=True)
    if kind == "sleep":
        return ctx.sleep("it", 1_000)

    def body(scope: Context, state: int) -> Break[int] | Continue[int]:
        scope.step("it", check, state, max_retries=0)
        return Break(state)

    return ctx.loop("rounds", body, state=1)


@pytest.fixture
def at(db: None) -> Iterator[Runtime]:
    CALLS.clear()
    with in_force() as at:
        yield at


def failed(at: Runtime, of: Any = order, *args: Any) -> Handle:
    run: Handle = of.using(id="first").start(*(args or ((7,) if of is order else ())))
    passed(at, run.id)
    CALLS.clear()
    OperatorAction.objects.all().delete()
    return run


def given(run: Handle[Any], location: str = "check", output: Any = None, **options: Any) -> Handle:
    with acting_as(OPS, reason="approved by telephone"):
        made: Handle = run.give_output(location, {"by": "hand"} if output is None else output, **options)
    return made


@pytest.mark.parametrize("in_place", [False, True])
def test_the_run_goes_on_as_if_the_step_had_returned_it(at: Runtime, in_place: bool) -> None:
    first = failed(at)
    run = given(first, in_place=in_place)
    assert (run.id == first.id) is in_place
    passed(at, run.id)
    assert (run.state, run.result()) == ("completed", "shipped as hand")
    assert CALLS == ["ship"]
    if not in_place:
        assert first.state == "failed"
    entry = next(each for each in run.history() if each.location == "check")
    assert entry.data["given"] == {
        "by": "ops",
        "source": "cli",
        "reason": "approved by telephone",
        "at": entry.data["given"]["at"],
    }
    assert (entry.status, entry.data["output"], entry.error) == ("completed", {"by": "hand"}, None)
    assert entry.last_attempt_at is None  # no attempt made it
    row = OperatorAction.objects.get()
    assert (row.action, row.run_id, row.outcome, row.reason) == (
        "give_output",
        first.id,
        "done",
        "approved by telephone",
    )
    assert row.detail.startswith('from "check", whose output was given by hand, ')


def test_it_is_shown_as_given_by_hand(at: Runtime) -> None:
    run = given(failed(at))
    passed(at, run.id)
    note = "output given by hand by ops (cli): approved by telephone"
    row = Run.objects.get(pk=run.id)
    nodes = {node.location: node for node in history_tree(row).nodes}
    assert nodes["check"].note == note
    detail = read_entry_detail(row, "check", with_payloads=False)
    assert detail is not None
    assert dict(detail.facts)["given by hand"].startswith(note)
    entry = next(each for each in exported(row, with_payloads=False)["entries"] if each["location"] == "check")
    assert entry["given_by_hand"]["by"] == "ops"


def test_in_a_branch_the_other_branches_stay(at: Runtime) -> None:
    run = given(failed(at, branches), "both/left/check", "fine", in_place=True)
    passed(at, run.id)
    assert run.result() == {"left": "fine", "right": "shipped as right"}
    assert CALLS == []


def test_a_replay_from_before_it_runs_the_step_again(at: Runtime) -> None:
    run = given(failed(at), in_place=True)
    passed(at, run.id)
    run.replay("load", in_place=True)
    passed(at, run.id)
    assert run.state == "failed"
    assert CALLS == ["ship", "load", "check 7"]


@pytest.mark.parametrize(
    ("kind", "location", "why"),
    [
        ("rollback", "it", "has a rollback handler"),
        ("atomic", "it", "its rows were not written"),
        ("atomic, tried again", "it", "its rows were not written"),
        ("loop", "rounds/~0/it", '"rounds" starts again'),
        ("sleep", "it", "is not a step"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_it_is_refused_where_it_would_say_what_is_not_so(
    at: Runtime, kind: str, location: str, why: str, in_place: bool
) -> None:
    run = failed(at, odd, kind)
    before = list(Entry.objects.values())
    with pytest.raises(ReplayRefusedError, match=why):
        given(run, location, in_place=in_place)
    plan = run.plan_replay(location, with_output=True)
    assert any(why in each for each in plan.refusals)
    assert list(Entry.objects.values()) == before
    assert Run.objects.count() == 1
    assert run.plan_replay(location).refusals == ()


def test_the_plan_keeps_the_step(at: Runtime) -> None:
    run = failed(at)
    assert run.plan_replay("check").reruns == ("check",)
    plan = run.plan_replay("check", with_output=True)
    assert (plan.reruns, plan.removed, plan.kept) == ((), (), ("load", "check"))
    given(run, in_place=True, plan_hash=plan.hash)
    with pytest.raises(StalePlanError):
        given(run, in_place=True, plan_hash=plan.hash)


def test_it_needs_a_reason_and_the_permissions(at: Runtime) -> None:
    run = failed(at)
    with acting_as(OPS), pytest.raises(ValueError, match="needs a reason"):
        run.give_output("check", 1)
    for codename in ("give_output", "replay_run"):
        user = User.objects.create_user(codename)
        user.user_permissions.add(Permission.objects.get(codename=codename))
        with acting_as(Actor("api", user), reason="mine"), pytest.raises(OperationDeniedError):
            run.give_output("check", 1)
    assert Run.objects.count() == 1
    user.user_permissions.add(Permission.objects.get(codename="give_output"))
    with acting_as(Actor("api", User.objects.get(pk=user.pk)), reason="mine"):
        run.give_output("check", 1, id="second")
        assert not run.give_output("check", 1, id="second").is_new
    outcomes = OperatorAction.objects.order_by("id").values_list("action", "outcome")
    assert [each for each in outcomes if each[1] == "done"] == [("give_output", "done")] * 2


# -- attacks


def claimed(at: Runtime, run: Handle, *, seconds: int) -> Any:
    now = at.now()
    until = now + timedelta(seconds=seconds)
    record = at.store.claim_run(run.id, now=now, lease_until=until, worker="another")
    assert record is not None
    return record


def test_a_run_that_a_worker_has_is_refused_in_place(at: Runtime) -> None:
    run = failed(at)
    run.recover()
    claimed(at, run, seconds=30)
    with pytest.raises(ReplayRefusedError, match="a worker is executing the run now"):
        given(run, in_place=True)
    assert run.history()[-1].status == "pending"
    assert given(run).id != run.id  # a new run is another matter


def test_a_worker_whose_lease_has_expired_cannot_overwrite_it(at: Runtime) -> None:
    run = failed(at)
    run.recover()
    record = claimed(at, run, seconds=-1)
    given(run, in_place=True)
    entry = next(each for each in at.store.history(run.id) if each.location == "check")
    stale = replace(entry, output='"stale"', data={})
    with pytest.raises(LeaseLost):
        at.store.commit(Batch(run_id=run.id, fence=record.fence, now=at.now(), entries=[stale]))
    passed(at, run.id)
    assert run.result() == "shipped as hand"
    assert CALLS == ["ship"]


def test_the_same_id_with_another_output_or_a_run_that_runs_the_step_again_is_refused(at: Runtime) -> None:
    handle = order.start(1)
    passed(at, handle.id)
    handle.replay("check", id="replayed")
    with acting_as(OPS, reason="by telephone"):
        given = handle.give_output("check", {"by": "hand"}, id="given")
        assert handle.give_output("check", {"by": "hand"}, id="given").id == given.id
        for run_id, output in (("given", {"by": "other"}), ("replayed", {"by": "hand"})):
            with pytest.raises(RunConflictError, match="does not have this output"):
                handle.give_output("check", output, id=run_id)


# -- starting a run again with another input


@workflow(name="tests.edited.pay")
def pay(ctx: Context, /, amount: int, to: str = "bank", *rest: int, price: Decimal = Decimal(1), **more: Any) -> Any:
    return ctx.step("pay", lambda: [amount, to, list(rest), str(price), more])


@workflow(name="tests.edited.plain")
def plain(ctx: Context, amount: int, card: str, note: Any = None) -> Any:
    return ctx.step("pay", lambda: [amount, card, note])


def test_the_changed_arguments_are_replaced_and_the_others_stay(at: Runtime) -> None:
    first = pay.using(id="first").start(5, "bank", 1, 2, price=Decimal("1.50"), colour="red")
    with acting_as(Actor("cli", label="ops"), reason="wrong amount"):
        again = first.restart(changes={"amount": 7, "rest": [3]})
    passed(at, again.id)
    assert again.result() == [7, "bank", [3], "1.50", {"colour": "red"}]
    assert first.state == "pending"
    row = OperatorAction.objects.get()
    assert (row.action, row.outcome, row.reason) == ("edit_input", "done", "wrong amount")
    assert row.detail == f"as run {again.id}, with another amount, rest"
    assert "7" not in row.detail.replace(again.id, "")
    again = plain.start(5, "visa").restart(changes={"note": {"by": "hand"}})  # which had its default
    passed(at, again.id)
    assert again.result() == [5, "visa", {"by": "hand"}]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"amunt": 7}, "no argument 'amunt'; its arguments are amount, to, rest, price, more"),
        ({"amount": "7"}, "the argument amount is int, not str"),
        ({"amount": True}, "the argument amount is int, not bool"),
        ({"to": None}, "the argument to is str, not NoneType"),
        ({"rest": 3}, r"the arguments \*rest are a list, not int"),
        ({"more": [1]}, r"the arguments \*\*more are an object, not list"),
        ({"ctx": 1}, "no argument 'ctx'"),
    ],
)
def test_what_does_not_fit_the_signature_starts_nothing(at: Runtime, changes: dict[str, Any], problem: str) -> None:
    first = pay.start(5)
    with pytest.raises(ValueError, match=problem):
        first.restart(changes=changes)
    assert Run.objects.count() == 1


def test_it_needs_both_permissions(at: Runtime) -> None:
    first = plain.start(5, "visa")
    user = User.objects.create_user("ada")
    for codename in ("start_run", "edit_input"):
        user = User.objects.get(pk=user.pk)
        with acting_as(Actor("api", user)), pytest.raises(OperationDeniedError):
            first.restart(changes={"amount": 7})
        user.user_permissions.add(Permission.objects.get(codename=codename))
    with acting_as(Actor("api", User.objects.get(pk=user.pk))):
        assert first.restart(changes={"amount": 7}).id != first.id


def test_the_same_id_with_another_input_is_refused(at: Runtime) -> None:
    first = plain.start(5, "visa")
    again = first.restart(id="again", changes={"amount": 7})
    assert first.restart(id="again", changes={"amount": 7}).id == again.id
    for changes in ({"amount": 8}, None):
        with pytest.raises(RunConflictError, match="with another input"):
            first.restart(id="again", changes=changes)
    assert Run.objects.count() == 2
    passed(at, again.id)
    assert again.result() == [7, "visa", None]


def test_who_may_not_see_payloads_learns_nothing_of_anothers_input(at: Runtime) -> None:
    first = plain.start(5, "visa")
    first.restart(id="again", changes={"amount": 7})
    user = User.objects.create_user("ada")
    user.user_permissions.set(Permission.objects.filter(codename__in=("start_run", "edit_input")))
    with acting_as(Actor("api", user)):
        for guess in (7, 8):
            with pytest.raises(RunConflictError, match="view_payload is needed"):
                first.restart(id="again", changes={"amount": guess})
        own = first.restart(id="own", changes={"amount": 9})
        assert first.restart(id="own", changes={"amount": 9}).id == own.id


# -- what is shown to be edited


def shown(run_id: str) -> Any:
    run = Run.objects.get(pk=run_id)
    given = recorded_input(run)
    assert given is not None
    return shown_arguments(run, given, arguments_of(run.workflow, given))


def test_values_that_json_does_not_express_stay_as_they_are(at: Runtime) -> None:
    first = pay.start(5, "bank", 1, 2, price=Decimal("1.50"), colour="red")
    found = shown(first.id)
    assert dict(found.values) == {"amount": 5, "to": "bank", "rest": [1, 2], "more": {"colour": "red"}}
    assert found.kept == ["price"]


def hide_cards(workflow: str, field: str, value: Any) -> Any:
    if field == "input" and value["args"]:
        return {**value, "args": [value["args"][0], "****", *value["args"][2:]]}
    return value


def hide_all(workflow: str, field: str, value: Any) -> Any:
    return "****"


def test_what_is_hidden_cannot_be_edited(at: Runtime) -> None:
    first = plain.start(5, "4242", "fragile")
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide_cards"}):
        found = shown(first.id)
    assert (dict(found.values), found.kept) == ({"amount": 5, "note": "fragile"}, ["card"])
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide_all"}):
        found = shown(first.id)
    assert (dict(found.values), list(found.kept)) == ({}, ["amount", "card", "note"])
