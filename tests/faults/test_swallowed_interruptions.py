"""Interruptions of a commit in the main thread that the code of a workflow swallows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import Context, workflow
from durable.core import clock
from durable.core.control_flow import PassAborted
from durable.core.records import Batch, Committed
from durable.store import Store
from tests.faults.passing import pass_once, production_store

pytestmark = pytest.mark.django_db(transaction=True)

_calls: list[str] = []


class Interrupted:
    """The production store.

    The first commit is interrupted before it, as by a signal handler of RQ's or of Python's.
    """

    def __init__(self, store: Store, error: BaseException) -> None:
        self._store = store
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, batch: Batch) -> Committed:
        if self._errors:
            raise self._errors.pop()
        return self._store.commit(batch)


@workflow(name="faults.swallows_interruption")
def swallows(ctx: Context, is_atomic: bool) -> list[int]:
    try:
        first = ctx.step("first", note, "first", atomic=is_atomic)
    except BaseException:
        first = -1
    return [first, ctx.step("second", note, "second")]


def note(name: str) -> int:
    _calls.append(name)
    return len(_calls)


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_nothing_is_built_on_a_result_whose_commit_was_interrupted(error: BaseException, is_atomic: bool) -> None:
    _calls.clear()
    handle = swallows.start(is_atomic)
    store: Any = Interrupted(production_store(), error)
    with pytest.raises(PassAborted):
        pass_once(handle, store=store)
    assert _calls == ["first"]
    assert handle.history() == []
    assert pass_once(handle, at=clock.now() + timedelta(hours=1)).output == [2, 3]
