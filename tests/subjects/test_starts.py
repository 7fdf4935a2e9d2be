"""Runs about instances of models: what is stored, what is found, what copies and children inherit."""

from __future__ import annotations

import io
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from durable import Context, get_run, workflow
from durable.core.new_runs import Subject
from durable.histories import Values, written_history
from durable.models import Run, RunSubject
from durable.operations.prune import prune
from durable.retention import Policy
from durable.runtime import Runtime
from durable.shortcuts import aruns_of, runs_of
from durable.testing import Harness
from tests.subjects.conftest import Orders
from tests.support.stores import passed, settle


@workflow(name="tests.subjects.one")
def one(ctx: Context, number: int = 0) -> int:
    return ctx.step("one", lambda: number)


@workflow(name="tests.subjects.waits")
def waits(ctx: Context) -> None:
    ctx.queue.next("answer")


@workflow(name="tests.subjects.family")
def family(ctx: Context, group_pk: int) -> None:
    group = f"auth.group:{group_pk}"
    ctx.child("about", one.using(about=group), 1)
    ctx.child("plain", one, 2)
    ctx.map("all", one.using(about=group), [(3,), (4,)], at_once=1)


def about(what: Any) -> list[str]:
    return [run.id for run in Run.objects.about(what)]


def stored(at: Runtime, run_id: str) -> list[str]:
    return [str(each) for each in at.store.subjects([run_id]).get(run_id, [])]


def test_runs_are_found_by_what_they_are_about(at: Runtime, orders: Orders) -> None:
    first, second, third = orders(3)
    for run_id, what in (("r0", first), ("r1", [first, second]), ("r2", [])):
        one.using(id=run_id, about=what).start()
    one.using(id="plain").start()
    assert about(first) == ["r1", "r0"]
    assert about(second) == ["r1"]
    assert about(third) == about([]) == []
    assert about([first, second]) == about(type(first).objects.filter(pk__in=[first.pk, second.pk])) == ["r1", "r0"]
    assert [run.id for run in Run.objects.about(first).about(second)] == ["r1"]
    assert [run.id for run in Run.objects.about(first).open().filter(id="r0")] == ["r0"]
    assert [run.id for run in Run.objects.about(first) & Run.objects.about(second)] == ["r1"]
    assert [run.id for run in Run.objects.about(second) | Run.objects.filter(id="plain")] == ["plain", "r1"]
    assert Run.objects.about(first).count() == 2
    assert stored(at, "r1") == [f"shop.order:{first.pk}", f"shop.order:{second.pk}"]


def test_runs_with_tags_are_found_by_what_they_are_about_too(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    one.using(id="both", about=order, tags={"tenant": "acme"}).start()
    one.using(id="about", about=order).start()
    assert [run.id for run in Run.objects.about(order).tagged(tenant="acme")] == ["both"]
    assert [run.id for run in Run.objects.tagged(tenant="acme").about(order)] == ["both"]


@isolate_apps("project.shop")
def test_keys_of_all_types_and_models_that_derive_are_kept_as_text() -> None:
    class Parcel(models.Model):  # noqa: DJ008  # of no table
        id = models.UUIDField(primary_key=True, default=uuid.uuid4)

        class Meta:
            app_label = "shop"

    class Express(Parcel):  # noqa: DJ008
        class Meta:
            app_label = "shop"

    class Lost(Parcel):  # noqa: DJ008
        class Meta:
            app_label = "shop"
            proxy = True

    from durable.models.subjects import checked_subjects

    def read(instance: models.Model) -> str:
        instance._state.adding = False
        [found] = checked_subjects(instance)
        return str(found)

    known = uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert read(Parcel(id=known)) == f"shop.parcel:{known}"
    assert read(Lost(id=known)) == f"shop.parcel:{known}"
    assert read(Express(id=known, parcel_ptr_id=known)) == f"shop.express:{known}"
    assert read(Session(session_key="a key: with / signs 🎉")) == "sessions.session:a key: with / signs 🎉"
    assert read(Group(pk=-7)) == "auth.group:-7"


def test_an_instance_written_as_text_is_the_same_one(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    one.using(id="text", about=f"shop.Order:0{order.pk}").start()
    assert about(order) == ["text"]


def test_a_text_key_is_kept_whole(at: Runtime) -> None:
    session = Session.objects.create(session_key="é🎉 " + "k" * 36, session_data="", expire_date=timezone.now())
    one.using(id="r", about=session).start()
    assert about(session) == ["r"]
    assert runs_of([session])[session.pk][0].id == "r"


def test_what_no_run_can_be_about_is_refused_before_anything_is_stored(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (type(order)(), ValueError, "not saved"),
        (type(order)(pk=7), ValueError, "not saved"),
        ([order, None], TypeError, "an instance of a model"),
        (type(order), TypeError, "an instance of a model"),
        (42, TypeError, "an instance of a model"),
        ({"order": order}, TypeError, "an instance of a model"),
        ("order 42", ValueError, "app.model:key"),
        ("shop.order:x", ValueError, "no primary key"),
        ([Group(pk=number) for number in range(3)], ValueError, "not saved"),
        ([f"shop.order:{number}" for number in range(101)], ValueError, "at most 100"),
    ]
    for what, error, words in wrong:
        with pytest.raises(error, match=words):
            one.using(about=what)
    with pytest.raises(ValueError, match="not saved"):
        Run.objects.about(type(order)())
    with pytest.raises(TypeError, match="an instance of a model"):
        Run.objects.about("shop.order:1")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="needs about"):
        one.using(when_deleted="cancel").start()
    with pytest.raises(ValueError, match="when_deleted is one of"):
        one.using(about=order, when_deleted="later")  # type: ignore[arg-type]  # what is tested
    assert not RunSubject.objects.filter(model="shop.order").exists()


def test_a_start_and_what_it_is_about_are_one_transaction(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)

    class Fault(Exception):
        pass

    with pytest.raises(Fault), transaction.atomic():  # noqa: PT012  # what is rolled back
        one.using(about=order).start()
        assert Run.objects.about(order).exists()
        raise Fault
    assert not RunSubject.objects.filter(model="shop.order").exists()
    one.using(id="r", about=order).start()
    one.using(id="r", about=order).start()  # the same run
    assert RunSubject.objects.filter(model="shop.order").count() == 1


def test_many_starts_and_starts_with_a_key_have_it(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    one.using(about=order).start_many([(number,) for number in range(3)])
    first = waits.using(about=order, key="k").start()
    assert waits.using(about=order, key="k").start() == first
    assert Run.objects.about(order).count() == 4
    with CaptureQueriesContext(connection) as queries:
        one.start()
    assert not [each for each in queries if "runsubject" in each["sql"]]


def test_a_restart_and_a_replay_are_about_the_same_and_a_child_is_not(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    group = Group.objects.create(name="g")
    run = one.using(id="r", about=order, when_deleted="cancel").start()
    passed(at, "r")
    again, replay = run.restart(), run.replay("one")
    assert at.store.subjects([again.id, replay.id]) == {
        each.id: [Subject("shop.order", str(order.pk), cancels=True)] for each in (again, replay)
    }
    parent = family.using(id="p", about=order).start(group.pk)
    settle()
    assert parent.state == "completed"
    assert [get_run(each).parent for each in about(group)] == [parent] * 3
    assert set(about(order)) == {"r", "p", again.id, replay.id}


def test_a_harness_keeps_what_runs_are_about_in_memory(db: None) -> None:
    group = Group.objects.create(name="g")
    with Harness() as h:
        run = h.start(family.using(about=group, when_deleted="cancel"), group.pk)
        h.settle()
        from durable import runtime

        store = runtime.current().store
        assert [str(each) for each in store.subjects([run.id])[run.id]] == [f"auth.group:{group.pk}"]
        children = [each.id for each in run.children()]
        assert sorted(store.subjects(children)) == sorted(each for each in children if ":plain" not in each)


def test_pruned_runs_leave_nothing(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    for run_id in ("a", "b"):
        one.using(id=run_id, about=order).start()
    passed(at, "a")
    prune(Policy.of(timedelta(microseconds=1)))
    assert about(order) == ["b"]
    assert RunSubject.objects.filter(model="shop.order").count() == 1


def test_an_imported_run_is_about_the_same(at: Runtime, orders: Orders, tmp_path: Path) -> None:
    [order] = orders(1)
    run = one.using(id="a", about=[order, Group.objects.create(name="g")]).start()
    passed(at, "a")
    for number, values in enumerate((Values.STORED, Values.REDACTED)):
        path = tmp_path / str(values)
        path.write_text("\n".join(written_history(run.id, values)) + "\n", encoding="utf-8")
        if values is Values.STORED:
            call_command("durable", "import", str(path), "--as-prefix", f"{number}-", stdout=io.StringIO())
            assert stored(at, f"{number}-a") == stored(at, "a")
            assert set(about(order)) == {f"{number}-a", "a"}
        assert f'"subjects":[["shop.order","{order.pk}",false]' in path.read_text(encoding="utf-8")


def test_the_runs_of_a_page_are_one_query(at: Runtime, orders: Orders) -> None:
    page = orders(5)
    for number, order in enumerate(page[:4]):
        for each in range(number * 5):
            one.using(id=f"{number}-{each:02}", about=order).start()
    waits.using(id="waits", about=[page[0], page[1]]).start()
    for run_id in ("1-03", "1-04", "waits"):
        passed(at, run_id)
    for run_id in ("later-0", "later-1"):
        one.using(id=run_id, about=page[1]).start()
        passed(at, run_id)
    with CaptureQueriesContext(connection) as queries:
        found = runs_of(page, most=4)
    assert len(queries) == 1
    assert {pk: [run.id for run in runs] for pk, runs in found.items()} == {
        page[0].pk: ["waits"],
        page[1].pk: ["waits", "1-02", "1-01", "1-00"],  # the open ones first
        page[2].pk: [f"2-{each:02}" for each in (9, 8, 7, 6)],
        page[3].pk: [f"3-{each:02}" for each in (14, 13, 12, 11)],
        page[4].pk: [],
    }
    with CaptureQueriesContext(connection) as queries:
        assert found[page[0].pk][0].summary == "waiting for a message in answer"
        assert found[page[0].pk][0].state == "sleeping"
    assert not queries
    assert [run.id for run in runs_of(page)[page[1].pk]] == [
        "waits",
        "1-02",
        "1-01",
        "1-00",
        "later-1",
        "later-0",
        "1-04",
        "1-03",
    ]
    assert runs_of([]) == runs_of(User.objects.none()) == {}
    with pytest.raises(TypeError, match="of one model"):
        runs_of([page[0], Group.objects.create(name="g")])


async def test_the_runs_of_a_page_from_async_code(transactional_db: None) -> None:
    assert await aruns_of([]) == {}
