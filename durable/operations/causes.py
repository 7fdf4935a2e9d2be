"""What operators say of causes of failed runs. Runs stay as they are.

Muting leaves a cause that is known out of what needs attention. A note tells others who looks at it, and what is known.
"""

from __future__ import annotations

from typing import Any, Final

from durable import runtime
from durable.conf import conf
from durable.models import Cause
from durable.operations.audit import audited

MAX_NOTE: Final = 1_000  # characters


def mute(fingerprint: str) -> None:
    """Leave the cause out of what needs attention, until it is unmuted.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _change("mute", fingerprint, {"muted_at": runtime.current().now()}, by="muted_by")


def unmute(fingerprint: str) -> None:
    """Show the cause again among what needs attention.

    Raises OperationDeniedError, and ValueError if there is no such cause.
    """
    _change("unmute", fingerprint, {"muted_at": None, "muted_by": ""})


def note(fingerprint: str, text: str) -> None:
    """Show this text beside the cause, with the actor and the time, instead of the note before; none for "".

    Raises OperationDeniedError, and ValueError if there is no such cause or the text is longer than `MAX_NOTE`.
    """
    text = text.strip()
    if len(text) > MAX_NOTE:
        raise ValueError(f"a note has at most {MAX_NOTE:,} characters, this one has {len(text):,}")
    columns = {"note": text, "noted_at": runtime.current().now() if text else None, "noted_by": ""}
    _change("note", fingerprint, columns, by="noted_by" if text else "", detail=text)


def _change(action: str, fingerprint: str, columns: dict[str, Any], *, by: str = "", detail: str = "") -> None:
    """Set these columns of the cause, and the name of the actor in the column `by`."""
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
