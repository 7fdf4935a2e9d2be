"""Shapes of commits, and what they may have changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from durable.core.errors import ErrorInfo
from durable.core.records import AttemptRecord, ChildRecord, ChildStart, RunRecord
from durable.core.transitions import completed, failed
from durable.store import Store
from tests.store.making import NOW, a_failure, a_run, an_attempt, an_entry, the

ERROR: Final = ErrorInfo("ValueError", "declined")
#: Parts of commits for which PostgreSQL has functions of their own.
SHAPES: Final[dict[str, Callable[[RunRecord], dict[str, Any]]]] = {
    "one entry": lambda _: {"entries": [an_entry("new")]},
    "two entries": lambda _: {"entries": [an_entry("new"), an_entry("old", output="changed")]},
    "an attempt": lambda _: {"entries": [an_entry("old")], "attempts": [an_attempt("old")]},
    "completion": lambda run: {"run": completed(run, now=NOW, output="1")},
    "completion with an entry": lambda run: {"entries": [an_entry()], "run": completed(run, now=NOW, output="1")},
    "failure": lambda run: {"run": failed(run, now=NOW, error=ERROR), "failure": a_failure()},
    "start of a child": lambda _: {"entries": [an_entry("new")], "starts": [a_child()]},
    "completion of a child": lambda run: {"run": completed(run, now=NOW, output="1"), "parent_id": "other"},
    "failure of a child": lambda run: {
        "run": failed(run, now=NOW, error=ERROR),
        "failure": a_failure(),
        "parent_id": "other",
    },
}


def a_child() -> ChildStart:
    return ChildStart(a_run("child"), ChildRecord(run_id="child", parent_id="run", location="new", position=1))


def everything(store: Store) -> list[object]:
    """Return all that the store has of the runs `run` and `other`."""
    found: list[object] = []
    for run_id in ("run", "other"):
        attempts: list[AttemptRecord] = store.attempts(run_id)
        found += [the(store, run_id), store.history(run_id), attempts, store.messages(run_id)]
    return found
