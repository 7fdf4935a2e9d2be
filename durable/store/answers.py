"""Waiting for what PostgreSQL answers to a statement that was sent past psycopg's cursor.

Owns both ways to wait, with and without an ear for signals, and `DURABLE["BUSY_POLL"]`: whoever sleeps until an answer
is there is woken tens of microseconds after it came, and goes on with caches that have gone cold; where the answer comes
within a few hundred, looking for it again and again is quicker. The idea is that of the kernel's busy polling of sockets.

Nothing here waits inside `PGconn.get_result`, which keeps other threads from running.
"""

from __future__ import annotations

import select
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any, Final

import psycopg
from psycopg.generators import execute
from psycopg.pq.abc import PGconn, PGresult

from durable.conf import conf

__all__ = ["Lookout", "are_polled_for", "interruptible", "uninterrupted"]

_MOST_BYTES: Final = (
    16384  # of a call that is polled for: they fit into any socket, and so are sent when the wait begins
)
_LONGEST_REST: Final = 64  # answers


def are_polled_for(values: Sequence[bytes | None]) -> bool:
    """Whether the answer to these parameters is looked for before it is slept for."""
    return conf.BUSY_POLL > 0 and sum(len(each) for each in values if each) <= _MOST_BYTES


def interruptible(raw: psycopg.Connection[Any], *, polled_for: bool) -> PGresult:
    """The answer to what was sent. The KeyboardInterrupt or SystemExit of a signal handler cancels it at the server."""
    answer: PGresult
    [answer] = raw.wait(_Watched(raw) if polled_for else execute(raw.pgconn))
    return answer


def uninterrupted(raw: psycopg.Connection[Any]) -> PGresult:
    """The answer to what was sent and is polled for; what signal handlers raise meanwhile is raised after it came."""
    lookout = _lookout(raw)
    raised: BaseException | None = None
    while True:
        try:
            lookout.wait(conf.BUSY_POLL)
            break
        except BaseException as error:  # noqa: BLE001  # raised below
            raised = error
    answer = _only_result(raw.pgconn)
    if raised is not None:
        raise raised
    return answer


def _only_result(pgconn: PGconn) -> PGresult:
    answer = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    assert answer is not None, "nothing was sent"
    return answer


def _lookout(raw: Any) -> Lookout:
    lookout: Lookout | None = vars(raw).get("_durable_lookout")
    if lookout is None:
        lookout = raw._durable_lookout = Lookout(raw.pgconn.socket)
    return lookout


class _Watched(Generator[Any, Any, list[PGresult]]):
    """Psycopg's waiting for an answer, after a look-out. Unlike a function's, this generator survives what is raised in
    the look-out, because psycopg goes on with it then, to clean up."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._lookout: Lookout | None = _lookout(raw)
        self._waiting = execute(raw.pgconn)

    def send(self, value: Any) -> Any:
        lookout, self._lookout = self._lookout, None
        if lookout is not None:
            lookout.watch(conf.BUSY_POLL)
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
        self._misses = 0  # in a row
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
                self._misses += 1
                self._rests = min(2**self._misses, _LONGEST_REST)
                return False
        self._misses = 0
        return True
