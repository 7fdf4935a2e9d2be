"""Events: publishing them, and giving them to the runs that wait and to the workflows that they start.

The event and the runs that it starts are written in the caller's transaction. Waiting runs get the event when that has
committed: at most `MOST_AT_ONCE` of them from the publishing process, in small transactions, and the others from the
sweep of a worker. So the caller's transaction locks no run, and a process that dies in between leaves the rest to the
sweep. What one wait gets is one transaction, which deletes the wait: none gets the event twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import Any, Final, NamedTuple

from durable import runtime
from durable.conf import conf
from durable.core import registry
from durable.core.errors import EventConflictError, PayloadError
from durable.core.events import check_key, check_name, delivery, run_id_of
from durable.core.ids import check_id, new_id
from durable.core.places import of_event
from durable.core.records import EventRecord, RunRecord
from durable.core.registry import WorkflowDefinition
from durable.notifier import redis_clients
from durable.operations import audit
from durable.operations.audit import audited
from durable.operations.common import in_async, require_step
from durable.operations.start import announce_started, put, request_of
from durable.operations.start_options import StartOptions
from durable.runtime import Runtime
from durable.store.transactions import RowsLocked

__all__ = ["EventSource", "Published", "apublish", "event", "publish"]

logger = logging.getLogger("durable.operations")

#: At most one log line each half minute for an event.
_log_this = redis_clients.LogThrottle()

#: The most waiting runs to which the publishing process gives an event; a worker gives it to the others.
MOST_AT_ONCE: Final = 500
BATCH: Final = 100  # runs of one transaction
_FORGOTTEN_AT_ONCE: Final = 1_000  # events
_OPEN_AT_ONCE: Final = 100  # events


@dataclass(frozen=True, slots=True)
class EventSource:
    """The events that start runs of a workflow: those of a name, with any key. Made by `event`."""

    name: str


def event(name: str) -> EventSource:
    """Return the events of a name, for `@workflow(on=event("order.paid"))`. Raises TypeError and ValueError."""
    return EventSource(check_name(name))


class Published(NamedTuple):
    """The id of an event, and whether this call published it."""

    id: str
    is_new: bool


def publish(event: str, body: Any = None, *, key: str, id: str | None = None) -> Published:
    """Publish an event: `publish("order.paid", {"id": 7}, key="7")`.

    It takes effect with the caller's transaction. Each run that waits for this name and key (`ctx.event`) gets it, and
    each workflow with `on=event(name)` is started with its body. An `id`, 1 to 200 printable characters without "/",
    makes the call idempotent for as long as the event is kept (`EVENTS_KEPT`); another event may use it under another
    name. Publishers of one name and key wait for each other's transactions: publish late in a long one.

    Raises TypeError and ValueError for an invalid name, key or id, PayloadError for a body that cannot be recorded, and
    EventConflictError if an event with the id has another key or body.
    """
    if id is None:
        require_step(f'publishing "{event}"', "publish it in a step, or give the event an id made of ctx.run_id")
    check_name(event)
    check_key(key)
    chosen = new_id() if id is None else check_id(id)
    at = runtime.current()
    if audit.acting() is None:  # the application's own traffic, which is not logged
        return _published(at, event, body, key, chosen)
    with audited(at, "publish", "", subject=("event", event)) as attribution, at.store.transaction():
        found = _published(at, event, body, key, chosen)
        detail = f'event "{event}", key "{key}", id {found.id}' + ("" if found.is_new else ": was there already")
        at.store.log([attribution.done(before="", after="", detail=detail)])
        return found


apublish = in_async(publish)


def _published(at: Runtime, name: str, body: Any, key: str, event_id: str) -> Published:
    text = at.encode(body, f'the body of the event "{name}"', of_event(name, event_id))
    wanted = EventRecord(id=event_id, name=name, key=key, body=text, published_at=at.now())
    started = [each for each in registry.all() if each.on == name]
    with at.store.transaction() if started else nullcontext():
        stored, is_new = at.store.put_event(wanted)
        if not is_new:
            _check_same(at, wanted, stored)
            return Published(event_id, is_new=False)
        for each in started:
            announce_started(at, [_started(at, each, body, event_id)])
    at.after_commit(partial(_deliver_safely, at, stored))
    return Published(event_id, is_new=True)


def _check_same(at: Runtime, wanted: EventRecord, stored: EventRecord) -> None:
    if stored.key != wanted.key:
        raise EventConflictError(wanted.name, wanted.id, "with another key")
    place = of_event(wanted.name, wanted.id)
    if stored.body != wanted.body and at.decode(stored.body, place) != at.decode(wanted.body, place):
        raise EventConflictError(wanted.name, wanted.id, "with another body")


def _started(at: Runtime, workflow: WorkflowDefinition, body: Any, event_id: str) -> tuple[RunRecord, bool]:
    """Start the run of an event, unless it was started before."""
    request = request_of(workflow, signature(workflow.function), StartOptions())
    [created] = put(at, request, [(run_id_of(workflow.name, event_id), (body,), {})])
    return created


# -- delivery


def _deliver_safely(at: Runtime, event: EventRecord) -> None:
    """Give a new event to waiting runs. What fails is left to the sweep: the caller's transaction has committed."""
    try:
        for number, _ in enumerate(deliver(at, event), start=1):
            if number * BATCH >= MOST_AT_ONCE:
                return
    except RowsLocked:
        pass
    except Exception:
        logger.exception('the event "%s" was published, and a worker will give it to the runs that wait', event.name)


def deliver(at: Runtime, event: EventRecord) -> Iterator[int]:
    """Give an event to the runs that wait for it, one batch for each item: how many got it.

    Raises `RowsLocked`. Where another transaction has locked the runs of a whole batch, it ends; the event stays open.
    """
    message_of = partial(delivery, copied=at.copied)
    while True:
        number, queues = at.store.deliver(event, BATCH, message_of)
        if queues:
            at.notify(queues)
        if not number and at.store.close_event(event):
            return
        if not number:  # the others are locked, or were of ended runs
            return
        yield number


def deliver_open(seconds: float) -> int:
    """Go on with events that have not reached all waits, for a short time; return how many runs got one."""
    at = runtime.current()
    until = time.monotonic() + seconds
    total = 0
    for event in at.store.open_events(_OPEN_AT_ONCE):
        try:
            for number in deliver(at, event):
                total += number
                if time.monotonic() >= until:
                    return total
        except RowsLocked:
            continue
        except PayloadError:  # as without the key that it was encrypted with; the others go on
            if _log_this(f"{event.number}"):
                logger.exception('the event "%s" (id %s) cannot be given to the runs that wait', event.name, event.id)
    return total


def forget_old(seconds: float) -> None:
    """Delete events that are older than `EVENTS_KEPT`, in batches for a short time."""
    at = runtime.current()
    until, before = time.monotonic() + seconds, at.now() - timedelta(seconds=conf.EVENTS_KEPT)
    while at.store.forget_events(before, _FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE and time.monotonic() < until:
        pass
