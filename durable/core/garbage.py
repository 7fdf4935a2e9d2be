"""Pauses of the garbage collector, while many objects are made that stay."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_collects_later = False  # a thread makes a history


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in this process: a long history is objects that stay, and takes nearly twice as long with it.

    The block must not wait for a lock, because garbage of all threads stays meanwhile. It may read rows that come.
    """
    global _collects_later
    if not gc.isenabled():  # another thread makes one, and will enable it
        yield
        return
    try:
        _collects_later = True
        gc.disable()
        yield
    finally:
        gc.enable()
        _collects_later = False


def _collect_in_child() -> None:
    """Enable collections in a forked child, which the thread that would do so is not part of."""
    if _collects_later:
        gc.enable()


os.register_at_fork(after_in_child=_collect_in_child)
