"""The answers to requests that may be repeated: one row for each idempotency key in use."""

from __future__ import annotations

from django.db import models

from durable.models.fields import JSONTextField, NameField, SafeTextField
from durable.models.rows import Row


class IdempotencyKey(Row):
    """A key that a client gave to a request, the request's fingerprint, and the answer.

    The row is written in the transaction of the requested change, so that neither exists without the other. It holds no
    payload: answers name runs and messages, they do not quote them. Keys are unique for one owner; other owners may use
    the same keys. A row is kept for a day after `created_at`.
    """

    owner = NameField[str, str](max_length=200)
    key = NameField[str, str](max_length=255)
    fingerprint = NameField[str, str](max_length=64)
    # identifies the request that inserted the row, so that it can recognize its own row
    claim = NameField[str, str](max_length=36)
    status = models.IntegerField(default=0)
    body = SafeTextField[str, str](default="", blank=True)
    headers = JSONTextField[dict[str, str], dict[str, str]](default=dict, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="durable_key_oldest")]
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="durable_key_once_per_owner")]

    def __str__(self) -> str:
        return self.key
