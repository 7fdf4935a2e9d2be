"""The members of a folded row: each is on one page, whether the history is short or counted in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from durable import Break, Context, Continue, workflow
from durable.core.errors import ErrorInfo
from durable.inspection import places, timeline, timeline_reads
from durable.inspection.timeline import Row, Timeline, build_timeline
from durable.models import Attempt, Entry, EntryMetadata, Run
from tests.admin import flows
from tests.admin.conftest import Stage

PAGE = 5
BATCHES = 14
PARCELS = 6
ROUNDS = 13


@workflow(name="tests.timeline.batches")
def batches(ctx: Context) -> None:
    """Joins of branches of several steps, a loop of several steps a turn, and branches with the same steps."""

    def parcel(c: Context, number: int) -> None:
        for name in ("pack", "label", "send"):
            c.step(name, flows.value_of, number)

    def turn(c: Context, number: int) -> Break | Continue:
        for copy in range(3):
            c.step(f"copy {copy}", flows.value_of, number)
        return Break(number) if number == ROUNDS - 1 else Continue(number + 1)

    for batch in range(BATCHES):
        ctx.join(f"batch {batch}", {f"parcel {each}": _of(parcel, each) for each in range(PARCELS)})
    ctx.loop("rounds", turn, state=0, history_prune_interval=100)
    ctx.join("checks", {letter * 3: _of(parcel, 1) for letter in "abcdefghijkl"})


def _of(body: Callable[[Context, int], None], number: int) -> Callable[[Context], None]:
    return lambda c: body(c, number)


@pytest.fixture(params=["exact", "counted", "counted, members closed"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The history is read whole, or it is long; the members of a page have little inside, or much."""
    monkeypatch.setattr(timeline, "MOST_MEMBERS", PAGE)
    if request.param != "exact":
        monkeypatch.setattr(places, "EXACT", 0)
    if request.param == "counted, members closed":
        monkeypatch.setattr(timeline_reads, "_MOST_INSIDE", 0)
    return str(request.param)


_rows: list[list[Any]] = []  # of the run of `batches`, by model
_now: list[datetime] = []  # when it was executed


@pytest.fixture
def of_batches(stage: Stage) -> Run:
    """A run of `batches`. It is executed once for the module: its rows are inserted for each test."""
    if not _rows:
        stage.start(batches, id="run")
        _now.append(stage.now)
        _rows.extend(list(model._default_manager.all()) for model in (Run, Entry, EntryMetadata))
        return Run.objects.get(pk="run")
    [stage.now] = _now
    for rows in _rows:
        type(rows[0])._default_manager.bulk_create(rows)
    return Run.objects.get(pk="run")


def pages_of(run: Run, stage: Stage, opened: str, depth: int) -> Iterator[list[str]]:
    """The places of the members, page by page."""
    after = -1
    for _ in range(50):
        found = build_timeline(run, stage.now, opened=opened, after=after)
        yield [row.place for row in members_of(found, opened) if row.depth == depth]
        if found.more is None:
            return
        assert found.more > after
        after = found.more
    raise AssertionError("the pages have no end")


def members_of(found: Timeline, opened: str) -> list[Row]:
    return [row for row in found.rows if row.place != opened and places.masked(row.place) == places.masked(opened)]


ALL = {
    "batch #": (1, [f"batch {batch}" for batch in range(BATCHES)]),
    "rounds/~#": (1, [f"rounds/~{turn}" for turn in range(ROUNDS)]),
    "batch 3/parcel #": (2, [f"batch 3/parcel {each}" for each in range(PARCELS)]),
}


@pytest.mark.parametrize("opened", ALL)
@pytest.mark.parametrize("windows", [(2_000, 20_000), (4, 7)], ids=["all at once", "few at a time"])
def test_every_member_is_on_one_page_in_order(
    stage: Stage, of_batches: Run, how: str, opened: str, windows: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_reads, "_WINDOWS", windows)
    depth, expected = ALL[opened]
    pages = list(pages_of(of_batches, stage, opened, depth))
    assert [place for page in pages for place in page] == expected
    assert max(map(len, pages)) <= (PAGE if opened != "batch 3/parcel #" or how == "exact" else PARCELS)


def test_equal_branches_open_in_a_long_history(stage: Stage, of_batches: Run, how: str) -> None:
    pages = [
        [row.place for row in found.rows if row.place.startswith("checks/") and row.depth == 1]
        for found in (build_timeline(of_batches, stage.now, opened="checks/#"),)
    ]
    assert pages == [[f"checks/{letter * 3}" for letter in "abcde"]]


def test_the_failures_of_a_member_are_told_with_all_or_with_little_of_it(
    stage: Stage, of_batches: Run, how: str
) -> None:
    """Two steps of a batch have failed, one of them after three attempts: more than the code that waits can tell."""
    for location in ("batch 11/parcel 2/label", "batch 11/parcel 4/send"):
        fail(of_batches, location, attempts=3)
    [first, *_] = members_of(build_timeline(of_batches, stage.now, opened="batch #"), "batch #")
    assert (first.place, first.failed, first.failed_attempts) == ("batch 11", 2, 6)
    opened = build_timeline(of_batches, stage.now, opened="batch 11")
    inside = {row.place: row for row in opened.rows if row.place.startswith("batch 11")}
    assert {place: (row.failed, row.failed_attempts) for place, row in inside.items()} == {
        "batch 11": (2, 6),
        "batch 11/parcel #/pack": (0, 0),
        "batch 11/parcel #/label": (1, 3),
        "batch 11/parcel #/send": (1, 3),
    }
    assert inside["batch 11"].count == PARCELS
    assert inside["batch 11/parcel #/label"].count == PARCELS


def test_a_closed_member_says_that_it_opens_and_counts_nothing_that_it_did_not_read(
    stage: Stage, of_batches: Run, how: str
) -> None:
    members = members_of(build_timeline(of_batches, stage.now, opened="batch #"), "batch #")
    opens = {"counted, members closed": "batch 0"}.get(how, "batch 0/parcel #")
    assert (members[0].opens, members[0].kind, members[0].status) == (opens, "join", "completed")
    assert members[0].count == (1 if how == "counted, members closed" else PARCELS)
    turns = members_of(build_timeline(of_batches, stage.now, opened="rounds/~#"), "rounds/~#")
    assert [(row.kind, row.opens) for row in turns[:2]] == [("iteration", f"rounds/~{n}") for n in range(2)]


def test_the_times_of_a_closed_member_are_those_of_its_entries(stage: Stage, of_batches: Run, how: str) -> None:
    """An iteration lasts from its first entry to its last one, whatever was read of it."""
    began = stage.now - timedelta(hours=1)
    for number, copy in enumerate(("copy 0", "copy 1", "copy 2")):
        moment = began + timedelta(minutes=number)
        metadata = EntryMetadata.objects.filter(entry=Entry.objects.get(run=of_batches, location=f"rounds/~2/{copy}"))
        metadata.update(created_at=moment, last_attempt_at=moment, completed_at=moment + timedelta(seconds=30))
    members = members_of(build_timeline(of_batches, stage.now, opened="rounds/~#"), "rounds/~#")
    [row] = [row for row in members if row.place == "rounds/~2"]
    assert (row.begins_at, row.ends_at) == (began, began + timedelta(minutes=2, seconds=30))


def test_what_follows_the_number_of_a_member_belongs_to_another_place(stage: Stage, how: str) -> None:
    """ "a 1", "a 1 b" and "a 10" begin alike, and are three."""
    run = stage.start(flows.quick, id="run")
    names = [f"part {number}{tail}/save" for number in range(12) for tail in ("", " of 2", "-b")]
    record(run, stage, [(each, "step") for each in names])
    expected = [f"part {number} of 2" for number in range(12)]
    assert [place for page in pages_of(run, stage, "part # of #", 1) for place in page] == expected


def test_a_folded_row_inside_a_folded_row_opens(
    stage: Stage, of_batches: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parcels of all batches are one row, and so are their labels: 84 on pages of 16."""
    monkeypatch.setattr(timeline, "MOST_MEMBERS", 16)
    parcels = [f"batch {batch}/parcel {each}" for batch in range(BATCHES) for each in range(PARCELS)]
    assert [place for page in pages_of(of_batches, stage, "batch #/parcel #", 2) for place in page] == parcels
    labels = [f"{each}/label" for each in parcels]
    assert [place for page in pages_of(of_batches, stage, "batch #/parcel #/label", 3) for place in page] == labels
    inside = [f"batch 3/parcel {each}/pack" for each in range(PARCELS)]
    assert [place for page in pages_of(of_batches, stage, "batch 3/parcel #/pack", 3) for place in page] == inside


def test_a_member_of_which_something_is_the_only_one_of_its_place_is_one_of_all(stage: Stage, how: str) -> None:
    """Of seven rooms one has a window, and one of its two lamps has failed."""
    run = stage.start(flows.quick, id="run")
    rooms = [f"room {number}" for number in range(7)]
    lamps = [(f"{room}/lamp {number}", "step") for room in rooms for number in range(2)]
    record(run, stage, [(room, "join") for room in rooms] + lamps + [("room 4/window", "step")])
    fail(run, "room 4/lamp 1", attempts=1)
    [row] = [row for row in build_timeline(run, stage.now).rows if row.place == "room #"]
    assert (row.count, row.failed) == (7, 1)
    opened = members_of(build_timeline(run, stage.now, opened="room #"), "room #")
    assert [(row.place, row.failed) for row in opened[:2]] == [("room 4", 1), ("room 0", 0)]
    assert sorted({place for page in pages_of(run, stage, "room #", 1) for place in page}) == rooms


@pytest.mark.parametrize("windows", [(7, 20), (20, 20)], ids=["a first look", "the last look"])
def test_members_that_begin_beside_many_others_are_all_there(
    stage: Stage, how: str, windows: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven turns go on at once; the others begin behind a window full of these."""
    monkeypatch.setattr(timeline_reads, "_WINDOWS", windows)
    run = stage.start(flows.quick, id="run")
    turns = [*range(7)] * 6 + [*range(7, 14)]
    record(run, stage, [(f"rounds/~{turn}/step {number}", "step") for number, turn in enumerate(turns)])
    pages = [place for page in pages_of(run, stage, "rounds/~#", 1) for place in page]
    assert pages == [f"rounds/~{turn}" for turn in range(14)]


@pytest.mark.parametrize("name", ["lot #{}", "#{} of #", "lot {}\U0010ffff", "\U0010ffff{}", "lot \ud7ff{}"])
def test_members_have_any_name(stage: Stage, how: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "#" stands for numbers in the names of places; two characters have no next one."""
    monkeypatch.setattr(timeline_reads, "_WINDOWS", (4, 7))
    run = stage.start(flows.quick, id="run")
    expected = [name.format(number) for number in range(12)]
    record(run, stage, [(each, "step") for each in expected])
    pages = [place for page in pages_of(run, stage, places.masked(name.format(0)), 1) for place in page]
    assert pages == expected


def test_places_below_the_deepest_level_are_told_apart_in_a_folded_row(stage: Stage, how: str) -> None:
    run = stage.start(flows.quick, id="run")
    deep = "/".join("abcdefghij")
    inside = [f"{deep}/part {number}/{lane}/rear/save" for number in range(6) for lane in ("left", "right")]
    record(run, stage, [(each, "step") for each in inside])
    rows = {row.place: row.count for row in build_timeline(run, stage.now).rows}
    assert [rows.get(f"{deep}/part #/{lane}/rear/save") for lane in ("left", "right")] == [6, 6]


def test_loops_of_one_iteration_each_open(stage: Stage, how: str) -> None:
    run = stage.start(flows.quick, id="run")
    loops = [f"poll {number}" for number in range(6)]
    record(run, stage, [each for loop in loops for each in ((loop, "loop"), (f"{loop}/~0/ask", "step"))])
    fail(run, "poll 2/~0/ask", attempts=1)
    [row] = [row for row in build_timeline(run, stage.now).rows if row.place == "poll #"]
    assert (row.count, row.opens, row.failed) == (6, "poll #", 1)
    opened = members_of(build_timeline(run, stage.now, opened="poll #"), "poll #")
    assert [(row.place, row.failed) for row in opened[:2]] == [("poll 2", 1), ("poll 0", 0)]


def test_members_of_several_kinds_are_one_row(stage: Stage, how: str) -> None:
    """The odd ones are joins of two steps, one of which has failed."""
    run = stage.start(flows.quick, id="run")
    lots = [f"lot {number}" for number in range(12)]
    joins = [(f"{lot}/{step}", "step") for lot in lots[1::2] for step in ("pack", "send")]
    kinds = [(lot, "join" if number % 2 else "step") for number, lot in enumerate(lots)]
    record(run, stage, kinds + joins)
    fail(run, "lot 7/send", attempts=1)
    [row] = [row for row in build_timeline(run, stage.now).rows if row.place == "lot #"]
    assert (row.count, row.failed) == (12, 1)
    pages = [place for page in pages_of(run, stage, "lot #", 1) for place in page]
    assert list(dict.fromkeys(pages)) == ["lot 7", *(lot for lot in lots if lot != "lot 7")]
    [bad, *_] = members_of(build_timeline(run, stage.now, opened="lot #"), "lot #")
    assert (bad.place, bad.kind, bad.failed) == ("lot 7", "join", 1)


def record(run: Run, stage: Stage, found: Sequence[tuple[str, str]]) -> None:
    """Record completed entries at these locations, of these kinds."""
    first = Entry.objects.filter(run=run).count() * 10
    entries = [Entry(run=run, location=at, kind=kind, ordinal=first + n) for n, (at, kind) in enumerate(found)]
    Entry.objects.bulk_create(entries)
    at = {"created_at": stage.now, "last_attempt_at": stage.now, "completed_at": stage.now}
    EntryMetadata.objects.bulk_create(EntryMetadata(entry=each, status="completed", **at) for each in entries)


def fail(run: Run, location: str, attempts: int) -> None:
    """Say that a step has used up its attempts."""
    metadata = EntryMetadata.objects.filter(entry=Entry.objects.get(run=run, location=location))
    metadata.update(status="exhausted", attempts=attempts, completed_at=None)
    at = metadata.get().created_at
    Attempt.objects.bulk_create(
        Attempt(run=run, location=location, number=n + 1, started_at=at, finished_at=at, error=ErrorInfo("E", ""))
        for n in range(attempts)
    )
