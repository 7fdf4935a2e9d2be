"""A key's request is done once, however it is repeated; and nobody can guess what is recorded by asking again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.utils import timezone

from durable import get_run
from durable.models import IdempotencyKey, QueueMessage, Run
from durable.operations.idempotency import LIFE, Answer, KeyReusedError, once
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import add, ask

pytestmark = pytest.mark.django_db


def making() -> Callable[[], Answer]:
    """Makes a row, so that what was done can be counted."""

    def perform() -> Answer:
        group = Group.objects.create(name=uuid.uuid4().hex)
        return Answer(status=201, body=f'{{"id": {group.pk}}}', headers={"Location": f"/{group.pk}"})

    return perform


def asked(
    key: str = "k", *, owner: str = "1", fingerprint: str = "f", perform: Callable[[], Answer] | None = None
) -> tuple[Answer, bool]:
    return once(owner=owner, key=key, fingerprint=fingerprint, perform=perform or making())


def test_the_same_request_is_done_once_and_answered_alike() -> None:
    first, was_there = asked()
    again, is_there = asked()
    assert (was_there, is_there) == (False, True)
    assert again == first
    assert Group.objects.count() == 1


def test_another_request_with_the_key_is_refused_but_for_another_owner() -> None:
    asked()
    with pytest.raises(KeyReusedError, match='the idempotency key "k" was used for another request'):
        asked(fingerprint="g")
    assert Group.objects.count() == 1
    assert asked(owner="2", fingerprint="g")[1] is False
    assert Group.objects.count() == 2


def test_a_request_that_raises_leaves_its_key_free() -> None:
    def fails() -> Answer:
        making()()
        raise RuntimeError("crash between doing and answering")

    with pytest.raises(RuntimeError):
        asked(perform=fails)
    assert not Group.objects.exists()
    assert asked()[1] is False
    assert Group.objects.count() == 1


def test_a_key_is_forgotten_after_its_life() -> None:
    asked()
    IdempotencyKey.objects.update(created_at=timezone.now() - LIFE)
    assert asked(fingerprint="g") != asked(fingerprint="g", perform=making())
    assert Group.objects.count() == 2
    assert IdempotencyKey.objects.count() == 1


def test_expired_keys_go_with_new_ones() -> None:
    old = timezone.now() - LIFE - timedelta(seconds=1)
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(owner="1", key=f"old{n}", fingerprint="f", claim="c", created_at=old) for n in range(50)
    )
    for number in range(3):
        asked(f"new{number}")
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"new0", "new1", "new2"}


def test_any_text_may_be_answered() -> None:
    answer = Answer(status=200, body="\x00\ud800é", headers={"Location": "/é"})
    asked(perform=lambda: answer)
    assert asked() == (answer, True)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_request_that_the_database_has_cut_off_may_be_repeated_with_its_key(api: Api) -> None:
    add.using(id="a").start(1)
    keys = ("host", "port", "user", "password", "dbname")
    parameters = {key: value for key, value in connection.get_connection_params().items() if key in keys}
    try:
        with psycopg.connect(**parameters) as holder, connection.cursor() as cursor:
            holder.execute("SELECT FROM durable_run WHERE id = 'a' FOR UPDATE")
            cursor.execute("SET statement_timeout = '50ms'")  # as a site may for the role of its web processes
            refused = api.post("/runs/a/pause", key="k")
    finally:
        connection.close()
    problem(refused, 503, "statement-timeout")
    assert refused["Retry-After"] == "60"
    answer = api.post("/runs/a/pause", key="k")
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")
    assert "Idempotency-Replayed" not in answer


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_does_it_and_both_get_the_answer() -> None:
    begun, both = threading.Event(), threading.Barrier(2)
    answers: list[tuple[Answer, bool]] = []

    def slow() -> Answer:
        begun.set()
        answer = making()()
        with transaction.atomic():  # until the other one waits for the key
            while not _waits_for_a_lock():
                begun.wait(0.01)
        return answer

    def request() -> None:
        both.wait(120)
        try:
            answers.append(asked(perform=slow))
        finally:
            connection.close()

    threads = [threading.Thread(target=request) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(was_there for _, was_there in answers) == [False, True]
    assert answers[0][0] == answers[1][0]
    assert Group.objects.count() == 1


def _waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS(SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
        )
        row = cursor.fetchone()
    return bool(row and row[0])


# -- nobody can guess what is recorded by asking for the same again, except users who may see it or have written it


START: dict[str, Any] = {"workflow": "tests.api.add", "id": "order-1"}
GUESSES: list[dict[str, Any]] = [
    {"args": ["PIN-1233"]},
    {"args": ["PIN-1234"]},
    {"args": []},
    {"workflow": "tests.api.loop", "args": [1]},
]
REPLIES: list[dict[str, Any]] = [
    {"queue": "q", "body": "yes"},
    {"queue": "q", "body": "no"},
    {"queue": "other", "body": "yes"},
]


@pytest.mark.parametrize("permissions", [("start_run",), ("start_run", "view_run"), ("start_run", "operate_run")])
def test_an_input_is_not_guessed_by_starting(make_api: MakeApi, permissions: tuple[str, ...]) -> None:
    add.using(id="order-1").start("PIN-1234")
    guesser = make_api(*permissions)
    answers = {str(guesser.post("/runs", {**START, **guess}).json()) for guess in (GUESSES[0], GUESSES[1], GUESSES[3])}
    assert len(answers) == 1
    problem(guesser.post("/runs", {**START, **GUESSES[1]}), 409, "id-taken")
    assert Run.objects.count() == 1


def test_the_starter_of_a_run_may_ask_for_it_again(make_api: MakeApi) -> None:
    """A program that repeats its request after a cut has no other permission."""
    program, other = make_api("start_run"), make_api("start_run")
    assert program.post("/runs", {**START, **GUESSES[0]}).status_code == 201
    assert program.post("/runs", {**START, **GUESSES[0]}).status_code == 200
    assert "with another input" in problem(program.post("/runs", {**START, **GUESSES[1]}), 409, "id-taken")["detail"]
    detail = problem(other.post("/runs", {**START, **GUESSES[0]}), 409, "id-taken")["detail"]
    assert "durable.view_payload" in detail


def test_a_user_with_view_payload_gets_the_reason(make_api: MakeApi) -> None:
    add.using(id="order-1").start("PIN-1234")
    viewer = make_api("start_run", "view_payload")
    assert viewer.post("/runs", {**START, **GUESSES[1]}).status_code == 200
    assert "with another input" in problem(viewer.post("/runs", {**START, **GUESSES[0]}), 409, "id-taken")["detail"]


def test_a_message_is_not_guessed_by_sending(make_api: MakeApi) -> None:
    ask.using(id="a").start()
    get_run("a").send("q", "yes", id="m")
    guesser = make_api("operate_run", "view_run")
    answers = {str(guesser.post("/runs/a/messages", {**guess, "id": "m"}).json()) for guess in REPLIES}
    assert len(answers) == 1
    problem(guesser.post("/runs/a/messages", {**REPLIES[0], "id": "m"}), 409, "id-taken")
    assert QueueMessage.objects.count() == 1


class TestMessageIds:
    def test_a_repeated_message_says_that_it_is_not_new(self, make_api: MakeApi) -> None:
        ask.using(id="a").start()
        program = make_api("operate_run")
        first = program.post("/runs/a/messages", {**REPLIES[0], "id": "m"})
        again = program.post("/runs/a/messages", {**REPLIES[0], "id": "m"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        assert first["Location"] == again["Location"]

    @pytest.mark.parametrize("other", REPLIES[1:])
    def test_another_message_with_its_id_is_a_conflict(self, make_api: MakeApi, other: dict[str, Any]) -> None:
        ask.using(id="a").start()
        for api in (make_api("operate_run"), make_api(*ALL)):
            name = str(api.user)
            assert api.post("/runs/a/messages", {**REPLIES[0], "id": name}).status_code == 201
            detail = problem(api.post("/runs/a/messages", {**other, "id": name}), 409, "id-taken")["detail"]
            assert "give this message another id" in detail
        assert QueueMessage.objects.count() == 2

    def test_so_is_one_to_a_run_that_has_ended(self, api: Api) -> None:
        ask.using(id="a").start()
        api.post("/runs/a/messages", {**REPLIES[0], "id": "m"})
        get_run("a").cancel()
        assert api.post("/runs/a/messages", {**REPLIES[0], "id": "m"}).status_code == 200
        problem(api.post("/runs/a/messages", {**REPLIES[1], "id": "m"}), 409, "id-taken")

    def test_asking_again_waits_for_the_same_answer(self, api: Api) -> None:
        ask.using(id="a").start()
        question = {"queue": "question", "body": 1, "id": "m"}
        assert [api.post("/runs/a/ask", question).status_code for _ in range(2)] == [202, 202]
        problem(api.post("/runs/a/ask", {**question, "body": 2}), 409, "id-taken")
        assert QueueMessage.objects.count() == 1
