"""The end of a run that has not received all that `start_or_send` has sent to its key.

Owns what becomes of these messages: another run of the workflow gets them, and the key, in the transaction that
completes the first one. It is started with the input that the sender of the first of them gave, and otherwise as the
run before it. A run that began with such a message and has received none at all leaves it: the workflow does not wait
for it. So each of these runs has received one, and the messages are used up before the runs are.

A run that has failed or was cancelled keeps its messages: a recovery goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from durable.core.control_flow import LeaseLost
from durable.core.ids import new_id
from durable.core.limits import NewRun
from durable.core.places import Place, of_message, of_start
from durable.core.records import (
    Batch,
    Committed,
    EntryRecord,
    KeyedSend,
    Message,
    OutgoingMessage,
    RunChange,
    RunRecord,
)
from durable.core.transitions import started
from durable.store import Store

#: The fence of a new run whose first pass has something to load.
_LOADED = 1
#: Codec text of the first place, as text of the second.
Copied = Callable[[str, Place, Place], str]


def complete_and_pass_on(
    store: Store, batch: Batch, now: datetime, copied: Copied
) -> tuple[Committed, RunRecord | None]:
    """Commit `batch`, which completes the run, and give what it has not received to another run, in one transaction.

    Return the other run too, if there is one. Raises LeaseLost.
    """
    with store.transaction():
        run, left = _taken(store, batch)
        key = store.keys([run.id])[run.id].key
        store.free_key(run.id, for_good=False)  # as the end does: what is still in the inbox stays there
        following = _started(store, run, key, left, now, copied) if left else None
        committed = store.commit(batch)
    if following is None or following.wake_at is None:
        return committed, following
    return replace(committed, queues_to_notify=committed.queues_to_notify | {following.queue}), following


def _taken(store: Store, batch: Batch) -> tuple[RunRecord, list[tuple[Message, KeyedSend]]]:
    """Lock the run, and take out of its inbox what another run is to get; return both."""
    taken: list[tuple[Message, KeyedSend]] = []

    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        if run.fence != batch.fence:
            raise LeaseLost
        received = {message_id for message_id, _ in batch.received}
        pending = {each.id: each for each in store.inbox(run.id, [], run.message_count, None)}
        is_any_received = bool(received) or len(pending) < run.message_count
        sends = [each for each in store.keyed_sends(run.id) if each.message_id not in received]
        taken.extend((pending[each.message_id], each) for each in sends if is_any_received or not each.was_first)
        return RunChange(run={"change_seq": run.change_seq}, retracted=[message.id for message, _ in taken])

    return store.change(batch.run_id, decide), taken


def _started(
    store: Store,
    run: RunRecord,
    key: str,
    taken: Sequence[tuple[Message, KeyedSend]],
    now: datetime,
    copied: Copied,
) -> RunRecord:
    """Start a run with the key of `run`, and put the messages into its inbox."""
    chosen, (first, sent) = new_id(), taken[0]
    given, place = run.input, Place(run.id, "input")
    if sent.input is not None:
        given, place = sent.input, of_start(sent.run_id, first.id)
    limits = store.limits(run.id)
    wanted = NewRun(
        id=chosen,
        workflow=run.workflow,
        queue=run.queue,
        input=copied(given, place, Place(chosen, "input")),
        created_at=now,
        limits=None if limits is None else limits.renewed(now),
        ranking=store.rankings([run.id]).get(run.id),
        tags=store.tags([run.id], at_start=True).get(run.id),
        **started(now),
    )
    if limits is not None:
        wanted.fence = _LOADED
    following, is_new = store.start_keyed(wanted, key)
    assert is_new, "this transaction has the key"
    store.send([_sent_again(message, chosen, copied) for message, _ in taken])
    store.note_keyed_sends([_noted_again(each, run, chosen, copied) for _, each in taken])
    store.note_follower(chosen, run.id)
    return following


def _sent_again(message: Message, run_id: str, copied: Copied) -> OutgoingMessage:
    old, new = (of_message(each, "message", message.id, message.queue) for each in (message.run_id, run_id))
    body = copied(message.body, old, new)
    return OutgoingMessage(id=message.id, to=run_id, queue=message.queue, body=body, sent_at=message.sent_at)


def _noted_again(sent: KeyedSend, run: RunRecord, run_id: str, copied: Copied) -> KeyedSend:
    given, old = run.input, Place(run.id, "input")
    if sent.input is not None:
        given, old = sent.input, of_start(run.id, sent.message_id)
    return KeyedSend(
        message_id=sent.message_id,
        run_id=run_id,
        input=copied(given, old, of_start(run_id, sent.message_id)),
        was_first=True,
    )
