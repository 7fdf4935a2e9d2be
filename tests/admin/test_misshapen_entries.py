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
    *("change/", "lead/", "live/", "live/?part=history", "export/", "compare/?with=odd"),
    *("act/recover/", "act/cancel/", "send/", "edit-input/"),
)
#: What shows an entry's data is asked for each shape, and what reads the whole history for some of each kind.
OF_ENTRY = ("step/?at={at}",)
OF_SOME = ("replay/?at={at}", "give-output/?at={at}", "payload/?of=output&at={at}")
REST_OF_RUN = ("", "/entries", "/timeline", "/tree", "/events", "/comparison?other=odd", "/messages", "/children")
REST_OF_ENTRY = ("/entries/{at}",)
REST_OF_SOME = ("/replay-plan?location={at}",)
#: Each of them is asked for one shape of so many, and for another one with the next kind.
PART = 4


@pytest.fixture
def locations(kind: EntryKind) -> list[str]:
    """A run whose history is entries of one kind, one for each odd shape and status."""
    now = timezone.now()
    run = Run.objects.create(
        id="odd", workflow="tests.quick", queue="default", state="failed", input="[]", created_at=now, finished_at=now
    )
    shapes = list(product(ODD, ("pending", "completed", "exhausted")))
    entries = [
        Entry(run=run, location=f"{status}-{number}", kind=kind, ordinal=number)
        for number, (_, status) in enumerate(shapes)
    ]
    Entry.objects.bulk_create(entries)
    EntryMetadata.objects.bulk_create(
        EntryMetadata(entry=entry, status=status, created_at=now, completed_at=None if status == "pending" else now)
        for entry, (_, status) in zip(entries, shapes, strict=True)
    )
    with connection.cursor() as cursor:
        written = [(json.dumps(data), number) for number, (data, _) in enumerate(shapes)]
        cursor.executemany("UPDATE durable_entry SET data = %s WHERE ordinal = %s", written)
    return [each.location for each in entries]


def addresses(
    of_run: Sequence[str], of_entry: Sequence[str], of_some: Sequence[str], locations: Sequence[str], turn: int
) -> list[str]:
    found = list(of_run)
    for shape in range(len(ODD)):
        at = locations[3 * shape + shape % 3]  # each shape, and each status
        taken = [each for number, each in enumerate(of_some) if (shape + number + turn) % PART == 0]
        found += [each.format(at=at) for each in (*of_entry, *taken)]
    return found


@pytest.mark.parametrize("kind", EntryKind)
def test_each_address_answers_and_says_which_entry_cannot_be_shown(
    operator: Client,
    make_api: MakeApi,  # noqa: F811
    locations: list[str],
    kind: EntryKind,
) -> None:
    api = make_api(*ALL)
    operator.raise_request_exception = api.client.raise_request_exception = False
    turn = list(EntryKind).index(kind)
    paths = addresses(OF_RUN, OF_ENTRY, OF_SOME, locations, turn)
    pages = {each: operator.get(f"/admin/durable/run/odd/{each}") for each in paths}
    paths = addresses(REST_OF_RUN, REST_OF_ENTRY, REST_OF_SOME, locations, turn)
    answers = {each: api.get(f"/runs/odd{each}") for each in paths}
    statuses = {each: answer.status_code for each, answer in [*pages.items(), *answers.items()]}
    assert {each: status for each, status in statuses.items() if status >= 500} == {}
    for page in (f"step/?at={locations[0]}", "live/?part=history"):
        assert "cannot be shown: its data is not an object" in pages[page].content.decode()
    assert answers[f"/entries/{locations[0]}"].json()["data"]["cannot_be_shown"] == "its data is not an object"
