"""Starts under a key: at most one open run of a workflow has it.

Owns what a start does when a run with its key is open. The rules have an order: a run that has the id comes first, then
the key's, then the debounce's. Each decision is made with the open run's row locked, so that the run neither ends nor
begins meanwhile. Where the key is free, or its run is to be returned, one statement decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from durable import runtime
from durable.core.duration import later
from durable.core.errors import KeyConflictError
from durable.core.ids import check_key
from durable.core.places import Place
from durable.core.records import RunRecord
from durable.operations import lifecycle
from durable.operations.common import announce
from durable.runtime import Runtime

IfOpen = Literal["return", "error", "replace"]
Keep = Literal["last", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """A start waits `delay` seconds, and each further one as long again, until `at_most` seconds after the first.

    `keep`: whose input the run has, that of the last start or of the first.
    """

    delay: float
    at_most: float
    keep: Keep = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """A key, and what a start does if a run that has it is open.

    `if_open` is None where nothing was said: the open run is returned; with a debounce, one that has begun is left
    alone, and another begins.
    """

    key: str
    if_open: IfOpen | None = None
    debounce: Debounce | None = None

    @property
    def returns_open(self) -> bool:
        """Whether an open run stays as it is, whatever it does."""
        return self.debounce is None and self.if_open != "replace"


def key_options(
    key: str | None, *, if_open: IfOpen | None, debounce: float | None, at_most: float | None, keep: Keep | None
) -> KeyOptions | None:
    """Return what these arguments of `Workflow.using` ask for, None without a key.

    Raises TypeError for one that needs another, ValueError for an `at_most` below the debounce.
    """
    if debounce is None:
        _check_unused("debounce", at_most=at_most, keep=keep)
    if key is None:
        _check_unused("key", if_open=if_open, debounce=debounce)
        return None
    if debounce is None:
        return KeyOptions(key=key, if_open=if_open)
    if at_most is None:
        raise TypeError(
            'using(debounce=...) needs at_most="5 min", say: starts that do not stop would put the run off for ever'
        )
    if at_most < debounce:
        raise ValueError(f"at_most ({at_most:g} s) must not be less than the debounce ({debounce:g} s)")
    return KeyOptions(key=key, if_open=if_open, debounce=Debounce(delay=debounce, at_most=at_most, keep=keep or "last"))


def _check_unused(needed: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"using({name}=...) needs {needed}=... too")


def put(
    at: Runtime, wanted: RunRecord, options: KeyOptions, *, check_sees: Callable[[str], None] | None = None
) -> tuple[RunRecord, bool]:
    """Create the run, or return the run that has its id, or else the open one that has the key, and False.

    `check_sees` is called with the id of an open run that is about to be replaced, moved or left alone; it raises for
    one that the actor may not see. Raises KeyConflictError for an open run and `if_open="error"`, and what `cancel`
    raises where it is to be replaced.
    """
    found, is_new = at.store.start_keyed(wanted, options.key)
    if is_new or found.id == wanted.id:
        return found, is_new
    if options.returns_open:
        return _returned(found, options), False
    with at.store.transaction():
        while True:
            holder = at.store.key_holder(wanted.workflow, options.key, lock=True)
            if holder is not None and check_sees is not None:
                check_sees(holder.id)
            left = None if holder is None else _left(at, holder, wanted, options)
            if left is not None:
                return left, False
            found, is_new = at.store.start_keyed(wanted, options.key)
            if is_new or found.id == wanted.id:
                return found, is_new


def open_run(workflow: str, key: str) -> RunRecord | None:
    """Return the open run of the workflow that has the key, None if there is none."""
    return runtime.current().store.key_holder(workflow, check_key(key))


def _left(at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions) -> RunRecord | None:
    """Do what the options say about the locked run that has the key; return it, or None if another one is to begin."""
    if options.debounce is not None and holder.started_at is None:
        return _moved(at, holder, wanted, options)
    if options.if_open == "replace":
        lifecycle.cancel(holder.id, reason=f'replaced by run "{wanted.id}", which was started with its key')
        at.store.free_key(holder.id, for_good=False)
        return None
    if options.if_open is not None:
        return _returned(holder, options)
    at.store.free_key(holder.id, for_good=True)
    return None


def _returned(holder: RunRecord, options: KeyOptions) -> RunRecord:
    if options.if_open == "error":
        raise KeyConflictError(holder.id, options.key)
    return holder


def _moved(at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions) -> RunRecord:
    """Merge the start into a run that has not begun: it begins later, and has the newer input if that is kept."""
    debounce = options.debounce
    assert debounce is not None
    now = at.now()
    first = at.store.keys([holder.id])[holder.id].taken_at
    latest = later(first, timedelta(seconds=debounce.at_most), "at_most")
    wake_at = min(later(now, timedelta(seconds=debounce.delay), "a debounce"), max(latest, now))
    newer = None
    if debounce.keep == "last":
        newer = at.copied(wanted.input, Place(wanted.id, "input"), Place(holder.id, "input"))
    moved = at.store.move(holder, now=now, wake_at=wake_at, input=newer)
    announce(at, moved.queue, moved.wake_at)
    return moved
