"""The row of a question whose run is imported, or whose place is renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User

from durable import Context, workflow
from durable.core.names import recorded_names
from durable.core.names.renames import put_in_force
from durable.core.people import ASK
from durable.histories import StoredHistory, Values, read_histories, written_history
from durable.migrations import RenameStep
from durable.models import Question, Run
from durable.operations.audit import Actor, acting_as
from durable.operations.imports import import_run
from durable.people import questions_for, questions_of
from durable.testing import Harness
from tests.people.conftest import CHANGE, NOW, People, begun
from tests.renames.conftest import apply

NAME = "tests.people.moved"


#: Options that the code of the workflow adds, from one pass to the next.
SAID: dict[str, Any] = {}


@workflow(name=NAME)
def asks(ctx: Context, /, **options: Any) -> Any:
    verdict = ctx.ask_person(SAID.get("name", "ok"), permission=CHANGE, **options, text=SAID.get("text", ""))
    return [verdict.data, [each.by for each in verdict.answers]]


@pytest.fixture
def h(db: None) -> Iterator[Harness]:
    with Harness(now=NOW, store="database") as harness:
        yield harness


def asked(h: Harness, **options: Any) -> Any:
    run = begun(h, asks, **options)
    assert h.peek(run).state == "sleeping"
    return run


def exported(run_id: str) -> StoredHistory:
    """Return the run as a file has it. It is deleted here, as if the file came from elsewhere."""
    [found] = read_histories(written_history(run_id, Values.STORED))
    Run.objects.filter(pk=run_id).delete()
    return found


def imported(found: StoredHistory) -> None:
    import_run(found.run, found.entries, found.messages, origin="a test", digest="1" * 32)


# -- imports


def test_an_imported_run_asks_anew_once_it_is_resumed(h: Harness, anna: User) -> None:
    run = asked(h)
    [before] = questions_of(run.id)
    imported(exported(run.id))
    assert questions_for(anna) == [], "an import is for inspection: nobody is asked"
    run.resume()
    h.settle()
    [found] = questions_for(anna)
    assert found.id != before.id, "mails of the other database have its address"
    assert found.expires_at == before.expires_at
    found.answer(True, by=anna)
    h.settle()
    assert run.output == [True, ["anna"]]


def test_approvals_are_not_in_a_file(h: Harness, people: People, anna: User) -> None:
    run = asked(h, approvals=2)
    h.answer(run, "ok", True, by=anna)
    imported(exported(run.id))
    run.resume()
    h.settle()
    [found] = questions_for(anna)
    assert found.answered_by == ()
    found.answer(True, by=anna)
    found.answer(True, by=people.allowed("bert"))
    h.settle()
    assert run.output == [True, ["anna", "bert"]]


def test_a_verdict_that_the_run_has_not_received_yet_is_received_after_the_import(h: Harness, anna: User) -> None:
    run = asked(h)
    h.answer(run, "ok", True, by=anna)
    found = exported(run.id)
    imported(found)
    run.resume()
    h.settle()
    assert run.output == [True, ["anna"]]


def test_a_file_changes_no_question_of_another_run(h: Harness, anna: User, people: People) -> None:
    theirs, run = asked(h), asked(h, approvals=2)
    [before] = Question.objects.filter(run_id=theirs.id).values()
    [question] = questions_of(theirs.id)
    h.answer(run, "ok", False, by=anna)  # so that the file has a verdict, and the import leaves the question as it is
    found = exported(run.id)
    entries = [
        replace(each, data={**each.data, ASK: {**each.data[ASK], "id": question.id, "spec": {}}})
        if ASK in each.data
        else each
        for each in found.entries
    ]
    imported(replace(found, entries=entries))
    run.resume()
    h.settle()
    assert [*Question.objects.filter(run_id=theirs.id).values()] == [before]
    question.answer(True, by=anna)


# -- renames


@pytest.fixture
def no_names_left() -> Iterator[None]:
    yield
    SAID.clear()
    put_in_force(())
    recorded_names.put_in_force(())


@pytest.mark.usefixtures("no_names_left")
def test_a_question_at_a_renamed_place_is_answered(h: Harness, anna: User) -> None:
    run = asked(h)
    apply(RenameStep(NAME, "ok", "approve", wait=0))
    [found] = questions_for(anna)
    assert found.location == "approve"
    found.answer(True, by=anna)
    h.settle()
    assert run.output == [True, ["anna"]]


@pytest.mark.usefixtures("no_names_left")
def test_a_renamed_question_of_which_the_code_says_something_else_gets_the_answer(h: Harness, anna: User) -> None:
    run = asked(h)
    apply(RenameStep(NAME, "ok", "approve", wait=0))
    SAID.update(name="approve", text="after")
    h.run(run)
    [found] = questions_for(anna)
    assert (found.location, found.text) == ("approve", "after")
    found.answer(True, by=anna)
    h.settle()
    assert run.output == [True, ["anna"]]


# -- verbs


def test_a_restart_asks_for_itself(h: Harness, anna: User) -> None:
    run = asked(h)
    run.cancel()
    h.settle()
    h._store.close_questions(h.now, 10)  # as the sweep does
    again = run.restart()
    h.settle()
    [found] = questions_for(anna)
    assert (found.run_id, [each.outcome for each in questions_of(run.id)]) == (again.id, ["ended"])
    found.answer(True, by=anna)
    h.settle()
    assert again.output == [True, ["anna"]]


@pytest.mark.parametrize("starter", ["bert", None])
def test_who_has_started_an_earlier_run_of_the_id_is_not_the_starter(h: Harness, starter: str | None) -> None:
    anna, bert = (User.objects.create_superuser(name) for name in ("anna", "bert"))

    def started(by: User | None) -> Any:
        with nullcontext() if by is None else acting_as(Actor("code", user=by)):
            return begun(h, asks.using(id="order-42"), not_by="starter")

    run = started(anna)
    assert questions_for(anna) == []
    run.cancel()
    h.advance("1 day")
    Run.objects.filter(pk=run.id).delete()
    started(bert if starter else None)
    assert questions_for(bert) == []
    assert len(questions_for(anna)) == (1 if starter else 0)


def test_a_replay_of_an_ended_run_asks_anew(h: Harness, anna: User) -> None:
    def order(ctx: Context) -> Any:
        ctx.step("first", int)
        return ctx.ask_person("ok", permission=CHANGE).data

    run = begun(h, order)
    run.cancel()
    h.settle()
    h._store.close_questions(h.now, 10)  # as the sweep does
    assert [each.outcome for each in questions_of(run.id)] == ["ended"]
    run.replay("first", in_place=True)
    h.settle()
    assert [(each.outcome, each.is_open) for each in questions_of(run.id)] == [("replaced", False), ("", True)]
    [found] = questions_for(anna)
    found.answer(True, by=anna)
    h.settle()
    assert run.output is True
