"""Tags of passes whose commits break: however it breaks, the runs have the tags of an undisturbed life, each once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from durable import Break, Context, Continue, get_run, workflow
from durable.core.control_flow import LeaseLost
from durable.core.records import Batch, Committed, TagChange
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.models import Entry, Run, RunTag
from durable.runtime import Runtime
from durable.testing import Harness
from tests.support.stores import Breaking, passed

pytestmark = pytest.mark.slow


@workflow(name="tests.tag_faults.child")
def child(ctx: Context, number: int = 0) -> int:
    ctx.tag(seen=number)
    return number


def _branch(name: str) -> Callable[[Context], None]:
    def branch(ctx: Context) -> None:
        ctx.tag(both=name)
        ctx.step("work", str)
        ctx.tag(both=f"{name} done")

    return branch


def _lane(name: str) -> Callable[[Context], str]:
    def lane(ctx: Context) -> str:
        ctx.tag(lane=name)
        if name == "slow":
            ctx.queue.next("never")
        return name

    return lane


def _round(ctx: Context, number: int) -> Any:
    ctx.tag(round=number)
    ctx.step("work", str)
    return Break() if number == 3 else Continue(number + 1)


@workflow(name="tests.tag_faults.everything")
def everything(ctx: Context) -> None:
    ctx.tag(stage="begun")
    ctx.step("first", str)
    ctx.child("one", child.using(tags={"part": "child", "seen": "no"}), 7)
    ctx.map("many", child.using(tags={"part": "map"}), [(1,), (2,)])
    ctx.join("both", {name: _branch(name) for name in "ab"})
    ctx.race("lanes", {name: _lane(name) for name in ("slow", "quick")})
    ctx.loop("rounds", _round, state=0, history_prune_interval=1, history_size=0)
    ctx.try_block("block", _failing)
    ctx.tag(stage="done")


def _failing(ctx: Context) -> None:
    ctx.tag(block="tried")
    ctx.step("work", _fail, max_retries=0)


def _fail() -> None:
    raise ValueError("no")


TAGS = {"stage": "done", "tenant": "acme", "both": "b done", "lane": "quick", "round": "3", "block": "tried"}


def lived(at: Runtime, run_id: str, strike: Callable[[int, Batch, Callable[[], Committed]], Committed]) -> int:
    """A life of the run whose commits go through `strike`; how many there were."""
    run = everything.using(id=run_id, tags={"tenant": "acme", "stage": "new"}).start()
    store = Breaking(at.store, strike)
    for _ in range(100):
        if run.state in ("completed", "failed"):
            return store.commits
        now = at.now()
        claimed = at.store.claim_run(run_id, now=now, lease_until=now + timedelta(seconds=30), worker="w")
        assert claimed is not None
        with suppress(LeaseLost):
            execute_pass(claimed, store=store, eviction=Eviction(), at=at)
        for each in Run.objects.due(at.now()).exclude(pk=run_id).values_list("pk", flat=True):
            passed(at, each)
    raise AssertionError("it does not end")


def rows_of(run_id: str) -> list[Any]:
    """The rows of the tags of the run and its children, and what its entries have recorded of them."""
    rows = RunTag.objects.filter(run__id__startswith=run_id).order_by("run_id", "name")
    tags = [(row.run_id.removeprefix(run_id), row.name, row.value, row.start_value) for row in rows]
    assert all(row.created_at == row.run.created_at for row in rows.select_related("run"))
    entries = Entry.objects.filter(run_id=run_id).order_by("location")
    noted = [
        (each.location, each.data.get("tags"), each.data.get("before"), each.data.get("pruned_tags"))
        for each in entries
    ]
    return [get_run(run_id).state, tags, noted]


@pytest.mark.parametrize("how", ["before", "after"])
def test_whatever_commit_breaks_the_tags_are_written_once(at: Runtime, how: str) -> None:
    commits = lived(at, "undisturbed", lambda _number, _batch, commit: commit())
    wanted = rows_of("undisturbed")
    assert get_run("undisturbed").tags == TAGS
    assert Run.objects.tagged(part="map").count() == 2
    assert commits > 12
    for number in range(1, commits + 1):

        def strike(count: int, _batch: Batch, commit: Callable[[], Committed], broken: int = number) -> Committed:
            if count != broken:
                return commit()
            if how == "after":
                commit()
            raise OperationalError("the server closed the connection unexpectedly")

        lived(at, f"life-{number}-", strike)
        assert rows_of(f"life-{number}-") == wanted, f"{how} commit {number}"


def test_a_worker_that_has_lost_the_run_tags_nothing(at: Runtime) -> None:
    late: list[Callable[[], Committed]] = []

    def strike(_count: int, batch: Batch, commit: Callable[[], Committed]) -> Committed:
        if not batch.of(TagChange):
            return commit()
        if not late:
            late.append(commit)
            Run.objects.filter(pk="run").update(lease_expires_at=at.now() - timedelta(seconds=1))
            passed(at, "run")  # another worker takes the run up
        return commit()

    lived(at, "run", strike)
    wanted = rows_of("run")
    assert wanted[0] == "completed"
    assert get_run("run").tags == TAGS
    with pytest.raises(LeaseLost):
        late[0]()
    assert rows_of("run") == wanted


@workflow(name="tests.tag_faults.small")
def small(ctx: Context) -> None:
    ctx.tag(stage="begun")
    ctx.step("first", str)
    ctx.tag(stage="done")


def test_a_run_dies_anywhere_and_has_its_tags() -> None:
    with Harness() as h:
        h.crash_everywhere(everything)
        h.crash_everywhere(small)


@workflow(name="tests.tag_faults.dice")
def dice(ctx: Context) -> None:
    drawn.append(len(drawn))
    ctx.tag(drawn=drawn[-1])
    ctx.step("first", str)


drawn: list[int] = []


def test_a_tag_that_is_another_after_a_crash_is_told() -> None:
    with Harness(strict=False) as h, pytest.raises(AssertionError, match="what the run is tagged with is "):
        h.crash_everywhere(dice)


def test_what_tags_cost(at: Runtime) -> None:
    """A start has one statement more, in a transaction; a pass asks once, and each commit with tags has one more."""
    plain = small_plain.start()
    with CaptureQueriesContext(connection) as without:
        passed(at, plain.id)
    with CaptureQueriesContext(connection) as started:
        run = small.using(tags={f"t{number}": number for number in range(7)}).start()
    with CaptureQueriesContext(connection) as done:
        passed(at, run.id)
    assert sum("durable_runtag" in each["sql"] for each in started.captured_queries) == 1
    on_tags = [each["sql"].split()[0] for each in done.captured_queries if "durable_runtag" in each["sql"]]
    assert on_tags == ["SELECT", "INSERT", "INSERT"]
    assert not [each for each in without.captured_queries if "durable_runtag" in each["sql"]]


@workflow(name="tests.tag_faults.small_plain")
def small_plain(ctx: Context) -> None:
    ctx.step("first", str)
