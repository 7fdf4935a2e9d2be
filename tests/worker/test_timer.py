"""The timer and the sweep on real databases and a real Redis."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError, transaction
from django.test import override_settings
from django.utils import timezone

from durable.core import clock
from durable.models import LimitKey, RateKey
from durable.notifier import notify, redis_clients
from durable.store import Store
from durable.worker import timer
from durable.worker.timer import Chores, DeadlineListener, Sweep, Timer
from project.servers import EmbeddedRedis
from tests.support.notifications import jobs, take_job
from tests.support.runs import new_runs
from tests.support.waiting import eventually

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]
QUEUE = "default"
SELDOM = {"SWEEP_INTERVAL": 3600}


@pytest.fixture(autouse=True)
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer._log_this, "_said", {})
    monkeypatch.setattr(notify._log_this, "_said", {})
    monkeypatch.setattr(notify, "_quiet_until", {})
    monkeypatch.setattr(redis_clients, "_since", {})
    monkeypatch.setattr(redis_clients, "_poll_until", 0.0)


class Notifications:
    """The notifications and their times; `wait` blocks for the next one."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool, datetime]] = []
        self._condition = threading.Condition()

    def __call__(self, queue: str, *, force: bool = False) -> None:
        with self._condition:
            self.sent.append((queue, force, timezone.now()))
            self._condition.notify_all()

    def wait(self, count: int = 1) -> tuple[str, bool, datetime]:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.sent) >= count, timeout=90), self.sent
            return self.sent[count - 1]


@pytest.fixture
def notifications(monkeypatch: pytest.MonkeyPatch) -> Notifications:
    found = Notifications()
    monkeypatch.setattr(notify, "notify", found)
    return found


@contextmanager
def listening_timer(store: Store) -> Iterator[Timer]:
    with Timer(store) as found, DeadlineListener(found) as alarms:
        assert alarms.listening.wait(60)
        yield found


class TestTimer:
    @override_settings(DURABLE=SELDOM)
    def test_it_notifies_at_the_deadline(self, store: Store, notifications: Notifications) -> None:
        deadline = timezone.now() + timedelta(seconds=0.5)
        new_runs(store, queue="high", wake_at=deadline)
        new_runs(store, queue="high", wake_at=deadline + timedelta(hours=1))
        with Timer(store):
            queue, force, moment = notifications.wait()
        assert (queue, force) == ("high", False)
        assert moment >= deadline
        assert len(notifications.sent) == 1

    @override_settings(DURABLE=SELDOM)
    def test_it_looks_again_at_the_deadline_itself(
        self, store: Store, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a clock that stands until the timer waits."""
        now = timezone.now()
        monkeypatch.setattr(clock, "now", lambda: now)
        with Timer(store) as found:
            for number in range(1, 8):
                deadline = now + timedelta(seconds=0.05)
                (run_id,) = new_runs(store, wake_at=deadline)
                found.bring_forward(now)
                eventually(lambda deadline=deadline: found._next == deadline)  # type: ignore[misc]  # bound here
                assert len(notifications.sent) == number - 1
                now = deadline
                notifications.wait(number)
                claimed = store.claim_run(run_id, now=now, lease_until=now + timedelta(hours=1), worker="test")
                assert claimed is not None

    @override_settings(DURABLE=SELDOM)
    def test_an_alarm_brings_it_forward(self, store: Store, notifications: Notifications) -> None:
        with listening_timer(store):
            deadline = timezone.now() + timedelta(seconds=0.3)
            with transaction.atomic():
                new_runs(store, wake_at=deadline)
                notify.notify_at_on_commit(QUEUE, deadline)
            queue, _, moment = notifications.wait()  # in time, not at the next look without an alarm
        assert queue == QUEUE
        assert moment >= deadline

    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.1})
    def test_without_an_alarm_it_finds_out_by_asking_again(self, store: Store, notifications: Notifications) -> None:
        with Timer(store):
            new_runs(store, wake_at=timezone.now() + timedelta(seconds=0.3))
            assert notifications.wait()[0] == QUEUE

    @override_settings(DURABLE=SELDOM)
    def test_an_alarm_of_another_shape_is_ignored(
        self,
        store: Store,
        notifications: Notifications,
        redis_connection: redis.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with listening_timer(store) as found:
            shapes: list[str | bytes] = [
                "nonsense",
                "{}",
                "[]",
                json.dumps({"at": 5}),
                '{"at":' + "[" * 100_000,
                b"\xff\xfe",
            ]
            shapes += [json.dumps({"at": each}) for each in ("2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59")]
            for data in shapes:
                redis_connection.publish(notify.ALARMS, data)
            eventually(lambda: len([each for each in caplog.records if "another shape" in each.message]) == len(shapes))
            assert [each.name for each in threading.enumerate() if each.name.startswith("durable-alarms")]
            new_runs(store)
            found.bring_forward(timezone.now())
            assert notifications.wait()[0] == QUEUE

    @override_settings(DURABLE=SELDOM)
    def test_whatever_fails_alarms_are_heard_again(
        self,
        store: Store,
        notifications: Notifications,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(timer, "RETRY", 0.01)
        listen, failures = DeadlineListener._listen, iter([RuntimeError("of no class that is known")])

        def fail_once(self: DeadlineListener, queue: str, redis: redis.Redis) -> None:
            if (error := next(failures, None)) is not None:
                raise error
            listen(self, queue, redis)

        monkeypatch.setattr(DeadlineListener, "_listen", fail_once)
        with listening_timer(store):
            new_runs(store, wake_at=timezone.now())
            notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=0.1))
            assert notifications.wait()[0] == QUEUE
        assert "listening for alarms failed" in caplog.text

    @override_settings(DURABLE=SELDOM)
    def test_a_timer_whose_wait_fails_goes_on(
        self, store: Store, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timer, "RETRY", 0.01)
        remaining, failures = Timer._remaining, iter([TypeError("naive and aware")])

        def fail_once(self: Timer) -> float:
            if (error := next(failures, None)) is not None:
                raise error
            return remaining(self)

        monkeypatch.setattr(Timer, "_remaining", fail_once)
        with Timer(store) as found:
            eventually(lambda: next(failures, None) is None and found._next is not None)
            new_runs(store)
            found.bring_forward(timezone.now())
            assert notifications.wait()[0] == QUEUE

    @override_settings(DURABLE=SELDOM)
    def test_it_stops_at_once(self, store: Store) -> None:
        new_runs(store, wake_at=timezone.now() + timedelta(hours=1))

        def named() -> set[str]:
            begun = ("durable-timer", "durable-sweep", "durable-alarms")
            return {each.name for each in threading.enumerate() if each.name.startswith(begun)}

        found: list[int] = []

        def begin_and_end() -> None:
            with listening_timer(store), Sweep(store):
                found.append(len(named()))

        both = threading.Thread(target=begin_and_end, daemon=True)
        both.start()
        both.join(90)
        assert not both.is_alive(), "it waits for its next look"
        assert (found, named()) == ([3], set())

    @override_settings(DURABLE=SELDOM)
    def test_several_at_once_notify_for_the_same_and_do_no_harm(self, store: Store) -> None:
        new_runs(store, wake_at=timezone.now() + timedelta(seconds=0.2))
        with Timer(store), Timer(store), Timer(store), Sweep(store), Sweep(store):
            eventually(lambda: len(jobs()) == 1)
        assert len(jobs()) == 1


class TestSweep:
    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.05})
    def test_it_notifies_again_and_again_with_force(self, store: Store, notifications: Notifications) -> None:
        new_runs(store)
        new_runs(store, queue="high")
        with Sweep(store):
            notifications.wait(6)
        assert {each[:2] for each in notifications.sent} == {("default", True), ("high", True)}

    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.05})
    def test_a_run_whose_worker_died_is_found_when_its_lease_ran_out(
        self, store: Store, notifications: Notifications
    ) -> None:
        (run_id,) = new_runs(store)
        lease_until = timezone.now() + timedelta(seconds=0.4)
        assert store.claim_run(run_id, now=timezone.now(), lease_until=lease_until, worker="killed") is not None
        with Sweep(store):
            assert notifications.wait()[2] >= lease_until

    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.05})
    def test_a_lost_job_is_replaced(self, store: Store) -> None:
        new_runs(store)
        notify.notify(QUEUE)
        take_job()  # by a worker that is killed before it looks
        with Sweep(store):
            eventually(lambda: len(jobs()) == 1)

    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.05})
    def test_nothing_due_notifies_nothing(self, store: Store, notifications: Notifications) -> None:
        looks = threading.Semaphore(0)

        class Watched(Sweep):
            def tick(self, now: datetime) -> datetime:
                moment = super().tick(now)
                looks.release()
                return moment

        with Watched(store):
            for _ in range(3):
                assert looks.acquire(timeout=90)
        assert notifications.sent == []


class TestLooks:
    @override_settings(DURABLE={"SWEEP_INTERVAL": 5})
    def test_after_its_first_look_the_timer_looks_at_what_has_become_due_since(
        self, store: Store, notifications: Notifications
    ) -> None:
        now = timezone.now()
        new_runs(store, queue="default", wake_at=now - timedelta(hours=1))
        found = Timer(store)
        found.tick(now)
        assert [queue for queue, _, _ in notifications.sent] == ["default"]
        new_runs(store, queue="high", wake_at=now + timedelta(seconds=2))
        assert found.tick(now + timedelta(seconds=1)) == now + timedelta(seconds=2)
        assert len(notifications.sent) == 1, "the sweep notifies for what was not claimed"
        found.tick(now + timedelta(seconds=2))
        assert [queue for queue, _, _ in notifications.sent] == ["default", "high"]
        found.tick(now - timedelta(minutes=59))  # the clock was set back
        new_runs(store, queue="default", wake_at=now - timedelta(minutes=58))
        found.tick(now - timedelta(minutes=58))
        assert [queue for queue, _, _ in notifications.sent] == ["default", "high", "default"]

    def test_a_sweep_notifies_for_all_that_is_due(self, store: Store, notifications: Notifications) -> None:
        now = timezone.now()
        new_runs(store, queue="default", wake_at=now - timedelta(hours=1))
        sweep = Sweep(store)
        for _ in range(2):
            sweep.tick(now)
        assert [(queue, force) for queue, force, _ in notifications.sent] == [("default", True)] * 2


class TestOutage:
    @pytest.mark.parametrize("thread", [Timer, Sweep])
    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.05})
    def test_a_database_that_was_away(
        self,
        store: Store,
        notifications: Notifications,
        thread: Callable[[Store], Timer | Sweep],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(timer, "RETRY", 0.02)
        caplog.set_level(logging.WARNING, "durable.timer")
        new_runs(store)
        failures: list[Exception] = [OperationalError("gone"), OperationalError("gone"), RuntimeError("a fault")]

        class Flaky:
            def due_queues(self, now: datetime, **options: Any) -> list[str]:
                if failures:
                    raise failures.pop(0)
                return store.due_queues(now, **options)

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        with thread(Flaky()):  # type: ignore[arg-type]  # it has what the threads use
            notifications.wait()
        assert "cannot read deadlines" in caplog.text
        assert "goes on" in caplog.text

    @override_settings(DURABLE={"SWEEP_INTERVAL": 0.1})
    def test_a_redis_that_was_away(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer, "RETRY", 0.05)
        with EmbeddedRedis() as own:
            queues = {QUEUE: {"URL": own.url, "SERIALIZER": "json"}}
            with override_settings(RQ_QUEUES=queues), listening_timer(store) as found, Sweep(store):
                own.stop("kill")
                new_runs(store)
                notify.notify(QUEUE)  # lost
                own.start()
                eventually(lambda: len(jobs()) == 1)  # by the sweep
                # the alarms are heard again, too
                eventually(lambda: redis_clients.client(QUEUE).pubsub_numsub(notify.ALARMS)[0][1] == 1)
                heard: list[datetime] = []
                monkeypatch.setattr(found, "bring_forward", heard.append)
                sent: list[datetime] = []

                def is_heard() -> bool:
                    sent.append(timezone.now() + timedelta(seconds=0.9))
                    notify.notify_at(QUEUE, sent[-1])
                    return not set(sent).isdisjoint(heard)

                eventually(is_heard)


def test_chores_are_done_every_half_minute(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "CHORES", ())
    now = timezone.now()
    assert Chores(store).tick(now) == now + timedelta(seconds=30)


def test_the_sweep_deletes_all_keys_of_limits_that_nobody_uses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "KEYS_AT_ONCE", 2)
    LimitKey.objects.bulk_create(LimitKey(limit="orders", key=str(number)) for number in range(5))
    RateKey.objects.bulk_create(RateKey(limit="orders", key=str(number)) for number in range(5))
    Sweep(store).tick(timezone.now())
    assert not LimitKey.objects.exists()
    assert not RateKey.objects.exists()
