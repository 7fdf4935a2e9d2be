"""Two answers at the same time, on a real database: one wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durable import Context
from durable.core.question_rules import details_of, with_details
from durable.core.records import QuestionRecord
from durable.errors import NotAllowedError, QuestionClosedError
from durable.models import Question, QueueMessage, Run
from durable.operations.audit import Actor, acting_as
from durable.people import question_at, questions_for
from durable.store.tables.rows import QUESTION
from durable.testing import Harness
from tests.people.conftest import begun
from tests.support.waiting import THREADS, at_once, patiently

pytestmark = pytest.mark.django_db(transaction=True)


def users(number: int = THREADS) -> list[User]:
    return [User.objects.create_superuser(f"person-{each}") for each in range(number)]


def outcomes(run_id: str, people: list[User], given: Any = True) -> list[str]:
    found = [""] * len(people)

    def act(number: int) -> None:
        def once() -> None:
            try:
                done = question_at(run_id, "ok").answer(given, by=people[number])
                found[number] = "decided" if done else "counted"
            except (QuestionClosedError, NotAllowedError) as error:
                found[number] = type(error).__name__

        patiently(once)

    at_once(act, len(people))
    return sorted(found)


def asking(**options: Any) -> Any:
    def order(ctx: Context) -> Any:
        return ctx.ask_person("ok", **options)

    return order


def test_of_answers_at_once_one_wins() -> None:
    people = users()
    with Harness(store="database") as h:
        run = begun(h, asking())
        assert outcomes(run.id, people) == [*["QuestionClosedError"] * (THREADS - 1), "decided"]
        assert QueueMessage.objects.filter(run=run.id).count() == 1
        h.settle()
        assert run.output.data is True


def test_of_approvals_at_once_each_counts_once() -> None:
    people = users()
    with Harness(store="database") as h:
        run = begun(h, asking(approvals=2))
        assert outcomes(run.id, people) == [*["QuestionClosedError"] * (THREADS - 2), "counted", "decided"]
        h.settle()
        assert len({each.by for each in run.output.answers}) == 2


def test_one_person_many_times_at_once_counts_once() -> None:
    [one] = users(1)
    with Harness(store="database") as h:
        run = begun(h, asking(approvals=2))
        assert outcomes(run.id, [one] * THREADS) == [*["NotAllowedError"] * (THREADS - 1), "counted"]


def test_a_deleted_run_takes_its_questions_along() -> None:
    [one] = users(1)
    with Harness(store="database") as h:
        run = begun(h, asking())
        run.cancel()
        h.settle()
        Run.objects.filter(pk=run.id).delete()
    assert not Question.objects.exists()
    assert questions_for(one) == []


@pytest.mark.slow
def test_whom_10000_questions_are_not_for_is_decided_by_one_statement_along_the_index() -> None:
    one, other = User.objects.create_user("one"), User.objects.create_user("other")
    one.user_permissions.add(Permission.objects.get(codename="change_group", content_type__app_label="auth"))
    with Harness(store="database") as h:
        run = begun(h, asking(permission="auth.change_group"))
        [record] = h._store.questions([run.id])
        details = details_of(record)
        spec = details["spec"]
        claimed = {"key": f"user:{other.pk}", "by": "other", "at": record.asked_at.isoformat()}
        answer = {"key": f"user:{one.pk}", "by": "one", "at": record.asked_at.isoformat(), "text": ""}
        not_theirs = [
            replace(record, assignee=f"user:{other.pk}"),
            replace(record, permission="auth.add_group"),
            replace(record, assignee=f"user:{one.pk}", permission="auth.add_group"),
            replace(record, permission=""),
            replace(record, expires_at=record.asked_at),
            with_details(record, {**details, "claimed": claimed}),
            with_details(record, {**details, "answers": [answer]}),
            with_details(record, {**details, "spec": {**spec, "not_by": ["username:one"]}}),
            with_details(record, {**details, "spec": {**spec, "not_by": ["starter"]}}),
            with_details(record, {**details, "spec": {**spec, "not_by": ["starter"]}, "starter": f"user:{one.pk}"}),
        ]
        fill(run.id, not_theirs)
        with CaptureQueriesContext(connection) as seen:
            [found] = questions_for(one)
        assert found.run_id == run.id
        assert len(seen) <= 7
        [sql] = [each["sql"] for each in seen.captured_queries if 'FROM "durable_question"' in each["sql"]]
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {sql}")
            plan = "\n".join(map(str, cursor.fetchall()))
        assert "durable_question_open" in plan
        assert "Seq Scan" not in plan
        assert "SCAN durable_question\n" not in plan


def fill(run_id: str, records: list[QuestionRecord], number: int = 1_000) -> None:
    """Let copies of a run ask these questions, each as often as the number says."""
    row = Run.objects.values().get(pk=run_id)
    ids = [f"run-{each:05}" for each in range(number * len(records))]
    Run.objects.bulk_create([Run(**{**row, "id": each}) for each in ids], batch_size=1_000)
    copies = [
        Question(**QUESTION.attributes(replace(records[at % len(records)], run_id=each, question_id=f"{at:016x}")))
        for at, each in enumerate(ids)
    ]
    Question.objects.bulk_create(copies, batch_size=1_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def test_the_starter_of_a_child_is_that_of_its_parent() -> None:
    anna, bert = users(2)
    with Harness(store="database") as h:
        child = h._definition(asking(not_by="starter"))

        def parent(ctx: Context) -> Any:
            return ctx.child("child", child).id

        with acting_as(Actor("admin", user=anna)):
            run = begun(h, parent)
        [found] = questions_for(bert)
        assert found.run_id != run.id
        with pytest.raises(NotAllowedError, match="four eyes"):
            found.answer(True, by=anna)
        found.answer(True, by=bert)
