"""A key's request is done once: repeated, at once with another, after a crash, and after the key's life."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.utils import timezone

from durable.models import IdempotencyKey
from durable.operations.idempotency import LIFE, Answer, KeyReusedError, once

pytestmark = pytest.mark.django_db


def making() -> Callable[[], Answer]:
    """Makes a row, so that what was done can be counted."""

    def perform() -> Answer:
        group = Group.objects.create(name=uuid.uuid4().hex)
        return Answer(status=201, body=f'{{"id": {group.pk}}}', headers={"Location": f"/{group.pk}"})

    return perform


def ask(
    key: str = "k", *, owner: str = "1", fingerprint: str = "f", perform: Callable[[], Answer] | None = None
) -> tuple[Answer, bool]:
    return once(owner=owner, key=key, fingerprint=fingerprint, perform=perform or making())


def test_the_same_request_is_done_once_and_answered_alike() -> None:
    first, was_there = ask()
    again, is_there = ask()
    assert (was_there, is_there) == (False, True)
    assert again == first
    assert Group.objects.count() == 1


def test_another_request_with_the_key_is_refused() -> None:
    ask()
    with pytest.raises(KeyReusedError, match='the idempotency key "k" was used for another request'):
        ask(fingerprint="g")
    assert Group.objects.count() == 1


def test_the_keys_of_owners_are_their_own() -> None:
    ask()
    assert ask(owner="2", fingerprint="g")[1] is False
    assert Group.objects.count() == 2


def test_a_request_that_raises_leaves_its_key_free() -> None:
    def fails() -> Answer:
        making()()
        raise RuntimeError("crash between doing and answering")

    with pytest.raises(RuntimeError):
        ask(perform=fails)
    assert not Group.objects.exists()
    assert ask()[1] is False
    assert Group.objects.count() == 1


def test_a_key_is_forgotten_after_its_life() -> None:
    ask()
    IdempotencyKey.objects.update(created_at=timezone.now() - LIFE)
    assert ask(fingerprint="g") != ask(fingerprint="g", perform=making())
    assert Group.objects.count() == 2
    assert IdempotencyKey.objects.count() == 1


def test_expired_keys_go_with_new_ones() -> None:
    old = timezone.now() - LIFE - timedelta(seconds=1)
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(owner="1", key=f"old{n}", fingerprint="f", claim="c", created_at=old) for n in range(50)
    )
    for number in range(3):
        ask(f"new{number}")
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"new0", "new1", "new2"}


def test_any_text_may_be_answered() -> None:
    answer = Answer(status=200, body="\x00\ud800é", headers={"Location": "/é"})
    ask(perform=lambda: answer)
    assert ask() == (answer, True)


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
            answers.append(ask(perform=slow))
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
