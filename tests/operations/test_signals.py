"""Signals: receivers are called, and cannot break anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from durable import signals, workflow


@workflow(name="tests.signals.rests")
def rests(ctx: Any) -> None:
    ctx.sleep("rest", 60)


@contextmanager
def connected(signal: Signal, receiver: Any) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def test_a_receiver_gets_what_is_sent() -> None:
    seen: list[dict[str, Any]] = []

    def receiver(**kwargs: Any) -> None:
        seen.append(kwargs)

    with connected(signals.run_completed, receiver):
        signals.send(signals.run_completed, run="a", workflow="shop.fulfil")
    (kwargs,) = seen
    assert (kwargs["run"], kwargs["workflow"], kwargs["sender"]) == ("a", "shop.fulfil", signals.Durable)


def test_a_receiver_that_fails_is_logged_and_the_other_receivers_are_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(**kwargs: Any) -> None:
        raise ZeroDivisionError

    def sound(*, run: str, **kwargs: Any) -> None:
        seen.append(run)

    with connected(signals.run_failed, broken), connected(signals.run_failed, sound):
        signals.send(signals.run_failed, run="a", workflow="shop.fulfil", error=None)
    assert seen == ["a"]
    assert "of run_failed failed for run a" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_an_async_receiver_under_a_running_loop_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def receiver(**kwargs: Any) -> None: ...

    with connected(signals.run_changed, receiver):
        signals.send(signals.run_changed, run="a", workflow="w", state="running", previous="pending")
    assert "could not be called for run a" in caplog.text


@pytest.mark.django_db
def test_what_does_not_commit_sends_no_signal(django_capture_on_commit_callbacks: Any) -> None:
    seen: list[tuple[str, str]] = []

    def receiver(*, run: str, state: str, **kwargs: Any) -> None:
        seen.append((run, state))

    with connected(signals.run_changed, receiver):
        with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
            rests.using(id="undone").start()
            transaction.set_rollback(True)
        assert seen == []
        with django_capture_on_commit_callbacks(execute=True):
            handle = rests.using(id="done").start()
            handle.pause()
            assert seen == []
    assert seen == [("done", "pending"), ("done", "paused")]
