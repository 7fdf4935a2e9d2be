"""Child processes that the code of a step or of a workflow forks: a multiprocessing pool, or `os.fork()`.

Owns two rules. Such a child is an ordinary process, in which signals have their default effect. It must never continue
the pass of its parent: a child that returns from the function which forked it is ended there.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any, Final

logger = logging.getLogger("durable.pass")

CHILD_EXIT_STATUS: Final = 70  # the exit status of a child that returned

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)


_here = threading.local()


class Origin:
    """The process in which a pass began, the only one that may continue it."""

    __slots__ = ("_pid", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._pid = os.getpid()
        self._run_id = run_id

    def end_forked_child(self) -> None:
        """End this process at once if it was forked within the pass. Write and close nothing of the parent's."""
        if os.getpid() == self._pid:
            return
        try:
            text = (
                "a process that the code of run %s has forked (pid %d, of %d) came back from the function that forked it, "
                "and is ended: a child must end by itself, with os._exit() for example"
            )
            logger.error(text, self._run_id, os.getpid(), self._pid, extra={"run_id": self._run_id})
        finally:
            os._exit(CHILD_EXIT_STATUS)


def _block_signals() -> None:
    """Before a fork, block signals: those sent to the child wait until the child has its own handlers."""
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _restore_signal_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _remove_worker_handlers() -> None:
    """Remove the worker's signal handlers in a forked child: they would keep `terminate()` from ending the child."""
    for number in _SIGNALS:
        if _is_workers_handler(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _restore_signal_mask()


def _is_workers_handler(handler: Any) -> bool:
    """Return True for a function or method of durable's, or a method of any class derived from one of RQ's.

    RQ is recognized by its package's name: a process that does not serve RQ's queues need not import it.
    """
    bases = type(getattr(handler, "__self__", None)).__mro__
    modules = [getattr(handler, "__module__", None), *(each.__module__ for each in bases)]
    return callable(handler) and any(str(each).partition(".")[0] in ("durable", "rq") for each in modules)


os.register_at_fork(before=_block_signals, after_in_parent=_restore_signal_mask, after_in_child=_remove_worker_handlers)
