"""One thread for each Redis that reads the streams for all readers of the process, and their outcomes for all at once.

A reader has a mailbox, which the thread fills. The thread asks Redis for what is new in all streams with one command,
and the database for their outcomes every few seconds and when a stream has ended, with one look for all. So 1,000
readers of 100 streams cost one connection to each. The thread ends when nobody has read for some seconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, connections
from redis import Redis
from redis.exceptions import RedisError

from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, EntryStatus
from durable.models import Entry, Run
from durable.notifier import redis_clients
from durable.notifier.chunks import Stream

logger = logging.getLogger("durable.streams")

#: Milliseconds for which Redis holds the command back, and so how long a new reader waits at most for its first look.
_BLOCK: Final = 50
_MOST_PARTS: Final = 200  # of a stream in one answer
#: Seconds between two looks into the database, with Redis and without.
_LOOK_EVERY, _LOOK_EVERY_WITHOUT = 2.0, 0.5
_AFTER_TROUBLE: Final = 0.5  # seconds
_IDLE: Final = 5.0  # seconds
#: The most parts in a mailbox, and the most characters of them, about. A reader that has fallen back further reads
#: again from Redis.
_MOST_UNREAD: Final = 20_000
_MOST_UNREAD_TEXT: Final = 4_000_000
#: Milliseconds by which the clock of Redis may be behind those of workers.
_SKEW: Final = 60_000

_TROUBLE: Final = (RedisError, OSError, DatabaseError)
_log_this = redis_clients.LogThrottle(30.0)
#: A position in a stream of Redis.
Position = tuple[int, int]
START: Final[Position] = (0, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk as Redis has it. `text` is codec text, None for the end of the stream."""

    position: Position
    fence: int
    attempt: int
    number: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the step has ended, the last item of a mailbox. `error` is None if the step has a result, `output`.

    `is_gone`: there is no such run.
    """

    output: str | None = None
    error: ErrorInfo | None = None
    is_gone: bool = False


class Mailbox:
    """What one reader has not taken yet. `wake` is called, in the thread, when there is more."""

    def __init__(self, stream: Stream, after: Position, wake: Callable[[], None]) -> None:
        self.stream = stream
        self.position = after
        self.hub: Hub | None = None
        self.is_closed = False
        #: It is not filled any more: its reader has fallen back too far, and has to open another one.
        self.is_overfull = False
        self._wake = wake
        self._items: deque[Part | Outcome] = deque()
        self._put = self._taken = 0  # characters: one is counted by the hub's thread, the other by the reader's

    def put(self, items: Iterable[Part | Outcome]) -> bool:
        """Add items behind the reader's position. Return False if the reader is too far behind, or gone."""
        for item in items:
            if isinstance(item, Part):
                if item.position <= self.position:
                    continue
                self.position = item.position
                self._put += len(item.text or "")
            self._items.append(item)
        self.is_overfull = len(self._items) > _MOST_UNREAD or self._put - self._taken > _MOST_UNREAD_TEXT
        try:
            self._wake()
        except RuntimeError:  # its event loop is closed
            return False
        return not self.is_overfull

    def close(self) -> None:
        """Have it filled no more."""
        self.is_closed = True
        if self.hub is not None:
            self.hub.close(self)

    def take(self) -> Part | Outcome | None:
        """Return the next item; None if there is none now."""
        try:
            item = self._items.popleft()
        except IndexError:
            return None
        if isinstance(item, Part):
            self._taken += len(item.text or "")
        return item


class Hub:
    """The readers of the streams in one Redis; None for no Redis, where the outcomes alone are read."""

    def __init__(self, redis: Redis | None) -> None:
        self._redis = redis
        self._changed = threading.Condition()
        self._new: list[Mailbox] = []
        self._open: dict[Stream, list[Mailbox]] = {}
        self._positions: dict[Stream, Position] = {}
        self._thread: threading.Thread | None = None
        self._looked_at = 0.0
        #: The streams whose steps had ended at the last look at all of them.
        self._ended: set[Stream] = set()

    def open(self, mailbox: Mailbox) -> None:
        """Fill the mailbox from now on, until it has the outcome or is closed."""
        with self._changed:
            mailbox.hub = self
            if mailbox.is_closed:  # while it came here from another hub
                return
            self._new.append(mailbox)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="durable-stream-readers", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, mailbox: Mailbox) -> None:
        """Leave the mailbox alone from now on."""
        with self._changed:
            if mailbox in self._new:
                self._new.remove(mailbox)
            self._drop(mailbox)

    def _drop(self, mailbox: Mailbox) -> None:
        others = self._open.get(mailbox.stream)
        if others is not None and mailbox in others:
            others.remove(mailbox)
            if not others:
                del self._open[mailbox.stream], self._positions[mailbox.stream]

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._new and not self._open:
                    connections.close_all()  # this thread's
                    if not self._changed.wait_for(lambda: bool(self._new), _IDLE):
                        self._thread = None
                        return
                new, self._new = self._new, []
                for each in new:
                    self._open.setdefault(each.stream, []).append(each)
                    self._positions.setdefault(each.stream, START)
            try:
                self._turn(new)
            except Exception as error:  # whatever it is: the readers wait for this thread
                if not isinstance(error, _TROUBLE) or _log_this(type(error).__name__):
                    text = "streams of steps cannot be read now: %s: %s"
                    logger.warning(text, type(error).__name__, error, exc_info=not isinstance(error, _TROUBLE))
                if isinstance(error, DatabaseError):
                    connections.close_all()
                self._begin_again(new)
                time.sleep(_AFTER_TROUBLE)

    def _begin_again(self, new: Sequence[Mailbox]) -> None:
        """Take these readers for new ones again: they may lack chunks that came before them, and their own Redis."""
        with self._changed:
            for each in new:
                if each in self._open.get(each.stream, ()):
                    self._drop(each)
                    self._new.append(each)

    def _turn(self, new: Sequence[Mailbox]) -> None:
        """Serve new readers what there is, then all of them what comes within the time that Redis waits."""
        interval = _LOOK_EVERY_WITHOUT if self._redis is None else _LOOK_EVERY
        if time.monotonic() - self._looked_at >= interval:
            self._looked_at = time.monotonic()
            self._look_again()
        self._look({each.stream for each in new}, new)
        if self._redis is None:
            for each in new:
                each.put([])  # it has been looked at
            time.sleep(_BLOCK / 1000)
            return
        for each in new:
            self._catch_up(self._redis, each)
        with self._changed:
            positions: dict[Any, Any] = {each.key: _written(at) for each, at in self._positions.items()}
            streams = {each.key: each for each in self._positions}
        if positions:
            found = self._redis.xread(positions, count=_MOST_PARTS, block=_BLOCK)
            for key, entries in _pairs(found):
                self._deliver(streams[key], [_part(*each) for each in entries])

    def _catch_up(self, redis: Redis, mailbox: Mailbox) -> None:
        """Put what Redis has behind the reader's position into its mailbox."""
        stream, after = mailbox.stream, mailbox.position
        while True:
            entries: Any = redis.xrange(stream.key, min=f"({_written(after)}", count=_MOST_PARTS)
            parts = [_part(*each) for each in entries]
            with self._changed:
                if mailbox not in self._open.get(stream, ()):
                    return
                if not mailbox.put([each for each in parts if each.text is not None]):
                    self._drop(mailbox)
                    return
                if parts:  # never a position that a reader has given: it may be one that Redis does not reach
                    after = parts[-1].position
                    self._positions[stream] = max(
                        self._positions[stream], START if len(self._open[stream]) > 1 else after
                    )
            if any(each.text is None for each in parts):
                self._look([stream])
            if len(parts) < _MOST_PARTS:
                return

    def _deliver(self, stream: Stream, parts: Sequence[Part]) -> None:
        with self._changed:
            if stream not in self._positions:
                return
            self._positions[stream] = parts[-1].position
            chunks = [each for each in parts if each.text is not None]
            if chunks:
                for mailbox in list(self._open[stream]):
                    if not mailbox.put(chunks):
                        self._drop(mailbox)
        if len(chunks) < len(parts):
            self._look([stream])

    def _look_again(self) -> None:
        """Look whether streams have ended whose end marker does not come.

        With Redis it has until the next look to come, behind the last chunks.
        """
        streams = list(self._open)
        found = outcomes(streams)[0] if streams else {}
        is_late = found.keys() if self._redis is None else found.keys() & self._ended
        self._ended = set(found)
        self._end({each: found[each] for each in is_late})

    def _look(self, streams: Iterable[Stream], new: Sequence[Mailbox] = ()) -> None:
        """Give the readers of those streams that have ended the outcome.

        New ones whose run has another Redis go to its hub.
        """
        streams = list(streams)
        if not streams:
            return
        found, runs = outcomes(streams)
        for mailbox in new:
            if (run := runs.get(mailbox.stream.run_id)) is None:
                continue
            # what is older was emitted by a run of the same id that was deleted
            mailbox.position = max(mailbox.position, (int(run.created_at.timestamp() * 1000) - _SKEW, 0))
            if (other := hub_of(run.queue)) is not self:
                self.close(mailbox)
                other.open(mailbox)
        self._end(found)

    def _end(self, found: Mapping[Stream, Outcome]) -> None:
        for stream, outcome in found.items():
            with self._changed:
                for mailbox in self._open.pop(stream, ()):
                    mailbox.put([outcome])
                self._positions.pop(stream, None)


class _FoundRun(NamedTuple):
    id: str
    state: str
    queue: str
    created_at: datetime


def outcomes(streams: Sequence[Stream]) -> tuple[dict[Stream, Outcome], dict[str, _FoundRun]]:
    """Return the outcomes of those steps that have ended, or whose run has, and the runs by id; two queries."""
    runs = {each.run_id for each in streams}
    rows = Run.objects.using(conf.DATABASE).filter(pk__in=runs).values_list("pk", "state", "queue", "created_at")
    read = {row[0]: _FoundRun(*row) for row in rows}  # before the entries
    entries = Entry.objects.using(conf.DATABASE).filter(run__in=runs, location__in={each.location for each in streams})
    ends = {
        Stream(run, location): (status, output, error)
        for run, location, status, output, error in entries.with_metadata().values_list(
            "run_id", "location", "metadata__status", "output", "metadata__error"
        )
    }
    states = {run.id: run.state for run in read.values()}
    found = {each: outcome_of(each, states.get(each.run_id), *ends.get(each, ("", None, None))) for each in streams}
    return {stream: outcome for stream, outcome in found.items() if outcome is not None}, read


def outcome_of(
    stream: Stream, state: str | None, status: str, output: str | None, error: ErrorInfo | None
) -> Outcome | None:
    """Return the outcome by the state of the run, None if it is gone, and the status of the entry, "" if there is none.

    None if neither has ended.
    """
    if status == EntryStatus.COMPLETED:
        return Outcome(output=output)
    if status == EntryStatus.EXHAUSTED and error is not None:
        return Outcome(error=error)
    if state is None:
        return Outcome(is_gone=True)
    if state in ENDED:
        message = f'run {stream.run_id} is {state}, and has no result at "{stream.location}"'
        return Outcome(error=error or ErrorInfo(type="StreamEnded", message=message))
    return None


def _written(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


def _part(written: Any, fields: Any) -> Part:
    first, _, second = bytes(written).partition(b"-")
    text = fields.get(b"t")
    return Part(
        position=(int(first), int(second)),
        fence=int(fields[b"f"]),
        attempt=int(fields[b"a"]),
        number=int(fields[b"n"]),
        text=None if text is None else text.decode(errors="surrogatepass"),
    )


def _pairs(found: Any) -> Iterable[tuple[bytes, Any]]:
    """Return the streams of an answer with their entries: a mapping with RESP3, else a list."""
    if isinstance(found, Mapping):
        return [(key, [each for entries in lists for each in entries]) for key, lists in found.items()]
    return found or ()


_lock = threading.Lock()
_hubs: dict[Redis | None, Hub] = {}


def hub_of(queue: str = "") -> Hub:
    """Return the hub of the Redis in which runs of this queue have their streams; by default that of the first queue.

    A queue that is not in the settings has no Redis.
    """
    redis: Redis | None = None
    if conf.REDIS:
        with suppress(KeyError, IndexError):
            redis = redis_clients.client(queue or redis_clients.queue_names()[0])
    with _lock:
        return _hubs.setdefault(redis, Hub(redis))


def _forget() -> None:
    """Begin anew in a child process, which has none of the threads."""
    global _lock
    _lock = threading.Lock()
    _hubs.clear()


os.register_at_fork(after_in_child=_forget)
