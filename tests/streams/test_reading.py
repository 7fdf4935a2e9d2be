"""Readers of a step that runs: what they get, in which order, whatever happens to the worker, to Redis and to them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import OperationalError, connections
from django.db.models.functions import Now
from django.test import override_settings

from durable import Context, current_step, runtime, workflow
from durable.core.records import StepChunk
from durable.errors import RunNotFoundError
from durable.handles import Handle
from durable.models import Run
from durable.notifier import chunks, redis_clients
from durable.notifier.chunks import Stream
from durable.streams import hub
from durable.streams.reading import END, Chunk
from tests.faults.passing import pass_once
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]

#: What the step does next, by run: it emits each value, and ends with None.
_LINES: dict[str, Line] = {}


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """A thread that does this, and closes its connections."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class Line:
    """Hands a running step what it emits, one by one."""

    def __init__(self) -> None:
        self._ready = threading.Semaphore(0)
        self._taken = threading.Semaphore(0)
        self._next: Any = None
        self._has_ended = False

    def say(self, value: Any) -> None:
        self._next = value
        self._ready.release()
        assert self._taken.acquire(timeout=60)

    def end(self, error: Exception | None = None) -> None:
        """Have the step return, or raise the error; once."""
        if not self._has_ended:
            self._has_ended = True
            self.say(error)

    def heard(self) -> Any:
        assert self._ready.acquire(timeout=60)
        value = self._next
        self._taken.release()
        return value


def write() -> str:
    line = _LINES[current_step().run_id]
    said = []
    while (value := line.heard()) is not None:
        if isinstance(value, Exception):
            raise value
        current_step().emit(value)
        said.append(value)
    return "".join(said)


@workflow(name="tests.streams.write")
def writing_flow(ctx: Context) -> str:
    return ctx.step("write", write, retry_backoff_base=0)


@contextmanager
def passing(handle: Handle) -> Iterator[Line]:
    """A pass of the run in another thread, whose step emits what the block says."""
    line = _LINES[handle.id] = Line()
    thread = in_thread(lambda: pass_once(handle))
    try:
        yield line
        line.end()
    finally:
        thread.join(60)
        assert not thread.is_alive()


class Reader:
    """Reads in a thread, and has what came."""

    def __init__(self, handle: Handle, after: str | None = None) -> None:
        self.chunks: list[Chunk] = []
        self._thread = in_thread(lambda: self._read(handle, after))

    def _read(self, handle: Handle, after: str | None) -> None:
        for chunk in handle.stream("write", after=after, timeout=60):
            self.chunks.append(chunk)

    def has(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.chunks) >= count

    def shown(self) -> list[Any]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [(chunk.event, chunk.value) for chunk in self.chunks]


def tell(line: Line, reader: Reader, *words: str) -> None:
    """Emit the words, each once the reader has the one before."""
    for word in words:
        has_next = reader.has(len(reader.chunks) + 1)
        line.say(word)
        eventually(has_next)


def emitted(handle: Handle, *, fence: int, attempt: int = 1, number: int = 1, value: str | None = "?") -> StepChunk:
    """A chunk as an attempt sends it; None for the end."""
    text = None if value is None else f'"{value}"'
    return StepChunk(
        run_id=handle.id,
        queue="default",
        location="write",
        fence=fence,
        attempt=attempt,
        number=number,
        text=text,
    )


@pytest.fixture
def run() -> Handle:
    return writing_flow.start()


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hub, "_IDLE", 0.05)
    monkeypatch.setattr(chunks, "_IDLE", 0.05)
    monkeypatch.setattr(hub, "_LOOK_EVERY", 0.2)
    yield
    eventually(lambda: not {"durable-stream-readers", "durable-chunks"} & {each.name for each in threading.enumerate()})


def test_chunks_come_while_the_step_runs_and_its_result_at_last(run: Handle) -> None:
    with passing(run) as line:
        reader = Reader(run)
        tell(line, reader, "one ", "two ", "three")
    assert reader.shown() == [("chunk", "one "), ("chunk", "two "), ("chunk", "three"), ("result", "one two three")]
    assert reader.chunks[-1].id == END


def test_a_reader_may_begin_before_the_run_and_in_the_midst_of_the_step(run: Handle) -> None:
    early = Reader(run)
    with passing(run) as line:
        line.say("one ")
        eventually(early.has(1))
        late = Reader(run)
        eventually(late.has(1))
        line.say("two")
        eventually(lambda: early.has(2)() and late.has(2)())
    expected = [("chunk", "one "), ("chunk", "two"), ("result", "one two")]
    assert (early.shown(), late.shown()) == (expected, expected)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_who_comes_late_gets_the_result_alone(run: Handle, redis_connection: redis.Redis, *, is_flushed: bool) -> None:
    with passing(run) as line:
        line.say("one")
    chunks.flush(60)
    if is_flushed:
        redis_connection.flushdb()
    assert Reader(run).shown() == [("result", "one")]


def test_a_flush_of_redis_loses_chunks_and_no_result(run: Handle, redis_connection: redis.Redis) -> None:
    reader = Reader(run)
    with passing(run) as line:
        line.say("one ")
        eventually(reader.has(1))
        redis_connection.flushdb()
        line.say("two")
        eventually(reader.has(2))
    assert reader.shown() == [("chunk", "one "), ("chunk", "two"), ("result", "one two")]


def test_a_new_attempt_begins_with_a_restart(run: Handle) -> None:
    reader = Reader(run)
    with passing(run) as line:
        line.say("half")
        eventually(reader.has(1))
        line.end(ConnectionError("cut"))
    with passing(run) as line:
        line.say("whole")
        eventually(reader.has(3))
    assert reader.shown() == [("chunk", "half"), ("restart", None), ("chunk", "whole"), ("result", "whole")]


def test_what_a_worker_emits_that_has_lost_the_run_is_left_out(run: Handle) -> None:
    reader = Reader(run)
    chunks.send(emitted(run, fence=1, number=1, value="old 1"))
    eventually(reader.has(1))
    chunks.send(emitted(run, fence=2, number=1, value="new 1"))
    chunks.send(emitted(run, fence=1, number=2, value="old 2"))
    chunks.send(emitted(run, fence=1, attempt=7, number=3, value="old 3"))
    chunks.send(emitted(run, fence=1, value=None))
    chunks.send(emitted(run, fence=2, number=2, value="new 2"))
    eventually(reader.has(4))
    run.cancel()
    shown = reader.shown()
    assert shown[:-1] == [("chunk", "old 1"), ("restart", None), ("chunk", "new 1"), ("chunk", "new 2")]
    assert shown[-1][0] == "failed"


def test_a_chunk_that_was_sent_twice_is_shown_once(run: Handle) -> None:
    reader = Reader(run)
    for number in (1, 1, 2, 1, 3):
        chunks.send(emitted(run, fence=1, number=number, value=str(number)))
    eventually(reader.has(3))
    run.cancel()
    assert [value for _, value in reader.shown()[:-1]] == ["1", "2", "3"]


def test_a_reader_that_was_cut_off_goes_on_behind_its_last_chunk(run: Handle) -> None:
    for number in range(1, 6):
        chunks.send(emitted(run, fence=1, number=number, value=str(number)))
    whole = Reader(run)
    eventually(whole.has(5))
    again = Reader(run, after=whole.chunks[2].id)
    eventually(again.has(2))
    chunks.send(emitted(run, fence=1, attempt=2, number=1, value="anew"))
    eventually(again.has(4))
    run.cancel()
    assert again.shown()[:-1] == [("chunk", "4"), ("chunk", "5"), ("restart", None), ("chunk", "anew")]


@pytest.mark.parametrize("after", ["", "nonsense", "1-2", "-1--1-0-0-0", "99999999999999999999-0-0-0-0", "9" * 500])
def test_an_id_that_is_none_disturbs_nobody(run: Handle, after: str, caplog: pytest.LogCaptureFixture) -> None:
    strange = Reader(run, after=after)
    with passing(run) as line:
        reader = Reader(run)
        tell(line, reader, "one ", "two")
    assert reader.shown() == [("chunk", "one "), ("chunk", "two"), ("result", "one two")]
    assert strange.shown()[-1] == ("result", "one two")
    assert "cannot be read" not in caplog.text  # the thread, which all readers share, was in no trouble


def test_an_end_that_was_lost_with_its_worker_is_found_in_the_database(
    run: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = chunks.send
    monkeypatch.setattr(chunks, "send", lambda chunk: send(chunk) if chunk.text is not None else None)
    reader = Reader(run)
    with passing(run) as line:
        tell(line, reader, "one")
    assert reader.shown() == [("chunk", "one"), ("result", "one")]


def test_an_end_mark_without_an_outcome_ends_nothing(run: Handle) -> None:
    reader = Reader(run)
    chunks.send(emitted(run, fence=1, number=0, value=None))
    chunks.send(emitted(run, fence=2, value="on"))
    eventually(reader.has(1))
    run.cancel()
    assert reader.shown()[0] == ("chunk", "on")


def test_a_reader_that_falls_back_gets_all_of_it(run: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_MOST_UNREAD", 3)
    stream = run.stream("write", timeout=60)
    chunks.send(emitted(run, fence=1, number=1, value="1"))
    got = [next(stream).value]
    for number in range(2, 50):
        chunks.send(emitted(run, fence=1, number=number, value=str(number)))
        chunks.flush(60)
    got += [next(stream).value for _ in range(2, 50)]
    assert got == [str(number) for number in range(1, 50)]
    stream.close()  # type: ignore[attr-defined]  # a generator


def test_a_slow_reader_costs_a_bounded_memory(run: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_MOST_UNREAD_TEXT", 1_000)
    monkeypatch.setattr(hub, "_MOST_PARTS", 5)
    for number in range(1, 51):
        chunks.send(emitted(run, fence=2, number=number, value=f"{number:0100}"))
    for number in range(1, 51):  # of a worker that has lost the run: nothing of it is shown
        chunks.send(emitted(run, fence=1, number=number, value="?" * 100))
    chunks.send(emitted(run, fence=2, number=51, value="last"))
    chunks.flush(60)
    arrived = threading.Event()
    mailbox = hub.Mailbox(Stream(run.id, "write"), hub.START, arrived.set)
    hub.hub_of().open(mailbox)
    eventually(lambda: mailbox.is_overfull)
    assert len(mailbox._items) <= 15
    mailbox.close()
    stream = run.stream("write", timeout=60)
    assert [next(stream).value for _ in range(51)] == [*(f"{number:0100}" for number in range(1, 51)), "last"]
    stream.close()  # type: ignore[attr-defined]  # a generator


def test_a_reader_that_comes_while_the_database_is_away_gets_all_chunks(
    run: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Reader(run)
    chunks.send(emitted(run, fence=1, number=1, value="1"))
    eventually(first.has(1))
    failures, outcomes = [1], hub.outcomes

    def away_at_first(streams: Any) -> Any:
        if failures:
            raise OperationalError(f"away {failures.pop()}")
        return outcomes(streams)

    monkeypatch.setattr(hub, "_LOOK_EVERY", 60.0)  # so that the new reader asks
    monkeypatch.setattr(hub, "outcomes", away_at_first)
    second = Reader(run)
    eventually(second.has(1))
    monkeypatch.setattr(hub, "_LOOK_EVERY", 0.2)
    run.cancel()
    assert first.shown()[0] == second.shown()[0] == ("chunk", "1")


def test_what_a_deleted_run_of_the_same_id_has_emitted_is_left_out(run: Handle) -> None:
    chunks.send(emitted(run, fence=2**30, number=1, value="of the deleted run"))
    chunks.flush(60)
    Run.objects.update(created_at=Now() + timedelta(minutes=1, seconds=1))  # that one is so much older
    reader = Reader(run)
    run.cancel()
    assert [event for event, _ in reader.shown()] == ["failed"]


def test_redis_keeps_a_bounded_number_of_chunks_for_a_bounded_time(
    run: Handle, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MOST_KEPT", 100)
    for number in range(1, 1_001):
        chunks.send(emitted(run, fence=1, number=number))
    chunks.flush(60)
    key = Stream(run.id, "write").key
    assert redis_connection.xlen(key) <= 300  # in whole nodes of 100
    assert 0 < redis_connection.ttl(key) <= 3_600


def test_a_step_is_not_disturbed_by_a_redis_that_is_away(
    run: Handle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        def pipeline(self, **_: object) -> Any:
            raise redis.ConnectionError("nobody there")

    client = redis_clients.client
    monkeypatch.setattr(redis_clients, "client", lambda _queue: Away())
    with passing(run) as line:
        for _ in range(3):
            line.say("x")
    chunks.flush(60)
    assert run.output == "xxx"
    [said] = [each.getMessage() for each in caplog.records if each.name == "durable.streams"]
    assert "nobody there" in said
    monkeypatch.setattr(redis_clients, "client", client)
    chunks._log_this.clear("default")
    assert Reader(run).shown() == [("result", "xxx")]


def test_without_redis_a_reader_gets_the_result(run: Handle) -> None:
    with override_settings(DURABLE={**settings.DURABLE, "REDIS": False}):
        reader = Reader(run)
        with passing(run) as line:
            line.say("one")
        assert reader.shown() == [("result", "one")]


def test_a_run_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(RunNotFoundError):
        next(Handle[Any]("nobody").stream("write"))


def test_a_timeout_ends_the_wait_for_the_next_chunk(run: Handle) -> None:
    with pytest.raises(TimeoutError, match=f'no chunk of "write" of run {run.id} has come'):
        next(run.stream("write", timeout=0.05))


def test_a_timeout_hints_at_the_names_where_no_step_is_recorded(run: Handle) -> None:
    hint = re.escape("run.history() has the locations")
    with passing(run) as line:
        line.say("one")
        with pytest.raises(TimeoutError, match=f"no step is recorded at this location: {hint}"):
            next(run.stream("wrong", timeout=0.05))


def test_async_code_reads_the_same(run: Handle) -> None:
    found: list[Any] = []

    async def read() -> None:
        async for chunk in run.astream("write"):
            found.append((chunk.event, chunk.value))  # noqa: PERF401 - one by one

    thread = in_thread(lambda: asyncio.run(read()))
    with passing(run) as line:
        line.say("one ")
        eventually(lambda: len(found) == 1)
        line.say("two")
        eventually(lambda: len(found) == 2)
    thread.join(60)
    assert found == [("chunk", "one "), ("chunk", "two"), ("result", "one two")]


def test_many_readers_cost_one_thread_and_leave_nothing(run: Handle) -> None:
    runs = [run, writing_flow.start(), writing_flow.start()]
    readers = [Reader(each) for each in runs for _ in range(20)]
    for each in runs:
        chunks.send(emitted(each, fence=1, value=each.id))
    for reader in readers:
        eventually(reader.has(1))
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("durable-stream-readers") == 1
    for each in runs:
        each.cancel()
    for number, reader in enumerate(readers):
        assert reader.shown()[0] == ("chunk", runs[number // 20].id)
    serving = hub.hub_of("default")
    assert (serving._new, serving._open, serving._positions) == ([], {}, {})


@pytest.mark.parametrize("location", ["", "a\0b", "x" * 5_000, "%s", "*?[]", "\udcff"])
def test_a_location_that_is_none_disturbs_nobody(run: Handle, location: str, caplog: pytest.LogCaptureFixture) -> None:
    strange = in_thread(lambda: list(run.stream(location)))
    with passing(run) as line:
        reader = Reader(run)
        tell(line, reader, "one")
    assert reader.shown() == [("chunk", "one"), ("result", "one")]
    strange.join(60)
    assert not strange.is_alive()  # the run has ended
    assert "cannot be read" not in caplog.text


def test_locations_and_values_of_any_text(run: Handle) -> None:
    location, value = "a/b 🙂 \udcff:*", 'line\nbreak "quoted" </script> 🙂'
    chunk = replace(
        emitted(run, fence=1), location=location, text=runtime.current().codec.encode(value, what="a chunk")
    )
    chunks.send(chunk)
    stream = run.stream(location, timeout=60)
    assert next(stream).value == value
    stream.close()  # type: ignore[attr-defined]  # a generator
