"""Workers hear of due runs from PostgreSQL without Redis, notice when they do not, and poll then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from pytest_django.plugin import DjangoDbBlocker

from durable.core import clock
from durable.core.records import RunRecord
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.notifier import channel, notify, wakeups
from durable.operations.holds import pause_queue
from durable.store import Store, store_for
from durable.worker import listener
from durable.worker.listener import PostgresListener
from durable.worker.loop import DueQueues, InlinePool, WorkerLoop, serve_polling
from durable.worker.presence import ShutdownFlag
from durable.worker.timer import Sweep, Timer
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated, pgbouncer
from tests.support.networks import Network
from tests.support.runs import Passes, finish, new_runs
from tests.support.waiting import eventually
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

#: Intervals after which no test would wait for a look that nothing has caused.
NEVER = 3_600
SETTINGS = {"REDIS": False, "NOTIFY_IN_TESTS": True, "SWEEP_INTERVAL": NEVER, "POLL_INTERVAL": NEVER}
SESSIONS = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"


class Heard:
    """The queues that workers of this process were told of. A `wakeups.Listener`."""

    def __init__(self) -> None:
        self.queues: list[str] = []

    def run_is_due(self, queue: str) -> None:
        self.queues.append(queue)

    def run_is_due_at(self, queue: str, moment: datetime) -> None:
        """A deadline is the timer's affair."""


@pytest.fixture(autouse=True)
def without_redis() -> Iterator[None]:
    with override_settings(DURABLE=SETTINGS, RQ_QUEUES={}):
        yield
    channel._sent_at.clear()


@pytest.fixture
def heard() -> Iterator[Heard]:
    found = Heard()
    wakeups.listen(found)
    yield found
    wakeups.unlisten(found)


@pytest.fixture
def timer(store: Store) -> Timer:
    return Timer(store)


@contextmanager
def hearing(timer: Timer) -> Iterator[None]:
    """A parent process of `durable_worker` listens, and its timer runs."""
    with timer, PostgresListener(timer):
        eventually(lambda: timer.hears)
        yield


def elsewhere(work: Callable[[], object]) -> None:
    """Do this as another process does: in a thread, so with another session, and without notices in this process."""

    def working() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=working)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def sessions() -> dict[int, str]:
    """The state of each listening session, by its pid."""
    with connection.cursor() as cursor:
        cursor.execute(SESSIONS, [channel.LISTENER])
        return dict(cursor.fetchall())


def due(store: Store, name: str, queue: str = "default", wake_at: datetime | None = None) -> None:
    now = clock.now()
    record = RunRecord(id=name, workflow="shop.one", queue=queue, input="{}", created_at=now, wake_at=wake_at or now)
    store.create([record])


@pytest.mark.django_db(transaction=True)
class TestHearing:
    def test_what_another_process_tells_is_heard(self, timer: Timer, heard: Heard) -> None:
        with hearing(timer):
            elsewhere(lambda: channel.tell_due("strange"))
            eventually(lambda: "strange" in heard.queues)

    def test_a_run_that_was_committed_just_after_a_message_is_found_by_a_second_look(
        self, timer: Timer, heard: Heard, store: Store
    ) -> None:
        committed = threading.Event()
        look_within = timer.look_within

        def look_once_committed(seconds: float) -> None:
            assert committed.wait(60)
            look_within(seconds)

        with hearing(timer):
            timer.meet("other")
            with patch.object(timer, "look_within", look_once_committed):
                elsewhere(lambda: channel.tell_due("default"))
                eventually(lambda: "default" in heard.queues)
                due(store, "a", queue="other")
                channel._sent_at["due", "other"] = time.monotonic() + NEVER  # another thread has just told of it
                channel.tell_due("other")
                committed.set()
                eventually(lambda: "other" in heard.queues)

    def test_a_near_deadline_is_kept(self, timer: Timer, heard: Heard, store: Store) -> None:
        with hearing(timer):
            moment = clock.now() + timedelta(seconds=0.3)
            due(store, "a", wake_at=moment)
            elsewhere(lambda: notify.notify_at("default", moment))
            eventually(lambda: "default" in heard.queues)
            assert clock.now() >= moment

    def test_anything_may_be_notified(self, timer: Timer, heard: Heard) -> None:
        with hearing(timer):
            for text in ("", "nothing of ours", "[]", '{"due": 7}', '{"echo": []}', "[" * 5_000):
                with connection.cursor() as cursor:
                    cursor.execute(channel.NOTIFY, [channel.CHANNEL, text])
            elsewhere(lambda: channel.tell_due("strange"))
            eventually(lambda: heard.queues == ["strange"])

    def test_the_session_is_in_no_transaction(self, timer: Timer) -> None:
        """Otherwise PostgreSQL would have to keep all later messages, and dead rows."""
        with hearing(timer):
            assert list(sessions().values()) == ["idle"]
        eventually(lambda: not sessions())

    def test_it_listens_outside_of_a_pool(self, timer: Timer) -> None:
        own = listener._own_connection()
        assert "pool" not in own.settings_dict["OPTIONS"]
        assert own.settings_dict["NAME"] == connection.settings_dict["NAME"]

    def test_the_end_does_not_wait_for_the_next_message(self, timer: Timer) -> None:
        with timer:
            listening = PostgresListener(timer)
            with listening:
                eventually(lambda: timer.hears)
            assert not listening._thread.is_alive()
            assert not timer.hears

    def test_the_end_while_nothing_can_be_reached(self, timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "PORT", "1")
        listening = PostgresListener(timer)
        with listening:
            pass
        assert not listening._thread.is_alive()


@pytest.mark.django_db(transaction=True)
class TestTelling:
    def test_nothing_is_sent_before_the_commit(self, timer: Timer, heard: Heard) -> None:
        """A commit of a transaction that notifies would wait for the commits of all others."""
        with CaptureQueriesContext(connection) as captured:
            with transaction.atomic():
                notify.notify_on_commit(["default"])
                channel.tell_due("other")
                assert not [each for each in captured if "pg_notify" in each["sql"]]
            assert len([each for each in captured if "pg_notify" in each["sql"]]) == 2

    def test_a_rolled_back_start_tells_nothing(self) -> None:
        with CaptureQueriesContext(connection) as captured, transaction.atomic():
            notify.notify_on_commit(["default"])
            transaction.set_rollback(True)
        assert not [each for each in captured if "pg_notify" in each["sql"]]

    def test_a_burst_is_one_message(self) -> None:
        with CaptureQueriesContext(connection) as captured:
            began = time.monotonic()
            for _ in range(50):
                channel.tell_due("default")
            most = 1 + (time.monotonic() - began) / channel.QUIET
        assert 1 <= len(captured) <= most

    def test_a_database_that_refuses_makes_no_caller_fail(self, caplog: pytest.LogCaptureFixture) -> None:
        channel.tell_due("x" * 8_000)  # too long for a message
        assert "cannot notify workers" in caplog.text
        channel.tell_due("default")

    def test_what_a_timer_has_found_is_told_here_only(self, heard: Heard) -> None:
        with CaptureQueriesContext(connection) as captured:
            notify.notify_of_found("default", force=True)
        assert (heard.queues, len(captured)) == (["default"], 0)

    def test_others_are_told_of_what_passes_make_due_and_not_of_what_they_have_heard(
        self, heard: Heard, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tell = Mock()
        monkeypatch.setattr(channel, "tell_due", tell)
        passes = Passes()
        with override_settings(DURABLE={**SETTINGS, "CLAIM_BATCH": 10}):
            new_runs(store, 10)
            work_off(store=store, execute=passes)
            assert (heard.queues, tell.call_count) == (["default"], 0)
            new_runs(store, 20)
            work_off(store=store, execute=passes)
        assert tell.call_count == 1  # by the second claim
        assert len(passes.passed) == 30

    @pytest.mark.parametrize("is_late", [True, False])
    def test_a_worker_that_comes_too_late_for_a_queue_looks_at_the_next_ones_at_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
    ) -> None:
        """By one statement; the queues are served in their order, and one that is paused is passed over."""
        queues = [f"tenant-{number}" for number in range(8)]
        for queue in (queues[2], queues[4], queues[6]):
            due(store, f"run of {queue}", queue)
        if not is_late:
            due(store, f"run of {queues[0]}", queues[0])
        pause_queue(queues[4])
        stop, served = ShutdownFlag(), list[str]()
        reported = DueQueues(queues, serves_all=False, stop=stop)
        for queue in reversed(queues):
            reported.run_is_due(queue)
        claim, look = Mock(wraps=store.claim), Mock(wraps=store.due_queues)
        monkeypatch.setattr(store, "claim", claim)
        monkeypatch.setattr(store, "due_queues", look)

        def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
            served.append(record.queue)
            return finish(record, store)

        with WorkerLoop(InlinePool(), store=store, execute=execute, stop=stop) as loop:
            serve_polling(loop, reported, lambda: not reported._due)
        first = queues[0] if is_late else queues[1]  # is empty
        assert served == ([] if is_late else [queues[0]]) + [queues[2], queues[6]]
        claimed = [each.kwargs["queue"] for each in claim.mock_calls]
        assert list(dict.fromkeys(claimed)) == sorted([*served, first])
        assert (claimed.count(first), look.call_count) == (1, 1)

    def test_workers_that_poll_are_not_told(self) -> None:
        with override_settings(DURABLE={**SETTINGS, "LISTEN": False}), CaptureQueriesContext(connection) as captured:
            notify.notify("default")
        assert len(captured) == 0

    def test_a_test_tells_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(wakeups._loaded, "NOTIFY_IN_TESTS", False)
        with override_settings(DURABLE={"REDIS": False}), CaptureQueriesContext(connection) as captured:
            notify.notify("default")
        assert len(captured) == 0


@pytest.mark.django_db(transaction=True)
class TestLosing:
    def test_a_session_that_is_ended_is_made_again(self, timer: Timer, heard: Heard, store: Store) -> None:
        with hearing(timer):
            [before] = sessions()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [before])
            due(store, "a")  # and nobody is told
            eventually(lambda: "default" in heard.queues)
            eventually(lambda: timer.hears and before not in sessions())
            elsewhere(lambda: channel.tell_due("strange"))
            eventually(lambda: "strange" in heard.queues)

    def test_a_session_that_listens_no_more_is_made_again(self, timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
        """As behind a pooler whose session was given to others: it is open, and an echo does not arrive."""
        monkeypatch.setattr(listener, "SILENCE", 0.2)
        monkeypatch.setattr(listener, "ECHO_EVERY", 0.1)
        sent = listener._Session.send_echo
        is_deaf = threading.Event()

        def send(session: listener._Session, token: str) -> None:
            if not is_deaf.is_set():
                is_deaf.set()
                session.unlisten()
            sent(session, token)

        monkeypatch.setattr(listener._Session, "send_echo", send)
        with hearing(timer):
            [before] = sessions()
            eventually(lambda: is_deaf.is_set() and timer.hears and list(sessions()) != [before])

    def test_a_host_that_vanishes_is_noticed(
        self, timer: Timer, postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "SILENCE", 0.5)
        monkeypatch.setattr(listener, "ECHO_EVERY", 0.1)
        settings = connection.settings_dict
        path = Path(settings["HOST"]) / f".s.PGSQL.{settings['PORT']}"
        with Network(path) as network:
            base = listener._own_connection

            def through_the_network() -> object:
                own = base()
                own.settings_dict.update(HOST="127.0.0.1", PORT=network.port)
                return own

            monkeypatch.setattr(listener, "_own_connection", through_the_network)
            with timer, PostgresListener(timer):
                eventually(lambda: timer.hears)
                network.lose_connections()
                eventually(lambda: not timer.hears)
                eventually(lambda: timer.hears)


@pytest.fixture
def elsewhere_than_default(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Any database may be used, and none is flushed."""
    with django_db_blocker.unblock():
        yield


@contextmanager
def durable_in(config: dict[str, Any], **durable: object) -> Iterator[Timer]:
    """Inside, durable's database is a new one; its timer runs, and a listener."""
    with (
        migrated("other", config, ["durable"]),
        override_settings(DURABLE={**SETTINGS, "DATABASE": "other", **durable}),
        Timer(store_for("other")) as timer,
        PostgresListener(timer),
    ):
        yield timer


@pytest.mark.usefixtures("elsewhere_than_default")
class TestServers:
    def test_a_restarted_server_is_heard_again(self, heard: Heard) -> None:
        with (
            EmbeddedPostgres(fsync=False) as server,
            durable_in(database_from(server.create_database("listened"))) as timer,
        ):
            eventually(lambda: timer.hears)
            server.stop("immediate")
            eventually(lambda: not timer.hears)
            server.start()
            eventually(lambda: timer.hears)
            elsewhere(lambda: channel.tell_due("strange"))
            eventually(lambda: "strange" in heard.queues)

    def test_a_pooler_in_session_mode(self, postgres_server: EmbeddedPostgres, tmp_path: Path, heard: Heard) -> None:
        with (
            bounced(postgres_server.create_database("in_sessions"), tmp_path, "session") as config,
            durable_in(config) as timer,
        ):
            eventually(lambda: timer.hears)
            elsewhere(lambda: channel.tell_due("strange"))
            eventually(lambda: "strange" in heard.queues)

    def test_a_pooler_in_transaction_mode(
        self, postgres_server: EmbeddedPostgres, tmp_path: Path, heard: Heard, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            bounced(postgres_server.create_database("in_transactions"), tmp_path, "transaction") as config,
            durable_in(config, POLL_INTERVAL=0.05) as timer,
        ):
            eventually(lambda: "as behind a pooler in transaction mode" in caplog.text)
            assert not timer.hears
            due(timer.store, "a")  # and nobody is told
            eventually(lambda: "default" in heard.queues)


@contextmanager
def bounced(url: str, directory: Path, mode: str) -> Iterator[dict[str, Any]]:
    """How to connect to the database through a PgBouncer in this mode."""
    own = database_from(url)
    with pgbouncer(directory, mode, host=own["HOST"], server_port=own["PORT"], user=own["USER"]) as port:
        yield {**own, "HOST": "127.0.0.1", "PORT": port, "DISABLE_SERVER_SIDE_CURSORS": True}


@pytest.mark.django_db(transaction=True)
def test_a_stopped_listener_is_ended_by_another_workers_sweep(store: Store) -> None:
    """It reads nothing, and its session is in the middle of many messages, so in a transaction."""
    own = connection.settings_dict
    dsn = f"host={own['HOST']} port={own['PORT']} user={own['USER']} dbname={own['NAME']}"
    with psycopg.connect(dsn, application_name=channel.LISTENER, autocommit=True) as stopped:
        stopped.execute(f"LISTEN {channel.CHANNEL}")
        with connection.cursor() as cursor:

            def is_stuck() -> bool:
                cursor.execute(
                    "SELECT count(pg_notify(%s, %s || n)) FROM generate_series(1, 1000) n", [channel.CHANNEL, "x" * 500]
                )
                cursor.execute(
                    "SELECT wait_event = 'ClientWrite' AND backend_xmin IS NOT NULL FROM pg_stat_activity WHERE application_name = %s",
                    [channel.LISTENER],
                )
                return bool(cursor.fetchone() == (True,))

            eventually(is_stuck)
        with override_settings(DURABLE={**SETTINGS, "LEASE": 0.01}):

            def is_ended() -> bool:
                Sweep(store).tick(clock.now())
                return not sessions()

            eventually(is_ended)
