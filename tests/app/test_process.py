"""What a worker's threads do with their connections."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from durable.process import leave_transactions

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_connection_left_in_a_transaction_is_given_up_and_the_next_one_is_clean() -> None:
    transaction.atomic().__enter__()
    left = connections["default"]
    assert left.in_atomic_block
    leave_transactions()
    assert left.closed_in_transaction
    assert connections["default"] is not left
    with transaction.atomic():
        assert not connections["default"].savepoint_ids
    connections["default"].close()


def test_a_connection_in_order_stays_open() -> None:
    connection = connections["default"]
    connection.ensure_connection()
    before = connection.connection
    leave_transactions()
    assert connections["default"] is connection
    assert connection.connection is before
