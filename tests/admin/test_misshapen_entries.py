"""An entry whose data is not what durable writes, by hand or by other code, takes no page of its run away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from durable.core.records import EntryKind
from durable.models import Entry, EntryMetadata, Run
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

KEYS = (
    *("branches", "received", "rollback", "failure", "deadline", "state", "names", "iteration", "action", "child"),
    *("given", "winner", "group", "size", "tags", "ids", "moment", "reason", "resolved", "message_id", "queue"),
)
ODD: list[Any] = [
    *(None, [], [1], 7, "text", {}),
    *(dict.fromkeys(KEYS, value) for value in (None, 7, "text", [1], {"a": 1}, {"a": {"status": 1}}, [{"id": 1}])),
]
OF_RUN = (
    *("change/", "lead/", "live/", "live/?part=history", "live/?part=timeline", "export/", "compare/?with=odd"),
    *("act/recover/", "act/cancel/", "send/", "edit-input/"),
)
OF_ENTRY = ("step/?at={at}", "replay/?at={at}", "give-output/?at={at}", "payload/?of=output&at={at}")
REST_OF_RUN = ("", "/entries", "/timeline", "/tree", "/events", "/comparison?other=odd", "/messages", "/children")
REST_OF_ENTRY = ("/entries/{at}", "/replay-plan?location={at}")


@pytest.fixture(params=list(EntryKind))
def locations(request: pytest.FixtureRequest) -> list[str]:
    """A run whose history is entries of one kind, one for each odd shape and status."""
    now, found = timezone.now(), []
    run = Run.objects.create(
        id="odd", workflow="tests.quick", queue="default", state="failed", input="[]", created_at=now, finished_at=now
    )
    for number, (data, status) in enumerate(product(ODD, ("pending", "completed", "exhausted"))):
        entry = Entry.objects.create(run=run, location=f"{status}-{number}", kind=request.param, ordinal=number)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE durable_entry SET data = %s WHERE id = %s", [json.dumps(data), entry.pk])
        ended = now if status != "pending" else None
        EntryMetadata.objects.create(entry=entry, status=status, created_at=now, completed_at=ended)
        found.append(entry.location)
    return found


def addresses(of_run: Sequence[str], of_entry: Sequence[str], locations: Sequence[str]) -> list[str]:
    some = [locations[3 * shape + shape % 3] for shape in range(len(ODD))]  # each shape, and each status
    return [*of_run, *(each.format(at=at) for each in of_entry for at in some)]


def test_each_page_of_the_admin_is_shown(operator: Client, locations: list[str]) -> None:
    operator.raise_request_exception = False
    asked = addresses(OF_RUN, OF_ENTRY, locations)
    answers = {each: operator.get(f"/admin/durable/run/odd/{each}").status_code for each in asked}
    assert {each: status for each, status in answers.items() if status >= 500} == {}


def test_the_pages_say_which_entry_cannot_be_shown(operator: Client, make_api: MakeApi, locations: list[str]) -> None:  # noqa: F811
    text = "cannot be shown: its data is no object"
    assert text in operator.get(f"/admin/durable/run/odd/step/?at={locations[0]}").content.decode()
    assert text in operator.get("/admin/durable/run/odd/live/?part=history").content.decode()
    shown = make_api(*ALL).get(f"/runs/odd/entries/{locations[0]}").json()
    assert shown["data"]["cannot_be_shown"] == "its data is no object"


def test_each_address_of_rest_answers(make_api: MakeApi, locations: list[str]) -> None:  # noqa: F811
    api = make_api(*ALL)
    api.client.raise_request_exception = False
    asked = addresses(REST_OF_RUN, REST_OF_ENTRY, locations)
    answers = {each: api.get(f"/runs/odd{each}").status_code for each in asked}
    assert {each: status for each, status in answers.items() if status >= 500} == {}
