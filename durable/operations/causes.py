"""Muting: a cause of failed runs that operators know is left out of what needs attention. Runs stay as they are."""

from __future__ import annotations

from datetime import datetime

from durable import runtime
from durable.conf import conf
from durable.models import Cause
from durable.operations.audited import audited

__all__ = ["mute", "unmute"]


def mute(fingerprint: str) -> None:
    """Leave the cause out of what needs attention, until it is unmuted.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _mark("mute", fingerprint, runtime.current().now())


def unmute(fingerprint: str) -> None:
    """Show the cause again among what needs attention.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _mark("unmute", fingerprint, None)


def _mark(action: str, fingerprint: str, muted_at: datetime | None) -> None:
    at = runtime.current()
    causes = Cause.objects.using(conf.DATABASE).filter(fingerprint=fingerprint)
    with audited(at, action, "") as by, at.store.transaction():
        cause = causes.first()
        if cause is None:
            raise ValueError(f"there is no cause {fingerprint[:40]!r}; `durable causes --muted` lists all")
        done = by.done(before="", after="", detail=f"cause {fingerprint}: {cause.place} {cause.error_type}")
        causes.update(muted_at=muted_at, muted_by="" if muted_at is None else done.actor_label)
        at.store.log([done])
