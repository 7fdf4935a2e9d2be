"""Processes that the code of a step or of a workflow forks: a pool of multiprocessing's, or `os.fork()`.

Owns that such a child is an ordinary process, whose signals do what they do by default, and that it never goes on with
the pass of its parent: one that comes back from the function which forked it ends there.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any, Final

from rq.worker import BaseWorker

__all__ = ["Origin"]

logger = logging.getLogger("durable.pass")

STRAY: Final = 70  # the exit status of a child that came back

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)


_here = threading.local()


class Origin:
    """The process in which a pass has begun, and the only one that may go on with it."""

    __slots__ = ("_pid", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._pid = os.getpid()
        self._run_id = run_id

    def end_strays(self) -> None:
        """End this process at once if it was forked within the pass. Nothing of the parent's is written or closed."""
        if os.getpid() == self._pid:
            return
        try:
            text = (
                "a process that the code of run %s has forked (pid %d, of %d) came back from the function that forked it, "
                "and is ended: a child must end by itself, with os._exit() for example"
            )
            logger.error(text, self._run_id, os.getpid(), self._pid, extra={"run_id": self._run_id})
        finally:
            os._exit(STRAY)


def _hold_signals() -> None:
    """Before a fork: what is sent to the child before its handlers are its own waits until they are."""
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _forget_handlers() -> None:
    """In a forked child: the worker's handlers are about the worker, and would keep `terminate()` from ending the child."""
    for number in _SIGNALS:
        if _is_a_workers(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_signals_through()


def _is_a_workers(handler: Any) -> bool:
    if isinstance(getattr(handler, "__self__", None), BaseWorker):
        return True
    return callable(handler) and str(getattr(handler, "__module__", "")).partition(".")[0] == "durable"


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_forget_handlers)
