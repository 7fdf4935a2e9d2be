"""One verb on many runs: counted, done at once or by a run in the background, each run decided by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.test.utils import CaptureQueriesContext

from durable import Context, Handle, get_run, workflow, workflows
from durable.core.records import ActionRecord, EntryKind, EntryRecord, RunChange
from durable.errors import BulkCountError, BulkNotStoppedError, BulkOrderError, OperationDeniedError
from durable.inspection import selection
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.models import OperatorAction, Run
from durable.operations import Actor, acting_as, bulk, eligibility
from durable.operations.bulk_decisions import ago_on, astop_here
from durable.runtime import Runtime
from durable.testing import Harness, SimulatedCrash
from tests.operations.conftest import NOW
from tests.support.runs import stored_runs
from tests.support.stores import in_force, passed

ROOT = Actor("admin", User(username="root", is_superuser=True))


@workflow(name="tests.bulk.waiting")
def waiting(ctx: Context) -> None:
    ctx.queue.next("wait", ["mail"])


def started(count: int) -> list[str]:
    """Runs r000, r001, ..., none of them passed yet."""
    ids = [f"r{number:03}" for number in range(count)]
    waiting.start_many([()] * count, ids=ids)
    return ids


def states(ids: list[str]) -> list[str]:
    return [get_run(each).state for each in ids]


# -- counting


def test_how_many_a_verb_is_for(h: Harness) -> None:
    ids = started(30)
    for each in ids[:12]:
        get_run(each).pause()
    found = bulk.eligible("resume", [*ids, "missing"])
    assert (found.count, found.is_capped) == (12, False)
    assert found.left_alone == (("pending", 18), ("", 1))
    assert found.shown == tuple(ids[:10])
    assert bulk.eligible("recover", ids).count == 0
    assert bulk.eligible("cancel", ids).count == 30


def test_counting_stops_at_the_cap(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eligibility, "MAX_COUNTED", 25)
    found = bulk.eligible("pause", started(30))
    assert (found.count, found.is_capped, str(found)) == (25, True, "more than 25")
    assert str(bulk.eligible("pause", started(25))) == "25"


def test_the_runs_of_a_filter_are_counted_in_the_states_that_the_verb_allows(db: None) -> None:
    stored_runs(900, "pending")
    stored_runs(160, "paused", "refunds")
    stored_runs(1_100, "completed", minutes=5)  # newer than all that can be cancelled
    with in_force():
        found = bulk.eligible("cancel", Filtered(RunCriteria()))
    assert (found.count, found.is_capped) == (1_060, False)
    assert found.by_workflow == (("orders", 900), ("refunds", 160))
    assert found.left_alone == (("completed", 1_100),)
    assert len(found.shown) == 10


def test_a_count_of_a_filter_is_as_exact_as_it_says(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_runs(30, "pending")
    stored_runs(10, "pending", "refunds", minutes=5)
    stored_runs(7, "completed", "refunds", minutes=5)
    refunds, orders = (Filtered(RunCriteria(workflow=each)) for each in ("refunds", "orders"))
    with in_force():
        assert str(bulk.eligible("cancel", refunds)) == "10"
        assert bulk.eligible("cancel", refunds).left_alone == (("completed", 7),)
        assert str(bulk.eligible("cancel", Filtered(RunCriteria(states=frozenset({"completed"}))))) == "0"
        monkeypatch.setattr(selection, "EXAMINED", 20)
        assert str(bulk.eligible("cancel", orders)) == "at least 10"
        monkeypatch.setattr(eligibility, "MAX_COUNTED", 25)
        assert str(bulk.eligible("cancel", Filtered(RunCriteria(states=frozenset({"pending"}))))) == "more than 25"
        assert str(bulk.eligible("cancel", Filtered(RunCriteria(id_prefix="pending-refunds")))) == "10"


def test_another_number_than_expected_is_refused(at: Runtime) -> None:
    ids = started(3)
    with pytest.raises(BulkCountError, match="expected to act on 4 runs, and 3 allow it now"):
        bulk.apply("cancel", ids, expected=4)
    with pytest.raises(BulkCountError):
        bulk.apply("cancel", ids, expected=4, in_background=True)
    assert states(ids) == ["pending"] * 3
    assert bulk.apply("cancel", ids, expected=3).done == 3


def test_a_grave_verb_needs_a_filter(db: None) -> None:
    with in_force():
        ids = started(2)
        with pytest.raises(ValueError, match="choose a workflow or a state first"):
            bulk.apply("cancel", Filtered(RunCriteria()))
        assert bulk.apply("pause", Filtered(RunCriteria())).run_id is not None
        assert states(ids) == ["pending"] * 2


def test_counting_costs_one_query_for_two_hundred_runs(db: None) -> None:
    with in_force() as at:
        ids = started(250)
        with CaptureQueriesContext(connection_of(at)) as queries:
            assert bulk.eligible("pause", ids).count == 250
        assert len(queries) == 2


def connection_of(at: Runtime) -> Any:
    from django.db import connections

    return connections[at.store.alias]  # type: ignore[attr-defined]  # a store on a database


# -- at once


def test_each_run_is_decided_by_itself(h: Harness) -> None:
    ids = started(4)
    get_run(ids[1]).cancel()
    h._store._actions.clear()
    with acting_as(ROOT, reason="deploy"):
        report = bulk.apply("pause", [*ids, "missing", ids[0]], as_id="b1")
    assert (report.run_id, report.bulk_id) == (None, "b1")
    assert report.done == 3
    assert [(each.run_id, each.outcome) for each in report.refused] == [("r001", "refused"), ("missing", "missing")]
    assert "cannot pause a run that is cancelled" in report.refused[0].detail
    assert states(ids) == ["paused", "cancelled", "paused", "paused"]
    head, *rest = h.actions
    assert (head.run_id, head.action, head.reason, head.detail, head.bulk_id) == (
        "b1",
        "pause",
        "deploy",
        "pause 5 runs",
        "",
    )
    assert {row.bulk_id for row in rest} == {"b1"}
    rows = [(row.run_id, row.action, row.outcome, row.reason) for row in rest]
    assert rows == [
        ("r000", "pause", "done", "deploy"),
        ("r001", "pause", "refused", "deploy"),
        ("r002", "pause", "done", "deploy"),
        ("r003", "pause", "done", "deploy"),
        ("missing", "pause", "missing", "deploy"),
    ]


def test_options_are_the_verbs_own(h: Harness) -> None:
    ids = started(1)
    bulk.apply("cancel", ids, rollback=True)
    assert states(ids) == ["cancelled"]
    with pytest.raises(TypeError, match="pause has no option 'rollback'"):
        bulk.apply("pause", ids, rollback=True)
    for verb in ("delete", "restart"):
        with pytest.raises(ValueError, match=f"unknown verb '{verb}'; choose from cancel, "):
            bulk.apply(verb, ids)
    with pytest.raises(TypeError, match=r"write \['r000'\]"):
        bulk.apply("pause", "r000")
    with pytest.raises(TypeError, match=r"write \[run.id for run in ...\]"):
        bulk.eligible("pause", [get_run("r000")])  # type: ignore[list-item]


@pytest.mark.parametrize("count", [2, 200])
def test_without_the_permission_nothing_begins(h: Harness, count: int) -> None:
    ids = started(count)
    with acting_as(Actor("admin", AnonymousUser())), pytest.raises(OperationDeniedError):
        bulk.apply("cancel", ids)
    assert set(states(ids)) == {"pending"}
    assert len(h._store._runs) == count
    [row] = h.actions
    assert (row.action, row.outcome) == ("cancel", "denied")


# -- in the background


@pytest.fixture
def olga(db: None) -> User:
    user = User.objects.create_user("olga")
    user.user_permissions.add(Permission.objects.get(codename="operate_run"))
    return user


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 4)
    monkeypatch.setattr(bulk, "PAGE", 3)


def background(report: bulk.BulkReport) -> Handle:
    assert report.run_id is not None
    assert report.results == ()
    return get_run(report.run_id)


@pytest.mark.usefixtures("small_pages")
def test_many_runs_are_done_by_a_run(at: Runtime, olga: User) -> None:
    ids = started(8)
    get_run(ids[4]).cancel()
    OperatorAction.objects.all().delete()
    with acting_as(Actor("admin", olga), reason="deploy"):
        run = background(bulk.apply("pause", ids))
    assert (run.workflow, run.state) == ("durable.bulk", "pending")
    assert set(states(ids)) == {"pending", "cancelled"}
    passed(at, run.id)
    assert (run.state, run.result()["done"], run.result()["refused"]) == ("completed", 7, 1)
    [refusal] = run.result()["refusals"]
    assert refusal[:2] == ["r004", "refused"]
    assert states(ids) == ["paused"] * 4 + ["cancelled"] + ["paused"] * 3
    rows = OperatorAction.objects.order_by("run_id").values_list(
        "actor", "source", "action", "run_id", "outcome", "reason"
    )
    assert sorted(rows) == [
        (olga.pk, "admin", "pause", run.id, "done", "deploy"),
        *((olga.pk, "admin", "pause", each, "refused" if each == "r004" else "done", "deploy") for each in ids),
    ]


@pytest.mark.usefixtures("small_pages")
def test_its_progress_is_that_of_a_loop(at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = started(8)
    run = background(bulk.apply("pause", ids))
    calls = []
    perform = bulk._one

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 5:  # in the second page
            run.pause()
        return perform(*args)

    monkeypatch.setattr(bulk, "_one", interrupted)
    passed(at, run.id)
    assert run.state == "paused"
    loop = next(each for each in run.history() if each.kind == "loop")
    assert {name: loop.data["state"][name] for name in ("done", "refused", "left")} in (
        {"done": 3, "refused": 0, "left": 5},
        {"done": 6, "refused": 0, "left": 2},
    )
    run.resume()
    passed(at, run.id)
    assert (run.state, run.result()["done"]) == ("completed", 8)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("loses", ["permission", "account", "activity"])
def test_the_permission_is_checked_again(at: Runtime, olga: User, loses: str) -> None:
    ids = started(8)
    with acting_as(Actor("admin", olga)):
        run = background(bulk.apply("pause", ids))
    if loses == "permission":
        olga.user_permissions.clear()
    elif loses == "account":
        olga.delete()
    else:
        User.objects.filter(pk=olga.pk).update(is_active=False)
    passed(at, run.id)
    assert (run.result()["done"], run.result()["refused"]) == (0, 8)
    assert set(states(ids)) == {"pending"}
    denied = OperatorAction.objects.get(outcome="denied")  # one row counts them
    assert " (7 more like it until " in denied.detail


def test_an_order_is_carried_out_only_in_the_name_of_its_user(h: Harness) -> None:
    ids = started(3)
    with acting_as(ROOT):
        run = background(bulk.apply("pause", ids, in_background=True))
    forged = bulk.BulkOrder(verb="cancel", selection=bulk.Ids(tuple(ids)), source="cli")
    other = Actor("api", User(username="eve", is_superuser=True))
    verbs: list[Callable[[], Any]] = [
        lambda: workflows.bulk.start(forged),
        run.restart,
        lambda: run.replay("runs"),
        lambda: run.replay("runs", in_place=True),
    ]
    h._store.change(run.id, lambda record, entries: RunChange(run={}, entries=[a_loop()]))
    for verb in verbs:
        with acting_as(other), pytest.raises(BulkOrderError, match="in the name, of the user who ordered it"):
            verb()
    assert [row.outcome for row in h.actions] == ["done"] + ["refused"] * 4
    assert len(h._store._runs) == 4


def a_loop() -> EntryRecord:
    return EntryRecord("runs", EntryKind.LOOP, 1, NOW, data={"iteration": 0, "state": "null", "pruned": 0})


@pytest.mark.usefixtures("small_pages")
def test_a_bulk_leaves_itself_alone(at: Runtime) -> None:
    ids = started(5)

    class Everything:
        total = None

        def page(self, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
            found = list(Run.objects.filter(id__gt=cursor or "").order_by("id").values_list("id", flat=True)[:limit])
            return found, found[-1] if len(found) == limit else None

    order = bulk.BulkOrder(verb="cancel", selection=Everything())
    with in_pass("r002"):
        results, cursor = bulk.perform_page(order, None)
        more, end = bulk.perform_page(order, cursor)
    assert [each.run_id for each in [*results, *more]] == ["r000", "r001", "r003", "r004"]
    assert end is None
    assert states(ids) == ["cancelled", "cancelled", "pending", "cancelled", "cancelled"]


@pytest.mark.usefixtures("small_pages")
def test_all_that_a_filter_describes(at: Runtime) -> None:
    ids = started(8)
    for each in ids[::2]:
        get_run(each).pause()
    wanted = RunCriteria(states=frozenset({"paused"}), workflow="tests.bulk.waiting", created_until=at.now())
    chosen = Filtered(wanted)
    waiting.using(id="later").start().pause()
    found = bulk.eligible("resume", chosen)
    assert (found.count, found.is_capped, set(found.shown)) == (4, False, set(ids[::2]))
    run = background(bulk.apply("resume", chosen))
    passed(at, run.id)
    assert (run.result()["done"], run.result()["refused"]) == (4, 0)
    assert set(states(ids)) == {"pending"}
    assert get_run("later").state == "paused"


def test_an_order_recorded_under_the_old_name_of_its_criteria_is_read(at: Runtime) -> None:
    chosen = Filtered(RunCriteria(states=frozenset({"paused"})))
    recorded = at.codec.encode(chosen)
    assert "durable.inspection.runs:RunCriteria" in recorded
    assert at.codec.decode(recorded.replace(":RunCriteria", ":RunFilter")) == chosen


def test_a_selection_that_finds_little_is_not_looked_through_to_its_end(h: Harness) -> None:
    class Sparse:
        total = None

        def page(self, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
            return [], str(int(cursor or 0) + 1)

    found = bulk.eligible("pause", Sparse())
    assert (found.count, found.is_capped) == (0, True)


def in_pass(run_id: str) -> Any:
    from durable.core.current import running_workflow

    return running_workflow(run_id)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.django_db
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_worker_that_dies_does_each_run_once(h: Harness, number: int, when: Any) -> None:
    ids = started(8)
    with acting_as(Actor("cli", label="ops")):
        run = background(bulk.apply("wake", ids))
    with h.crash_at(number, when), suppress(SimulatedCrash):
        h.run(run)
    while run.state != "completed":
        h.run(run)
    assert (run.result()["done"], run.result()["refused"]) == (8, 0)
    assert woken(h.actions) == ids


def woken(rows: list[ActionRecord]) -> list[str]:
    return [row.run_id for row in rows if row.action == "wake" and row.run_id.startswith("r")]


async def test_the_twins_of_async_code(h: Harness) -> None:
    ids = started(3)
    assert (await bulk.aeligible("pause", ids)).count == 3
    with acting_as(ROOT, reason="from a view"):
        report = await bulk.aapply("pause", ids, expected=3)
    assert (report.done, states(ids)) == (3, ["paused"] * 3)
    with pytest.raises(BulkCountError):
        await bulk.aapply("pause", ids, expected=3)
    with pytest.raises(TypeError, match="no option"):
        await bulk.aapply("resume", ids, end_sleeps=True)
    with pytest.raises(BulkNotStoppedError):
        await ago_on(ids[0])
    with pytest.raises(BulkNotStoppedError):
        await astop_here(ids[0])
