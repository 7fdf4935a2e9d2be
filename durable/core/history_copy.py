"""Entries and messages of one run as those of another: ids that name the run or its messages, and the codec text.

What each text belongs to is in `durable.core.places`; how it is made to belong to the new place is for the caller to
say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from durable.core.messages import REFUSED
from durable.core.places import Place, of_arguments, of_branch, of_message
from durable.core.records import EntryKind, EntryRecord, Message

#: Codec text of the first place, as text of the second.
Copied: TypeAlias = Callable[[str, Place, Place], str]


def moved_message(message: Message, run_id: str, message_id: str, copied: Copied) -> Message:
    """The message in the inbox of the run `run_id`, under an id of its own."""

    def text(field: str, found: str) -> str:
        old = of_message(message.run_id, field, message.id, message.queue)
        return copied(found, old, of_message(run_id, field, message_id, message.queue))

    body = text("message", message.body)
    response = None if message.response is None else text("response", message.response)
    return replace(message, id=message_id, run_id=run_id, body=body, response=response)


def moved_entry(entry: EntryRecord, old_id: str, run_id: str, ids: Mapping[str, str], copied: Copied) -> EntryRecord:
    """Return the entry of the run `old_id` as it stands in the history of the run `run_id`.

    `ids` are the new ids of messages by the old ones.
    """
    data: dict[str, Any] = dict(entry.data)
    if entry.kind == EntryKind.MESSAGE and "received" in data:
        data["received"] = [_moved_record(each, old_id, run_id, ids, copied) for each in data["received"]]
    if entry.kind == EntryKind.SEND and data["to"] == old_id:
        data |= {"to": run_id, "message_id": ids.get(data["message_id"], data["message_id"])}
    if entry.kind == EntryKind.LOOP and data.get("state") is not None:
        old = Place(old_id, "state", entry.location)
        data["state"] = copied(data["state"], old, old._replace(run_id=run_id))
    if "branches" in data:
        data["branches"] = {
            name: _moved_branch(each, of_branch(old_id, entry.location, name), run_id, copied)
            for name, each in data["branches"].items()
        }
    moved = replace(entry, data=data)
    output, arguments = entry.output, entry.arguments
    if output is not None:
        old = Place(old_id, "output", entry.location)
        output = copied(output, old, old._replace(run_id=run_id))
    if arguments is not None:
        arguments = copied(arguments, of_arguments(old_id, entry), of_arguments(run_id, moved))
    return replace(moved, output=output, arguments=arguments)


def _moved_record(
    record: dict[str, Any], old_id: str, run_id: str, ids: Mapping[str, str], copied: Copied
) -> dict[str, Any]:
    new = ids.get(record["id"], record["id"])
    old_place = of_message(old_id, "message", record["id"], record["name"])
    moved = {
        **record,
        "id": new,
        "body": copied(record["body"], old_place, of_message(run_id, "message", new, record["name"])),
    }
    if REFUSED in record:
        old_place = of_message(old_id, "response", record["id"], record["name"])
        moved[REFUSED] = copied(record[REFUSED], old_place, of_message(run_id, "response", new, record["name"]))
    return moved


def _moved_branch(branch: dict[str, Any], old: Place, run_id: str, copied: Copied) -> dict[str, Any]:
    if branch.get("output") is None:
        return branch
    return {**branch, "output": copied(branch["output"], old, old._replace(run_id=run_id))}
