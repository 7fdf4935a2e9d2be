"""Notifications on a real Redis: coalescing, its races, commits, outages."""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException

from durable.notifier import enqueue, notify, redis_clients
from project.servers import EmbeddedRedis
from tests.support.notifications import jobs, take_job

pytestmark = pytest.mark.redis
QUEUE = "default"
KEY = f"durable:bell:{QUEUE}"


@pytest.fixture(autouse=True)
def quiet(redis_connection: redis.Redis, no_outages: None) -> None:
    """An empty Redis, and no memory of the outages of other tests."""


def acl(connection: redis.Redis, *command: str) -> None:
    connection.execute_command("ACL", *command)  # type: ignore[no-untyped-call]  # redis-py's own


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction, or a savepoint, that is rolled back."""
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


class TestRing:
    def test_a_job_is_the_name_of_a_queue_in_json(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        (job,) = jobs()
        assert (job.func_name, list(job.args), dict(job.kwargs)) == ("durable.jobs.work", [QUEUE], {})
        assert job.data.startswith(b"[")
        assert (job.timeout, job.result_ttl, job.failure_ttl) == (-1, 0, 3600)
        assert job.retries_left is None

    def test_it_is_the_job_that_rq_would_have_enqueued(self, redis_connection: redis.Redis) -> None:
        before = timezone.now()
        notify.notify(QUEUE)
        rq_queue = redis_clients.rq_queue(QUEUE)
        rq_queue.enqueue_call(
            "durable.jobs.work",
            args=(QUEUE,),
            timeout=-1,
            result_ttl=0,
            failure_ttl=3600,
            description=f"durable: {QUEUE}",
        )
        ours, theirs = jobs()
        moments = ("created_at", "enqueued_at")
        assert [
            {key: value for key, value in each.to_dict().items() if key not in moments} for each in (ours, theirs)
        ] == [{key: value for key, value in theirs.to_dict().items() if key not in moments}] * 2
        assert ours.enqueued_at is not None
        assert before <= ours.created_at == ours.enqueued_at <= timezone.now()
        assert redis_connection.smembers("rq:queues") == {rq_queue.key.encode()}

    def test_any_name_of_a_queue_is_kept_as_it_is(self, redis_connection: redis.Redis) -> None:
        name = 'späti "high" \\ {x} %s\n'
        with override_settings(RQ_QUEUES={name: settings.RQ_QUEUES[QUEUE]}):
            notify.notify(name)
            notify.notify(name)
            (job,) = jobs(name)
            assert (list(job.args), job.origin, job.description) == ([name], name, f"durable: {name}")
            redis_connection.delete(redis_clients.rq_queue(name).key)
            notify.notify(name, force=True)
            assert len(jobs(name)) == 1

    def test_a_redis_that_has_lost_the_script_gets_it_again(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        redis_connection.script_flush()
        notify.acknowledge(QUEUE)
        notify.notify(QUEUE)
        assert len(jobs()) == 2

    @pytest.mark.parametrize("is_notified_before", [False, True])
    def test_a_forced_notification_makes_the_next_claim_look_at_all(self, is_notified_before: bool) -> None:
        notify.notify(QUEUE)
        assert notify.acknowledge(QUEUE) is False
        if is_notified_before:
            notify.notify(QUEUE)
        notify.notify(QUEUE, force=True)
        notify.notify(QUEUE)
        assert notify.acknowledge("high") is False
        assert notify.acknowledge(QUEUE) is True
        assert notify.acknowledge(QUEUE) is False

    def test_a_thousand_notifications_are_one_job(self) -> None:
        for _ in range(1000):
            notify.notify(QUEUE)
        assert len(jobs()) == 1

    def test_queues_are_notified_apart(self) -> None:
        notify.notify("default")
        notify.notify("high")
        assert (len(jobs("default")), len(jobs("high"))) == (1, 1)

    def test_a_notification_after_the_acknowledgement_is_a_new_job(self) -> None:
        notify.notify(QUEUE)
        take_job()
        notify.notify(QUEUE)
        assert jobs() == []  # the job that was taken has not looked yet
        notify.acknowledge(QUEUE)
        notify.notify(QUEUE)
        assert len(jobs()) == 1

    def test_an_enqueueing_that_fails_leaves_the_bell_free(self, redis_connection: redis.Redis) -> None:
        redis_connection.set(redis_clients.rq_queue(QUEUE).key, "no list")
        notify.notify(QUEUE)
        assert not redis_connection.exists(KEY)
        assert redis_connection.keys("rq:job:*") == []
        redis_connection.delete(redis_clients.rq_queue(QUEUE).key)
        notify.notify(QUEUE)
        assert len(jobs()) == 1

    def test_a_flushed_redis_is_notified_again(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        redis_connection.flushdb()
        notify.notify(QUEUE)
        assert len(jobs()) == 1

    def test_the_key_expires(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        assert 0 < redis_connection.ttl(KEY) <= 60

    def test_a_queue_that_rq_lacks_is_reported_and_breaks_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        notify.notify("nowhere")
        notify.notify("nowhere")
        [record] = caplog.records
        assert 'cannot notify a worker for queue "nowhere": RQ_QUEUES lacks it, and has default' in record.getMessage()
        assert record.exc_info is None  # a traceback would bury it

    def test_of_many_queues_the_first_are_named(self, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
        settings.RQ_QUEUES = {f"tenant-{number:03}": settings.RQ_QUEUES["default"] for number in range(200)}
        notify.notify("nowhere")
        [record] = caplog.records
        assert "tenant-000, tenant-001," in record.getMessage()
        assert "tenant-019 and 180 more. Its runs wait" in record.getMessage()

    def test_threads_that_notify_at_once_make_one_job(self) -> None:
        start = threading.Barrier(8)

        def send() -> None:
            start.wait()
            notify.notify(QUEUE)

        threads = [threading.Thread(target=send) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(jobs()) == 1


class TestInsist:
    """The notification of the sweep: it ignores a key whose job is gone."""

    def test_a_lost_job_is_replaced(self) -> None:
        notify.notify(QUEUE)
        take_job()  # by a worker that dies now
        notify.notify(QUEUE)
        assert jobs() == []
        notify.notify(QUEUE, force=True)
        assert len(jobs()) == 1

    def test_a_waiting_job_is_believed(self) -> None:
        for _ in range(5):
            notify.notify(QUEUE, force=True)
        assert len(jobs()) == 1

    def test_a_waiting_job_keeps_its_key_while_sweeps_find_it(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        redis_connection.expire(KEY, 2)
        notify.notify(QUEUE, force=True)
        assert redis_connection.ttl(KEY) > 30
        assert len(jobs()) == 1

    def test_the_replacement_is_believed_too(self) -> None:
        notify.notify(QUEUE)
        take_job()
        for _ in range(5):
            notify.notify(QUEUE, force=True)
        assert len(jobs()) == 1


class TestTakenBack:
    def test_a_waiting_job_goes_with_its_notification(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        (job,) = jobs()
        assert notify.take_back(QUEUE)
        assert jobs() == []
        assert redis_connection.exists(KEY, job.key) == 0
        notify.notify(QUEUE)
        assert len(jobs()) == 1

    def test_a_job_that_a_worker_has_taken_stays_its_own(self, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        job = take_job()
        assert not notify.take_back(QUEUE)
        assert redis_connection.exists(KEY, job.key) == 2

    def test_a_job_that_the_sweep_has_sent_to_look_at_all_stays(self) -> None:
        notify.notify(QUEUE, force=True)
        assert not notify.take_back(QUEUE)
        assert len(jobs()) == 1

    def test_there_is_nothing_to_take(self) -> None:
        notify.notify("high")
        assert not notify.take_back(QUEUE)
        assert len(jobs("high")) == 1

    def test_that_of_a_renamed_queue_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        notify.notify(QUEUE)
        monkeypatch.setattr(notify, "names_of_queue", lambda queue: (queue, "before"))
        assert not notify.take_back(QUEUE)
        assert len(jobs()) == 1


@pytest.mark.django_db(transaction=True)
class TestCommit:
    def test_outside_a_transaction_it_notifies_at_once(self) -> None:
        notify.notify_on_commit([QUEUE])
        assert len(jobs()) == 1

    def test_it_notifies_when_the_transaction_commits(self) -> None:
        with transaction.atomic():
            notify.notify_on_commit([QUEUE])
            assert jobs() == []
        assert len(jobs()) == 1

    def test_a_transaction_that_is_rolled_back_notifies_not(self) -> None:
        with rolled_back():
            notify.notify_on_commit([QUEUE])
        assert jobs() == []

    def test_the_next_transaction_notifies_after_one_that_was_rolled_back(self) -> None:
        self.test_a_transaction_that_is_rolled_back_notifies_not()
        self.test_it_notifies_when_the_transaction_commits()

    def test_a_savepoint_that_is_rolled_back_drops_no_other_notification(self) -> None:
        with transaction.atomic():
            with rolled_back():
                notify.notify_on_commit([QUEUE])
            notify.notify_on_commit([QUEUE])
        assert len(jobs()) == 1

    def test_one_transaction_notifies_each_queue_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        notified: list[str] = []
        monkeypatch.setattr(notify, "notify", notified.append)
        for _ in range(2):
            with transaction.atomic():
                for _ in range(100):
                    notify.notify_on_commit(["default", "high"])
        assert notified == ["default", "high"] * 2

    def test_without_autocommit_it_notifies_at_once(self) -> None:
        connection.ensure_connection()
        transaction.set_autocommit(False)
        try:
            notify.notify_on_commit([QUEUE])
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert len(jobs()) == 1


class TestAlarm:
    @pytest.fixture
    def heard(self) -> Iterator[Callable[[], dict[str, Any] | None]]:
        """What is published, message by message; None once a marker that is published now arrives."""
        with redis_clients.client(QUEUE).pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(notify.ALARMS)
            assert pubsub.get_message(timeout=60)["type"] == "subscribe"

            def next_alarm() -> dict[str, Any] | None:
                redis_clients.client(QUEUE).publish(notify.ALARMS, "marker")
                message = pubsub.get_message(timeout=60)["data"]
                return None if message == b"marker" else JSONSerializer.loads(message)  # type: ignore[no-untyped-call]

            yield next_alarm

    def test_a_near_deadline_is_published(self, heard: Callable[[], dict[str, Any] | None]) -> None:
        moment = timezone.now() + timedelta(seconds=5)
        notify.notify_at(QUEUE, moment)
        assert heard() == {"queue": QUEUE, "at": moment.isoformat()}

    def test_a_far_one_is_left_to_the_timers(self, heard: Callable[[], dict[str, Any] | None]) -> None:
        notify.notify_at(QUEUE, timezone.now() + timedelta(minutes=1))
        assert heard() is None
        assert jobs() == []

    def test_a_passed_one_notifies(self, heard: Callable[[], dict[str, Any] | None]) -> None:
        notify.notify_at(QUEUE, timezone.now())
        assert heard() is None
        assert len(jobs()) == 1

    @pytest.mark.django_db(transaction=True)
    def test_on_commit(self, heard: Callable[[], dict[str, Any] | None]) -> None:
        with transaction.atomic():
            notify.notify_at_on_commit(QUEUE, timezone.now() + timedelta(seconds=5))
            assert heard() is None
        assert heard() is not None


class TestOutage:
    @pytest.fixture
    def own_redis(self) -> Iterator[EmbeddedRedis]:
        with EmbeddedRedis() as server:
            queues = {QUEUE: {"URL": server.url, "SERIALIZER": "json"}}
            with override_settings(RQ_QUEUES=queues):
                yield server

    def test_redis_down_is_logged_once_and_breaks_nothing(
        self, own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "durable.bell")
        own_redis.stop("kill")
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        for _ in range(20):
            notify.notify(QUEUE)
            notify.acknowledge(QUEUE)
            notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=1))
        assert (pauses, notify._quiet_until) == ([], {})  # a refused connection is no reason to wait
        assert len(caplog.records) == 1
        assert "polls the database until it is back" in caplog.text

    def test_a_job_of_rqs_that_notifies_at_its_timeout_is_logged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """RQ logs it once."""

        def too_late(_name: str, *, force: bool) -> None:
            raise JobTimeoutException

        monkeypatch.setattr(enqueue, "notify", too_late)
        with pytest.raises(JobTimeoutException):
            notify.notify("default")

    def test_a_restarted_redis_is_used_again_at_once(
        self, own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
    ) -> None:
        notify.notify(QUEUE)  # leaves a connection in the pool
        own_redis.restart("kill")
        notify.notify(QUEUE)
        assert len(jobs()) == 1
        assert caplog.records == []

    def test_clients_of_settings_that_have_changed_are_closed(self, redis_connection: redis.Redis) -> None:
        def names() -> set[str]:
            return {each["name"] for each in redis_connection.client_list()}

        queues = {QUEUE: {"URL": f"{settings.REDIS_URL}?client_name=forgotten", "SERIALIZER": "json"}}
        with override_settings(RQ_QUEUES=queues):
            notify.notify(QUEUE)
            notify.notify(QUEUE)
            assert "forgotten" in names()
        deadline = time.monotonic() + 60
        while "forgotten" in names():
            assert time.monotonic() < deadline, "it is connected still"

    def test_a_redis_that_does_not_answer_delays_one_caller_only(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(redis_clients, "SOCKET_TIMEOUT", 0.2)
        monkeypatch.setattr(redis_clients, "QUIET", 3600.0)
        with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and says nothing
            url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
            with override_settings(RQ_QUEUES={QUEUE: {"URL": url, "SERIALIZER": "json"}}):
                for _ in range(50):
                    notify.notify(QUEUE)
            mute.accept()[0].close()
            mute.setblocking(False)
            with pytest.raises(BlockingIOError):  # no other attempt was made
                mute.accept()
        assert len(caplog.records) == 1

    def test_no_caller_waits_again_for_what_took_long_to_fail(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name server that does not answer is no timeout of Redis."""
        asked: list[object] = []

        def ask(*arguments: object, **_options: object) -> None:
            asked.append(arguments)
            monkeypatch.setattr(redis_clients, "CONNECT_TIMEOUT", 0.0)  # so it took longer than that
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        with override_settings(RQ_QUEUES={QUEUE: {"HOST": "redis.example", "PORT": 6379}}):
            redis_clients.client(QUEUE)
            monkeypatch.setattr(socket, "getaddrinfo", ask)
            notify.notify(QUEUE)
            count = len(asked)
            assert count
            notify.notify(QUEUE)
            assert len(asked) == count
        assert "Temporary failure in name resolution" in caplog.text


class TestRefusal:
    @pytest.fixture
    def user(self, redis_connection: redis.Redis) -> Iterator[str]:
        """A user of Redis that RQ_QUEUES names, with all rights."""
        acl(redis_connection, "SETUSER", "web", "on", ">secret", "~*", "&*", "+@all")
        kwargs = redis_connection.connection_pool.connection_kwargs
        queue = {"HOST": kwargs["host"], "PORT": kwargs["port"], "DB": kwargs["db"]}
        with override_settings(RQ_QUEUES={QUEUE: {**queue, "USERNAME": "web", "PASSWORD": "secret"}}):
            yield "web"
        acl(redis_connection, "DELUSER", "web")

    def test_it_is_logged_once_and_breaks_nothing(
        self, user: str, redis_connection: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        acl(redis_connection, "SETUSER", user, "-eval")
        for _ in range(5):
            notify.notify(QUEUE)
            notify.notify_at(
                QUEUE, timezone.now() + timedelta(seconds=1)
            )  # is not refused, which says nothing of notifications
            notify.acknowledge(QUEUE)
        [message] = [each.getMessage() for each in caplog.records]
        assert message.startswith(
            'cannot notify a worker for queue "default", due runs wait until Redis allows its user what docs/'
        )
        assert "'eval'" in message
        acl(redis_connection, "SETUSER", user, "+eval")
        notify.notify(QUEUE)
        assert caplog.records[-1].getMessage() == 'can notify a worker for queue "default" again'
        assert len(jobs()) == 1

    def test_what_the_guide_lists_is_enough(
        self, user: str, redis_connection: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        guide = (settings.BASE_DIR / "docs/guides/operating.md").read_text()
        [listed] = re.findall(r"ACL SETUSER shop-web on >\S+ (.+)", guide)
        acl(redis_connection, "SETUSER", user, "reset", "on", ">secret", *listed.split())
        for force in (False, False, True):
            notify.notify(QUEUE, force=force)
            notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=1))
        assert redis_connection.llen("rq:queue:default") == 1
        assert caplog.records == []

    def test_a_full_redis_and_a_wrong_password_are_logged_as_such(
        self, user: str, redis_connection: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        redis_connection.config_set("maxmemory", "1")  # a byte
        try:
            notify.notify(QUEUE)
        finally:
            redis_connection.config_set("maxmemory", "0")
        queue = {**settings.RQ_QUEUES[QUEUE], "PASSWORD": "another"}
        with override_settings(RQ_QUEUES={QUEUE: queue}):
            notify.notify(QUEUE)
        full, unknown = [each.getMessage() for each in caplog.records]
        assert "command not allowed when used memory > 'maxmemory'" in full  # what stands around it differs
        assert "after Redis is back" not in full
        assert "until RQ_QUEUES has a user and a password that Redis knows" in unknown
