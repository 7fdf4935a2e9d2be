"""Whatever ends a child, on every surface: its parent is woken, its children are ended, and its key is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from durable import Context, CriticalError, get_run, workflow
from durable.conf import conf
from durable.inspection.explanation import explain_fully
from durable.models import Cascade, Child, Run, RunKey
from durable.operations import Actor, acting_as, bulk
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, printed, text_of, url

CODE: list[str] = []


@pytest.fixture(autouse=True)
def the_same_code() -> Iterator[None]:
    CODE[:] = ["as it was"]
    yield
    CODE.clear()


@workflow(name="tests.ends.leaf")
def leaf(ctx: Context) -> None:
    ctx.queue.next("never")


@workflow(name="tests.ends.middle")
def middle(ctx: Context) -> str:
    ctx.start_child("leaf", leaf)
    if CODE == ["diverged"]:
        ctx.step("another", str)
    ctx.queue.next("go")
    if CODE == ["failed"]:
        raise CriticalError("no")
    if CODE == ["mistaken"]:
        raise NameError("no")
    return "done"


@workflow(name="tests.ends.top")
def top(ctx: Context) -> str:
    return ctx.child("c", middle)


def by_admin(_stage: Stage, client: Client) -> None:
    assert confirm(client, url("act", "p:c", "cancel"), reason="r").status_code == 302


def by_rest(_stage: Stage, client: Client) -> None:
    answer = client.post("/api/runs/p:c/cancel", data=b"{}", content_type="application/json")
    assert answer.status_code == 200, answer.content


def by_command(_stage: Stage, _client: Client) -> None:
    printed("cancel", "p:c", "--reason", "r", "--yes")


def by_python(_stage: Stage, _client: Client) -> None:
    get_run("p:c").cancel("enough")


def by_bulk(_stage: Stage, _client: Client) -> None:
    with acting_as(Actor("admin", User(username="root", is_superuser=True)), reason="r"):
        bulk.apply("cancel", ["p:c"], expected=1)


def by_request(stage: Stage, _client: Client) -> None:
    """A cancel that its worker carries out."""
    record = stage.claim("p:c")
    get_run("p:c").cancel("enough")
    assert get_run("p:c").state == "running"
    Run.objects.filter(pk="p:c").update(lease_expires_at=stage.now, wake_at=stage.now)
    assert record is not None
    stage.run("p:c")


def by_crashes(stage: Stage, _client: Client) -> None:
    Run.objects.filter(pk="p:c").update(crashes=conf.MAX_CRASHES)
    stage.run("p:c")


def in_other_code(code: str) -> Callable[[Stage, Client], None]:
    def end(stage: Stage, _client: Client) -> None:
        CODE[:] = [code]
        get_run("p:c").send("go")
        stage.run("p:c")
        if get_run("p:c").state != "failed" and code != "as it was":
            stage.advance(seconds=conf.DIVERGENCE_GRACE + 60)
            stage.run("p:c")

    return end


ENDS: dict[str, tuple[Callable[[Stage, Client], Any], str]] = {
    "admin": (by_admin, "cancelled"),
    "REST": (by_rest, "cancelled"),
    "command": (by_command, "cancelled"),
    "python": (by_python, "cancelled"),
    "bulk": (by_bulk, "cancelled"),
    "request": (by_request, "cancelled"),
    "crash limit": (by_crashes, "failed"),
    "return": (in_other_code("as it was"), "completed"),
    "failure": (in_other_code("failed"), "failed"),
    "mistake": (in_other_code("mistaken"), "failed"),
    "divergence": (in_other_code("diverged"), "failed"),
}


@pytest.mark.parametrize("name", ENDS)
def test_each_end_wakes_the_parent_ends_the_children_and_frees_the_key(
    stage: Stage, operator: Client, name: str
) -> None:
    end, state = ENDS[name]
    stage.start(top, id="p")
    stage.settle("p:c")
    stage.settle("p:c:leaf")
    RunKey.objects.create(run_id="p:c", workflow="tests.ends.middle", key="k", taken_at=stage.now)
    holder = middle.open_run(key="k")
    assert holder is not None
    assert holder.id == "p:c"
    assert get_run("p").wake_at is None
    end(stage, operator)
    assert (get_run("p:c").state, get_run("p:c:leaf").state) == (state, "cancelled")
    assert get_run("p").wake_at == Run.objects.get(pk="p:c").finished_at
    assert middle.open_run(key="k") is None
    assert middle.using(key="k", if_open="error").start().is_new
    parent = stage.run("p")
    assert parent.state == ("completed" if state == "completed" else "failed")


def test_it_says_how_many_children_are_left_to_be_cancelled(stage: Stage, operator: Client) -> None:
    given = {"workflow": "w", "queue": "q", "input": "[]", "created_at": stage.now}
    ended = Run.objects.create(id="p", state="completed", finished_at=stage.now, **given)
    for number, when in enumerate(("cancel", "cancel", "cancel", "leave")):
        child = Run.objects.create(id=f"left {number}", parent=ended, **given)
        Child.objects.create(run=child, parent=ended, location="x", when_parent_ends=when, position=number)
    Cascade.objects.create(run=ended, began_at=stage.now)

    def told() -> str:
        return explain_fully(Run.objects.select_related("cascade").get(pk="p"), stage.now).detail

    assert told().startswith("3 of its children are left to be cancelled")
    get_run("left 0").cancel()
    Run.objects.filter(pk="left 1").update(pending_request="cancel")
    assert "3 of its children" not in text_of(operator.get(url("change", "p")))
    assert "1 of its children is left" in text_of(operator.get(url("change", "p")))
    assert told().startswith("1 of its children is left")
    Cascade.objects.all().delete()
    assert told() == ""
