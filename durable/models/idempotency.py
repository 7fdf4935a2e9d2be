"""What was answered to a request that may come again: one row for each idempotency key in use."""

from __future__ import annotations

from django.db import models

from durable.models.fields import JSONTextField, NameField, SafeTextField

__all__ = ["IdempotencyKey"]


class IdempotencyKey(models.Model):
    """A key that a client gave to a request, what the request was, and what came of it.

    The row is written in the transaction that does what was asked for, so that the one is not there without the other.
    It holds no payload: answers name runs and messages, they do not quote them. Keys of one owner are unique; those of
    others are others. A row lives for a day after `created_at`.
    """

    owner = NameField[str, str](max_length=200)
    key = NameField[str, str](max_length=255)
    fingerprint = NameField[str, str](max_length=64)
    claim = NameField[str, str](max_length=36)  # who put the row here, for whoever has to know whether it was he
    status = models.IntegerField(default=0)
    body = SafeTextField[str, str](default="", blank=True)
    headers = JSONTextField[dict[str, str], dict[str, str]](default=dict, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="durable_key_oldest")]
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="durable_key_once_per_owner")]

    def __str__(self) -> str:
        return self.key
