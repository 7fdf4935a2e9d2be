"""Answers of links from outside: the one that comes first is a message to the run that waits.

The note that the link was used and its message are one transaction, under the lock of the run's row. So of two answers
one acts, and the commit in which a run stops to wait comes before an answer or after it. An answer is the application's
own traffic, as a message is, and stands in no audit log; the link says when it came.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from durable import runtime
from durable.core.errors import TOKEN
from durable.core.ids import new_id
from durable.core.links import LinkState, state_of
from durable.core.places import of_message
from durable.core.records import ENDED, EntryRecord, LinkRecord, OutgoingMessage, RunChange, RunRecord
from durable.link_tokens import hash_of
from durable.runtime import Runtime


def find_link(token: str) -> LinkRecord | None:
    """Return the link of a token; None for an unknown one. The search is by the token's hash."""
    return runtime.current().store.link(hash_of(token)) if TOKEN.fullmatch(token) else None


def link_state(link: LinkRecord) -> LinkState:
    """Return what the link would do with an answer now."""
    at = runtime.current()
    return _state(at, link, at.store.get(link.run_id), at.now())


def answer_link(link: LinkRecord, body: Any) -> LinkState:
    """Give the run the answer of a link that is open; return the state that the link had before.

    Only for `LinkState.OPEN` something was done. Raises PayloadError for a body that cannot be recorded.
    """
    at = runtime.current()
    message_id = new_id()
    place = of_message(link.run_id, "message", message_id, link.queue)
    text = at.encode(body, f'the answer of the link "{link.location}"', place)
    with at.store.transaction():
        run = _locked(at, link.run_id)
        known = at.store.link(link.token_hash) if run is not None else None
        if known is None:  # deleted meanwhile
            return LinkState.REPLACED
        now = at.now()
        state = _state(at, known, run, now)
        if state is not LinkState.OPEN:
            return state
        message = OutgoingMessage(id=message_id, to=link.run_id, queue=link.queue, body=text, sent_at=now)
        _, queues = at.store.send([message])
        at.store.use_link(known, message_id, now)
    if queues:
        at.notify(queues)
    return LinkState.OPEN


def _locked(at: Runtime, run_id: str) -> RunRecord | None:
    def unchanged(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        return RunChange(run={"change_seq": run.change_seq})

    return None if at.store.get(run_id) is None else at.store.change(run_id, unchanged)


def _state(at: Runtime, link: LinkRecord, run: RunRecord | None, now: datetime) -> LinkState:
    is_used = any(each.used_at is not None for each in at.store.links(link.run_id) if each.link_id == link.link_id)
    has_ended = run is None or run.state in ENDED or bool(run.state_after_rollback)
    return state_of(link, now, has_ended=has_ended, is_there=at.store.is_link_open(link), is_used=is_used)
