"""Rows that the tests of a module share: made once, rolled back after the last test.

What a test writes itself is rolled back after it, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import transaction

if TYPE_CHECKING:
    from pytest_django import DjangoDbBlocker


@contextmanager
def shared_rows(blocker: DjangoDbBlocker) -> Iterator[None]:
    """A transaction around all tests of a module, for a fixture that asks for `django_db_setup`.

    The tests are marked `django_db` without `transaction`: those that commit would commit nothing, and wait for it.
    """
    around: Any = transaction.atomic()
    around._from_testcase = True  # as Django marks the transaction of a test, in which `durable=True` is allowed
    with blocker.unblock(), around:
        try:
            yield
        finally:
            transaction.set_rollback(True)
