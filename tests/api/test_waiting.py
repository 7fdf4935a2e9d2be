"""Long polls leave threads for everything else, and places for other users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from rest_framework.request import Request

from durable.api import long_poll
from durable.api.long_poll import MAX_WAITING, wait_for


@pytest.fixture(autouse=True)
def seats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has served nothing yet."""
    monkeypatch.setattr(long_poll, "_seats", long_poll.Seats())
    monkeypatch.setattr(long_poll, "_threads", WeakSet())
    monkeypatch.setattr(long_poll, "_let_go", lambda: None)


def request_of(name: str, *, threads: bool = True, under_asgi: bool = False) -> Request:
    """A request of a user's."""
    plain: Any = AsyncRequestFactory().get("/") if under_asgi else RequestFactory().get("/")
    if not under_asgi:
        plain.META["wsgi.multithread"] = threads
    assert isinstance(plain, ASGIRequest) == under_asgi
    request = Request(plain)
    request.user = User(username=name)
    return request


class Polls:
    """Requests that wait until they are asked to stop, each in a thread of the server."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.threads: list[threading.Thread] = []

    def waits(self, request: Request) -> bool:
        """Whether another request waits, or is answered at once."""
        looked = 0
        decided = threading.Event()

        def look() -> bool | None:
            nonlocal looked
            looked += 1
            if looked == 2:  # a second look is one of a request that waits
                decided.set()
            return self.end.is_set() or None

        def serve() -> None:
            wait_for(request, look, 600)
            decided.set()
            self.end.wait()

        self.threads.append(threading.Thread(target=serve))
        self.threads[-1].start()
        assert decided.wait(60)
        return looked > 1


@contextmanager
def polls() -> Iterator[Polls]:
    found = Polls()
    try:
        yield found
    finally:
        found.end.set()
        for each in found.threads:
            each.join(60)
            assert not each.is_alive()


def test_where_a_process_has_one_thread_nothing_waits() -> None:
    with polls() as found:
        assert not found.waits(request_of("ada", threads=False))


def test_a_user_has_two_seats_and_leaves_the_others() -> None:
    with polls() as found:
        assert [found.waits(request_of("ada", under_asgi=True)) for _ in range(3)] == [True, True, False]
        others = [request_of(f"user {number}", under_asgi=True) for number in range(MAX_WAITING)]
        assert [found.waits(each) for each in others] == [True] * (MAX_WAITING - 2) + [False] * 2
    with polls() as found:  # all have been given back
        assert found.waits(request_of("ada", under_asgi=True))


def test_of_a_servers_threads_a_quarter_waits() -> None:
    """The process has shown no more threads than have served a poll."""
    with polls() as found:
        assert found.waits(request_of("user 0"))  # one, of two at least
        assert [found.waits(request_of(f"user {number}")) for number in range(1, 7)] == [False] * 6
        assert found.waits(request_of("user 8"))  # with it, eight have


def test_a_setting_says_otherwise() -> None:
    with override_settings(DURABLE={"API_MAX_WAITING": 12}), polls() as found:
        assert [found.waits(request_of("ada", threads=False)) for _ in range(4)] == [True, True, True, False]
        assert all(found.waits(request_of(f"user {number}", threads=False)) for number in range(9))
        assert not found.waits(request_of("bob"))
    with override_settings(DURABLE={"API_MAX_WAITING": 0}), polls() as found:
        assert not found.waits(request_of("ada", under_asgi=True))


def test_a_look_that_fails_gives_its_seat_back() -> None:
    looked = 0

    def fails() -> None:
        nonlocal looked
        looked += 1
        if looked > 1:
            raise RuntimeError("the database has gone")

    for _ in range(MAX_WAITING + 1):
        looked = 0
        with pytest.raises(RuntimeError):
            wait_for(request_of("ada", under_asgi=True), fails, 600)
