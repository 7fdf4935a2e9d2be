"""Idempotent requests: perform the change of a key once, and give each repetition the same answer.

The key, the change and the answer are one transaction. A second request with the same key waits until that transaction
ends. A request after a crash finds either the key and the change, or neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import connections, transaction

from durable.conf import conf
from durable.core import clock
from durable.core.errors import OperationError
from durable.models import IdempotencyKey

LIFE: Final = timedelta(days=1)
MAX_KEY: Final = 255  # characters
_FORGOTTEN_AT_ONCE: Final = (
    20  # expired keys that are deleted for each new one, so that the table never outgrows a day's traffic
)


class KeyReusedError(OperationError):
    """The key was used for a different request before."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f'the idempotency key "{key}" was used for another request within the last {LIFE.total_seconds() / 3600:g} '
            "hours; give each request a key of its own, and the same one only to the same request"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request: a status, a body as text, headers."""

    status: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)


def once(*, owner: str, key: str, fingerprint: str, perform: Callable[[], Answer]) -> tuple[Answer, bool]:
    """Return the answer of `perform`, or the stored one if `owner` has used this key before; and which of these it is.

    `fingerprint` identifies the request, in up to 64 characters. If `perform` raises, the error propagates, nothing is
    stored and the key is free again. Raises KeyReusedError if the key was stored with another fingerprint.
    """
    now = clock.now()
    with transaction.atomic(using=conf.DATABASE):
        row = _claimed(owner, key, fingerprint, now)
        if row is None:
            return _recorded(owner, key, fingerprint), True
        answer = perform()
        row.status, row.body, row.headers = answer.status, answer.body, answer.headers
        row.save(using=conf.DATABASE)
        _forget_expired(now)
    return answer, False


def _claimed(owner: str, key: str, fingerprint: str, now: datetime) -> IdempotencyKey | None:
    """Return the key's row, locked, if this request may fill it; else None."""
    keys = IdempotencyKey.objects.using(conf.DATABASE)
    claim = str(uuid.uuid4())
    row = IdempotencyKey(owner=owner, key=key, fingerprint=fingerprint, claim=claim, created_at=now)
    keys.bulk_create([row], ignore_conflicts=True)  # waits for the transaction that holds the key now
    found = keys.select_for_update().get(owner=owner, key=key)
    if found.claim == claim:
        return found
    if found.created_at > now - LIFE:
        return None
    found.fingerprint, found.claim, found.created_at = fingerprint, claim, now
    return found


def _recorded(owner: str, key: str, fingerprint: str) -> Answer:
    row = IdempotencyKey.objects.using(conf.DATABASE).get(owner=owner, key=key)
    if row.fingerprint != fingerprint:
        raise KeyReusedError(key)
    return Answer(status=row.status, body=row.body, headers=row.headers)


def _forget_expired(now: datetime) -> None:
    keys = IdempotencyKey.objects.using(conf.DATABASE)
    expired = keys.filter(created_at__lte=now - LIFE).order_by("created_at").values_list("id", flat=True)
    if ids := list(expired.select_for_update(skip_locked=_can_skip(keys.db))[:_FORGOTTEN_AT_ONCE]):
        keys.filter(id__in=ids).delete()


def _can_skip(alias: str) -> bool:
    return connections[alias].features.has_select_for_update_skip_locked
