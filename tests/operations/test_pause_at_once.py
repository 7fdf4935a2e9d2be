"""A queue that is paused while several workers claim from it: nothing is claimed once the pause has been committed."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from durable import Context, workflow
from durable.conf import conf
from durable.models import Run
from durable.operations.holds import pause_queue, resume_queue
from durable.store import store_for
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

_CLAIMERS = 3


@workflow(name="tests.pause_at_once.job")
def job(ctx: Context) -> None:
    return None


class Claimers:
    """Threads that claim one run at a time: `claims` has when each claim began, and how many runs it got."""

    def __init__(self) -> None:
        self.claims: list[tuple[float, int]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._claim, args=[number]) for number in range(_CLAIMERS)]

    def __enter__(self) -> Claimers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join(300)

    def _claim(self, number: int) -> None:
        store = store_for(conf.DATABASE)
        try:
            while not self._stopping.is_set():
                began, now = time.monotonic(), timezone.now()
                lease = now + timedelta(hours=1)
                try:
                    found = store.claim(
                        queues=[conf.QUEUE], now=now, lease_until=lease, worker=f"claimer-{number}", limit=1
                    )
                except OperationalError:  # SQLite is locked
                    continue
                self.claims.append((began, len(found)))
                self._stopping.wait(0.002)  # SQLite has one lock for all writers, and no line before it
        finally:
            connections.close_all()

    def since(self, moment: float) -> list[int]:
        """What the claims that began after this moment got."""
        return [count for began, count in list(self.claims) if began > moment]


def test_nothing_is_claimed_once_a_pause_is_committed() -> None:
    job.start_many([()] * 400)
    with Claimers() as claimers:
        for _ in range(3):
            before = sum(count for _, count in claimers.claims)
            eventually(lambda before=before: sum(count for _, count in list(claimers.claims)) > before + 5)  # type: ignore[misc]
            pause_queue(conf.QUEUE)
            paused_at = time.monotonic()
            eventually(lambda paused_at=paused_at: len(claimers.since(paused_at)) > 20)  # type: ignore[misc]
            assert sum(claimers.since(paused_at)) == 0
            resume_queue(conf.QUEUE)
    claimed = sum(count for _, count in claimers.claims)
    assert Run.objects.filter(lease_expires_at__isnull=False).count() == claimed < 400
