"""The transaction of an atomic step on a Django connection: it has committed, or it raises that it has not.

Owns what Django leaves to its caller: a transaction that is to be rolled back although its code returned, and hooks of
`transaction.on_commit` that raise after the commit.
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
    """`transaction.atomic`, out of which nothing comes once it has committed.

    Raises TransactionManagementError where Django would roll back without a word.
    """
    has_committed = False

    def note() -> None:
        nonlocal has_committed
        has_committed = True

    try:
        with transaction.atomic(using=using):
            transaction.on_commit(note, using=using)  # the first of the hooks, so those that fail come after it
            yield
            if transaction.get_rollback(using):
                raise transaction.TransactionManagementError(BROKEN)
    except Exception:
        if not has_committed:
            raise
        logger.exception("a hook of transaction.on_commit failed after an atomic step was committed; the step stands")
