"""Two answers at the same time, on a real database: one wins."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durable import Context
from durable.errors import NotAllowedError, QuestionClosedError
from durable.models import Question, QueueMessage, Run
from durable.operations.audit import Actor, acting_as
from durable.people import question_at, questions_for
from durable.testing import Harness
from tests.support.at_once import THREADS, at_once, patiently

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
        run: Any = h.start(asking())
        h.settle()
        assert outcomes(run.id, people) == [*["QuestionClosedError"] * (THREADS - 1), "decided"]
        assert QueueMessage.objects.filter(run=run.id).count() == 1
        h.settle()
        assert run.output.data is True


def test_of_approvals_at_once_each_counts_once() -> None:
    people = users()
    with Harness(store="database") as h:
        run: Any = h.start(asking(approvals=2))
        h.settle()
        assert outcomes(run.id, people) == [*["QuestionClosedError"] * (THREADS - 2), "counted", "decided"]
        h.settle()
        assert len({each.by for each in run.output.answers}) == 2


def test_one_person_many_times_at_once_counts_once() -> None:
    [one] = users(1)
    with Harness(store="database") as h:
        run = h.start(asking(approvals=2))
        h.settle()
        assert outcomes(run.id, [one] * THREADS) == [*["NotAllowedError"] * (THREADS - 1), "counted"]


def test_a_deleted_run_takes_its_questions_along() -> None:
    [one] = users(1)
    with Harness(store="database") as h:
        run = h.start(asking())
        h.settle()
        run.cancel()
        h.settle()
        Run.objects.filter(pk=run.id).delete()
    assert not Question.objects.exists()
    assert questions_for(one) == []


def test_an_inbox_of_10000_is_found_by_the_index() -> None:
    [one] = users(1)
    other = User.objects.create_user("other")
    with Harness(store="database") as h:
        run = h.start(asking())
        h.settle()
        given: Any = Question.objects.values().get()
        entry_of = Run.objects.values().get(pk=run.id)
        del given["id"]
        with connection.cursor() as cursor:
            runs = [Run(**{**entry_of, "id": f"run-{number:05}"}) for number in range(10_000)]
            Run.objects.bulk_create(runs, batch_size=1_000)
            copies = [
                Question(
                    **{
                        **given,
                        "run_id": f"run-{number:05}",
                        "question_id": f"{number:016x}",
                        "assignee": f"user:{other.pk}",
                    }
                )
                for number in range(10_000)
            ]
            Question.objects.bulk_create(copies, batch_size=1_000)
            cursor.execute("ANALYZE")
        with CaptureQueriesContext(
            connection,
        ) as seen:
            [found] = questions_for(one)
        assert found.run_id == run.id
        assert len(seen) <= 7
        if connection.vendor == "postgresql":
            sql = next(each["sql"] for each in seen.captured_queries if 'FROM "durable_question"' in each["sql"])
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT TEXT) {sql}")
                plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "durable_question_open" in plan
            assert "Seq Scan on durable_question" not in plan


def test_the_starter_of_a_child_is_that_of_its_parent() -> None:
    anna, bert = users(2)
    with Harness(store="database") as h:
        child = h._definition(asking(not_by="starter"))

        def parent(ctx: Context) -> Any:
            return ctx.child("child", child).id

        with acting_as(Actor("admin", user=anna)):
            run = h.start(parent)
        h.settle()
        [found] = questions_for(bert)
        assert found.run_id != run.id
        with pytest.raises(NotAllowedError, match="four eyes"):
            found.answer(True, by=anna)
        found.answer(True, by=bert)
