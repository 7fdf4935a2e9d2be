"""A bulk with a canary and a rate: its first runs decide whether it goes on, and a crash neither skips nor repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User

from durable import Context, Handle, get_run, workflow
from durable.errors import BulkNotStoppedError, BulkOrderError, OperationDeniedError
from durable.inspection.bulks import find_bulk
from durable.operations import Actor, acting_as, bulk
from durable.operations.bulk_decisions import Canary, go_on, stop_here
from durable.runtime import Runtime
from durable.testing import Harness, SimulatedCrash
from tests.operations.conftest import NOW
from tests.support.stores import passed

pytestmark = pytest.mark.django_db

broken: set[str] = set()
calls: list[str] = []


def charge(run_id: str) -> str:
    calls.append(run_id)
    if run_id in broken:
        raise RuntimeError("bank is away")
    return "paid"


@workflow(name="tests.canary.order")
def order(ctx: Context) -> None:
    ctx.step("charge", charge, ctx.run_id, max_retries=0)


@workflow(name="tests.canary.retrying")
def retrying(ctx: Context) -> None:
    ctx.step("charge", charge, ctx.run_id, max_retries=1, retry_backoff_base=3600, retry_backoff_max=3600)


@workflow(name="tests.canary.waiting")
def waiting(ctx: Context) -> None:
    ctx.step("charge", charge, ctx.run_id, max_retries=0)
    ctx.queue.next("wait", ["mail"])


@pytest.fixture(autouse=True)
def _nothing_broken() -> Iterator[None]:
    yield
    broken.clear()
    calls.clear()


def failed_runs(h: Harness, count: int, of: Any = order) -> list[str]:
    ids = [f"r{number:02}" for number in range(count)]
    broken.update(ids)
    of.start_many([()] * count, ids=ids)
    h.settle()
    h.advance("2 hours")
    h.settle()
    broken.clear()
    calls.clear()
    assert states(ids) == {"failed"}
    return ids


def states(ids: list[str]) -> set[str]:
    return {str(get_run(each).state) for each in ids}


def began(ids: list[str], **options: Any) -> Handle:
    with acting_as(Actor("cli", label="ops"), reason="bank is back"):
        report = bulk.apply("recover", ids, **options)
    assert report.run_id is not None
    return get_run(report.run_id)


def progress(run: Handle) -> dict[str, Any]:
    return dict(next(each for each in run.history() if each.kind == "loop").data["state"])


def recovered(h: Harness) -> list[str]:
    return [row.run_id for row in h.actions if row.action == "recover" and row.bulk_id and row.outcome == "done"]


def settle(h: Harness, *, seconds: int = 0) -> None:
    """Let all due runs go on, for so long on the virtual clock."""
    h.settle()
    for _ in range(seconds):
        h.advance("1 s")
        h.settle()


# -- the canary


def test_a_canary_that_succeeds_lets_the_bulk_go_on(h: Harness) -> None:
    ids = failed_runs(h, 12)
    run = began(ids, canary=Canary(first=5, stop_after=3))
    h.run(run)
    assert recovered(h) == ids[:5]
    assert states(ids[5:]) == {"failed"}
    settle(h, seconds=3)
    assert (run.state, run.result()["done"]) == ("completed", 12)
    assert states(ids) == {"completed"}
    assert sorted(calls) == ids


def test_a_look_that_was_recorded_before_its_class_moved_is_read(h: Harness) -> None:
    ids = failed_runs(h, 12)
    run = began(ids, canary=Canary(first=5))
    h.run(run)
    entries = h._store._entries[run.id]
    [look] = [each for each in entries.values() if each.location.endswith("/look")]
    assert look.output is not None
    before = look.output.replace("durable.operations.bulk_decisions:CanaryLook", "durable.operations.canary:CanaryLook")
    assert before != look.output
    entries[look.location] = replace(look, output=before)
    settle(h, seconds=3)
    assert (run.state, run.result()["done"]) == ("completed", 12)


def test_a_stopped_bulk_goes_on_with_another_canary(h: Harness) -> None:
    ids = failed_runs(h, 12)
    broken.update(ids[:5])
    run = began(ids, canary=Canary(first=5, stop_after=1))
    settle(h, seconds=3)
    broken.update(ids[5:10])
    for tried in (5, 10):
        assert progress(run)["phase"] == "stopped"
        assert recovered(h) == ids[:tried]
        go_on(run.id, canary=True)
        settle(h, seconds=3)
    assert (run.state, run.result()["done"]) == ("completed", 12)  # the third canary had the last two, which went well
    assert [row.detail for row in h.actions if row.action == "go_on"] == ["with another canary"] * 2


def test_a_canary_that_fails_stops_the_bulk(h: Harness) -> None:
    ids = failed_runs(h, 12)
    broken.update(ids[:3])
    run = began(ids, canary=Canary(first=5, stop_after=3))
    settle(h, seconds=3)
    assert run.state == "sleeping"
    assert recovered(h) == ids[:5]
    assert {name: progress(run)[name] for name in ("phase", "done", "left", "again", "open")} == {
        "phase": "stopped",
        "done": 5,
        "left": 7,
        "again": 3,
        "open": 0,
    }
    settle(h, seconds=60)
    assert recovered(h) == ids[:5]  # it waits for a person, for however long


def test_fewer_failures_than_were_allowed_do_not_stop_it(h: Harness) -> None:
    ids = failed_runs(h, 12)
    broken.update(ids[:2])
    run = began(ids, canary=Canary(first=5, stop_after=3))
    settle(h, seconds=3)
    assert (run.state, run.result()["done"]) == ("completed", 12)


def test_it_goes_on_with_the_rest(h: Harness) -> None:
    ids = failed_runs(h, 8)
    broken.update(ids[:3])
    run = began(ids, canary=Canary(first=3, stop_after=3))
    settle(h, seconds=3)
    with acting_as(Actor("cli", label="ops"), reason="those three are known"):
        go_on(run.id)
    settle(h)
    assert (run.state, run.result()["done"]) == ("completed", 8)
    assert recovered(h) == ids
    row = next(row for row in h.actions if row.action == "go_on")
    assert (row.run_id, row.outcome, row.reason) == (run.id, "done", "those three are known")


def test_it_stops_there(h: Harness) -> None:
    ids = failed_runs(h, 8)
    broken.update(ids[:3])
    run = began(ids, canary=Canary(first=3, stop_after=1))
    settle(h, seconds=3)
    stop_here(run.id)
    settle(h)
    assert run.state == "completed"
    assert run.result() == {"done": 3, "refused": 0, "refusals": [], "stopped": True, "left": 5}
    assert recovered(h) == ids[:3]
    with pytest.raises(BulkNotStoppedError, match="taken up again"):
        go_on(run.id)


def test_a_decision_is_taken_once(h: Harness) -> None:
    ids = failed_runs(h, 4)
    broken.update(ids)
    run = began(ids, canary=Canary(first=2))
    with pytest.raises(BulkNotStoppedError):
        go_on(run.id)  # it has not begun
    settle(h, seconds=3)
    stop_here(run.id)
    for decide in (go_on, stop_here):
        with pytest.raises(BulkNotStoppedError):
            decide(run.id)
    settle(h)
    assert run.result()["left"] == 2
    with pytest.raises(BulkNotStoppedError, match=r"a run of tests\.canary\.order"):
        go_on(ids[0])


def test_a_message_decides_nothing(h: Harness) -> None:
    ids = failed_runs(h, 4)
    broken.update(ids)
    run = began(ids, canary=Canary(first=2))
    settle(h, seconds=3)
    with pytest.raises(BulkOrderError):
        run.send("decision", True)


def test_runs_that_are_still_tried_again_stop_it_at_its_time_limit(h: Harness) -> None:
    ids = failed_runs(h, 4, retrying)
    broken.update(ids)
    run = began(ids, canary=Canary.of(2, within="5 min"))
    settle(h, seconds=299)
    assert progress(run)["phase"] == "watch"
    settle(h, seconds=20)
    assert {name: progress(run)[name] for name in ("phase", "again", "open")} == {
        "phase": "stopped",
        "again": 0,
        "open": 2,
    }


def test_a_run_that_waits_for_a_message_has_come_to_something(h: Harness) -> None:
    ids = failed_runs(h, 4, waiting)
    run = began(ids, canary=Canary(first=2))
    settle(h, seconds=3)
    assert (run.state, states(ids)) == ("completed", {"sleeping"})


def test_refused_runs_are_no_canary(h: Harness) -> None:
    ids = failed_runs(h, 6)
    for each in ids[:2]:
        get_run(each).recover()
    h.settle()
    broken.update(ids[2:])
    run = began(ids, canary=Canary(first=2))
    settle(h, seconds=3)
    assert recovered(h) == ids[2:4]
    assert progress(run)["refused"] == 2


def test_few_runs_are_all_canary(h: Harness) -> None:
    ids = failed_runs(h, 2)
    broken.update(ids)
    run = began(ids, canary=Canary(first=5))
    settle(h, seconds=3)
    assert (run.state, run.result()["done"]) == ("completed", 2)


@pytest.mark.parametrize(
    "bad", [{"first": 0}, {"first": 101}, {"first": 2, "stop_after": 3}, {"stop_after": 0}, {"within": 0}]
)
def test_a_canary_says_what_is_wrong_with_it(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"canary of a bulk|bulk stops after"):
        Canary(**bad)


@pytest.mark.parametrize("rate", [0, -1, 1_001, float("nan")])
def test_a_rate_is_a_number_of_runs_a_second(h: Harness, rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate of a bulk is 0\.001 to 1,000 runs a second"):
        bulk.apply("recover", ["r"], rate=rate)
    with pytest.raises(ValueError, match="in the background"):
        bulk.apply("recover", ["r"], rate=1, in_background=False)


# -- who may decide


def test_the_decision_needs_the_permission(h: Harness) -> None:
    ids = failed_runs(h, 4)
    broken.update(ids)
    run = began(ids, canary=Canary(first=2))
    settle(h, seconds=3)
    for decide in (go_on, stop_here):
        with acting_as(Actor("admin", AnonymousUser())), pytest.raises(OperationDeniedError):
            decide(run.id)
    assert progress(run)["phase"] == "stopped"
    olga = User.objects.create_user("olga")
    olga.user_permissions.add(Permission.objects.get(codename="operate_run"))
    with acting_as(Actor("admin", olga)):
        go_on(run.id)


# -- the rate


def test_a_rate_is_kept(h: Harness) -> None:
    ids = failed_runs(h, 23)
    run = began(ids, rate=5)
    settle(h, seconds=3)
    assert len(recovered(h)) == 20
    settle(h, seconds=3)
    assert run.state == "completed"
    assert most_in_a_second(h) == 5


def test_a_rate_below_one_a_second_is_kept(h: Harness) -> None:
    ids = failed_runs(h, 3)
    began(ids, rate=0.1)
    settle(h, seconds=19)
    assert len(recovered(h)) == 2
    settle(h, seconds=2)
    assert len(recovered(h)) == 3


def most_in_a_second(h: Harness) -> int:
    moments = [row.created_at for row in h.actions if row.action == "recover" and row.bulk_id]
    return max(sum(begin <= each < begin + timedelta(seconds=1) for each in moments) for begin in moments)


# -- crashes


def driven(h: Harness, run: Handle, ids: list[str]) -> None:
    """Finish the bulk: a person decides that it goes on."""
    for _ in range(60):
        h.settle()
        if run.state == "completed":
            return
        with suppress(BulkNotStoppedError):
            go_on(run.id)
        h.advance("1 s")
    raise AssertionError(f"not completed: {run.state}, {states(ids)}")


def undisturbed(h: Harness) -> int:
    """Do the bulk of the crash tests without a crash; return its number of commits."""
    before = h.commits
    ids = failed_runs(h, 9)
    before = h.commits
    broken.update(ids[:2])
    driven(h, began(ids, canary=Canary(first=3, stop_after=2), rate=2), ids)
    return h.commits - before


def crashes(count: int) -> Iterator[tuple[int, Any]]:
    return ((number, when) for number in range(1, count + 1) for when in ("before", "after"))


@pytest.mark.slow
def test_a_crash_at_any_commit_neither_skips_nor_repeats_a_run() -> None:
    with Harness(now=NOW) as h:
        commits = undisturbed(h)
    assert commits > 20
    for number, when in crashes(commits):
        broken.clear()
        calls.clear()
        with Harness(now=NOW, quiet=True) as h:
            ids = failed_runs(h, 9)
            broken.update(ids[:2])
            run = began(ids, canary=Canary(first=3, stop_after=2), rate=2)
            with h.crash_at(number, when), suppress(SimulatedCrash):
                driven(h, run, ids)
            driven(h, run, ids)
            assert recovered(h) == ids, (number, when)
            assert (run.result()["done"], run.result()["refused"]) == (9, 0), (number, when)
            assert most_in_a_second(h) <= 2, (number, when)


# -- on the stores of a database


def until(condition: Callable[[], bool], *steps: Callable[[], Any]) -> None:
    for _ in range(50):
        if condition():
            return
        for each in steps:
            each()
    raise AssertionError("it never came to that")


def test_a_canary_on_a_database(at: Runtime) -> None:
    ids = [f"r{number}" for number in range(6)]
    broken.update(ids)
    order.start_many([()] * 6, ids=ids)
    for each in ids:
        passed(at, each)
    broken.discard(ids[1])
    run = began(ids, canary=Canary(first=2, stop_after=1))
    passed(at, run.id)
    assert states(ids[:2]) == {"pending"}
    assert states(ids[2:]) == {"failed"}
    for each in ids[:2]:
        passed(at, each)
    until(
        lambda: progress(run)["phase"] == "stopped",
        lambda: get_run(run.id).wake(end_sleeps=True),
        lambda: passed(at, run.id),
    )
    assert progress(run)["again"] == 1
    broken.clear()
    go_on(run.id)
    passed(at, run.id)
    assert (run.state, run.result()["done"]) == ("completed", 6)
    assert states(ids[2:]) == {"pending"}


# -- replays


def test_the_failed_runs_of_a_bulk_are_replayed_as_new_runs(at: Runtime) -> None:
    ids = [f"r{number}" for number in range(3)]
    broken.update(ids)
    order.start_many([()] * 3, ids=ids)
    waiting.using(id="waits").start()
    for each in [*ids, "waits"]:
        passed(at, each)
    with acting_as(Actor("cli", label="ops")):
        report = bulk.apply("replay", [*ids, "waits"], as_id="once")
        again = bulk.apply("replay", ids, as_id="once")
    assert [each.outcome for each in report.results] == ["done", "done", "done", "refused"]
    made = [each.new_id for each in report.results if each.new_id]
    assert [each.new_id for each in again.results] == made  # twice is once
    assert states(ids) == {"failed"}
    for old, new in zip(ids, made, strict=True):
        assert get_run(new).info().replay_of_id == old
    broken.update(made)
    for each in made[:2]:
        passed(at, each)
    found = find_bulk("once")
    assert found is not None
    assert (found.done.number, str(found.again)) == (6, "2")


def test_a_canary_watches_the_new_runs(h: Harness) -> None:
    ids = failed_runs(h, 4)
    calls.clear()
    report = bulk.apply("replay", ids, canary=Canary(first=2))
    assert report.run_id is not None
    run = get_run(report.run_id)
    h.run(run)
    tried = progress(run)["tried"]
    assert all(each.startswith(f"{run.id}-") for each in tried)
    broken.update(tried)
    settle(h, seconds=3)
    assert {name: progress(run)[name] for name in ("phase", "again")} == {"phase": "stopped", "again": 2}
