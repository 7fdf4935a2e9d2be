"""Starting a run again with another input."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import override_settings

from durable import Actor, Context, OperationDeniedError, RunConflictError, acting_as, workflow
from durable.inspection.payloads import recorded_input, shown_arguments
from durable.models import OperatorAction, Run
from durable.operations.start import arguments_of
from durable.runtime import Runtime
from tests.support.stores import passed


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


def test_an_argument_that_had_its_default_can_be_given(at: Runtime) -> None:
    again = plain.start(5, "visa").restart(changes={"note": {"by": "hand"}})
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
