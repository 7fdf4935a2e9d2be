"""The newest messages of a run as rows of a table, within the size of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from durable.admin.base import AdminPages
from durable.admin.payload_view import PayloadView, payload_title, view_of
from durable.admin.url_keys import as_key
from durable.core.location import unescape
from durable.core.places import of_message
from durable.core.records import MessageState
from durable.inspection.entry_detail import inbox, newest_messages
from durable.inspection.payloads import TooLarge, payload, read_within
from durable.inspection.wording import display_location
from durable.models import QueueMessage, Run

MOST_MESSAGES: Final = 30
_MOST: Final = 4_000  # characters of a body that a row shows


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message; `body` and `response` are None if the user may not see them, or there is none.

    The addresses are "" once the run has received it.
    """

    message: QueueMessage
    queue: str
    receiver: str
    body: PayloadView | None
    response: PayloadView | None
    move_url: str = ""
    delete_url: str = ""


def message_rows(admin: AdminPages, run: Run, *, with_payloads: bool) -> list[MessageRow]:
    """Return the newest messages, the newest first."""
    found = inbox(run, newest=MOST_MESSAGES)
    values = read_within(newest_messages(run, MOST_MESSAGES), "body", "response") if with_payloads else {}
    rows = []
    for message in found:
        body, response = _both(values.get(message.pk))
        is_pending = message.state == MessageState.PENDING
        rows.append(
            MessageRow(
                message=message,
                queue=unescape(message.queue),
                receiver=display_location(message.received_by),
                body=_view(admin, run, message, "message", body),
                response=_view(admin, run, message, "response", response),
                move_url=admin.url("message_act", run.id, as_key(message.pk), "move") if is_pending else "",
                delete_url=admin.url("message_act", run.id, as_key(message.pk), "delete") if is_pending else "",
            )
        )
    return rows


def _both(read: Sequence[str | None] | TooLarge | None) -> tuple[TooLarge | str | None, str | None]:
    if read is None or isinstance(read, TooLarge):
        return read, None
    return read[0], read[1]


def _view(
    admin: AdminPages, run: Run, message: QueueMessage, name: str, read: TooLarge | str | None
) -> PayloadView | None:
    if read is None:
        return None
    queue = unescape(message.queue)
    place = of_message(run.id, name, message.id, message.queue)
    value = read if isinstance(read, TooLarge) else payload(run.workflow, f"{name}:{queue}", read, place)
    return view_of(admin, run.id, payload_title(name, queue), value, {"of": name, "id": message.id}, _MOST)
