"""Several processes that check runs beside each other.

Each is a new interpreter with this process's settings: none is forked, because this one may have threads and
connections.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from durable.replay_check.findings import Verdict

T = TypeVar("T")

_AT_ONCE: Final = 20  # runs that a process is given at a time
_WAITING: Final = 3  # such parts for each process that are under way or wait

#: Yields the verdicts on these runs, given by their ids or as they are recorded.
Check = Callable[..., Iterator[Verdict | None]]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The data that give a new process the same settings and workflows."""

    settings: str
    databases: dict[str, dict[str, Any]]
    durable: dict[str, Any]
    modules: tuple[str, ...]


def in_processes(check: Check, runs: Iterable[T], jobs: int, *, with_decision: bool) -> Iterator[Verdict | None]:
    """Yield the verdicts on the runs in their order, found by `jobs` processes. `check` is a function of a module."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, context, _set_up, (_surroundings(),))
    waiting: deque[Future[list[Verdict | None]]] = deque()
    parts = _parts(runs)
    try:
        while True:
            for part in islice(parts, jobs * _WAITING - len(waiting)):
                waiting.append(executor.submit(_checked, check, part, with_decision))
            if not waiting:
                return
            yield from waiting.popleft().result()
    except BaseException:  # interrupted: what runs is not waited for
        begun = set(multiprocessing.active_children()) - before
        executor.shutdown(wait=False, cancel_futures=True)
        for each in begun:
            each.terminate()
        for each in begun:
            each.join()
        raise
    finally:
        executor.shutdown()


def _checked(check: Check, part: Sequence[Any], with_decision: bool) -> list[Verdict | None]:
    return list(check(part, with_decision=with_decision))


def _parts(runs: Iterable[T]) -> Iterator[list[T]]:
    left = iter(runs)
    while part := list(islice(left, _AT_ONCE)):
        yield part


def _surroundings() -> _Surroundings:
    from django.conf import settings
    from django.db import connections

    from durable.core import registry

    return _Surroundings(
        os.environ.get("DJANGO_SETTINGS_MODULE", ""),
        {
            each: dict(connections.settings[each]) | {"NAME": connections[each].settings_dict["NAME"]}
            for each in connections
        },
        dict(getattr(settings, "DURABLE", {})),
        tuple(sorted({each.function.__module__ for each in registry.all()})),
    )


def _set_up(surroundings: _Surroundings) -> None:
    """Set Django up as in the process that has started this one, and let that one end this one at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["DJANGO_SETTINGS_MODULE"] = surroundings.settings
    import django
    from django.conf import settings

    settings.DATABASES = surroundings.databases
    settings.DURABLE = surroundings.durable
    django.setup()
    for each in surroundings.modules:
        importlib.import_module(each)
