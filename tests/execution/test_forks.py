"""What a forked child does not take over: the signal handlers of a worker, but not those of the project's own code, and
a pause of garbage collection. Neither does the process itself keep that pause.
"""

import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from rq import Worker

from durable.core.garbage import without_collections
from durable.execution.connections import _is_workers_handler
from durable.worker.process import _stop_before_work


class Own(Worker):
    """A worker class of a project, with a handler of its own."""

    def on_terminate(self, *_: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize("handler", [_stop_before_work, Own.__new__(Own).request_stop, Own.__new__(Own).on_terminate])
def test_a_workers_handlers_are_forgotten(handler: Callable[..., object]) -> None:
    assert _is_workers_handler(handler)


@pytest.mark.parametrize(
    "handler", [None, signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, print, str.upper]
)
def test_others_stay(handler: Any) -> None:
    assert not _is_workers_handler(handler)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_child_forked_while_another_thread_loads_a_history_collects_its_garbage(is_enabled: bool) -> None:
    if not is_enabled:
        gc.disable()
    try:
        with without_collections():
            assert not gc.isenabled()
            if not (child := os.fork()):
                os._exit(gc.isenabled())
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == is_enabled


def test_an_interruption_at_the_begin_of_a_pause_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disable = gc.disable

    def interrupted() -> None:
        disable()
        raise KeyboardInterrupt  # as a signal handler may as soon as the call has returned

    monkeypatch.setattr(gc, "disable", interrupted)
    with pytest.raises(KeyboardInterrupt), without_collections():
        pass
    is_enabled = gc.isenabled()
    gc.enable()
    assert is_enabled
