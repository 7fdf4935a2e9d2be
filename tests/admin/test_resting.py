"""Counts of long histories are remembered while their runs rest, and counted again after every change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import get_run
from durable.inspection import history_counts, places
from durable.inspection.events import Event, list_events
from durable.inspection.progress import open_keys_of_long, progress_of
from durable.inspection.timeline import build_timeline
from durable.models import QueueMessage, Run
from durable.operations import delete_message
from tests.admin import flows
from tests.admin.conftest import Stage

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five entries are a long history, and nothing is remembered from other tests."""
    monkeypatch.setattr(history_counts, "LONG", 4)
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    monkeypatch.setattr(places, "EXACT", 4)


def asked(run: Run) -> tuple[int, int]:
    """The entries of the run, and the number of statements that read histories."""
    with CaptureQueriesContext(connection) as queries:
        entries = progress_of(run).entries
        timeline = build_timeline(run, timezone.now())
        assert sum(row.count for row in timeline.rows if row.depth == 0) == entries
    return entries, sum("COUNT(" in each["sql"] and "durable_entry" in each["sql"] for each in queries.captured_queries)


def test_a_long_history_at_rest_is_counted_once(stage: Stage) -> None:
    run = stage.start(flows.many, 6, id="run")
    entries, first = asked(run)
    assert entries == 6
    assert asked(run) == (6, first - 2)  # a look at whether it is long is left


def test_a_short_one_is_counted_each_time(stage: Stage) -> None:
    run = stage.start(flows.many, 3, id="run")
    assert asked(run) == asked(run)
    assert open_keys_of_long(run) is None  # nor searched at once


def test_what_a_worker_has_is_counted_each_time(stage: Stage) -> None:
    run = stage.start(flows.many, 6, id="run")
    run.lease_expires_at = timezone.now()  # expired, and not given back
    assert asked(run) == asked(run)


def test_a_pass_and_a_verb_have_it_counted_again(stage: Stage) -> None:
    stage.start(flows.many, 6, id="run")
    assert asked(Run.objects.get(pk="run"))[0] == 6
    get_run("run").replay("step 3", in_place=True)
    assert asked(Run.objects.get(pk="run"))[0] == 3
    stage.settle("run")
    assert asked(Run.objects.get(pk="run"))[0] == 6


def test_it_is_kept_for_a_while_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_counts, "_KEPT", 0.0)
    run = stage.start(flows.many, 6, id="run")
    assert asked(run) == asked(run)
    monkeypatch.setattr(history_counts, "_KEPT", 60.0)
    monkeypatch.setattr(history_counts, "_MOST", 1)
    for each in ("a", "b"):
        stage.start(flows.many, 6, id=each)
        progress_of(Run.objects.get(pk=each))
    assert [key[1] for key in history_counts._results] == ["b"]


def test_what_is_open_is_searched_for_once(stage: Stage) -> None:
    run = stage.start(flows.many, 6, id="run")
    run.refresh_from_db()
    with CaptureQueriesContext(connection) as queries:
        found = open_keys_of_long(run)
        assert open_keys_of_long(run) == found
    assert len(queries) == 2  # whether the history is long, and the search
    assert found == progress_of(run).open_keys == open_keys_of_long(run)


def test_what_is_open_is_not_searched_for_in_what_was_counted(stage: Stage) -> None:
    run = stage.start(flows.many, 6, id="run")
    run.refresh_from_db()
    found = progress_of(run).open_keys
    with CaptureQueriesContext(connection) as queries:
        assert open_keys_of_long(run) == found
    assert len(queries) == 0
    run.change_seq += 1
    with CaptureQueriesContext(connection) as queries:
        open_keys_of_long(run)
    assert len(queries) == 2


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_the_events_of_a_long_history_are_read_once(stage: Stage, is_newest_first: bool) -> None:
    run = stage.start(flows.many, 6, id="run")

    def read() -> tuple[Sequence[Event], int]:
        with CaptureQueriesContext(connection) as queries:
            page = list_events(run, is_newest_first=is_newest_first, entries=6)
        return page.events, len(queries)

    events, first = read()
    assert read() == (events, first - 3)
    run.fence += 1
    assert read() == (events, first)
    assert list_events(run, is_newest_first=not is_newest_first, entries=6).events == list(reversed(events))


def test_a_message_that_was_deleted_is_no_event(stage: Stage) -> None:
    stage.start(flows.waiting_after_many, id="run")
    get_run("run").send("nowhere", 1)

    def sent() -> int:
        events = list_events(Run.objects.get(pk="run"), entries=6).events
        return sum(each.what == "message sent" for each in events)

    assert sent() == 1
    delete_message("run", QueueMessage.objects.get(run_id="run").id)
    assert sent() == 0
