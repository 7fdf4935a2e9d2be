"""`durable forget`: ended runs about one thing are deleted with their children, open ones are named, and what stays."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command

from durable import Context, get_run, workflow
from durable.models import Entry, OperatorAction, Run, RunSubject
from durable.operations.audit import Actor, OperationDeniedError, acting_as
from durable.operations.prune import forget
from durable.runtime import Runtime
from tests.subjects.conftest import Orders
from tests.support.stores import passed, settle


@workflow(name="tests.forget.one")
def one(ctx: Context, number: int = 0) -> int:
    return ctx.step("one", lambda: number)


@workflow(name="tests.forget.fails")
def fails(ctx: Context) -> None:
    def refuse() -> None:
        raise ConnectionError("no answer for ada@example.org")

    ctx.step("one", refuse, max_retries=0)


@workflow(name="tests.forget.waits")
def waits(ctx: Context) -> None:
    ctx.queue.next("answer")


@workflow(name="tests.forget.family")
def family(ctx: Context) -> list[int]:
    ctx.start_child("waits", waits.using(when_parent_ends="leave"))
    return ctx.map("all", one, [(1,), (2,)]).outputs


@pytest.fixture
def runs(at: Runtime, orders: Orders) -> list[Any]:
    """Ended and open runs about the first order, and one about another."""
    first, other = orders(2)
    one.using(id="done", about=first, tags={"tenant": "acme"}).start()
    fails.using(id="failed", about=first).start()
    family.using(id="family", about=first).start()
    one.using(id="of-another", about=other, tags={"tenant": "acme"}).start()
    settle()
    waits.using(id="open", about=first).start()
    passed(at, "open")
    with acting_as(Actor("cli")):
        get_run("open").pause()
    get_run("done").restart(id="again")
    settle()
    return [first, other]


def ids() -> set[str]:
    return set(Run.objects.filter(workflow__startswith="tests.forget").values_list("id", flat=True))


def told(*arguments: str) -> str:
    out = io.StringIO()
    try:
        call_command("durable", "forget", *arguments, stdout=out)
    except CommandError as error:
        out.write(str(error))
    except SystemExit as end:
        out.write(f"[{end.code}]")
    return out.getvalue()


CHILDREN = {"family:all:0", "family:all:1"}


def test_ended_runs_and_their_children_are_deleted_and_open_ones_are_named(runs: list[Any]) -> None:
    before = ids()
    found = forget(about=f"shop.order:{runs[0].pk}")
    assert set(found.ended) == before - {"of-another", "open", "family:waits"}
    assert sorted(found.open) == ["family:waits", "open"]
    assert found.kept == []
    assert found.pruned.runs == len(found.ended) >= 6
    assert ids() == {"of-another", "open", "family:waits"}
    assert not Entry.objects.filter(run_id="done").exists()
    assert set(RunSubject.objects.filter(model="shop.order").values_list("run_id", flat=True)) == {"of-another", "open"}
    [row] = OperatorAction.objects.filter(action="forget")
    assert row.detail == f"{found.pruned.runs} runs about shop.order:{runs[0].pk}; 2 are open"


def test_a_trial_deletes_nothing_and_says_what_stays(runs: list[Any]) -> None:
    before = ids()
    word = f"shop.order:{runs[0].pk}"
    text = told("--about", word, "--dry-run")
    assert ids() == before
    assert not OperatorAction.objects.filter(action="forget").exists()
    assert "  done\n" in text
    assert "2 runs open, and not deleted" in text
    assert "  open\n" in text
    assert "rows of the audit log" in text
    assert "1 causes with the texts of errors" in text
    assert "backups" in text
    data = json.loads(told("--about", word, "--dry-run", "-o", "json"))
    assert set(data["open"]) == {"open", "family:waits"}
    assert data["deleted"]["runs"] == 0
    assert data["rows"]["causes with the texts of errors"] == 1
    assert {"done", "failed", "family", "again"} < set(data["ended"])


def test_runs_are_forgotten_by_their_tags(runs: list[Any]) -> None:
    told("--tag", "tenant=acme", "--yes")
    assert not ids() & {"done", "of-another", "again"}
    assert {"failed", "open"} < ids()
    told("--tag", "tenant=acme", "--about", f"shop.order:{runs[0].pk}", "--yes")
    assert "failed" in ids()


def test_the_command_asks_and_refuses_what_is_unclear(runs: list[Any]) -> None:
    before = ids()
    assert "say which runs" in told()
    assert "app.model:key" in told("--about", "order 7", "--yes")
    assert "then say --yes" in told("--about", f"shop.order:{runs[0].pk}")
    assert ids() == before
    text = told("--about", f"shop.order:{runs[0].pk}", "--yes")
    assert "2 runs open, and not deleted" in text
    assert "are gone" in text


def test_forgetting_needs_the_permission_to_delete_runs(runs: list[Any]) -> None:
    user = User.objects.create(username="ada")
    before = ids()
    with pytest.raises(OperationDeniedError, match="delete_run"), acting_as(Actor("cli", user=user)):
        forget(about=f"shop.order:{runs[0].pk}")
    assert ids() == before
    assert OperatorAction.objects.get(action="forget").outcome == "denied"
    user.user_permissions.add(Permission.objects.get(codename="delete_run"))
    with acting_as(Actor("cli", user=User.objects.get(pk=user.pk)), reason="erasure request 9"):
        forget(about=f"shop.order:{runs[0].pk}")
    assert OperatorAction.objects.get(action="forget", outcome="done").reason == "erasure request 9"
