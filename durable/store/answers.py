"""Waiting for what PostgreSQL answers to a statement that was sent past psycopg's cursor.

Owns both ways to wait, with and without an ear for signals, and `DURABLE["BUSY_POLL"]`: whoever sleeps until an answer
is there is woken tens of microseconds after it came, and goes on with caches that have gone cold; where the answer comes
within a few hundred, looking for it again and again is quicker. The idea is that of the kernel's busy polling of sockets.

Nothing here waits inside `PGconn.get_result`, which keeps other threads from running. What is sent is sent here as well:
half of the signals that come during a call come while it is sent.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any, Final

import psycopg
from psycopg.generators import execute
from psycopg.pq.abc import PGconn, PGresult

from durable.conf import conf

__all__ = ["Lookout", "are_polled_for", "interruptible", "uninterrupted"]

#: Of a call that is polled for: so many fit into any socket, and so are sent when the wait begins.
_MOST_BYTES: Final = 16384
_MOST_MISSES: Final = 6  # that count: it rests for 64 answers then


def are_polled_for(values: Sequence[bytes | None]) -> bool:
    """Whether the answer to these parameters is looked for before it is slept for."""
    return conf.BUSY_POLL > 0 and sum(len(each) for each in values if each) <= _MOST_BYTES


def interruptible(raw: psycopg.Connection[Any], send: Callable[[], None], *, polled_for: bool) -> PGresult:
    """The answer to what `send` sends. The KeyboardInterrupt or SystemExit of a signal handler cancels it at the server."""
    answer: PGresult
    [answer] = raw.wait(_Sent(raw, send, polled_for=polled_for))
    return answer


def uninterrupted(raw: psycopg.Connection[Any], send: Callable[[], None]) -> PGresult:
    """The answer to what `send` sends, polled for; what signal handlers raise meanwhile is raised after it came."""
    pgconn, lookout, seconds = raw.pgconn, _lookout(raw), conf.BUSY_POLL
    answer: PGresult | None = None
    raised: BaseException | None = None
    try:
        send()
    except psycopg.Error:
        raise
    except BaseException as error:  # noqa: BLE001  # raised below
        raised = error
    while True:
        try:
            _await(pgconn, lookout, seconds)
            result = pgconn.get_result()
            if result is None:
                break
            answer = answer or result
        except BaseException as error:  # noqa: BLE001  # raised below
            raised = error
    if raised is not None:
        raise raised
    if answer is None:
        raise psycopg.OperationalError("the connection was closed while an answer was waited for")
    return answer


def _await(pgconn: PGconn, lookout: Lookout, seconds: float) -> None:
    """Until `get_result` would not wait. What is there to be read may be a notice, or the beginning of the answer."""
    while pgconn.is_busy():
        lookout.wait(seconds)
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:  # broken, and the socket is another's by now; the result tells why
            return


def _lookout(raw: Any) -> Lookout:
    lookout: Lookout | None = vars(raw).get("_durable_lookout")
    if lookout is None:
        lookout = raw._durable_lookout = Lookout(raw.pgconn.socket)
    return lookout


class _Sent(Generator[Any, Any, list[PGresult]]):
    """Psycopg's waiting for an answer, after it was asked for and looked out for. All inside psycopg's wait, which cancels
    what an interruption leaves behind. Unlike a function's, this generator survives what is raised in it, because
    psycopg goes on with it then, to clean up."""

    def __init__(self, raw: psycopg.Connection[Any], send: Callable[[], None], *, polled_for: bool) -> None:
        self._send: Callable[[], None] | None = send
        self._lookout = _lookout(raw) if polled_for else None
        self._waiting = execute(raw.pgconn)

    def send(self, value: Any) -> Any:
        send, self._send = self._send, None
        if send is not None:
            send()
            if self._lookout is not None:
                self._lookout.watch(conf.BUSY_POLL)
        return self._waiting.send(value)

    def throw(self, *error: Any) -> Any:
        return self._waiting.throw(*error)


class Lookout:
    """Looks for answers on one socket. If they take too long again and again, it does so less and less often."""

    __slots__ = ("_misses", "_poll", "_rests")

    def __init__(self, socket: int) -> None:
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        self._poll = poll.poll
        self._misses = 0  # in a row, as far as they count
        self._rests = 0  # how many answers are still to be slept for

    def wait(self, seconds: float) -> None:
        """Until something is there to be read: awake for so long, then asleep."""
        if not self.watch(seconds):
            self._poll()

    def watch(self, seconds: float) -> bool:
        """Look for so long; whether something is there to be read. Other threads go on meanwhile."""
        if self._rests:
            self._rests -= 1
            return False
        deadline = perf_counter() + seconds
        while not self._poll(0):
            if perf_counter() >= deadline:
                self._misses = min(self._misses + 1, _MOST_MISSES)
                self._rests = 2**self._misses
                return False
        self._misses = 0
        return True
