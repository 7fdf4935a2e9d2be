"""Commands whose answers are read later: sent in order, failures noticed by the next one, no caller waits twice."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import threading
import time
from itertools import count
from types import FrameType
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from durable.notifier.enqueue import PipelinedSender
from project.servers import EmbeddedRedis

pytestmark = pytest.mark.redis
LIST = "durable:test:sent"


@pytest.fixture
def sender(redis_connection: redis.Redis) -> PipelinedSender:
    return PipelinedSender(redis_connection)


def sent(connection: redis.Redis, count: int) -> list[bytes]:
    """What was sent, once it is so many: Redis may look at this connection first."""
    deadline = time.monotonic() + 60
    while True:
        found: list[bytes] = connection.lrange(LIST, 0, -1)  # type: ignore[assignment]  # typed for async clients too
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.001)


def test_nothing_is_sent_before_a_first_answer(sender: PipelinedSender, redis_connection: redis.Redis) -> None:
    assert not sender.send("RPUSH", LIST, "a")
    sender.open()
    sender.open()
    assert [sender.send("RPUSH", LIST, each) for each in "abc"] == [True] * 3
    assert sent(redis_connection, 3) == [b"a", b"b", b"c"]


def test_no_answer_is_waited_for_but_that_of_the_command_before(
    sender: PipelinedSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[None] = []
    read: Any = Connection.read_response

    def reading(connection: Connection, *args: Any, **kwargs: Any) -> Any:
        reads.append(None)
        return read(connection, *args, **kwargs)

    sender.open()
    monkeypatch.setattr(Connection, "read_response", reading)
    for before in range(3):
        assert sender.send("RPUSH", LIST, "x")
        assert len(reads) == before


def test_what_redis_refuses_is_noticed_by_the_next_command(
    sender: PipelinedSender, redis_connection: redis.Redis
) -> None:
    redis_connection.set(LIST, "no list")
    sender.open()
    assert sender.send("RPUSH", LIST, "a")
    assert not sender.send("GET", LIST)
    assert not sender.send("GET", LIST), "there has to be a first answer"
    redis_connection.delete(LIST)
    sender.open()
    assert sender.send("RPUSH", LIST, "b")
    assert sent(redis_connection, 1) == [b"b"]


def test_a_connection_that_redis_has_closed_is_not_written_to(
    sender: PipelinedSender, redis_connection: redis.Redis
) -> None:
    sender.open()
    for number in range(1, 3):  # without an answer owed, and with one
        redis_connection.client_kill_filter(_type="normal", skipme=True)
        assert not sender.send("RPUSH", LIST, "lost")
        sender.open()
        assert sender.send("RPUSH", LIST, "kept")
        assert sent(redis_connection, number) == [b"kept"] * number


def test_the_answers_that_are_owed_can_be_awaited(sender: PipelinedSender, redis_connection: redis.Redis) -> None:
    sender.open()
    assert sender.send("RPUSH", LIST, "a")
    sender.await_answers()
    assert redis_connection.lrange(LIST, 0, -1) == [b"a"]
    sender.await_answers()  # none is owed
    assert sender.send("RPUSH", LIST, "b")
    redis_connection.client_kill_filter(_type="normal", skipme=True)
    sender.await_answers()
    assert not sender.send("RPUSH", LIST, "c"), "the answer was lost, and with it the connection"


def test_a_redis_that_dies_is_noticed(sender: PipelinedSender) -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        theirs = PipelinedSender(client)
        theirs.open()
        assert theirs.send("PING")
        server.restart("kill")
        assert not theirs.send("RPUSH", LIST, "a")
        client.ping()
        theirs.open()
        assert theirs.send("RPUSH", LIST, "b")
        assert sent(client, 1) == [b"b"]


#: What keeps a client from introducing itself, which the releases of redis-py name differently.
_ANONYMOUS: Any = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(redis.Redis).parameters
    else {"lib_name": None, "lib_version": None}
)


def test_the_first_command_to_a_silent_redis_waits_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and says nothing
        client = redis.Redis(
            port=mute.getsockname()[1],
            socket_timeout=0.05,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **_ANONYMOUS,
        )
        sender = PipelinedSender(client)
        sender.open()
        assert sender.send("RPUSH", LIST, "a")
        with pytest.raises(RedisTimeoutError):
            sender.send("RPUSH", LIST, "b")
        assert not sender.send("RPUSH", LIST, "c")


def test_an_interruption_between_command_and_answer_puts_no_answer_in_anothers_place(
    sender: PipelinedSender, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    send: Any = Connection.send_command

    def interrupted(connection: Connection, *args: Any, **kwargs: Any) -> None:
        send(connection, *args, **kwargs)
        raise KeyboardInterrupt

    sender.open()
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send_command", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sender.send("RPUSH", LIST, "a")
    assert not sender.send("RPUSH", LIST, "b")
    sender.open()
    assert sender.send("RPUSH", LIST, "c")
    assert sorted(sent(redis_connection, 2)) == [b"a", b"c"]


def test_after_an_interruption_at_any_line_it_goes_on(sender: PipelinedSender, redis_connection: redis.Redis) -> None:
    """Nothing stays locked, and no answer comes in another's place."""

    def interrupting(line: int) -> Any:
        lines = count()

        def trace(frame: FrameType, event: str, _arg: object) -> Any:
            if frame.f_code not in (PipelinedSender.send.__code__, PipelinedSender._send.__code__):
                return None
            if event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return trace

        return trace

    def open_and_send(token: str) -> None:
        sender.open()
        assert sender.send("RPUSH", LIST, token)

    before, was_sent = sys.gettrace(), False
    for line in count():
        sender.open()
        assert sender.send("ECHO", "an answer is owed")
        try:
            sys.settrace(interrupting(line))
            was_sent = sender.send("ECHO", "of what is interrupted")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        other = threading.Thread(target=open_and_send, args=(str(line),), daemon=True)
        other.start()
        other.join(120)
        assert redis_connection.echo("mine") == b"mine"
        assert sent(redis_connection, line + 1) == [str(each).encode() for each in range(line + 1)]
        if was_sent:
            break
    assert line > 5, "it has more lines"


def test_a_thread_does_not_wait_for_another_one(sender: PipelinedSender, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, go_on = threading.Event(), threading.Event()
    send: Any = Connection.send_command

    def slow(connection: Connection, *args: Any, **kwargs: Any) -> None:
        sending.set()
        assert go_on.wait(120)
        send(connection, *args, **kwargs)

    sender.open()
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send_command", slow)
        other = threading.Thread(target=sender.send, args=("RPUSH", LIST, "a"))
        other.start()
        assert sending.wait(120)
        assert not sender.send("RPUSH", LIST, "b")
        go_on.set()
        other.join()
    assert sender.send("RPUSH", LIST, "c")


def test_many_threads_lose_no_command(sender: PipelinedSender, redis_connection: redis.Redis) -> None:
    sender.open()
    refused: list[int] = []

    def work(number: int) -> None:
        mine = range(number * 1000, number * 1000 + 100)
        refused.extend(each for each in mine if not sender.send("RPUSH", LIST, each))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = {int(each) for each in sent(redis_connection, 400 - len(refused))}
    assert found | set(refused) == {number * 1000 + each for number in range(4) for each in range(100)}
    assert not found & set(refused)


def test_a_child_process_leaves_its_parents_connection_alone(redis_connection: redis.Redis) -> None:
    from durable.notifier import enqueue, notify

    notify.notify("default")
    notify.notify("default")
    child = os.fork()
    if not child:
        try:
            assert not enqueue._notifiers
            notify.acknowledge("default")
            notify.notify("default")
            notify.notify("default")
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert redis_connection.llen("rq:queue:default") == 2
    redis_connection.delete("durable:bell:default")
    assert enqueue._notifiers["default"].sender.send("RPUSH", LIST, "of the parent's")
    assert sent(redis_connection, 1) == [b"of the parent's"]
