"""Tags that a run gives itself: recorded once, written with the entry, taken back by a replay in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durable import AsyncContext, Break, Context, Continue, Handle, get_run, runtime, workflow
from durable.core.records import EntryKind
from durable.models import Entry, Run, RunTag
from durable.runtime import Runtime
from durable.testing import Harness
from tests.support.stores import in_force, passed, settle

calls: list[str] = []
is_removed = False


@workflow(name="tests.tagging.stages")
def stages(ctx: Context, stop: bool = False) -> None:
    ctx.tag(stage="new")
    ctx.step("one", calls.append, "one")
    ctx.tag(stage="paid", sum=9.5)
    ctx.step("two", calls.append, "two")
    ctx.queue.next("go")
    ctx.tag(stage="done")


@workflow(name="tests.tagging.async_stages")
async def async_stages(ctx: AsyncContext) -> None:
    await ctx.tag(stage="new")
    await ctx.step("one", calls.append, "one")
    await ctx.tag(stage="done")


@workflow(name="tests.tagging.wide")
def wide(ctx: Context) -> list[str]:
    refused = []
    for number in range(6):
        try:
            ctx.tag(**{f"own{number}": number})
        except ValueError as error:
            refused.append(str(error))
    ctx.step("one", calls.append, "one")
    return refused


def _branch(name: str, ctx: Context) -> None:
    ctx.tag(**{name: 1})
    ctx.tag(**{name: 2})


def _iteration(ctx: Context, state: int) -> Any:
    ctx.tag(round=state)
    return Break(state) if state == 30 else Continue(state + 1)


@workflow(name="tests.tagging.places")
def places(ctx: Context) -> None:
    ctx.join("both", {name: partial(_branch, name) for name in "ab"})
    ctx.loop("rounds", _iteration, state=0)
    ctx.try_block("block", lambda c: c.tag(block=True))


@workflow(name="tests.tagging.removed")
def removed(ctx: Context) -> None:
    ctx.tag(stage="new")
    if is_removed:
        ctx.removed("tag", "tag")
    else:
        ctx.tag(stage="gone")
    ctx.tag(stage="last")
    ctx.queue.next("go")


@pytest.fixture
def at(transactional_db: None) -> Iterator[Runtime]:
    calls.clear()
    with in_force() as found:
        yield found


def of_tags(run: Handle[Any]) -> list[tuple[str, Any]]:
    entries = Entry.objects.filter(run_id=run.id, kind=EntryKind.TAG.value).order_by("ordinal")
    return [(entry.location, entry.data["tags"]) for entry in entries]


def test_a_run_tags_itself_once(at: Runtime) -> None:
    run = stages.using(id="r", tags={"tenant": "acme"}).start()
    passed(at, "r")
    assert run.tags == {"stage": "paid", "sum": "9.5", "tenant": "acme"}
    assert [each.id for each in Run.objects.tagged(stage="paid", tenant="acme")] == ["r"]
    assert not Run.objects.tagged(stage="new").exists()
    run.send("go")
    with CaptureQueriesContext(connection) as queries:
        settle()
    assert run.state == "completed"
    assert run.tags["stage"] == "done"
    assert of_tags(run) == [
        ("tag~0", {"stage": "new"}),
        ("tag~1", {"stage": "paid", "sum": "9.5"}),
        ("tag~2", {"stage": "done"}),
    ]
    written = [each["sql"] for each in queries.captured_queries if 'INSERT INTO "durable_runtag"' in each["sql"]]
    assert len(written) == 1, "a replay writes no tag again"
    assert calls == ["one", "two"]


def test_async_code_tags_too(at: Runtime) -> None:
    run = async_stages.start()
    settle()
    assert (run.state, run.tags) == ("completed", {"stage": "done"})


def test_the_ninth_tag_is_refused_each_time(at: Runtime) -> None:
    run = wide.using(tags={f"t{number}": number for number in range(4)}).start()
    settle()
    assert run.state == "completed"
    refused = run.output
    assert refused is not None
    assert [each[:44] for each in refused] == ["a run has at most 8 tags, and these are 9 (o"] * 2
    assert set(run.tags) == {"t0", "t1", "t2", "t3", "own0", "own1", "own2", "own3"}


def test_tags_in_branches_iterations_and_blocks(at: Runtime) -> None:
    run = places.start()
    settle()
    assert run.state == "completed"
    assert run.tags == {"a": "2", "b": "2", "block": "true", "round": "30"}


@workflow(name="tests.tagging.crowd")
def crowd(ctx: Context) -> None:
    ctx.join("all", {f"b{number}": partial(_branch, f"t{number}") for number in range(8)})
    ctx.join("same", {f"b{number}": partial(_branch, "t0") for number in range(8)})
    ctx.queue.next("go")


def test_branches_in_threads_tag_at_once(transactional_db: None) -> None:
    at = replace(runtime.production(), sequential_branches=False)
    runtime.activate(at)
    try:
        run = crowd.start()
        passed(at, run.id)
        assert run.tags == {f"t{number}": "2" for number in range(8)}
        run.replay("same", in_place=True)
        assert run.tags == {f"t{number}": "2" for number in range(8)}
        run.replay("all", in_place=True)
        assert run.tags == {}
    finally:
        runtime.deactivate(at)


async def _async_branch(name: str, ctx: AsyncContext) -> None:
    await ctx.tag(**{name: 1})
    await ctx.step("work", calls.append, name)
    await ctx.tag(**{name: 2}, newest=name)


@workflow(name="tests.tagging.async_crowd")
async def async_crowd(ctx: AsyncContext) -> None:
    await ctx.join("all", {f"b{number}": partial(_async_branch, f"t{number}") for number in range(7)})
    await ctx.queue.next("go")


def test_async_branches_tag_at_once(transactional_db: None) -> None:
    at = replace(runtime.production(), sequential_branches=False)
    runtime.activate(at)
    calls.clear()
    try:
        run = async_crowd.start()
        passed(at, run.id)
        newest = run.tags["newest"]
        assert run.tags == {"newest": newest} | {f"t{number}": "2" for number in range(7)}
        assert of_tags(run)[-1][1]["newest"] == newest, "rows and entries are in one order"
        run.replay("all", in_place=True)
        assert run.tags == {}
    finally:
        runtime.deactivate(at)


def test_a_replay_in_place_takes_back_what_it_deletes(at: Runtime) -> None:
    run = stages.using(tags={"stage": "start"}).start()
    passed(at, run.id)
    run.send("go")
    settle()
    assert run.tags == {"stage": "done", "sum": "9.5"}
    run.replay("two", in_place=True)
    assert run.tags == {"stage": "paid", "sum": "9.5"}
    run.replay("one", in_place=True)
    assert run.tags == {"stage": "new"}
    run.replay("tag~0", in_place=True)
    assert run.tags == {"stage": "start"}
    settle()
    assert run.tags == {"stage": "done", "sum": "9.5"}


def test_a_replay_as_a_new_run_has_the_tags_of_what_it_keeps(at: Runtime) -> None:
    run = stages.using(tags={"tenant": "acme"}).start()
    passed(at, run.id)
    run.send("go")
    settle()
    new = run.replay("two")
    assert new.tags == {"stage": "paid", "sum": "9.5", "tenant": "acme"}
    assert run.tags["stage"] == "done"
    assert run.replay("one").tags == {"stage": "new", "tenant": "acme"}
    assert new.restart().tags == run.restart().tags == {"tenant": "acme"}


def test_a_plain_replay_and_commit_ask_for_no_tags(at: Runtime) -> None:
    run = async_plain.start()
    with CaptureQueriesContext(connection) as queries:
        settle()
        run.replay("one", in_place=True)
        settle()
    assert run.state == "completed"
    assert not [each for each in queries.captured_queries if "runtag" in each["sql"]]


@workflow(name="tests.tagging.plain")
async def async_plain(ctx: AsyncContext) -> int:
    return await ctx.step("one", lambda: 1)


@workflow(name="tests.tagging.wrong")
def wrong(ctx: Context) -> str:
    try:
        ctx.tag(stage="")
    except ValueError as error:
        return str(error)
    return ""


def test_what_is_no_tag_is_refused_where_it_is_set(at: Runtime) -> None:
    run = wrong.start()
    settle()
    assert "leave the tag out for none" in str(run.output)
    assert not RunTag.objects.exists()


def test_a_history_has_the_tags(at: Runtime) -> None:
    stages.using(id="x").start()
    passed(at, "x")
    history = get_run("x").history()
    assert [(each.location, each.kind) for each in history if each.kind == "tag"] == [
        ("tag~0", "tag"),
        ("tag~1", "tag"),
    ]
    assert history[0].data["tags"] == {"stage": "new"}


def test_a_removed_call_keeps_its_number(at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    run = removed.start()
    settle()
    monkeypatch.setitem(globals(), "is_removed", True)
    run.send("go")
    settle()
    assert (run.state, run.tags) == ("completed", {"stage": "last"})


def test_a_harness_tags_and_replays() -> None:
    with Harness() as h:
        run = stages.start()
        h.settle()
        assert run.tags == {"stage": "paid", "sum": "9.5"}
        run.replay("one", in_place=True)
        assert run.tags == {"stage": "new"}
        h.settle()
        run.send("go")
        h.settle()
        assert run.tags["stage"] == "done"


def _round(ctx: Context, number: int) -> Any:
    ctx.tag(round=number)
    if number < 3:
        ctx.tag(stage=f"early {number}")
    return Break(number) if number == 20 else Continue(number + 1)


def _tagger(name: str, ctx: Context) -> str:
    ctx.tag(lane=name)
    if name == "slow":
        ctx.tag(slow=True)
        ctx.sleep("for ever", "1 day")
    return name


@workflow(name="tests.tagging.pruned")
def pruned(ctx: Context) -> None:
    ctx.step("first", calls.append, "first")
    ctx.tag(lane="none")
    ctx.loop("rounds", _round, state=0, history_prune_interval=2, history_size=1)
    ctx.step("between", calls.append, "between")
    ctx.race("lanes", {name: partial(_tagger, name) for name in ("slow", "quick")})
    ctx.tag(stage="last")


def test_what_pruned_entries_have_set_is_taken_back_too(at: Runtime) -> None:
    run = pruned.using(tags={"stage": "start"}).start()
    settle()
    assert run.state == "completed"
    done = {"lane": "quick", "round": "20", "slow": "true", "stage": "last"}
    assert run.tags == done
    assert not Entry.objects.filter(run_id=run.id, location__startswith="lanes/slow/").exists(), "it is pruned"
    for place, left in {
        "lanes": {"lane": "none", "round": "20", "stage": "early 2"},
        "rounds": {"lane": "none", "stage": "start"},
        "first": {"stage": "start"},
    }.items():
        new = run.replay(place)
        assert new.tags == left, f"a new run, from {place}"
        settle()
        assert (new.state, new.tags) == ("completed", done)
        new.replay(place, in_place=True)
        assert new.tags == left, f"in place, from {place}"
        settle()
        assert new.tags == done


def test_a_loop_in_a_loop_remembers_what_both_have_pruned(at: Runtime) -> None:
    run = nested.start()
    settle()
    assert run.tags == {"last": "yes"} | {f"t{number}": "2" for number in range(3)}
    run.replay("outer", in_place=True)
    assert run.tags == {"t0": "first"}
    settle()
    assert run.tags["t2"] == "2"


def _inner(ctx: Context, state: list[int]) -> Any:
    outer, number = state
    ctx.tag(**{f"t{outer}": number})
    return Break() if number == 2 else Continue([outer, number + 1])


def _outer(ctx: Context, number: int) -> Any:
    ctx.loop("inner", _inner, state=[number, 0], history_prune_interval=1, history_size=0)
    return Break() if number == 2 else Continue(number + 1)


@workflow(name="tests.tagging.nested")
def nested(ctx: Context) -> None:
    ctx.tag(t0="first")
    ctx.loop("outer", _outer, state=0, history_prune_interval=1, history_size=0)
    ctx.tag(last="yes")


pausing_in: int | None = None


def _work(run_id: str, number: int) -> None:
    if number == pausing_in:
        get_run(run_id).pause()


def _polled(ctx: Context, number: int) -> Any:
    ctx.tag(stage=f"poll {number}")
    ctx.step("work", _work, ctx.run_id, number)
    return Break() if number == 3 else Continue(number + 1)


@workflow(name="tests.tagging.polling")
def polling(ctx: Context) -> None:
    ctx.step("first", calls.append, "first")
    ctx.loop("polls", _polled, state=0, history_prune_interval=1, history_size=0)
    ctx.tag(stage="done")
    ctx.step("last", calls.append, "last")


@pytest.mark.parametrize("number", [None, *range(4)])
def test_what_is_pruned_is_older_than_what_another_pass_does(
    at: Runtime, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """A pass that begins right behind a prune counts on from what was pruned."""
    monkeypatch.setitem(globals(), "pausing_in", number)
    run = polling.using(tags={"stage": "start"}).start()
    settle()
    if number is not None:
        assert run.state == "paused"
        run.resume()
        settle()
    assert (run.state, run.tags) == ("completed", {"stage": "done"})
    for place, left in {"polls": "start", "tag~0": "poll 3"}.items():
        assert run.replay(place).tags == {"stage": left}, place
    run.replay("tag~0", in_place=True)
    assert run.tags == {"stage": "poll 3"}
    run.replay("polls", in_place=True)
    assert run.tags == {"stage": "start"}


@workflow(name="tests.tagging.two_branches")
def two_branches(ctx: Context) -> None:
    def branch(name: str, inner: Context) -> None:
        inner.step("before", calls.append, name)
        if name not in quiet:
            inner.tag(newest=name)

    ctx.join("both", {name: partial(branch, name) for name in "ab"})


quiet: set[str] = set()


def test_a_tag_has_the_value_of_the_newest_entry_that_stays(at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    run = two_branches.start()
    settle()
    assert run.tags == {"newest": "b"}
    run.replay("both/a/before", in_place=True)
    assert run.tags == {"newest": "b"}
    settle()
    assert run.tags == {"newest": "a"}, "its entry is the newest now"
    monkeypatch.setitem(globals(), "quiet", {"b"})
    run.replay("both/b/before", in_place=True)
    settle()
    assert run.tags == {"newest": "a"}


changed = ""


@workflow(name="tests.tagging.changed")
def changing(ctx: Context) -> None:
    if changed == "added":
        ctx.tag(kind="x")
    if changed == "added for new runs" and ctx.get_version("kind", 2) >= 2:
        ctx.tag(kind="x")
    if changed == "another":
        ctx.tag(kind="x")
    elif changed == "more":
        ctx.tag(stage="begun", kind="x")
    else:
        ctx.tag(stage="new")
    ctx.queue.next("go")


@pytest.mark.parametrize("change", ["added", "another"])
def test_a_call_that_sets_other_tags_does_not_fit_the_history(
    at: Runtime, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run = changing.start()
    settle()
    monkeypatch.setitem(globals(), "changed", change)
    run.send("go")
    passed(at, run.id)
    assert run.state == "sleeping"
    assert '"tag~0" set the tag stage, the code now sets kind' in run.summary
    assert run.tags == {"stage": "new"}
    monkeypatch.setitem(globals(), "changed", "")
    passed(at, run.id)
    assert run.state == "completed"


@pytest.mark.parametrize("change", ["added for new runs", "more"])
def test_a_call_that_fits_the_history_is_not_made_again(
    at: Runtime, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run = changing.start()
    settle()
    monkeypatch.setitem(globals(), "changed", change)
    run.send("go")
    settle()
    assert (run.state, run.tags) == ("completed", {"stage": "new"})
    assert "kind" in new_tags(changing)


def new_tags(flow: Any) -> dict[str, str]:
    run = flow.start()
    settle()
    found: dict[str, str] = run.tags
    return found


seen: list[dict[str, str]] = []


def look() -> None:
    seen.append(get_run("looked-at").tags)


@workflow(name="tests.tagging.looked_at")
def looked_at(ctx: Context) -> None:
    ctx.tag(stage="begun")
    ctx.tag(number=1)
    ctx.step("one", look)
    ctx.step("two", look)
    ctx.join("both", {"a": lambda c: c.tag(branch="a"), "b": lambda c: c.step("three", look)})


def test_a_run_is_found_by_its_tags_while_its_next_step_is_executed(at: Runtime) -> None:
    seen.clear()
    run = looked_at.using(id="looked-at").start()
    settle()
    assert run.state == "completed"
    begun = {"number": "1", "stage": "begun"}
    assert seen == [begun, begun, {**begun, "branch": "a"}]
