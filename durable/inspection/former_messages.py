"""Former messages of a run's queues, whose bodies show what a wait is used to get."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from durable import runtime
from durable.conf import conf
from durable.core.location import unescape
from durable.core.places import of_message
from durable.core.renames import names_of_workflow
from durable.inspection.capped_counts import newest_rows, sample_rows
from durable.inspection.editable_input import is_plain
from durable.inspection.payloads import redacted
from durable.inspection.size_limit import TooLarge, read_within
from durable.models import QueueMessage, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

_RUNS: Final = 20  # the newest ones of the workflow
_EACH: Final = 5  # their newest messages that are looked at
_MOST: Final = 64 * 1024  # bytes of bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMessage:
    """A message that was sent to this run, or to another run of its workflow. `body` is JSON text."""

    key: str
    queue: str
    run_id: str
    sent_at: datetime
    body: str


def former_messages(run: Run, queues: Iterable[str], within: RunQuerySet | None = None) -> list[FormerMessage]:
    """Return the newest message of each of these queues whose body JSON expresses and nothing hides.

    Looks at this run and at the newest runs of its workflow; five statements. Show it to users with `view_payload`.
    `within` limits the other runs, for example to those that a user may see: the newest of these are looked at.
    """
    wanted = list(dict.fromkeys(queues))
    every = (Run.objects.using(conf.DATABASE) if within is None else within).order_by("-created_at", "-id")
    others = [every.filter(workflow=each) for each in names_of_workflow(run.workflow)]
    ids = dict.fromkeys([run.pk, *(unpack(each) for _, each in newest_rows(others, ["created_at", "id"], _RUNS))])
    messages = QueueMessage.objects.using(conf.DATABASE)
    samples = sample_rows([messages.filter(run=each).order_by("-order") for each in ids], ["id", "queue"], _EACH)
    newest: dict[str, str] = {}
    for sample in samples:
        for key, queue in sample:
            newest.setdefault(unescape(queue), key)
    chosen = messages.filter(pk__in=[newest[each] for each in wanted if each in newest])
    bodies = read_within(chosen, "body", most=_MOST)
    found: dict[str, FormerMessage | None] = {}
    for each in chosen.defer("body", "response"):
        read = bodies.get(each.pk)
        if read is not None and not isinstance(read, TooLarge):
            found[each.pk] = _shown(run.workflow, each, read[0])
    shown = [found.get(newest[each]) for each in wanted if each in newest]
    return [each for each in shown if each is not None]


def _shown(workflow: str, message: QueueMessage, text: str) -> FormerMessage | None:
    queue = unescape(message.queue)
    try:
        value = runtime.current().decode(text, of_message(message.run_id, "message", message.pk, message.queue))
    except Exception:  # noqa: BLE001  # a deleted class, a lost key
        return None
    if not is_plain(value) or redacted(workflow, f"message:{queue}", value) != value:
        return None
    body = json.dumps(value, indent=2, ensure_ascii=False)
    return FormerMessage(key=message.pk, queue=queue, run_id=message.run_id, sent_at=message.sent_at, body=body)
