"""Operators' mutes and notes on the causes of failed runs. The runs stay as they are.

A muted cause no longer counts as needing attention. A note tells others who is looking into the cause, and what is
known.
"""

from __future__ import annotations

from typing import Any, Final

from durable import runtime
from durable.conf import conf
from durable.models import Cause
from durable.operations.audit import audited

MAX_NOTE: Final = 1_000  # characters


def mute(fingerprint: str) -> None:
    """Mute the cause: it does not count as needing attention until it is unmuted.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _change("mute", fingerprint, {"muted_at": runtime.current().now()}, by="muted_by")


def unmute(fingerprint: str) -> None:
    """Unmute the cause: it counts as needing attention again.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _change("unmute", fingerprint, {"muted_at": None, "muted_by": ""})


def note(fingerprint: str, text: str) -> None:
    """Set the note of the cause, with the actor and the time; it replaces the earlier note, and "" deletes it.

    Raises OperationDeniedError, and ValueError if there is no such cause or the text is longer than `MAX_NOTE`.
    """
    text = text.strip()
    if len(text) > MAX_NOTE:
        raise ValueError(f"a note has at most {MAX_NOTE:,} characters, this one has {len(text):,}")
    columns = {"note": text, "noted_at": runtime.current().now() if text else None, "noted_by": ""}
    _change("note", fingerprint, columns, by="noted_by" if text else "", detail=text)


def _change(action: str, fingerprint: str, columns: dict[str, Any], *, by: str = "", detail: str = "") -> None:
    """Set these columns of the cause; `by` is the column for the actor's name."""
    at = runtime.current()
    causes = Cause.objects.using(conf.DATABASE).filter(fingerprint=fingerprint)
    with audited(at, action, "", subject=("cause", fingerprint)) as attributed, at.store.transaction():
        cause = causes.first()
        if cause is None:
            raise ValueError(f"there is no cause {fingerprint[:40]!r}; `durable causes --muted` lists all")
        told = f"cause {fingerprint}: {cause.place} {cause.error_type}"
        done = attributed.done(before="", after="", detail=f"{told}: {detail}" if detail else told)
        causes.update(**{**columns, **({by: done.actor_label} if by else {})})
        at.store.log([done])
