"""Chunks on their way from steps to Redis: one thread of the process sends them, several in one round trip.

Owns the key and the fields of a stream in Redis, which is capped and expires. The step does not wait. What Redis does
not take is dropped, with a line in the log: a chunk is not worth an attempt. The thread starts with the first chunk,
and ends when there was none for some seconds.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from durable.conf import conf
from durable.core.records import StepChunk
from durable.notifier import redis_clients

logger = logging.getLogger("durable.streams")

#: The most chunks of a stream that Redis keeps, about.
MOST_KEPT: Final = 10_000
#: Seconds after the last chunk for which Redis keeps a stream.
KEPT: Final = 3_600
#: The most chunks that wait for the thread. When Redis is away, the oldest are dropped.
_MOST_WAITING: Final = 2_000
_IDLE: Final = 5.0  # seconds
#: The most seconds for which a process that ends waits until its chunks are sent.
_LAST_WAIT: Final = 0.5

_log_this = redis_clients.LogThrottle(30.0)


class Stream(NamedTuple):
    """The stream of the step at `location`."""

    run_id: str
    location: str

    @property
    def key(self) -> bytes:
        return f"durable:stream:{self.run_id}:{self.location}".encode(errors="surrogatepass")


class _Sender:
    """The thread, and the chunks that wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[StepChunk] = deque(maxlen=_MOST_WAITING)
        self._is_sending = False
        self._thread: threading.Thread | None = None

    def add(self, chunk: StepChunk) -> None:
        with self._changed:
            self._waiting.append(chunk)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="durable-chunks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: bool(self._waiting), _IDLE):
                    self._thread = None
                    return
                chunks = list(self._waiting)
                self._waiting.clear()
                self._is_sending = True
            by_queue: dict[str, list[StepChunk]] = {}
            for chunk in chunks:
                by_queue.setdefault(chunk.queue, []).append(chunk)
            for queue, of_queue in by_queue.items():
                _send(queue, of_queue)


def _send(queue: str, chunks: Iterable[StepChunk]) -> None:
    try:
        together = redis_clients.client(queue).pipeline(transaction=False)
        keys = set()
        for chunk in chunks:
            key = Stream(chunk.run_id, chunk.location).key
            keys.add(key)
            together.xadd(key, _fields(chunk), maxlen=MOST_KEPT, approximate=True)
        for key in keys:
            together.expire(key, KEPT)
        together.execute()
        _log_this.clear(queue)
    except Exception as error:  # noqa: BLE001 - the steps go on, and their results are recorded
        if not isinstance(error, RedisError | OSError | KeyError) or _log_this(queue):
            text = 'chunks that steps emit are lost (queue "%s"): %s: %s; readers get the steps\' results'
            logger.warning(text, queue, type(error).__name__, error)


def _fields(chunk: StepChunk) -> Any:
    fields: dict[str, str | int | bytes] = {"f": chunk.fence, "a": chunk.attempt, "n": chunk.number}
    if chunk.text is not None:
        fields["t"] = chunk.text.encode(errors="surrogatepass")
    return fields


_sender = _Sender()


def emitting(queue: str, streams: Sequence[Stream]) -> list[Stream]:
    """Return those of the streams, of runs of a queue, that have chunks; one round trip, and [] without an answer."""
    if not (conf.REDIS and streams):
        return []
    try:
        together = redis_clients.client(queue).pipeline(transaction=False)
        for each in streams:
            together.exists(each.key)
        answers = together.execute()
    except (RedisError, OSError, KeyError):
        return []
    return [stream for stream, is_there in zip(streams, answers, strict=True) if is_there]


def send(chunk: StepChunk) -> None:
    """Have the thread send a chunk. Without Redis do nothing."""
    if conf.REDIS:
        _sender.add(chunk)


def flush(timeout: float = _LAST_WAIT) -> None:
    """Wait until the chunks are sent, for `timeout` seconds at most. A process calls it before it ends."""
    _sender.flush(timeout)


def _forget() -> None:
    """Begin anew in a child process: the thread and what waits are the parent's."""
    global _sender
    _sender = _Sender()


os.register_at_fork(after_in_child=_forget)
atexit.register(flush)
