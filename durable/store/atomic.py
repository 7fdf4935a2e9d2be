"""The transaction of an atomic step on a Django connection: it commits, or raises if it has not.

Owns what Django leaves to its caller: a transaction that is to be rolled back although its code returned, and
`transaction.on_commit` hooks that raise after the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

__all__ = ["BROKEN", "committed_or_raised"]

logger = logging.getLogger("durable.store")

BROKEN = (
    "the transaction of the atomic step is to be rolled back: its function caught a database error inside it, or "
    "asked for that. Let the error out, or put what may fail into a transaction.atomic() of its own"
)


@contextmanager
def committed_or_raised(using: str | None) -> Iterator[None]:
    """Run the block in `transaction.atomic`, and raise nothing once it has committed.

    Raises TransactionManagementError where Django would roll back silently.
    """
    has_committed = False

    def note() -> None:
        nonlocal has_committed
        has_committed = True

    try:
        with transaction.atomic(using=using):
            transaction.on_commit(note, using=using)  # the first of the hooks, so failing hooks come after it
            yield
            if transaction.get_rollback(using):
                raise transaction.TransactionManagementError(BROKEN)
    except Exception:
        if not has_committed:
            raise
        logger.exception("a hook of transaction.on_commit failed after an atomic step was committed; the step stands")
