"""Saves that start runs, and deletions that cancel them: in one transaction, in each kind of deletion."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from durable import Context, get_run, triggers, workflow
from durable.models import OperatorAction, Run
from durable.operations.audit import Actor, acting_as
from durable.runtime import Runtime
from durable.testing import Harness
from durable.testing.muting import RunsInMemoryError
from project.shop.models import Review
from tests.subjects.conftest import Orders
from tests.support.stores import passed, settle


@workflow(name="tests.triggers.greets")
def greets(ctx: Context, pk: int) -> int:
    return ctx.step("greet", lambda: pk)


@workflow(name="tests.triggers.waits")
def waits(ctx: Context, number: int = 0) -> None:
    ctx.queue.next("answer")


@workflow(name="tests.triggers.deletes")
def deletes(ctx: Context, pk: int) -> str:
    ctx.step("delete", lambda: Group.objects.filter(pk=pk).delete()[0], atomic=True)
    return "deleted"


class Fault(Exception):
    """The transaction is rolled back."""


@pytest.fixture
def group(at: Runtime) -> Group:
    """A group whose deletion cancels runs about it."""
    triggers.on_delete(Group)
    return Group.objects.create(name="a")


def runs_about(instance: Any) -> list[tuple[str, str]]:
    return [(run.workflow, run.state) for run in Run.objects.about(instance)]


# -- saves


def test_a_new_row_starts_a_run_about_it_in_the_transaction_of_the_save(at: Runtime) -> None:
    triggers.on_save(Group, greets)
    with pytest.raises(Fault), transaction.atomic():  # noqa: PT012  # what is rolled back
        Group.objects.create(name="a")
        assert Run.objects.of_workflow(greets).exists()
        raise Fault
    assert not Run.objects.of_workflow(greets).exists()
    group = Group.objects.create(name="a")
    group.save()  # not a new row
    assert runs_about(group) == [("tests.triggers.greets", "pending")]
    settle()
    [run] = Run.objects.about(group)
    assert get_run(run.id).output == group.pk


def test_the_condition_gets_the_instance_and_whether_it_is_new(at: Runtime) -> None:
    seen = []

    def is_wanted(group: Group, created: bool) -> bool:
        seen.append((group.name, created))
        return group.name == "wanted"

    triggers.on_save(
        Group,
        waits.using(tags={"by": "trigger"}),
        when=is_wanted,
        key=lambda group: f"group-{group.pk}",
        arguments=lambda group: (group.pk,),
    )
    group = Group.objects.create(name="other")
    group.name = "wanted"
    group.save()
    group.save()  # its run is open
    assert seen == [("other", True), ("wanted", False), ("wanted", False)]
    [run] = Run.objects.about(group)
    assert waits.open_run(key=f"group-{group.pk}") == get_run(run.id)
    assert get_run(run.id).tags == {"by": "trigger"}


@pytest.mark.parametrize(
    "when",
    [
        lambda group: group.name == "wanted",
        lambda *given: given[0].name == "wanted" and given[1],
        attrgetter("name"),
        methodcaller("__getattribute__", "name"),
    ],
    ids=["1", "2", "attrgetter", "methodcaller"],
)
def test_a_condition_may_take_the_instance_alone(at: Runtime, when: Callable[..., bool]) -> None:
    triggers.on_save(Group, greets, when=when)
    other, wanted = Group.objects.create(name=""), Group.objects.create(name="wanted")
    assert runs_about(other) == []
    assert runs_about(wanted) == [(greets.name, "pending")]


def test_what_sends_no_signal_and_fixtures_start_nothing(at: Runtime, tmp_path: Path) -> None:
    triggers.on_save(Group, greets, when=lambda _group, _created: True)
    [group] = Group.objects.bulk_create([Group(name="bulk")])
    Group.objects.filter(pk=group.pk).update(name="updated")
    data = [{"model": "auth.group", "pk": 1_000, "fields": {"name": "raw", "permissions": []}}]
    fixture = tmp_path / "groups.json"
    fixture.write_text(json.dumps(data))
    call_command("loaddata", str(fixture), verbosity=0)
    assert Group.objects.filter(name="raw").exists()
    assert not Run.objects.of_workflow(greets).exists()


def test_a_proxy_of_the_model_starts_runs_and_another_model_does_not(at: Runtime) -> None:
    triggers.on_save(Group, greets)
    Permission.objects.first().save()  # type: ignore[union-attr]  # there are some
    assert not Run.objects.of_workflow(greets).exists()
    with pytest.raises(TypeError, match="takes a model first"):
        triggers.on_save(greets, greets)  # type: ignore[arg-type]  # what is tested


def test_an_error_of_the_condition_fails_the_save(at: Runtime) -> None:
    def fails(_group: Group, _created: bool) -> bool:
        raise Fault

    triggers.on_save(Group, greets, when=fails)
    with pytest.raises(Fault):
        Group.objects.create(name="a")


def test_a_trigger_starts_runs_of_a_harness(transactional_db: None) -> None:
    triggers.on_save(Group, greets.using(id="from-trigger"))
    with Harness() as h:
        group = Group.objects.create(name="a")
        h.settle()
        assert get_run("from-trigger").output == group.pk
        with pytest.raises(RunsInMemoryError):
            Run.objects.about(group).exists()


# -- deletions


def test_a_deleted_instance_leaves_its_runs(at: Runtime) -> None:
    group = Group.objects.create(name="a")
    run = waits.using(about=group).start()
    triggers.on_delete(Group)
    group.delete()
    assert run.state == "pending"
    assert [str(each) for each in at.store.subjects([run.id])[run.id]]


def test_a_deletion_cancels_open_runs_in_its_transaction(at: Runtime, group: Group) -> None:
    other = Group.objects.create(name="b")
    how = waits.using(when_deleted="cancel")
    waiting, begun, ended = (how.using(about=group).start() for _ in range(3))
    both, stays = how.using(about=[other, group]).start(), how.using(about=other).start()
    passed(at, waiting.id)
    ended.cancel()
    pk = group.pk
    with pytest.raises(Fault), transaction.atomic():  # noqa: PT012  # what is rolled back
        group.delete()
        assert waiting.state == "cancelled"
        raise Fault
    assert waiting.state == "sleeping"
    Group.objects.get(pk=pk).delete()
    assert [run.state for run in (waiting, begun, both, stays)] == ["cancelled"] * 3 + ["pending"]
    assert waiting.summary == f"cancelled: group {pk} was deleted"
    [row] = OperatorAction.objects.filter(run_id=waiting.id)
    assert (row.action, row.source, row.reason) == ("cancel", "code", f"group {pk} was deleted")


def test_who_may_delete_need_not_be_allowed_to_cancel(group: Group) -> None:
    run = waits.using(about=group, when_deleted="cancel").start()
    with acting_as(Actor("api", user=User.objects.create(username="ada"))):
        group.delete()
    assert run.state == "cancelled"


def test_deletions_of_many_and_cascades_cancel(at: Runtime, orders: Orders) -> None:
    for model in (Group, Review):
        triggers.on_delete(model)
    groups = Group.objects.bulk_create([Group(name=str(number)) for number in range(3)])
    runs = [waits.using(about=group, when_deleted="cancel").start() for group in groups]
    [order] = orders(1)
    review = Review.objects.create(order=order, stars=5)
    runs.append(waits.using(about=review, when_deleted="cancel").start())
    with CaptureQueriesContext(connection) as queries:
        Group.objects.all().delete()
    assert (
        len([each for each in queries if each["sql"].startswith("SELECT") and "durable_runsubject" in each["sql"]]) == 1
    )
    order.delete()  # and its review
    assert [run.state for run in runs] == ["cancelled"] * 4


def test_a_queryset_that_deletes_again_cancels_again(at: Runtime) -> None:
    triggers.on_delete(Group)
    old, runs = Group.objects.filter(name__startswith="old"), []
    for number in range(2):
        group = Group.objects.create(name=f"old {number}")
        runs.append(waits.using(about=group, when_deleted="cancel").start())
        old.delete()
    assert [run.state for run in runs] == ["cancelled"] * 2


def test_an_instance_whose_deletion_was_rolled_back_is_deleted_again(group: Group) -> None:
    how, pk = waits.using(about=group, when_deleted="cancel"), group.pk
    runs = [how.start()]
    with pytest.raises(Fault), transaction.atomic():  # noqa: PT012  # what is rolled back
        group.delete()
        raise Fault
    group.pk = pk
    runs.append(how.start())
    group.delete()
    assert [run.state for run in runs] == ["cancelled"] * 2


def test_raw_deletions_cancel_nothing(group: Group) -> None:
    run = waits.using(about=group, when_deleted="cancel").start()
    Group.objects.filter(pk=group.pk)._raw_delete("default")
    assert run.state == "pending"


def test_a_run_that_deletes_what_it_is_about_is_not_cancelled(at: Runtime, group: Group) -> None:
    run = deletes.using(about=group, when_deleted="cancel").start(group.pk)
    other = waits.using(about=group, when_deleted="cancel").start()
    passed(at, run.id)
    assert (run.state, run.output) == ("completed", "deleted")
    assert other.state == "cancelled"


def test_a_start_follows_deletions_and_says_that_other_processes_do_not(
    at: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group.objects.create(name="a")
    with caplog.at_level(logging.WARNING, logger="durable.operations"):
        run = waits.using(about=group, when_deleted="cancel").start()
        waits.using(about=group, when_deleted="cancel").start()
    [said] = [each.getMessage() for each in caplog.records if "on_delete" in each.getMessage()]
    assert "write durable.triggers.on_delete(Group) into a module `workflows`" in said
    group.delete()
    assert run.state == "cancelled"


def test_models_that_no_run_follows_are_deleted_as_before(at: Runtime) -> None:
    triggers.on_delete(Review)
    groups = [Group.objects.create(name=str(number)) for number in range(3)]
    waits.using(about=groups).start()
    with CaptureQueriesContext(connection) as queries:
        Group.objects.filter(pk__in=[each.pk for each in groups]).delete()
    assert not [each for each in queries if "durable" in each["sql"]]


def test_a_harness_cancels_runs_about_what_is_deleted(transactional_db: None) -> None:
    triggers.on_delete(Group)
    group = Group.objects.create(name="a")
    with Harness() as h:
        run = h.start(waits.using(about=group, when_deleted="cancel"))
        h.settle()
        group.delete()
        assert run.state == "cancelled"
