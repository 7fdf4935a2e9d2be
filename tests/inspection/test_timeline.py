"""The waterfall of a run: every place has a row, equal places share one, and what failed is always among them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from durable import Break, Context, Continue, CriticalError, operations, workflow
from durable.admin import waterfall
from durable.core.errors import ErrorInfo
from durable.core.records import EntryStatus
from durable.inspection import places, timeline_reads
from durable.inspection.timeline import MOST_ROWS, Row, Timeline, build_timeline, time_axis
from durable.inspection.timeline_reads import MOST_ATTEMPTS
from durable.models import Activity, Attempt, Entry, EntryMetadata, Run
from tests.admin import flows
from tests.admin.conftest import Stage

SHAPES = {"exact": 2_000, "counted in the database": 0}


@pytest.fixture(params=SHAPES)
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A history is read whole, or it is long enough to be counted in the database."""
    monkeypatch.setattr(places, "EXACT", SHAPES[request.param])
    return str(request.param)


@workflow(name="tests.timeline.rounds")
def rounds(ctx: Context) -> None:
    def turn(c: Context, number: int) -> Break | Continue:
        c.step("poll", flows.charge, number, max_retries=0)
        if number == 1:
            c.step("only once", flows.value_of, 1)
        return Break(number) if number == 11 else Continue(number + 1)

    ctx.step("before", flows.value_of, 1)
    ctx.loop("polling", turn, state=0, history_prune_interval=100)
    for number in range(7):
        ctx.step(f"parcel {number}", flows.value_of, number)
    ctx.step("after", flows.value_of, 1)


def sold_out() -> None:
    raise CriticalError("sold out")


@workflow(name="tests.timeline.hotel")
def hotel(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here on")
    ctx.step("book", flows.value_of, 1, rollback=flows.refund)


@workflow(name="tests.timeline.trip")
def trip(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here on")
    ctx.child("hotel", hotel.using(rollback=True))
    ctx.step("flight", sold_out)


@workflow(name="tests.timeline.slides")
def slides(ctx: Context) -> None:
    """A join of many branches, the code of one of which fails between its steps."""

    def slide(number: int) -> Any:
        def show(scope: Context) -> None:
            scope.step("load", flows.value_of, number)
            if number == 7:
                raise CriticalError("out of focus")

        return show

    ctx.join("slides", {f"slide {number}": slide(number) for number in range(9)})


@workflow(name="tests.timeline.late")
def late(ctx: Context) -> None:
    """A join hours after the start, a branch of which fails before it has recorded anything."""

    def label(_scope: Context) -> None:
        raise CriticalError("no paper")

    ctx.sleep("rest", "3 hours")
    ctx.join("ship", {"label": label, "mail": lambda scope: scope.step("send", flows.value_of, 1)})


def rows_of(timeline: Timeline) -> list[tuple[int, str, int]]:
    return [(row.depth, row.title, row.count) for row in timeline.rows]


def row_at(timeline: Timeline, place: str) -> Row:
    [row] = [row for row in timeline.rows if row.place == place]
    return row


def test_a_loop_and_numbered_steps_are_one_row_each(stage: Stage, either_way: str) -> None:
    run = stage.start(rounds, id="run")
    timeline = build_timeline(run, stage.now)
    assert rows_of(timeline) == [
        (0, "before", 1),
        (0, "polling", 12),
        (1, "poll", 12),
        (1, "only once", 1),
        (0, "parcel #", 7),
        (0, "after", 1),
    ]
    assert row_at(timeline, "polling").note == "12 iterations"
    assert row_at(timeline, "after").location == "after"
    assert row_at(timeline, "parcel #").p50 is not None
    assert [row.location for row in timeline.rows if row.is_folded] == ["polling", "", ""]
    assert timeline.is_sampled is (either_way != "exact")


def test_a_folded_row_opens_page_by_page_and_member_by_member(stage: Stage, either_way: str) -> None:
    run = stage.start(rounds, id="run")
    opened = build_timeline(run, stage.now, opened="parcel #")
    assert [(row.title, row.location) for row in opened.rows if row.depth == 1 and "parcel" in row.title] == [
        (f"parcel {n}", f"parcel {n}") for n in range(7)
    ]
    inside = build_timeline(run, stage.now, opened="polling/~#")
    members = [row for row in inside.rows if row.title.startswith("iteration")]
    assert [row.title for row in members] == [f"iteration {n}" for n in range(12)]
    assert [row.opens for row in members] == [f"polling/~{n}" for n in range(12)]
    one = build_timeline(run, stage.now, opened="polling/~1")
    assert [(row.depth, row.title) for row in one.rows if row.place.startswith("polling")] == [
        (0, "polling"),
        (1, "iteration 1"),
        (2, "poll"),
        (2, "only once"),
    ]


def test_a_child_that_was_undone_has_a_mark_of_it(stage: Stage) -> None:
    stage.start(trip, id="trip", settle=False)
    while (due := Run.objects.filter(wake_at__lte=stage.now).first()) is not None:
        stage.settle(due.pk)
    run = Run.objects.get(pk="trip")
    assert run.state == "failed"
    spans = row_at(build_timeline(run, stage.now), "hotel").spans
    assert [span.kind for span in spans] == ["wait", "rollback"]


@pytest.mark.parametrize(("length", "most"), [(timedelta(seconds=1), 6), (timedelta(minutes=7), 6)])
def test_the_labels_of_an_axis_have_room_in_half_a_window(length: timedelta, most: int) -> None:
    began = datetime(2026, 11, 23, 7, 41, 21, tzinfo=UTC)
    axis = time_axis(began, began + length, [(began, began + length)], is_folded=True)
    shown = [label for label in waterfall.labels_of(axis) if label.room != "wide"]
    middles = [float(label.x.rstrip("%")) for label in shown]
    middles[0], middles[-1] = middles[0] + 10, middles[-1] - 10  # they stand inside of the axis
    assert (shown[0].anchor, shown[-1].anchor) == ("start", "end")
    assert 2 < len(shown) <= most
    assert all(after - before >= 20 for before, after in pairwise(middles))


@pytest.mark.parametrize("span", [timedelta(milliseconds=7), timedelta(seconds=2.3), timedelta(seconds=40)])
def test_the_times_of_an_axis_go_on_from_left_to_right(span: timedelta) -> None:
    """Its ends are as exact as its ticks: 43.500 is followed by 43.845, and not by 43."""
    began = datetime(2026, 11, 23, 17, 9, 41, 545_000, tzinfo=UTC)
    axis = time_axis(began, began + span, [(began, began + span)], is_folded=True)
    texts = [label.text for label in waterfall.labels_of(axis)]
    assert texts == sorted(texts)
    assert len(set(texts)) == len(texts) > 2


def test_the_times_of_an_axis_of_weeks_have_days_where_seconds_are_told_too() -> None:
    """Two steps with a fortnight between them are not told as 22:18:07.750 and 22:18:08.005."""
    began = datetime(2026, 11, 6, 22, 18, 7, 750_000, tzinfo=UTC)
    woken = began + timedelta(days=14)
    moment = timedelta(milliseconds=125)
    axis = time_axis(began, woken + moment, [(began, began + moment), (woken, woken + moment)], is_folded=True)
    texts = [label.text for label in waterfall.labels_of(axis) if not label.is_gap]
    assert (texts[0], texts[-1]) == ("6 Nov 22:18:07.750", "20 Nov 22:18:07.875")
    assert all(text.startswith(("6 Nov ", "20 Nov ")) for text in texts)


def test_long_labels_of_an_axis_have_room_on_a_telephone() -> None:
    began = datetime(2026, 11, 6, 22, 18, 7, 750_000, tzinfo=UTC)
    lasted = {0: 154, 14: 54, 17: 47}  # milliseconds after so many days
    starts = {began + timedelta(days=days): timedelta(milliseconds=each) for days, each in lasted.items()}
    work = [(start, start + length) for start, length in starts.items()]
    axis = time_axis(began, work[-1][1], work, is_folded=True)
    shown = [label for label in waterfall.labels_of(axis) if not label.is_gap]
    widest = 100 * 6.3 * max(len(label.text) for label in shown) / 330  # percent of the axis of a telephone
    edges = {"start": (0.0, 1.0), "middle": (0.5, 0.5), "end": (1.0, 0.0)}  # of its width, before and behind its x
    small = [(float(each.x.rstrip("%")), *edges[each.anchor]) for each in shown if each.room == "small"]
    assert len(small) >= 2
    for (x, _, behind), (following, before, _) in pairwise(small):
        assert x + behind * widest <= following - before * widest


def test_a_bar_is_as_wide_as_its_span_and_wide_enough_to_be_seen() -> None:
    wide, narrow = (waterfall._bar("attempt", 10.0, end, "") for end in (35.0, 10.1))
    assert (wide.x, wide.width) == ("10.00%", "25.00%")
    assert (narrow.x, narrow.width) == ("10.00%", "0.40%")


@pytest.mark.parametrize("window", [500, 2])
def test_pages_of_members_cover_all_of_them_once(
    stage: Stage, either_way: str, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("durable.inspection.timeline.MOST_MEMBERS", 5)
    monkeypatch.setattr(timeline_reads, "_WINDOWS", (window, 20_000))
    run = stage.start(rounds, id="run")
    seen: list[str] = []
    after = -1
    for _ in range(10):
        timeline = build_timeline(run, stage.now, opened="polling/~#", after=after)
        seen += [row.title for row in timeline.rows if row.title.startswith("iteration")]
        if timeline.more is None:
            break
        after = timeline.more
    assert seen == [f"iteration {n}" for n in range(12)]


def test_what_failed_is_shown_in_every_row_around_it_and_comes_first(stage: Stage, either_way: str) -> None:
    flows.SWITCH["broken"] = True
    run = stage.start(flows.album, id="run")
    timeline = build_timeline(run, stage.now)
    images = row_at(timeline, "images")
    assert (images.count, images.status, images.failed) == (30, "failed", 1)
    assert all(row.needs_attention for row in timeline.failed)
    assert [row.place for row in timeline.failed] == ["images/image #/sides/front"]
    opened = build_timeline(run, stage.now, opened="images/image #")
    assert [row.title for row in opened.rows if row.depth == 1][:2] == ["image 28", "image 0"]
    assert [row.title for row in opened.failed] == ["image 28"]
    deep = build_timeline(run, stage.now, opened="images/image 28")
    [around] = [row for row in deep.rows if row.location == "images/image 28/sides"]
    assert around.status == "failed"
    failed = [row for row in deep.rows if row.location == "images/image 28/sides/front/watermark"]
    assert [[span.kind for span in row.spans] for row in failed] == [["failed"]]


def test_a_row_of_equal_branches_names_their_only_step_and_counts_them(stage: Stage, either_way: str) -> None:
    run = stage.start(flows.album, id="run")
    row = row_at(build_timeline(run, stage.now), "images/image #/sides/front")
    assert (row.title, row.count) == ("front / watermark", 30)


def test_a_step_that_is_named_as_its_branch_is_named_once(stage: Stage, either_way: str) -> None:
    run = stage.start(flows.quick, id="run")
    insert(run, [f"images/{number}/{name}/{name}" for number in range(9) for name in ("front", "back")])
    rows = {row.place: (row.title, row.count) for row in build_timeline(run, stage.now).rows}
    assert rows["images/#/front"] == ("front", 9)


def test_branches_with_several_steps_are_counted_too(stage: Stage, either_way: str) -> None:
    run = stage.start(flows.quick, id="run")
    insert(run, [f"images/{number}/front/{name}" for number in range(9) for name in ("fetch", "watermark")])
    rows = {row.place: (row.title, row.count) for row in build_timeline(run, stage.now).rows}
    assert rows["images/#/front"] == ("front", 9)


def test_an_opened_branch_has_failed_if_its_own_code_has(stage: Stage, either_way: str) -> None:
    run = stage.start(slides, id="run")
    opened = build_timeline(run, stage.now, opened="slides/slide #")
    assert {row.title for row in opened.rows if row.needs_attention} == {"slides / load", "slide 7"}
    assert [row.title for row in opened.failed] == ["slide 7"]


def test_a_branch_without_records_begins_with_its_join(stage: Stage, either_way: str) -> None:
    stage.start(late, id="run")
    stage.advance(hours=4)
    timeline = build_timeline(stage.settle("run"), stage.now)
    join, label = row_at(timeline, "ship"), row_at(timeline, "ship/label")
    assert (label.begins_at, label.ends_at) == (join.begins_at, join.ends_at)


def test_a_failure_that_the_code_has_caught_needs_no_attention(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    run = stage.start(flows.caught_join, id="run")
    timeline = build_timeline(run, stage.now)
    assert timeline.failed == []
    assert row_at(timeline, "careful/ship/label/buy").status == "caught"


def test_attempts_and_backoff_are_parts_of_the_bar(stage: Stage, either_way: str) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.stubborn, id="run")
    stage.advance(minutes=30)
    flows.SWITCH["broken"] = False
    run = stage.settle("run")
    timeline = build_timeline(run, stage.now)
    assert [span.kind for span in row_at(timeline, "before").spans] == ["attempt"]
    charge = row_at(timeline, "charge")
    assert [span.kind for span in charge.spans] == ["failed", "backoff", "attempt"]
    assert charge.failed_attempts == 1
    [gap] = timeline.axis.gaps
    assert gap.length == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=1))
    assert build_timeline(run, stage.now, is_folded=False).axis.gaps == []


def test_between_a_failure_for_good_and_a_recovery_there_is_no_backoff(stage: Stage, either_way: str) -> None:
    """The run waited for a person. The attempts of either side of the recovery have their backoffs."""
    flows.SWITCH["broken"] = True
    stage.start(flows.stubborn, id="run")
    for _ in range(2):
        stage.advance(hours=1)
        stage.settle("run")
    assert Run.objects.get(pk="run").state == "failed"
    stage.advance(hours=5)
    operations.recover("run")
    stage.settle("run")
    flows.SWITCH["broken"] = False
    stage.advance(hours=1)
    run = stage.settle("run")
    assert run.state == "completed"
    charge = row_at(build_timeline(run, stage.now), "charge")
    before, after = ["failed", "backoff", "failed", "backoff", "failed"], ["failed", "backoff", "attempt"]
    assert [span.kind for span in charge.spans] == [*before, *after]


def test_a_run_that_waits_has_an_open_bar(stage: Stage) -> None:
    run = stage.start(flows.approve, id="run")
    stage.advance(hours=3)
    timeline = build_timeline(run, stage.now)
    wait = timeline.rows[-1]
    assert (wait.kind, wait.ends_at, [span.kind for span in wait.spans]) == ("message", None, ["wait"])
    assert timeline.axis.ends_at == stage.now


def test_what_runs_now_has_an_open_bar_before_it_is_recorded(stage: Stage, either_way: str) -> None:
    run = stage.start(rounds, id="run")
    lease = stage.now + timedelta(hours=2)
    Run.objects.filter(pk="run").update(state="running", finished_at=None, lease_expires_at=lease)
    run = Run.objects.get(pk="run")
    running = {"run": run, "kind": "step", "fence": run.fence, "timeout": 0.0}
    Activity.objects.create(location="hand over", attempt=1, began_at=stage.now, **running)
    Activity.objects.create(location="parcel 9", attempt=1, began_at=stage.now, **running)
    stage.advance(minutes=40)
    timeline = build_timeline(run, stage.now)
    row = row_at(timeline, "hand over")
    assert (row.status, row.ends_at, row.begins_at) == ("running", None, stage.now - timedelta(minutes=40))
    assert [(span.kind, span.ends_at) for span in row.spans] == [("attempt", None)]
    assert (row_at(timeline, "parcel #").count, row_at(timeline, "parcel #").status) == (8, "running")
    assert timeline.axis.ends_at == stage.now


def test_failed_attempts_beyond_what_is_drawn_are_counted(stage: Stage, either_way: str) -> None:
    flows.SWITCH["broken"] = True
    run = stage.start(flows.stubborn, id="run")
    moments = [stage.now + timedelta(seconds=n) for n in range(1_000)]
    Attempt.objects.bulk_create(
        Attempt(run=run, location="charge", number=n, started_at=at, finished_at=at, error=ErrorInfo("E", ""))
        for n, at in enumerate(moments)
    )
    timeline = build_timeline(run, stage.now)
    kinds = [span.kind for row in timeline.rows for span in row.spans]
    assert kinds.count("failed") == MOST_ATTEMPTS
    assert timeline.attempts_left_out == 1_001 - MOST_ATTEMPTS
    assert row_at(timeline, "charge").failed_attempts == 1_001


def test_no_more_rows_than_the_cap_and_the_failed_one_among_them(stage: Stage, either_way: str) -> None:
    run = stage.start(flows.quick, id="run")
    letters = [first + second for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]
    insert(run, [f"deliver {word}" for word in letters])
    run = failed_at(run, "deliver pp")
    timeline = build_timeline(run, stage.now)
    assert len(timeline.rows) == MOST_ROWS
    assert timeline.left_out == len(letters) + 1 - MOST_ROWS
    assert timeline.rows[-1].location == "deliver pp"


def test_iterations_whose_number_is_not_known_are_not_said_to_be_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database counts "rounds/~#/step #" as one place: how many rounds those are, it does not say."""
    monkeypatch.setattr(places, "EXACT", 0)
    run = stage.start(flows.quick, id="run")
    insert(run, [f"rounds/~{turn}/step {number}" for turn in range(4) for number in range(3)])
    insert(run, [f"turns/~{turn}/{name}" for turn in range(4) for name in ("label", "mail")])
    found = {row.place: row.count for row in build_timeline(run, stage.now).rows if row.is_folded}
    assert found["rounds"] == 0
    assert found["turns"] == 4
    assert 1 not in found.values()


def test_places_without_a_pattern_are_counted_by_their_scopes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "EXACT", 0)
    monkeypatch.setattr(places, "MOST_PLACES", 10)
    run = stage.start(flows.quick, id="run")
    insert(run, [f"deliver/{letter}/parcel" for letter in "abcdefghijklmnop"])
    run = failed_at(run, "deliver/p/parcel")
    timeline = build_timeline(run, stage.now)
    assert [row.title for row in timeline.rows if row.depth == 0] == ["only", "deliver"]
    assert any(row.location == "deliver/p/parcel" for row in timeline.failed)
    insert(run, [f"send {letter}" for letter in "abcdefghijklmnop"])
    assert len(build_timeline(run, stage.now).rows) < 10


def test_a_place_that_is_not_there_opens_nothing(stage: Stage, either_way: str) -> None:
    run = stage.start(rounds, id="run")
    usual = rows_of(build_timeline(run, stage.now))
    for opened in ("nowhere", "polling/~99", "polling/~#/nothing/~#", "/", "#", "~#", "a" * 5_000):
        assert [row for row in rows_of(build_timeline(run, stage.now, opened=opened)) if row in usual]


def test_deep_histories_have_a_bounded_depth(stage: Stage, either_way: str) -> None:
    run = stage.start(flows.quick, id="run")
    insert(run, ["/".join("n" for _ in range(depth)) for depth in (400, 401)])
    assert max(row.depth for row in build_timeline(run, stage.now).rows) < 12


def test_the_number_of_statements_does_not_grow(
    stage: Stage, either_way: str, django_assert_max_num_queries: Any
) -> None:
    run = stage.start(rounds, id="run")
    with django_assert_max_num_queries(12) as few:
        build_timeline(run, stage.now)
    insert(run, [f"polling/~{number}/more" for number in range(12, 200)])
    with django_assert_max_num_queries(len(few)):
        build_timeline(run, stage.now)
    with django_assert_max_num_queries(len(few) + 2):
        build_timeline(run, stage.now, opened="polling/~#")


def failed_at(run: Run, location: str) -> Run:
    """Say that the run has failed because of a step."""
    EntryMetadata.objects.filter(entry__location=location).update(status=EntryStatus.EXHAUSTED.value)
    Run.objects.filter(pk=run.pk).update(state="failed", origins=[location])
    return Run.objects.get(pk=run.pk)


def insert(run: Run, locations: list[str]) -> None:
    """Add completed steps to a run's history."""
    first = Entry.objects.filter(run=run).count() * 10
    found = [
        Entry(run=run, location=each, kind="step", ordinal=first + number) for number, each in enumerate(locations)
    ]
    Entry.objects.bulk_create(found)
    at = run.created_at
    EntryMetadata.objects.bulk_create(
        EntryMetadata(entry=each, status="completed", attempts=1, created_at=at, last_attempt_at=at, completed_at=at)
        for each in Entry.objects.filter(run=run, metadata=None)
    )
