"""`ctx.ask_person`: who may answer, what an answer is, and what becomes of a question."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Literal
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import OperationalError, connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import AsyncContext, Context, CriticalError, workflow
from durable.core.people import asked_of, key_of_user
from durable.errors import (
    EntryNotFoundError,
    FormInvalidError,
    NotAllowedError,
    PersonTimeoutError,
    QuestionClosedError,
)
from durable.operations.audit import Actor, acting_as
from durable.people import Verdict, question, questions_for, questions_of
from durable.testing import Harness, SimulatedCrash
from tests.people import forms as own_forms
from tests.people.conftest import CHANGE, NOW, People, begun
from tests.people.forms import (
    Careless,
    CarelessRefusal,
    GroupForm,
    OfShop,
    OwnRefusal,
    RefundForm,
    WithFile,
)

KEY = UUID("b39625df-4c75-417b-8e61-0a40c62857fd")


def asking(form: Any = None, **options: Any) -> Any:
    def order(ctx: Context) -> Any:
        verdict = ctx.ask_person("approve refund", form, **options)
        return [verdict.data, verdict.by, verdict.at, verdict.comment, verdict.approved]

    return order


def opened(h: Harness, *args: Any, **options: Any) -> Any:
    options = options if {"to", "permission"} & options.keys() else {"permission": CHANGE, **options}
    run = begun(h, asking(*args, **options))
    assert h.peek(run).state == "sleeping", h.peek(run)
    return run


# -- an answer


def test_a_form_is_asked_for_and_its_data_comes_back(h: Harness, anna: User) -> None:
    run = opened(h, RefundForm, timeout="10 days")
    parked = h.peek(run)
    assert (parked.wake_at, parked.waiting_for) == (NOW + timedelta(days=10), None)
    [found] = questions_for(anna)
    assert (found.run_id, found.location, found.form_class) == (run.id, "approve refund", RefundForm)
    assert found.answer({"approved": "on", "amount": "12.50"}, by=anna, comment=" late ") is not None
    h.settle()
    assert run.output == [{"approved": True, "amount": Decimal("12.50"), "reason": ""}, "anna", NOW, "late", True]
    assert questions_for(anna) == []


@pytest.mark.parametrize(("given", "is_yes"), [(True, True), (False, False), ("no", False), ({"verdict": "yes"}, True)])
def test_without_a_form_people_say_yes_or_no(h: Harness, anna: User, given: Any, is_yes: bool) -> None:
    run = opened(h)
    assert questions_of(run.id)[0].form_class is None
    h.answer(run, "approve refund", given, by=anna, comment="so it is")
    h.settle()
    assert run.output == [is_yes, "anna", NOW, "so it is", is_yes]


@pytest.mark.parametrize("given", [None, "perhaps", 7, {}, {"verdict": "\x00"}, b"yes"], ids=repr)
def test_what_is_neither_yes_nor_no_is_refused_and_asked_again(h: Harness, anna: User, given: Any) -> None:
    run = opened(h)
    with pytest.raises(FormInvalidError) as caught:
        h.answer(run, "approve refund", given, by=anna)
    assert caught.value.errors == {"verdict": ["The answer is yes or no: True or False."]}
    assert len(questions_for(anna)) == 1


def test_an_answer_that_the_form_refuses_changes_nothing(h: Harness, anna: User) -> None:
    run = opened(h, RefundForm)
    with pytest.raises(FormInvalidError, match="amount") as caught:
        h.answer(run, "approve refund", {"amount": "-1"}, by=anna)
    assert list(caught.value.errors) == ["amount"]
    h.settle()
    assert h.peek(run).state == "sleeping"
    h.answer(run, "approve refund", {"amount": "1", "approved": True}, by=anna)
    h.settle()
    assert run.output[0]["amount"] == Decimal(1)


@pytest.mark.parametrize(
    "hostile",
    ["<script>alert(1)</script>", "x" * 200_000, "\u202e🎉ß\u0301", "'; DROP TABLE durable_run; --", "{a} %s {{ b }}"],
    ids=["html", "long", "unicode", "sql", "format"],
)
def test_hostile_text_comes_back_as_it_was_given(h: Harness, anna: User, hostile: str) -> None:
    run = opened(h, RefundForm)
    h.answer(run, "approve refund", {"amount": 1, "reason": hostile}, by=anna)
    h.settle()
    assert run.output[0]["reason"] == hostile


def test_what_cannot_be_recorded_is_an_error_of_the_form(h: Harness, anna: User) -> None:
    run = opened(h, RefundForm)
    for value in ("x" * 2_000_000, "\x00"):
        with pytest.raises(FormInvalidError):
            h.answer(run, "approve refund", {"amount": 1, "reason": value}, by=anna)
    with pytest.raises(FormInvalidError, match="comment"):
        h.answer(run, "approve refund", {"amount": 1}, by=anna, comment="x" * 10_001)
    with pytest.raises(FormInvalidError, match="mapping"):
        h.answer(run, "approve refund", [1], by=anna)
    assert len(questions_for(anna)) == 1


def test_rows_are_recorded_as_their_keys(h: Harness, people: People) -> None:
    run = opened(h, GroupForm)
    other = Group.objects.create(name="other")
    given = {"group": people.managers.pk, "others": [other.pk]}
    h.answer(run, "approve refund", given, by=people.allowed("anna"))
    h.settle()
    assert run.output[0] == {"group": people.managers.pk, "others": [other.pk]}


@pytest.mark.parametrize(
    ("form", "given", "told", "then"),
    [
        (Careless, {"amount": "a lot"}, "Careless has failed: KeyError", {"amount": "1"}),
        (CarelessRefusal, {"mark": 0}, "CarelessRefusal has failed: ZeroDivisionError", {"mark": 5}),
    ],
    ids=["clean", "refuses"],
)
def test_a_form_that_fails_is_named_and_can_be_answered_again(
    h: Harness, anna: User, caplog: pytest.LogCaptureFixture, form: Any, given: Any, told: str, then: Any
) -> None:
    run = opened(h, form)
    with pytest.raises(FormInvalidError) as caught:
        h.answer(run, "approve refund", given, by=anna)
    assert caught.value.errors == {"__all__": [f"the form tests.people.forms:{told}; the log has the traceback"]}
    [row] = [each for each in caplog.records if each.name == "durable.operations"]
    assert (row.levelno, row.exc_info is None, row.__dict__["run_id"]) == (logging.ERROR, False, run.id)
    assert f"the form tests.people.forms:{form.__name__} has failed" in row.getMessage()
    h.answer(run, "approve refund", then, by=anna)
    h.settle()
    assert h.peek(run).state == "completed"


def test_an_error_of_the_database_is_none_of_the_form(h: Harness, anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_clean(form: Any) -> None:
        raise OperationalError("the connection is gone")

    run = opened(h, Careless)
    monkeypatch.setattr(Careless, "full_clean", full_clean)
    with pytest.raises(OperationalError, match="the connection is gone"):
        h.answer(run, "approve refund", {"amount": 1}, by=anna)
    assert len(questions_for(anna)) == 1


def test_a_form_may_say_itself_what_a_refusal_is(h: Harness, anna: User) -> None:
    run = opened(h, OwnRefusal, approvals=2)
    h.answer(run, "approve refund", {"mark": 5}, by=anna)
    h.settle()
    assert (run.output[0], run.output[4]) == ({"mark": 5}, False)


# -- who may answer


def test_only_who_has_the_permission_may_answer(h: Harness, people: People) -> None:
    run = opened(h, RefundForm)
    assert questions_for(people.eve) == []
    with pytest.raises(NotAllowedError, match=r"auth\.change_group"):
        h.answer(run, "approve refund", {"amount": 1}, by=people.eve)
    assert len(questions_for(people.allowed("anna"))) == 1


def test_a_question_for_a_group_is_for_its_members(h: Harness, people: People) -> None:
    run = opened(h, to=people.managers, permission=CHANGE)
    max_, anna = people.manager("max"), people.allowed("anna")
    both = people.manager("both")
    people.allowed("both")
    assert [len(questions_for(each)) for each in (max_, anna, both)] == [0, 0, 1]
    for each in (max_, anna):
        with pytest.raises(NotAllowedError):
            h.answer(run, "approve refund", True, by=each)
    h.answer(run, "approve refund", True, by=both)


@pytest.mark.parametrize("how", ["row", "name"])
def test_a_question_for_a_user_is_for_nobody_else(h: Harness, people: People, how: str) -> None:
    run = opened(h, to=people.max if how == "row" else "user:max")
    root = User.objects.create_superuser("root")
    assert [len(questions_for(each)) for each in (people.max, people.anna, root)] == [1, 0, 0]
    with pytest.raises(NotAllowedError, match="it is for max"):
        h.answer(run, "approve refund", True, by=root)
    h.answer(run, "approve refund", True, by=people.max)


def test_a_group_may_be_named(h: Harness, people: People) -> None:
    opened(h, to="group:managers")
    assert len(questions_for(people.manager("max"))) == 1
    assert questions_for(people.anna) == []


def test_a_question_for_nobody_in_particular_is_for_operators(h: Harness, people: People) -> None:
    run = begun(h, asking())
    assert questions_for(people.anna) == []
    with pytest.raises(NotAllowedError, match=r"durable\.operate_run"):
        h.answer(run, "approve refund", True, by=people.anna)
    root = User.objects.create_superuser("root")
    assert len(questions_for(root)) == 1
    h.answer(run, "approve refund", True, by=root)


def test_a_user_who_was_deactivated_or_deleted_meanwhile_may_not(h: Harness, people: People) -> None:
    run = opened(h)
    anna, bert = people.allowed("anna"), people.allowed("bert")
    User.objects.filter(pk=anna.pk).update(is_active=False)
    User.objects.filter(pk=bert.pk).delete()
    for each in (anna, bert, AnonymousUser(), None, "carl", 7, User(username="unsaved")):
        assert questions_for(each) == []
        with pytest.raises(NotAllowedError):
            h.answer(run, "approve refund", True, by=each)
    assert h.peek(run).state == "sleeping"


def test_a_permission_that_was_taken_away_is_gone_at_once(h: Harness, anna: User) -> None:
    run = opened(h)
    assert anna.has_perm(CHANGE)  # and the object keeps that
    anna.user_permissions.clear()
    with pytest.raises(NotAllowedError):
        h.answer(run, "approve refund", True, by=anna)


@pytest.mark.parametrize("how", ["row", "key", "key as text", "name", "prefixed name", "list"])
def test_four_eyes_are_more_than_two(h: Harness, people: People, how: str) -> None:
    anna, bert = people.allowed("anna"), people.allowed("bert")
    excluded: Any = {
        "row": anna,
        "key": anna.pk,
        "key as text": str(anna.pk),  # as JSON has a key that is no number
        "name": "anna",
        "prefixed name": "user:anna",
        "list": [people.eve, anna],
    }[how]
    run = opened(h, not_by=excluded)
    assert questions_for(anna) == []
    with pytest.raises(NotAllowedError, match="four eyes"):
        h.answer(run, "approve refund", True, by=anna)
    h.answer(run, "approve refund", True, by=bert)


@pytest.mark.parametrize(
    ("key", "not_by"),
    [
        *((KEY, each) for each in (KEY, str(KEY), str(KEY).upper(), KEY.hex, [KEY])),
        *((text, text) for text in (KEY.hex, str(KEY), "7")),
    ],
    ids=["value", "text", "capitals", "digits alone", "list", "hexadecimal text", "text like a UUID", "text"],
)
def test_a_user_whose_key_is_a_uuid_or_text_may_be_excluded(key: UUID | str, not_by: Any) -> None:
    anna = SimpleNamespace(pk=key, get_username=lambda: "anna")
    said: dict[str, Any] = dict.fromkeys(("form", "to", "about", "remind", "escalate", "mail"))
    asked = asked_of(permission=CHANGE, not_by=not_by, approvals=1, text="", **said)
    assert key_of_user(anna) in asked.not_by


def test_the_starter_may_not_answer(h: Harness, people: People) -> None:
    anna, bert = people.allowed("anna"), people.allowed("bert")
    for each in (anna, bert):
        each.is_superuser = True
        each.save()
    with acting_as(Actor("admin", user=anna)):
        run = begun(h, asking(permission=CHANGE, not_by="starter"))
    with pytest.raises(NotAllowedError, match="four eyes"):
        h.answer(run, "approve refund", True, by=anna)
    h.answer(run, "approve refund", True, by=bert)


@workflow(name="tests.people.asking.refund")
def refund(ctx: Context, /, amount: int) -> str:
    return ctx.ask_person("approve refund", permission=CHANGE, not_by="starter").by


AGAIN: dict[str, Callable[[Any], Any]] = {
    "restart": lambda run: run.restart(),
    "restart with another input": lambda run: run.restart(changes={"amount": 10_000}),
    "replay": lambda run: run.replay("approve refund"),
    "replay in place": lambda run: run.replay("approve refund", in_place=True),
}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_who_begins_a_run_again_has_started_the_new_one_too(h: Harness, people: People, again: Any) -> None:
    anna, bert, carl, dora = (User.objects.create_superuser(name) for name in ("anna", "bert", "carl", "dora"))
    with acting_as(Actor("admin", user=anna)):
        first = begun(h, refund, 10)
    first.cancel()
    with acting_as(Actor("admin", user=dora)):
        first.restart(id=f"{first.id}-again", changes={"amount": 1}).cancel()  # another run
    with acting_as(Actor("admin", user=bert)):
        run = again(first)
    h.settle()
    barred, allowed = ([anna], [bert, carl, dora]) if run.id == first.id else ([anna, bert], [carl, dora])
    for each in barred:
        with pytest.raises(NotAllowedError, match="four eyes"):
            h.answer(run, "approve refund", True, by=each)
        assert questions_for(each) == []
    for each in allowed:
        assert len(questions_for(each)) == 1
    h.answer(run, "approve refund", True, by=allowed[0])


def test_a_restart_that_meets_a_run_names_no_starter(h: Harness, people: People) -> None:
    anna, bert, carl = (User.objects.create_superuser(name) for name in ("anna", "bert", "carl"))
    with acting_as(Actor("admin", user=anna)):
        first = begun(h, asking(permission=CHANGE, not_by="starter"))
    first.cancel()
    for each in (bert, carl):
        with acting_as(Actor("admin", user=each)):
            run = first.restart(id="again")
    h.settle()
    assert [len(questions_for(each)) for each in (anna, bert, carl)] == [0, 0, 1]
    h.answer(run, "approve refund", True, by=carl)


@pytest.mark.parametrize("again", ["start", "restart", "replay in place"])
def test_who_meets_a_run_that_the_code_has_started_is_not_its_starter(h: Harness, people: People, again: str) -> None:
    anna, bert = (User.objects.create_superuser(name) for name in ("anna", "bert"))
    refund = h._definition(asking(permission=CHANGE, not_by="starter")).using(id="order-42")
    run = begun(h, refund)
    with acting_as(Actor("admin", user=bert)):
        if again == "start":
            h.start(refund)
        else:
            run.cancel()
            run = run.restart() if again == "restart" else run.replay("approve refund", in_place=True)
    h.settle()
    for each in (anna, bert):
        with pytest.raises(NotAllowedError, match="nobody is recorded as that person"):
            h.answer(run, "approve refund", True, by=each)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_who_gives_a_debounced_run_its_input_has_started_it(
    h: Harness, people: People, keep: Literal["first", "last"]
) -> None:
    anna, bert, carl = (User.objects.create_superuser(name) for name in ("anna", "bert", "carl"))
    refund = h._definition(asking(permission=CHANGE, not_by="starter"))
    merged = refund.using(key="order-42", debounce=60, at_most=600, keep=keep)
    with acting_as(Actor("admin", user=anna)):
        run = h.start(merged)
    with acting_as(Actor("admin", user=bert)):
        assert h.start(merged).id == run.id
    assert h.actions[-1].detail.endswith("put off, with this newer input" if keep == "last" else "put off")
    h.advance(60)
    h.settle()
    assert [len(questions_for(each)) for each in (anna, bert, carl)] == [0, 0 if keep == "last" else 1, 1]


def test_a_starter_who_is_not_recorded_lets_nobody_answer(h: Harness, anna: User) -> None:
    run = opened(h, not_by="starter")
    with pytest.raises(NotAllowedError, match="name the user in not_by="):
        h.answer(run, "approve refund", True, by=anna)


def test_who_has_answered_before_may_be_excluded(h: Harness, people: People) -> None:
    anna, bert = people.allowed("anna"), people.allowed("bert")

    def order(ctx: Context) -> Any:
        first = ctx.ask_person("first", permission=CHANGE)
        second = ctx.ask_person("second", permission=CHANGE, not_by=first)
        return [first.by, second.by]

    run = begun(h, order)
    h.answer(run, "first", True, by=anna)
    h.settle()
    User.objects.filter(pk=anna.pk).update(username="renamed")
    with pytest.raises(NotAllowedError, match="four eyes"):
        h.answer(run, "second", True, by=anna)
    h.answer(run, "second", True, by=bert)
    h.settle()
    assert run.output == ["anna", "bert"]


# -- several approvals


def test_two_approvals_are_of_two_people(h: Harness, people: People) -> None:
    anna, bert = people.allowed("anna"), people.allowed("bert")

    def order(ctx: Context) -> Verdict:
        return ctx.ask_person("approve refund", RefundForm, permission=CHANGE, approvals=2)

    run = begun(h, order)
    assert h.answer(run, "approve refund", {"amount": 1, "approved": True}, by=anna, comment="fine") is None
    h.settle()
    assert h.peek(run).state == "sleeping"
    [found] = questions_for(bert)
    assert (found.answered_by, found.answers[0].data["amount"], found.answers[0].comment) == (("anna",), 1, "fine")
    assert questions_for(anna) == []
    with pytest.raises(NotAllowedError, match="already"):
        h.answer(run, "approve refund", {"amount": 2, "approved": True}, by=anna)
    h.advance("1 hour")
    h.answer(run, "approve refund", {"amount": 3, "approved": True}, by=bert)
    h.settle()
    verdict: Any = run.output
    assert (verdict.by, verdict.data["amount"], verdict.approved) == ("bert", 3, True)
    assert [(each.by, each.data["amount"], each.at) for each in verdict.answers] == [
        ("anna", 1, NOW),
        ("bert", 3, NOW + timedelta(hours=1)),
    ]


@pytest.mark.parametrize("first", ["the link", "the account"])
def test_an_account_and_the_link_to_its_address_are_one_person(h: Harness, people: People, first: str) -> None:
    anna, bert = people.anna, people.bert
    User.objects.filter(pk=anna.pk).update(email="Anna@shop.example")
    by_link = "anna@shop.example"

    def order(ctx: Context) -> Any:
        to: Any = by_link if first == "the link" else anna
        second: Any = anna if first == "the link" else by_link
        verdict = ctx.ask_person("approve refund", to=to, approvals=2, escalate=("1 day", second))
        return [each.by for each in verdict.answers]

    run = begun(h, order)
    one, other = (by_link, anna) if first == "the link" else (anna, by_link)
    assert h.answer(run, "approve refund", True, by=one) is None
    h.advance("1 day")
    h.settle()
    assert questions_for(anna) == []
    with pytest.raises(NotAllowedError, match="already"):
        h.answer(run, "approve refund", True, by=other)
    questions_of(run.id)[0].hand_over(bert, by=User.objects.create_superuser("boss"))
    h.answer(run, "approve refund", True, by=bert)
    h.settle()
    assert run.output == [one if isinstance(one, str) else "anna", "bert"]


@pytest.mark.parametrize("not_by", ["starter", "anna", "an earlier verdict"])
def test_who_is_excluded_does_not_answer_by_the_link_to_their_address(h: Harness, people: People, not_by: str) -> None:
    anna = User.objects.create_superuser("anna", "anna@shop.example")

    def order(ctx: Context) -> Any:
        excluded = ctx.ask_person("first", permission=CHANGE) if not_by == "an earlier verdict" else not_by
        return ctx.ask_person("approve refund", to="anna@shop.example", not_by=excluded).by

    with acting_as(Actor("code", user=anna)):
        run = begun(h, order)
    if not_by == "an earlier verdict":
        h.answer(run, "first", True, by=anna)
        h.settle()
    with pytest.raises(NotAllowedError, match="four eyes"):
        h.answer(run, "approve refund", True, by="anna@shop.example")
    User.objects.filter(pk=anna.pk).update(email="other@shop.example")
    h.answer(run, "approve refund", True, by="anna@shop.example")
    h.settle()
    assert run.output == "anna@shop.example"


def test_a_refusal_ends_it_at_once(h: Harness, people: People) -> None:
    run = opened(h, approvals=3)
    h.answer(run, "approve refund", True, by=people.allowed("anna"))
    h.answer(run, "approve refund", False, by=people.allowed("bert"), comment="no")
    with pytest.raises(QuestionClosedError):
        h.answer(run, "approve refund", True, by=people.allowed("carl"))
    h.settle()
    assert run.output == [False, "bert", NOW, "no", False]


# -- when it is over


def test_nobody_answers_in_time(h: Harness, people: People) -> None:
    def order(ctx: Context) -> str:
        try:
            ctx.ask_person("approve refund", permission=CHANGE, timeout="2 days")
        except PersonTimeoutError as error:
            return error.question
        return "answered"

    run = begun(h, order)
    h.advance(timedelta(days=2))
    with pytest.raises(QuestionClosedError, match="its time is over"):
        h.answer(run, "approve refund", True, by=people.allowed("anna"))
    assert questions_for(people.anna) == []
    h.settle()
    assert run.output == "approve refund"
    with pytest.raises(QuestionClosedError):
        h.answer(run, "approve refund", True, by=people.anna)


def test_an_answer_in_time_counts_however_late_the_worker_is(h: Harness, anna: User) -> None:
    run = opened(h, timeout="2 days")
    h.advance(timedelta(days=2) - timedelta(seconds=1))
    h.answer(run, "approve refund", True, by=anna)
    h.advance("5 days")
    h.settle()
    assert run.output[0] is True


def test_a_timeout_comes_from_the_settings(h: Harness, people: People) -> None:
    run = opened(h)
    assert h.peek(run).wake_at == NOW + timedelta(days=30)
    with override_settings(DURABLE={"ASK_TIMEOUT": "3 days"}):
        other = opened(h)
    assert h.peek(other).wake_at == NOW + timedelta(days=3)


def test_a_run_that_was_cancelled_asks_nobody(h: Harness, people: People) -> None:
    run = opened(h)
    run.cancel()
    h.settle()
    assert questions_for(people.allowed("anna")) == []
    with pytest.raises(QuestionClosedError, match="run has ended"):
        h.answer(run, "approve refund", True, by=people.anna)


def test_an_old_question_is_dead_after_a_rewind(h: Harness, anna: User) -> None:
    given: list[int] = []

    def order(ctx: Context) -> Any:
        ctx.step("first", given.append, 1)
        return ctx.ask_person("approve refund", permission=CHANGE).data

    run = begun(h, order)
    [old] = questions_for(anna)
    run.replay("first", in_place=True)
    with pytest.raises(QuestionClosedError):
        old.answer(False, by=anna)
    assert questions_for(anna) == []
    h.settle()
    with pytest.raises(QuestionClosedError):
        old.answer(False, by=anna)
    [new] = questions_for(anna)
    assert new.id != old.id
    new.answer(True, by=anna)
    h.settle()
    assert run.output is True


def test_a_copy_of_a_run_asks_for_itself(h: Harness, anna: User) -> None:
    def order(ctx: Context) -> Any:
        ctx.step("first", int)
        asked = ctx.ask_person("approve refund", permission=CHANGE).data
        ctx.step("last", int)
        return asked

    run = begun(h, order)
    copy = run.replay("first", in_place=False)
    h.settle()
    assert {each.run_id for each in questions_for(anna)} == {run.id, copy.id}
    h.answer(run, "approve refund", True, by=anna)
    h.answer(copy, "approve refund", False, by=anna)
    h.settle()
    assert (run.output, copy.output) == (True, False)
    later = run.replay("last", in_place=False)
    h.settle()
    assert later.output is True


def test_a_loser_of_a_race_asks_nobody(h: Harness, anna: User) -> None:
    def order(ctx: Context) -> Any:
        return ctx.race(
            "either",
            {
                "asked": lambda c: c.ask_person("approve refund", permission=CHANGE).by,
                "late": lambda c: c.sleep("a day", "1 day"),
            },
        ).winner

    run = begun(h, order)
    [found] = questions_for(anna)
    h.advance("1 day")
    h.settle()
    assert run.output == "late"
    with pytest.raises(QuestionClosedError):
        found.answer(True, by=anna)


def test_branches_ask_beside_each_other(h: Harness, anna: User) -> None:
    def order(ctx: Context) -> Any:
        asked = {name: lambda c: c.ask_person("ok", permission=CHANGE) for name in ("left", "right")}
        return {name: each.data for name, each in ctx.join("both", asked).items()}

    run = begun(h, order)
    assert len(questions_for(anna)) == 2
    with pytest.raises(EntryNotFoundError):
        h.answer(run, "ok", True, by=anna)
    h.answer(run, "both/right/ok", False, by=anna)
    h.settle()
    h.answer(run, "both/left/ok", True, by=anna)
    h.settle()
    assert run.output == {"left": True, "right": False}


@pytest.mark.parametrize("store", ["memory", "database"])
def test_a_run_that_failed_and_is_recovered_asks_again(anna: User, store: Any) -> None:
    is_broken = [False]

    def order(ctx: Context) -> Any:
        if is_broken[0]:
            raise NameError("a mistake of the code, which stops the run while the question waits")
        return ctx.ask_person("ok", permission=CHANGE).data

    with Harness(now=NOW, store=store, strict=False) as h:
        run = begun(h, order)
        [found] = questions_for(anna)
        is_broken[0] = True
        h.run(run)
        assert h.peek(run).state == "failed"
        assert questions_for(anna) == []
        with pytest.raises(QuestionClosedError):
            found.answer(True, by=anna)
        assert h._store.close_questions(h.now, 10) == 1
        is_broken[0] = False
        run.recover()
        h.settle()
        assert [each.id for each in questions_for(anna)] == [found.id]
        h.answer(run, "ok", True, by=anna)
        h.settle()
        assert run.output is True


def test_an_unknown_question_is_not_found(h: Harness, anna: User) -> None:
    run = opened(h)
    with pytest.raises(EntryNotFoundError):
        h.answer(run, "approve", True, by=anna)
    for unknown in ("", "x" * 1_000, "\x00", "0" * 16):
        with pytest.raises(QuestionClosedError):
            question(unknown)


# -- the same question again


def test_it_is_asked_once_whatever_crashes(h: Harness, anna: User) -> None:

    def drive(harness: Harness, handle: Any) -> None:
        harness.settle()
        for each in questions_of(handle.id, is_open=True):
            each.answer({"amount": 1, "approved": True}, by=anna)
        harness.finish(handle)
        assert len(questions_of(handle.id)) == 1

    assert h.crash_everywhere(asking(RefundForm, permission=CHANGE), drive=drive) >= 2


def test_a_crash_before_the_commit_leaves_no_question(h: Harness, people: People) -> None:
    run = h.start(asking(permission=CHANGE))
    with h.crash_at(1), pytest.raises(SimulatedCrash):
        h.run(run)
    assert questions_of(run.id) == []
    h.run(run)
    assert len(questions_of(run.id)) == 1
    h.run(run)
    assert len(questions_of(run.id)) == 1


def test_async_workflows_await_people(h: Harness, anna: User) -> None:
    async def order(ctx: AsyncContext) -> Any:
        verdict = await ctx.ask_person("approve refund", RefundForm, permission=CHANGE)
        return verdict.data["amount"]

    run = begun(h, order)
    h.answer(run, "approve refund", {"amount": "3"}, by=anna)
    h.settle()
    assert run.output == 3


def test_it_is_deterministic(h: Harness, anna: User) -> None:

    def drive(harness: Harness, handle: Any) -> None:
        harness.settle()
        harness.answer(handle, "approve refund", True, by=anna)
        harness.finish(handle)

    assert h.assert_deterministic(asking(permission=CHANGE), drive=drive) > 0


# -- a form that changes


def test_a_form_that_changed_is_validated_anew(
    h: Harness, people: People, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django import forms

    class Changed(RefundForm):
        account = forms.CharField()

    run = opened(h, "tests.people.forms.RefundForm")
    monkeypatch.setattr(own_forms, "RefundForm", Changed)
    with pytest.raises(FormInvalidError) as caught:
        h.answer(run, "approve refund", {"amount": 1, "approved": "on"}, by=anna)
    assert list(caught.value.errors) == ["account"]
    h.answer(run, "approve refund", {"amount": 1, "approved": "on", "account": "DE1"}, by=anna)
    monkeypatch.undo()
    h.settle()
    assert run.output[0]["account"] == "DE1"


@pytest.mark.parametrize("stand_in", [None, 7, "broken"], ids=["gone", "no form", "no form either"])
def test_a_form_that_is_gone_refuses_answers_and_no_pass(
    h: Harness, people: People, anna: User, monkeypatch: pytest.MonkeyPatch, stand_in: Any
) -> None:
    run = opened(h, "tests.people.forms.RefundForm")
    if stand_in is None:
        monkeypatch.delattr(own_forms, "RefundForm")
    else:
        monkeypatch.setattr(own_forms, "RefundForm", stand_in)
    [found] = questions_for(anna)
    with pytest.raises(FormInvalidError, match="RefundForm"):
        found.answer({"amount": 1}, by=anna)
    h.run(run)
    assert h.peek(run).state == "sleeping"
    monkeypatch.undo()
    found.answer({"amount": 1}, by=anna)
    h.settle()
    assert run.output[1] == "anna"


@pytest.mark.parametrize(
    ("form", "why"),
    [(WithFile, "requires a file"), (OfShop, "without arguments: TypeError")],
    ids=["file", "arguments"],
)
def test_a_form_that_nobody_can_answer_by_says_why(h: Harness, anna: User, client: Client, form: Any, why: str) -> None:
    run = opened(h, form)
    [found] = questions_for(anna)
    with pytest.raises(FormInvalidError, match=why):
        found.answer({"mark": 1}, by=anna)
    client.force_login(anna)
    assert why in client.get(reverse("durable-asked", args=[found.id])).content.decode()
    assert h.peek(run).state == "sleeping"


def test_the_code_may_ask_for_another_form_in_a_later_pass(lenient: Harness, anna: User) -> None:
    asked: list[Any] = [RefundForm]

    def order(ctx: Context) -> Any:
        return ctx.ask_person("approve refund", asked[0], permission=CHANGE).data

    run = begun(lenient, order)
    asked[0] = OwnRefusal
    lenient.run(run)
    [found] = questions_for(anna)
    assert found.form_class is OwnRefusal
    found.answer({"mark": 1}, by=anna)
    lenient.settle()
    assert run.output == {"mark": 1}


# -- handing over, claiming, commenting


def test_a_question_is_handed_over(h: Harness, people: People) -> None:
    run = opened(h, to=people.max)
    [found] = questions_for(people.max)
    with pytest.raises(NotAllowedError):
        found.hand_over(people.anna, by=people.eve)
    found.hand_over(people.anna, by=people.max, comment="on holiday")
    assert questions_for(people.max) == []
    [handed] = questions_for(people.anna)
    assert (handed.to, [each["text"] for each in handed.notes]) == ("anna", ["→ anna: on holiday"])
    with pytest.raises(NotAllowedError):
        h.answer(run, "approve refund", True, by=people.max)
    h.run(run)
    assert len(questions_for(people.anna)) == 1, "a pass gives it to nobody else"
    h.answer(run, "approve refund", True, by=people.anna)


def test_a_question_is_handed_over_to_nobody_who_may_not_answer(h: Harness, people: People, anna: User) -> None:
    opened(h, permission=CHANGE, not_by=people.allowed("bert"))
    [found] = questions_for(anna)
    for other in (people.eve, people.bert):
        with pytest.raises(NotAllowedError):
            found.hand_over(other, by=anna)
    for nobody in (None, 7, "somebody"):
        with pytest.raises((TypeError, ValueError)):
            found.hand_over(nobody, by=anna)
    assert len(questions_for(anna)) == 1


def test_an_operator_may_hand_over_what_is_for_somebody_else(h: Harness, people: People) -> None:
    opened(h, to=people.max)
    [found] = questions_for(people.max)
    root = User.objects.create_superuser("root")
    found.hand_over(people.managers, by=root)
    assert len(questions_for(people.manager("anna"))) == 1


def test_who_claims_it_answers_it(h: Harness, people: People) -> None:
    run = opened(h)
    anna, bert = people.allowed("anna"), people.allowed("bert")
    [found] = questions_for(anna)
    found.claim(by=anna)
    assert (questions_for(bert), questions_for(anna)[0].claimed_by) == ([], "anna")
    for verb in (found.claim, found.release):
        with pytest.raises(NotAllowedError, match="anna has claimed it"):
            verb(by=bert)
    with pytest.raises(NotAllowedError):
        h.answer(run, "approve refund", True, by=bert)
    found.release(by=anna)
    h.answer(run, "approve refund", True, by=bert)


def test_comments_stay_with_the_question(h: Harness, people: People, anna: User) -> None:
    opened(h)
    [found] = questions_for(anna)
    found.comment("who <b>knows</b> this? \x00", by=anna)
    with pytest.raises(NotAllowedError):
        found.comment("me", by=people.eve)
    for empty in ("", "  "):
        with pytest.raises(FormInvalidError):
            found.comment(empty, by=anna)
    assert [(each["by"], each["text"]) for each in questions_for(anna)[0].notes] == [
        ("anna", "who <b>knows</b> this? \x00")
    ]


# -- the audit log


def test_each_verb_is_audited_refusals_included(h: Harness, people: People, anna: User) -> None:
    run = opened(h)
    [found] = questions_for(anna)
    with pytest.raises(NotAllowedError):
        found.answer(True, by=people.eve)
    with pytest.raises(FormInvalidError):
        found.answer("perhaps", by=anna)
    found.comment("hm", by=anna)
    found.answer(True, by=anna)
    rows = [(each.action, each.outcome, each.actor_label) for each in h.actions if each.run_id == run.id]
    assert rows == [
        ("answer", "denied", "eve"),
        ("answer", "invalid", "anna"),
        ("comment", "done", "anna"),
        ("answer", "done", "anna"),
    ]
    assert h.actions[-1].actor_id == anna.pk
    assert h.actions[-1].detail == 'question "approve refund": approves'


# -- mistakes of the code


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"approvals": 0}, ValueError),
        ({"approvals": True}, ValueError),
        ({"permission": "approve"}, ValueError),
        ({"permission": 7}, ValueError),
        ({"to": 7}, TypeError),
        ({"to": "somebody"}, TypeError),
        ({"to": User(username="new")}, ValueError),
        ({"to": Group(name="new")}, ValueError),
        ({"about": 7}, TypeError),
        ({"about": "order"}, ValueError),
        ({"not_by": 7.5}, TypeError),
        ({"form": 7}, TypeError),
        ({"form": "no path"}, ValueError),
        ({"remind": "10 s"}, ValueError),
        ({"escalate": "3 days"}, TypeError),
        ({"escalate": ("3 days", None)}, ValueError),
        ({"text": "x" * 2_001}, ValueError),
        ({"timeout": "soon"}, ValueError),
    ],
    ids=repr,
)
def test_what_no_question_can_have_is_a_mistake(h: Harness, options: Any, error: type[Exception]) -> None:
    def order(ctx: Context) -> None:
        with pytest.raises(error):
            ctx.ask_person("approve refund", **options)

    run = begun(h, order)
    assert h.peek(run).state == "completed"


def test_no_message_can_be_sent_in_place_of_an_answer(h: Harness, people: People) -> None:
    run = opened(h)
    queue = h._store.questions([run.id])[0].queue
    with pytest.raises(ValueError, match="question"):
        h.send(run, queue, {"approved": True, "answers": []})


def test_a_plain_run_asks_nothing(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    run = begun(h, lambda ctx: ctx.step("one", int))
    assert questions_of(run.id) == []
    assert run.state == "completed"


@pytest.mark.django_db
def test_a_recovery_of_a_run_that_asked_nobody_looks_for_no_questions() -> None:
    def failing(ctx: Context) -> None:
        raise CriticalError("for good")

    with Harness(now=NOW, store="database", strict=False) as h:
        run = begun(h, failing)
        assert h.peek(run).state == "failed"
        with CaptureQueriesContext(connection) as queries:
            run.recover()
        assert h.peek(run).state != "failed"
    assert [each["sql"] for each in queries if "durable_question" in each["sql"]] == []
