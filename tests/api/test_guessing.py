"""Nobody can guess what is recorded by asking for the same again, except users who may see it or have written it."""

from __future__ import annotations

from typing import Any

import pytest

from durable import get_run
from durable.models import QueueMessage, Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import add, ask

pytestmark = pytest.mark.django_db

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
