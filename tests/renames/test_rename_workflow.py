"""A workflow with another name: what is rewritten, and how old and new code go on with the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from durable import Context, Schedule, current_step, every, get_run, workflow
from durable.core import registry
from durable.core.errors import HoldError, RunNotFoundError
from durable.core.names.renames import Alias, Aliases, AliasKind, in_force, names_of_workflow
from durable.core.records import HoldKind
from durable.definitions import Workflow
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.inspection.runs import RunCriteria, list_runs
from durable.inspection.selection import Filtered
from durable.migrations import RenameStep, RenameWorkflow
from durable.models import Child, Failure, HeldStart, Hold, RenamedName, Rollup, RollupProgress, Run, RunKey, SavedView
from durable.operations.bulk import BulkOrder, perform_page
from durable.operations.common import workflow_named
from durable.operations.holds import hold_starts, release_starts
from durable.operations.schedules.sync import differences, synchronise
from durable.operations.schedules.tick import tick_due
from durable.renames.rewriting import RenameRefused
from durable.retention import Policy, Pruner
from tests.renames.conftest import apply, due, go_on, locations, unapply
from tests.replay_check.conftest import NAME, Deploys
from tests.support.locks import other_session
from tests.support.stores import passed

NEW = "gate.fulfil"
RENAME = RenameWorkflow(NAME, NEW, wait=0)


class Shop:
    """A workflow that charges once and waits, and the idempotency keys under which it has."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def charge(self) -> str:
        self.keys.append(current_step().idempotency_key)
        return "payment"

    def order(self, ctx: Context, amount: int = 1) -> float:
        drawn = ctx.random.random()
        ctx.step("charge", self.charge)
        ctx.sleep("cool off", "1 day")
        return drawn


@pytest.fixture
def shop() -> Shop:
    return Shop()


def name_of(run_id: str = "order-1") -> str:
    return Run.objects.get(pk=run_id).workflow


# -- runs


@pytest.mark.parametrize("name", [NAME, NEW])
def test_code_of_either_name_goes_on_with_a_rewritten_run(deploys: Deploys, shop: Shop, name: str) -> None:
    deploys.deploy(shop.order).start()
    apply(RENAME)
    assert name_of() == NEW
    deploys.deploy(shop.order, name)
    assert deploys.goes_on()
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


@pytest.mark.parametrize(("before", "after"), [(NAME, NEW), (NEW, NAME)])
def test_code_of_either_name_goes_on_with_a_run_that_the_other_has_started_since(
    deploys: Deploys, shop: Shop, before: str, after: str
) -> None:
    apply(RENAME)
    deploys.deploy(shop.order, before).start()
    assert name_of() == before
    deploys.deploy(shop.order, after)
    assert deploys.goes_on()
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


def test_a_worker_that_does_not_know_of_the_rename_learns_of_it_in_the_pass(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    apply(RENAME, is_known=False)
    assert go_on(deploys) == "completed"
    assert len(shop.keys) == 1


def test_a_name_that_no_code_has_waits_for_other_code(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    apply(RenameWorkflow("gate.other", "gate.another"))
    Run.objects.update(workflow="gate.another")
    due()
    passed(deploys.at, "order-1")
    assert Run.objects.get().state == "sleeping"
    assert "gate.another" in get_run("order-1").summary


def test_the_reverse_gives_runs_the_old_name_and_both_go_on_to_fit(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    deploys.start(id="order-2")
    apply(RENAME)
    unapply(RENAME)
    assert name_of() == NAME
    assert go_on(deploys) == "completed"
    deploys.deploy(shop.order, NEW)
    assert go_on(deploys, "order-2") == "completed"
    apply(RENAME)
    assert name_of() == NEW
    assert RenamedName.objects.count() == 1


def test_the_reverse_of_what_was_never_applied_changes_nothing(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order, NEW).start()
    unapply(RENAME)
    assert name_of() == NEW
    assert not RenamedName.objects.exists()


def test_several_names_one_after_the_other(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    apply(RENAME)
    apply(RenameWorkflow(NEW, "gate.third", wait=0))
    assert name_of() == "gate.third"
    assert go_on(deploys) == "completed"
    apply(RenameWorkflow("gate.third", NAME, wait=0))
    assert name_of() == NAME


def test_a_later_migration_rewrites_what_old_code_has_started_since(deploys: Deploys, shop: Shop) -> None:
    apply(RENAME)
    deploys.deploy(shop.order).start()
    apply(RenameWorkflow(NAME, NEW))
    assert name_of() == NEW
    assert RenamedName.objects.count() == 1


def test_steps_that_were_renamed_before_and_after(deploys: Deploys, shop: Shop) -> None:
    def renamed(ctx: Context, amount: int = 1) -> float:
        drawn = ctx.random.random()
        ctx.step("pay", shop.charge)
        ctx.sleep("rest", "1 day")
        return drawn

    deploys.deploy(shop.order).start()
    apply(RenameStep(NAME, "charge", "pay", wait=0))
    apply(RENAME)
    deploys.start(id="order-2")  # by old code: under the old name
    apply(RenameStep(NEW, "cool off", "rest", wait=0))
    assert locations() == ["pay", "rest"]
    assert locations("order-2") == ["charge", "rest"]
    deploys.deploy(renamed, NEW)
    assert deploys.goes_on()
    assert deploys.goes_on(of="order-2")
    assert go_on(deploys) == "completed"
    assert go_on(deploys, "order-2") == "completed"
    assert len(shop.keys) == 2


def test_a_failure_is_of_the_workflow_under_its_new_name(deploys: Deploys) -> None:
    def fails(ctx: Context) -> None:
        ctx.step("charge", int, "x", max_retries=0)

    deploys.deploy(fails).start()
    apply(RENAME)
    assert Failure.objects.get().workflow == NEW
    get_run("order-1").recover()
    deploys.settle("order-1")
    assert Run.objects.get().state == "failed"


def test_what_is_still_to_be_applied_stays_in_force_while_code_looks_for_names(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order, NEW)
    with in_force(RENAME.renames):
        with pytest.raises(registry.UnknownWorkflowError):
            workflow_named("gate.nowhere")  # reads the table
        assert names_of_workflow(NAME) == (NAME, NEW)
    assert names_of_workflow(NAME) == (NAME,)


# -- starts and handles


def test_an_id_returns_the_run_of_the_other_name(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    apply(RENAME, is_known=False)
    assert deploys.code.using(id="order-1").start().is_new is False
    assert get_run("order-1", of=deploys.code).id == "order-1"
    deploys.deploy(shop.order, NEW)
    assert deploys.code.using(id="order-1").start().is_new is False


def test_a_run_of_another_workflow_is_none_of_this_one(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order).start()
    apply(RENAME)
    deploys.deploy(shop.order, "gate.other")
    with pytest.raises(RunNotFoundError):
        get_run("order-1", of=deploys.code)


@pytest.mark.usefixtures("db")
def test_a_start_by_the_other_name_finds_the_workflow(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order, NEW)
    with pytest.raises(registry.UnknownWorkflowError):
        workflow_named(NAME)
    apply(RENAME, is_known=False)
    assert workflow_named(NAME) is deploys.code


# -- keys


@pytest.mark.parametrize(("before", "after"), [(NAME, NEW), (NEW, NAME)])
def test_a_key_is_of_the_workflow_under_either_name(deploys: Deploys, shop: Shop, before: str, after: str) -> None:
    apply(RENAME)
    deploys.deploy(shop.order, before)
    first = deploys.code.using(key="customer-7").start()
    deploys.deploy(shop.order, after)
    assert deploys.code.using(key="customer-7").start().id == first.id
    found = deploys.code.open_run(key="customer-7")
    assert found is not None
    assert found.id == first.id
    third = deploys.code.using(key="customer-7", if_open="replace").start()
    assert third.is_new
    assert get_run(first.id).state == "cancelled"
    assert set(RunKey.objects.values_list("workflow", flat=True)) == {NAME}


def test_a_key_that_was_taken_before_the_migration(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order)
    first = deploys.code.using(key="customer-7").start()
    apply(RENAME)
    deploys.deploy(shop.order, NEW)
    assert deploys.code.using(key="customer-7").start().id == first.id
    get_run(first.id).cancel()
    assert deploys.code.using(key="customer-7").start().is_new


@pytest.fixture
def also() -> Iterator[Callable[[str, Callable[..., Any]], Workflow[Any, Any]]]:
    """Workflows beside the deployed one."""
    made: list[Workflow[Any, Any]] = []

    def declare(name: str, function: Callable[..., Any], **options: Any) -> Workflow[Any, Any]:
        made.append(workflow(name=name, **options)(function))
        return made[-1]

    yield declare
    for each in made:
        registry.registry.unregister(each)


def test_a_child_takes_the_key_of_the_workflow_under_either_name(deploys: Deploys, shop: Shop, also: Any) -> None:
    def parent(ctx: Context) -> str:
        try:
            ctx.start_child("order", shop_workflow.using(key="customer-7"))
        except Exception as error:
            return type(error).__name__
        ctx.sleep("wait", "1 day")
        return "started"

    apply(RENAME)
    shop_workflow = also(NEW, shop.order)
    deploys.deploy(parent, "gate.parent").start(id="first")
    child = Child.objects.get(parent="first").run
    assert child.workflow == NEW
    assert RunKey.objects.get().workflow == NAME
    old = also(NAME, shop.order)
    assert old.using(key="customer-7").start().id == child.id
    deploys.start(id="second")
    assert get_run("second").result() == "KeyConflictError"
    assert Run.objects.filter(workflow=NEW).count() == 1


# -- children


@pytest.mark.parametrize("kind", ["child", "start", "map"])
def test_a_parent_goes_on_with_children_that_it_has_started_under_the_other_name(
    deploys: Deploys, also: Any, kind: str
) -> None:
    def bill(ctx: Context, number: int) -> int:
        ctx.sleep("wait", "1 day")
        return number

    def parent(of: Any) -> Callable[[Context], Any]:
        def parent(ctx: Context) -> Any:
            if kind == "child":
                return ctx.child("bill", of, 1)
            if kind == "start":
                return ctx.start_child("bill", of, 1).result("paid")
            return ctx.map("bill", of, [(1,)]).outputs

        return parent

    old = also(NAME, bill)
    deploys.deploy(parent(old), "gate.parent").start(id="parent")
    apply(RENAME)
    registry.registry.unregister(old)
    deploys.deploy(parent(also(NEW, bill)), "gate.parent")
    assert deploys.goes_on(of="parent")
    child = Child.objects.get().run_id
    assert name_of(child) == NEW
    passed(deploys.at, child)
    assert go_on(deploys, child) == "completed"
    assert go_on(deploys, "parent") == "completed"
    assert get_run("parent").result() in (1, [1])
    assert Child.objects.count() == 1


# -- holds


def test_a_hold_is_of_both_names(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order)
    hold_starts(NAME)
    deploys.code.using(id="order-1").start()
    apply(RENAME, is_known=False)
    assert HeldStart.objects.get().workflow == NEW
    deploys.deploy(shop.order, NEW)
    deploys.code.using(id="order-2").start()
    assert get_run("order-2").state == "paused"
    with pytest.raises(HoldError):
        hold_starts(NEW)
    assert release_starts(NEW) == 2
    assert not Hold.objects.exists()
    hold_starts(NEW)  # an operator who sees the new name: old code starts runs meanwhile
    deploys.deploy(shop.order)
    deploys.code.using(id="order-3").start()
    assert get_run("order-3").state == "paused"
    assert set(Hold.objects.values_list("kind", "name")) == {(HoldKind.WORKFLOW, NAME), (HoldKind.WORKFLOW, NEW)}
    assert release_starts(NAME) == 1


# -- schedules


def test_the_schedule_of_the_code_keeps_what_operators_have_said(deploys: Deploys, shop: Shop, also: Any) -> None:
    old = also(NAME, shop.order, schedule=every("1 hour", args=[7]))
    synchronise()
    Schedule.objects.filter(name=NAME).update(paused=True, pause_reason="stocktaking", override_rule="every 2 hours")
    before = Schedule.objects.get(name=NAME)
    Schedule.objects.create(name="by hand", workflow=NAME, rule=every("1 day"))
    apply(RENAME)
    found = Schedule.objects.get(pk=before.pk)
    assert (found.name, found.workflow, found.paused, found.override_rule) == (NAME, NEW, True, "every 2 hours")
    assert Schedule.objects.get(name="by hand").workflow == NEW
    assert [each for each in differences() if each.name in (NAME, NEW)] == []  # an old checkout looks
    registry.registry.unregister(old)
    also(NEW, shop.order, schedule=every("1 hour", args=[7]))
    assert [each for each in synchronise() if each.name in (NAME, NEW)] == []
    unapply(RENAME)
    found = Schedule.objects.get(pk=before.pk)
    assert (found.name, found.workflow) == (NAME, NAME)
    assert [each for each in synchronise() if each.name in (NAME, NEW)] == []


@pytest.mark.parametrize("name", [NAME, NEW])
def test_a_timer_of_either_code_ticks_it_once(deploys: Deploys, shop: Shop, also: Any, name: str) -> None:
    old = also(NAME, shop.order, schedule=every("1 hour"))
    synchronise()
    past = timezone.now() - timedelta(seconds=5)
    Schedule.objects.filter(name=NAME).update(next_at=past, due_at=past)
    apply(RENAME, is_known=False)
    registry.registry.unregister(old)
    also(name, shop.order, schedule=every("1 hour"))
    tick_due(timezone.now())
    tick_due(timezone.now())
    [run] = Run.objects.all()
    assert run.workflow == NEW
    assert run.id.startswith(f"{NAME}@")  # as the runs of the moments before, so that none is started twice
    passed(deploys.at, run.id)
    assert len(shop.keys) == 1


# -- what else goes by the name


def test_the_list_of_either_name_has_the_runs_of_both(deploys: Deploys, shop: Shop) -> None:
    apply(RENAME)
    for number, name in enumerate([NAME, NEW, NAME]):
        deploys.deploy(shop.order, name).start(id=f"order-{number}")
    for name in (NAME, NEW):
        page = list_runs(RunCriteria(workflow=name), limit=2)
        assert [each.id for each in page.runs] == ["order-2", "order-1"]
        rest = list_runs(RunCriteria(workflow=name), cursor=page.next_cursor, limit=2)
        assert [each.id for each in rest.runs] == ["order-0"]
    assert not list_runs(RunCriteria(workflow="gate.other")).runs


def test_a_bulk_under_way_finds_the_runs_under_their_new_name(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order)
    for number in range(3):
        deploys.start(id=f"order-{number}")
    selection = Filtered(RunCriteria(workflow=NAME))
    order = BulkOrder(
        verb="cancel", selection=selection, options={}, reason="", source="code", user=None, label="", total=3
    )
    done, cursor = perform_page(order, None, limit=1)
    apply(RENAME, is_known=False)
    more, _ = perform_page(order, cursor)
    assert {each.run_id for each in [*done, *more]} == {"order-0", "order-1", "order-2"}
    assert set(Run.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.parametrize("exception", [NAME, NEW])
def test_retention_keeps_what_is_to_be_kept_under_either_name(deploys: Deploys, shop: Shop, exception: str) -> None:
    deploys.deploy(shop.order).start()
    get_run("order-1").cancel()
    long_ago = timezone.now() - timedelta(days=400)
    Run.objects.update(created_at=long_ago, finished_at=long_ago)
    apply(RENAME, is_known=False)
    policy = Policy.of({"cancelled": 60, "workflows": {exception: None}})
    assert sum(each.runs for each in Pruner(policy, "default").batches(timezone.now())) == 0
    assert sum(each.runs for each in Pruner(Policy.of({"cancelled": 60}), "default").batches(timezone.now())) == 1


def test_figures_of_ended_runs_are_added(deploys: Deploys) -> None:
    now = timezone.now()
    RollupProgress.objects.create(pk=1, until=now)

    def row(workflow: str, begins: Any, number: int) -> None:
        Rollup.objects.create(
            workflow=workflow,
            width=60,
            begins=begins,
            completed=number,
            failed=1,
            durations={"3": number, str(number): 1},
        )

    row(NAME, now, 5)
    row(NAME, now - timedelta(minutes=1), 7)
    apply(RENAME)
    row(NAME, now, 2)  # of a run that old code has started since
    apply(RENAME)
    found = {each.begins: (each.completed, each.failed, each.durations) for each in Rollup.objects.all()}
    assert set(Rollup.objects.values_list("workflow", flat=True)) == {NEW}
    assert found == {
        now: (7, 2, {"3": 7, "5": 1, "2": 1}),
        now - timedelta(minutes=1): (7, 1, {"3": 7, "7": 1}),
    }


def test_saved_views_filter_by_the_new_name(deploys: Deploys) -> None:
    now = timezone.now()
    views = {
        "a": f"state=failed&workflow={NAME}",
        "b": "workflow=gate.other",
        "c": f"q={NAME}",
        "d": f"workflow={NAME}x",
    }
    for name, query in views.items():
        SavedView.objects.create(name=name, query=query, owner_key="1", created_at=now)
    apply(RENAME)
    found = dict(SavedView.objects.values_list("name", "query"))
    assert found == {**views, "a": f"state=failed&workflow={NEW}"}


# -- refused


def test_a_name_that_runs_have_is_refused(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order, NEW).start(id="taken")
    with pytest.raises(RenameRefused, match=r'the workflow of the run "taken" has the name "gate\.fulfil" already'):
        apply(RENAME)
    assert not RenamedName.objects.exists()


@pytest.mark.usefixtures("db")
def test_a_name_that_a_schedule_has_is_refused(deploys: Deploys) -> None:
    Schedule.objects.create(name="nightly", workflow=NEW, rule=every("1 day"))
    with pytest.raises(RenameRefused, match='the workflow of the schedule "nightly" has the name'):
        apply(RENAME)


@pytest.mark.usefixtures("db")
def test_a_name_of_another_renamed_workflow_is_refused(deploys: Deploys) -> None:
    apply(RENAME)
    for taken in (NAME, NEW):
        with pytest.raises(RenameRefused, match=f'"{taken}" is a name of the workflow "{NAME}", which was renamed'):
            apply(RenameWorkflow("gate.other", taken))
    assert RenamedName.objects.count() == 1


def test_many_runs_in_an_atomic_migration_are_refused(deploys: Deploys) -> None:
    now = timezone.now()
    Run.objects.bulk_create(
        Run(id=f"run-{number}", workflow=NAME, queue="default", input="{}", created_at=now) for number in range(501)
    )
    with pytest.raises(RenameRefused, match="atomic = False"):
        apply(RENAME)
    assert not RenamedName.objects.exists()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (NAME, NAME, "is the name already"),
        (NAME, "durable.bulk", "a name of durable itself"),
        (NAME, "x" * 201, "at most 200 characters"),
        (NAME, "", "is given by its name"),
    ],
)
def test_what_are_no_two_names_is_refused_when_the_file_is_read(old: str, new: str, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        RenameWorkflow(old, new)


def test_the_oldest_name_stands_for_all() -> None:
    def renamed(old: str, new: str) -> Alias:
        return Alias(AliasKind.WORKFLOW, old, new)

    names = Aliases([renamed("a", "b"), renamed("x", "y"), renamed("b", "c"), renamed("c", "a")])
    assert names.names("b") == ("a", "b", "c")
    assert [names.first(each) for each in ("a", "b", "c", "y", "other")] == ["a", "a", "a", "x", "other"]
    assert names.is_same("c", "a")
    assert not names.is_same("c", "x")
    with pytest.raises(ValueError, match='"y" is a name of the workflow "x"'):
        names.add(renamed("c", "y"))


# -- locks


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_run_whose_row_is_locked_keeps_the_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    now = timezone.now()
    for number in range(3):
        Run.objects.create(
            id=f"order-{number}", workflow=NAME, queue="default", input="{}", state="paused", created_at=now
        )
    with psycopg.connect(**other_session()) as other:
        other.execute("SELECT 1 FROM durable_run WHERE id = 'order-1' FOR UPDATE")
        apply(RENAME)
        assert dict(Run.objects.values_list("id", "workflow")) == {"order-0": NEW, "order-1": NAME, "order-2": NEW}
    assert "1 run that other transactions have locked keeps the old name" in capsys.readouterr().out
    apply(RENAME)
    assert set(Run.objects.values_list("workflow", flat=True)) == {NEW}


def test_a_worker_that_has_the_run_writes_it_as_ever(deploys: Deploys, shop: Shop) -> None:
    deploys.deploy(shop.order)
    deploys.code.using(id="order-1").start()
    now = timezone.now()
    claimed = deploys.at.store.claim_run("order-1", now=now, lease_until=now + timedelta(minutes=1), worker="test")
    assert claimed is not None
    apply(RENAME)
    execute_pass(claimed, store=deploys.at.store, eviction=Eviction(), at=deploys.at)
    assert (name_of(), Run.objects.get().state) == (NEW, "sleeping")
    assert len(shop.keys) == 1
