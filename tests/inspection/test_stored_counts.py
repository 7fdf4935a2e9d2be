"""Long histories are counted ahead of the pages; what is stored is what a page would count."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import get_run
from durable.core.records import EntryKind
from durable.definitions import Workflow
from durable.inspection import comparison, events, history_counts, landmarks, places, progress, tree
from durable.inspection.comparison import compare_runs
from durable.inspection.events import list_events
from durable.inspection.progress import entries_counted, newest_open, open_keys_of_long, progress_of
from durable.inspection.timeline import build_timeline
from durable.models import Entry, EntryMetadata, HistoryCount, Run
from durable.store import store_for
from durable.store.surveys import Sort, Stretch, together
from durable.store.tables.surveys import UNFINISHED
from durable.worker.executor import note
from durable.worker.timer import Chores
from tests.admin import flows
from tests.admin.conftest import Stage

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five entries are a long history."""
    monkeypatch.setattr(history_counts, "LONG", 4)
    monkeypatch.setattr(places, "EXACT", 4)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember nothing, as a process that has just started."""
    monkeypatch.setattr(history_counts, "_results", OrderedDict())


def later() -> datetime:
    return timezone.now() + 2 * history_counts.REST


def found(run_id: str) -> Run:
    return Run.objects.with_side_rows().get(pk=run_id)


def counted(run: Run) -> list[str]:
    """The statements with which the progress and the timeline of the run count its history."""
    with CaptureQueriesContext(connection) as queries:
        progress_of(run)
        build_timeline(run, timezone.now())
    return [
        each["sql"]
        for each in queries.captured_queries
        if "COUNT(" in each["sql"] and "durable_entry" in each["sql"] and "LIMIT 5)" not in each["sql"]
    ]


def everything(run: Run, now: datetime) -> list[Any]:
    """What the parts of the run's page are made of that count its history."""
    first, last = list_events(run, entries=6), list_events(run, entries=6, is_newest_first=True)
    second = list_events(run, entries=6, after=first.next_key)
    return [progress_of(run), places.read_places(run), build_timeline(run, now), first, last, second]


@pytest.mark.parametrize("flow", [flows.many, flows.album, flows.looping, flows.odd, flows.stubborn])
def test_what_is_stored_is_what_a_page_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, flow: Workflow[Any, Any]
) -> None:
    monkeypatch.setattr(places, "EXACT", 0)
    monkeypatch.setattr(events, "PAGE", 5)
    flows.SWITCH["broken"] = True
    stage.start(flow, *([12] if flow in (flows.many, flows.looping) else []), id="run")
    now = timezone.now()
    without = found("run")
    before = everything(without, now)
    note("run")
    history_counts.count_long_histories(later())
    forget(monkeypatch)
    run = found("run")
    assert history_counts.stored(run, "progress") is not None
    assert everything(run, now) == before


@pytest.mark.parametrize("flow", [flows.many, flows.album, flows.looping, flows.odd])
def test_what_is_stored_has_the_order_of_the_history(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, flow: Workflow[Any, Any]
) -> None:
    monkeypatch.setattr(comparison, "PAGE", 4)
    stage.start(flow, *([12] if flow in (flows.many, flows.looping) else []), id="run")
    stage.start(flows.many, 3, id="other")
    ordinals = Entry.objects.filter(run="run").values_list("ordinal", flat=True)

    def in_order(run: Run) -> list[Any]:
        order, other = tree._Order(run, None), found("other")
        starts = range(order.total)
        compared = range(0, order.total, 3)  # a page has four: some cross each edge of a stretch
        return [
            [order.keys(start, size) for start in starts for size in (1, 4)],
            [order.position(ordinal) for ordinal in ordinals],
            [compare_runs(run, other, with_payloads=False, start=start).rows for start in compared],
            [list(landmarks.newest_of_kind(run, kind, 2)) for kind in EntryKind],
            [list(landmarks.at_ordinals(run, ordinal - 2, ordinal + 2)) for ordinal in ordinals],
        ]

    before = in_order(found("run"))
    for stretches in (1, 3, 512):
        monkeypatch.setattr(landmarks, "_STRETCHES", stretches)
        HistoryCount.objects.all().delete()
        note("run")
        history_counts.count_long_histories(later())
        forget(monkeypatch)
        assert landmarks.landmarks_of(found("run")) is not None
        assert in_order(found("run")) == before, stretches


def test_neighbours_are_read_as_one_range_of_keys_unless_other_runs_lie_between() -> None:
    step = Sort(EntryKind.STEP.value, False, False)
    near = [Stretch(0, 10, 1, 19, {step: 10}), Stretch(10, 20, 15, 40, {step: 9})]
    far = [Stretch(20, 30, 90_000, 90_010, {step: 3}), Stretch(40, 50, 90_011, 90_020, {step: 2})]
    read = [Stretch(0, 20, 1, 40, {step: 19}), *far]
    assert together([*near, *far]) == together([*reversed(far), *reversed(near)]) == read


@pytest.mark.parametrize("most", [0, 2_000])
def test_what_is_unfinished_is_stored_unless_it_is_very_much(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Many entries are open: their keys do not tell which wait for a person."""
    monkeypatch.setattr(progress, "MOST_OPEN", 2)
    monkeypatch.setattr(progress, "_MOST_UNFINISHED", most)
    stage.start(flows.many, 30, id="run")
    entries = EntryMetadata.objects.filter(entry__run="run").order_by("entry")
    keys = list(entries.values_list("entry", flat=True))
    statuses = dict(zip(keys, [*UNFINISHED, *["exhausted"] * 10], strict=False))
    for key, status in statuses.items():
        entries.filter(entry=key).update(status=status)
    note("run")
    history_counts.count_long_histories(later())
    run = found("run")
    with CaptureQueriesContext(connection) as queries:
        for status in UNFINISHED:
            unfinished = progress.unfinished_entries(run, status)
            assert [statuses[each.pk] for each in unfinished] == [status]
    searched = ["entry_id IN (SELECT" in each["sql"] or "ARRAY(SELECT" in each["sql"] for each in queries]
    assert any(searched) is not bool(most)
    assert len(progress.unfinished_entries(run, *UNFINISHED)) == len(UNFINISHED)


def test_pages_do_not_count_what_is_stored(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.start(flows.many, 30, id="run")
    note("run")
    assert counted(found("run")) != []
    history_counts.count_long_histories(later())
    forget(monkeypatch)
    assert counted(found("run")) == []
    forget(monkeypatch)
    run = found("run")
    with CaptureQueriesContext(connection) as queries:
        assert open_keys_of_long(run) == newest_open(run) == []
        assert entries_counted(run) == 30
    assert len(queries) == 0


def test_counts_of_another_state_are_not_used(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.start(flows.many, 30, id="run")
    note("run")
    history_counts.count_long_histories(later())
    get_run("run").replay("step 3", in_place=True)
    forget(monkeypatch)
    assert progress_of(found("run")).entries == 3
    stage.settle("run")
    forget(monkeypatch)
    assert progress_of(found("run")).entries == 30
    assert counted(found("run")) != []


def test_a_run_is_counted_once_it_rests(stage: Stage) -> None:
    stage.start(flows.nap, id="run")
    note("run")
    noted_at = HistoryCount.objects.get().noted_at
    assert noted_at is not None
    history_counts.count_long_histories(noted_at + history_counts.REST - timedelta(seconds=1))
    assert HistoryCount.objects.get().noted_at == noted_at
    Run.objects.filter(pk="run").update(lease_expires_at=later())
    now = noted_at + history_counts.REST
    history_counts.count_long_histories(now)
    assert HistoryCount.objects.get().noted_at == now, "a worker has it"
    Run.objects.filter(pk="run").update(lease_expires_at=None)
    history_counts.count_long_histories(now + history_counts.REST)
    assert HistoryCount.objects.get().noted_at is None


def test_a_run_that_is_gone_and_one_that_cannot_be_counted_are_no_trouble(stage: Stage) -> None:
    stage.start(flows.many, 6, id="good")
    stage.start(flows.many, 6, id="bad")
    for each in ("gone", "bad", "good"):
        note(each)

    def count(run: Run) -> int:
        if run.id == "bad":
            raise ValueError("a bad history")
        return 6

    history_counts.count_noted(later(), {"progress": count})
    assert dict(HistoryCount.objects.values_list("run_id", "counted_as")) == {
        "good": HistoryCount.state_of(found("good")),
        "bad": "",
    }
    assert not HistoryCount.objects.filter(noted_at__isnull=False).exists()
    assert history_counts.stored(found("bad"), "progress") is None


def test_a_note_that_comes_meanwhile_is_kept(stage: Stage) -> None:
    stage.start(flows.many, 6, id="run")
    note("run")

    def count(run: Run) -> int:
        note(run.id)
        return 6

    history_counts.count_noted(later(), {"progress": count})
    row = HistoryCount.objects.get()
    assert row.noted_at is not None
    assert row.counted_as == ""


def test_counts_of_another_release_are_not_used(stage: Stage) -> None:
    stage.start(flows.many, 6, id="run")
    note("run")
    history_counts.count_long_histories(later())
    row = HistoryCount.objects.get()
    HistoryCount.objects.update(counts=json.dumps({**json.loads(row.counts), "format": HistoryCount.FORMAT + 1}))
    assert history_counts.stored(found("run"), "progress") is None


def test_a_chore_of_the_sweep_does_it(stage: Stage) -> None:
    stage.start(flows.many, 6, id="run")
    note("run")
    Chores(store_for("default")).tick(later())
    assert HistoryCount.objects.get().noted_at is None


def test_the_counts_go_with_the_run(stage: Stage) -> None:
    stage.start(flows.many, 6, id="run")
    note("run")
    Run.objects.filter(pk="run").delete()
    assert not HistoryCount.objects.exists()


@pytest.mark.parametrize("is_stored", [False, True])
def test_counts_are_not_those_of_a_deleted_run_with_the_same_id(stage: Stage, is_stored: bool) -> None:
    """Somebody has emptied the tables of runs by hand, and the same workflow has run again, with less to do."""
    first = stage.start(flows.many, 30, id="run")
    note("run")
    if is_stored:
        history_counts.count_long_histories(later())
    assert progress_of(found("run")).entries == 30
    kept = list(HistoryCount.objects.all())
    Run.objects.filter(pk="run").delete()
    HistoryCount.objects.bulk_create(kept)
    stage.advance(seconds=1)
    stage.start(flows.many, 6, id="run")
    Run.objects.filter(pk="run").update(fence=first.fence)  # as it may happen: a claim draws it at random
    run = found("run")
    assert (run.state, run.fence, run.change_seq) == (first.state, first.fence, first.change_seq)
    assert progress_of(run).entries == 6
    assert sum(place.count for place in places.read_places(run).places) == 6
