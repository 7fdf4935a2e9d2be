"""Which signal handlers a forked child forgets: a worker's, not those of the project's own code."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from rq import Worker

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
